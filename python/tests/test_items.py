"""Several items in one checkpoint: ours, Orbax', and each other's."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_same, same_bits

import regrow
from regrow._save._items import ItemsSave


@pytest.fixture
def quiet() -> Iterator[None]:
    """Orbax warns of every item that it is not asked for."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def tree(seed: int = 0) -> dict[str, Any]:
    return {"w": np.arange(12, dtype=np.float32).reshape(3, 4) + seed, "t": (1, "text"), "none": None}


def jax_tree(seed: int = 0) -> dict[str, Any]:
    return {"k": [1, 2.5], "n": np.arange(5, dtype=np.int16), "w": jnp.arange(12.0).reshape(3, 4) + seed}


def assert_restored(restored: Any, expected: Any) -> None:
    assert jax.tree.structure(restored) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(restored), jax.tree.leaves(expected), strict=True):
        assert type(left) is type(right)
        assert same_bits(left, right)


ITEMS = {
    "state": tree(),
    "ema": tree(1),
    "config": regrow.Json({"width": 3, "betas": [0.9, 0.999], "name": "ünï"}),
    "iterator": regrow.Files({"process_0.json": b'{"at": 1}', "deep/er": "text"}),
}


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_items_load_as_saved(where: str, tmp_path: Path) -> None:
    root = str(tmp_path / "run") if where == "disk" else "memory://items/run"
    for step in (1, 2):
        report = regrow.save_items(f"{root}/{step}", ITEMS, metrics={"loss": 0.5 * step}, metadata={"by": "me"})
    assert report.leaf_count == 6
    loaded = regrow.load_items(root)
    assert sorted(loaded) == ["config", "ema", "iterator", "metrics", "state"]
    assert loaded["metrics"] == {"loss": 1.0}
    assert_same(loaded["config"], {"width": 3, "betas": [0.9, 0.999], "name": "ünï"})
    assert loaded["iterator"]["process_0.json"] == b'{"at": 1}'
    assert loaded["iterator"]["deep/er"] == b"text"
    assert regrow.load_items(root, ["config"], step=1) == {"config": loaded["config"]}
    like = regrow.load_items(root, {"state": tree(), "config": None})
    assert_same(like["state"], tree())
    assert_same(loaded["ema"], tree(1))
    opened = regrow.open(f"{root}/2")
    assert (opened.metrics, opened.metadata) == ({"loss": 1.0}, {"by": "me"})
    assert regrow.verify(root).ok
    regrow.save(f"{root}/3", tree())
    with pytest.raises(regrow.errors.NotFoundError, match="has no items"):
        regrow.load_items(root)
    with pytest.raises(regrow.errors.NotFoundError, match="the items are: config, ema, iterator, metrics, state"):
        regrow.load_items(root, ["stat"], step=2)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("options", [{}, {"layout": "orbax"}], ids=["regrow", "orbax"])
def test_orbax_restores_what_we_save(options: dict[str, Any], tmp_path: Path) -> None:
    import orbax.checkpoint as ocp

    items = {"state": jax_tree(), "ema": jax_tree(1), "config": regrow.Json({"a": [1, float("nan")]})}
    for step, loss in ((1, 0.25), (2, 0.5)):
        regrow.save_items(tmp_path / str(step), items, metrics={"loss": loss}, metadata={"m": 1}, **options)
    best = ocp.CheckpointManagerOptions(best_fn=lambda metrics: -metrics["loss"])
    args = ocp.args.Composite(
        state=ocp.args.PyTreeRestore(), ema=ocp.args.StandardRestore(jax_tree()), config=ocp.args.JsonRestore()
    )
    with ocp.CheckpointManager(tmp_path, options=best) as manager:
        assert (manager.all_steps(), manager.best_step(), manager.metrics(2)) == ([1, 2], 1, {"loss": 0.5})
        assert manager.metadata(2).custom_metadata == {"m": 1}
        restored = manager.restore(2, args=args)
        assert_restored(restored["state"], jax_tree())
        assert_restored(restored["ema"], jax_tree(1))
        assert str(restored["config"]) == str({"a": [1, float("nan")]})
    with ocp.CheckpointManager(tmp_path) as manager:
        # What each item is stands in the checkpoint.
        assert_restored(manager.restore(2)["state"], jax_tree())
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler("state", "config")) as checkpointer:
        some = ocp.args.Composite(state=ocp.args.PyTreeRestore(), config=ocp.args.JsonRestore())
        assert_restored(checkpointer.restore(tmp_path / "1", args=some)["state"], jax_tree())


@pytest.mark.usefixtures("quiet")
def test_we_load_what_orbax_saves(tmp_path: Path) -> None:
    import orbax.checkpoint as ocp

    best = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    args = ocp.args.Composite(state=ocp.args.StandardSave(jax_tree()), config=ocp.args.JsonSave({"a": 1}))
    with ocp.CheckpointManager(tmp_path, options=best) as manager:
        manager.save(3, args=args, metrics={"loss": 0.5}, custom_metadata={"m": 1})
    loaded = regrow.load_items(tmp_path, {"state": jax_tree(), "config": None, "metrics": None})
    assert_restored(loaded, {"state": jax_tree(), "config": {"a": 1}, "metrics": {"loss": 0.5}})
    # The same names, with the same handlers.
    regrow.save_items(
        tmp_path / "4",
        {"state": jax_tree(), "config": regrow.Json({"a": 1})},
        metrics={"loss": 0.5},
        metadata={"m": 1},
        layout="orbax",
    )
    about = [json.loads((tmp_path / step / "_CHECKPOINT_METADATA").read_text()) for step in ("3", "4")]
    for each in about:
        each["item_handlers"] = {
            name: "tree" if "PyTree" in handler or "Standard" in handler else handler
            for name, handler in each["item_handlers"].items()
        }
    assert about[0]["item_handlers"] == about[1]["item_handlers"]
    assert about[0].keys() == about[1].keys()

    def files(step: str) -> list[str]:
        names = (file.relative_to(tmp_path / step) for file in (tmp_path / step).rglob("*"))
        return sorted(str(name) for name in names if len(name.name) < 32 and name.parts[-1] != "_sharding")

    ours, theirs = files("4"), files("3")
    assert ours == theirs


@pytest.mark.usefixtures("quiet")
def test_the_form_of_v1(tmp_path: Path) -> None:
    import orbax.checkpoint.experimental.v1 as v1

    items = {"state": jax_tree(), "config": regrow.Json({"a": 1})}
    regrow.save_items(tmp_path / "3", items, metrics={"loss": 1.0}, layout=regrow.layouts.Orbax(v1=True, zarr3=True))
    assert {"orbax.checkpoint", "config", "state"} <= set(os.listdir(tmp_path / "3"))
    loaded = v1.load_checkpointables(tmp_path / "3", {"state": jax_tree(), "config": None})
    assert_restored(loaded["state"], jax_tree())
    assert loaded["config"] == {"a": 1}
    assert_restored(regrow.load(tmp_path / "3", like=jax_tree(), at="state"), jax_tree())


def test_each_tree_as_it_is_asked_for(path: Path) -> None:
    regrow.save_items(
        path,
        {"state": tree(), "ema": tree(), "lora": {"w": np.ones(3, np.float32)}},
        cast="float16",
        item_options={"ema": {"layout": "orbax"}, "lora": {"layout": "safetensors", "cast": None}},
        durable=False,
    )
    opened = {name: regrow.open(path, at=name) for name in ("state", "ema", "lora")}
    assert {name: each.layout for name, each in opened.items()} == {
        "state": "regrow", "ema": "orbax", "lora": "safetensors"
    }  # fmt: skip
    assert [each["w"].dtype for each in opened.values()] == [np.float16, np.float16, np.float32]


def test_what_rests_is_linked(tmp_path: Path) -> None:
    frozen = {"w": np.arange(100_000, dtype=np.float32)}
    regrow.save_items(tmp_path / "1", {"frozen": frozen, "state": tree()})
    report = regrow.save_items(tmp_path / "2", {"frozen": frozen, "state": tree(1)}, base=tmp_path / "1")
    assert report.reused_bytes >= 400_000
    regrow.remove(tmp_path / "1")
    assert_same(regrow.load_items(tmp_path / "2")["frozen"], frozen)


def test_files_of_all_kinds(tmp_path: Path) -> None:
    (tmp_path / "own" / "deep").mkdir(parents=True)
    (tmp_path / "own" / "deep" / "x").write_bytes(b"x")

    def write(folder: Path) -> None:
        (folder / "y").write_bytes(b"y")

    for path in (str(tmp_path / "1"), "memory://item-files/1"):
        regrow.save_items(
            path,
            {
                "copied": regrow.Files(tmp_path / "own"),
                "written": regrow.Files(write, handler="some.Handler"),
                "one": regrow.Files(tmp_path / "own" / "deep" / "x"),
                "none": regrow.Files({}),
            },
        )
        loaded = regrow.load_items(path)
        assert loaded["copied"]["deep/x"] == loaded["one"]["x"] == b"x"
        assert loaded["written"]["y"] == b"y"
        assert loaded["none"].source == {}


def test_a_save_in_the_background_is_of_the_moment_of_the_call(tmp_path: Path) -> None:
    state = {"w": np.zeros(1000, np.float32)}
    iterator = [1]

    def write(folder: Path) -> None:
        (folder / "at").write_text(str(iterator[0]))

    for step in (1, 2):
        items = {"state": state, "iterator": regrow.Files(write), "config": regrow.Json({"step": step})}
        handle = regrow.save_items_async(tmp_path / str(step), items, metrics={"loss": 1}, when_busy="queue")
        state["w"] += 1
        iterator[0] += 1
    report = handle.result()
    assert report is not None
    assert report.leaf_count == 1
    for step in (1, 2):
        loaded = regrow.load_items(tmp_path, step=step)
        assert loaded["state"]["w"][0] == step - 1
        assert loaded["iterator"]["at"] == str(step).encode()
        assert loaded["config"] == {"step": step}


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "x").write_bytes(b"x")
        raise RuntimeError("no")

    for save in (regrow.save_items, regrow.save_items_async):
        with pytest.raises(RuntimeError, match=r"^no$"):
            save(tmp_path / "1", {"state": tree(), "own": regrow.Files(fail)})
        with pytest.raises(regrow.errors.LeafTypeError, match="item 'bad'"):
            save(tmp_path / "1", {"state": tree(), "bad": object()})
        with pytest.raises(regrow.errors.InvalidArgumentError, match=r"\.\./x"):
            save(tmp_path / "1", {"state": tree(), "../x": regrow.Json(1)})
    with pytest.raises(regrow.errors.UnsupportedError, match="pytree_data"):
        regrow.save_items(tmp_path / "1", {"state": tree()}, layout="pytree_data")
    with pytest.raises(regrow.errors.UnsupportedError, match="pytree_data"):
        regrow.save_items_async(tmp_path / "1", {"state": tree()}, layout="pytree_data").result()

    def stop(done: int, total: int) -> None:
        raise KeyError("stopped")

    with pytest.raises(KeyError, match="stopped"):
        regrow.save_items(tmp_path / "1", {"state": tree()}, progress=stop)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ({}, {}, "items"),
        ({"a": 1}, {"item_options": {"b": {}}}, r"item_options\['b'\]"),
        ({"a": 1}, {"item_options": {"a": {"overwrite": True}}}, "overwrite applies to all items"),
        ({"a": 1}, {"item_options": {"a": {"layuot": "x"}}}, "layuot"),
        ({"a": 1}, {"metrics": [1]}, "metrics"),
        ({"a": 1}, {"metadata": 1}, "metadata"),
    ],
)
def test_bad_arguments_are_named(items: Any, options: Any, message: str, path: Path) -> None:
    for save in (regrow.save_items, regrow.save_items_async):
        with pytest.raises((TypeError, ValueError), match=message):
            save(path, items, **options)
    assert not path.exists()
    with pytest.raises(regrow.errors.InvalidArgumentError, match="JSON"):
        regrow.Json({"a": object()})


def test_any_thread_adds_items(path: Path) -> None:
    with ItemsSave(path) as save:
        threads = [threading.Thread(target=save.tree, args=(f"item_{at}", tree(at))) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (save.folder("own") / "x").write_bytes(b"x")
        report = save.commit()
    assert report.leaf_count == 12
    loaded = regrow.load_items(path)
    assert all(float(loaded[f"item_{at}"]["w"][0, 0]) == at for at in range(4))
    with pytest.raises(regrow.errors.InvalidArgumentError, match="committed"):
        save.json("late", 1)


def test_all_processes_of_a_job_write_their_shards(tmp_path: Path) -> None:
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    reports: list[Any] = []

    def rank(number: int) -> None:
        job = regrow.jobs.Job(regrow.jobs.Folder(tmp_path / "meet", rank=number, size=2), timeout=60)
        array = regrow.jobs.ShardedArray((8, 8), [((4 * number, 0), whole[4 * number : 4 * number + 4])])
        items = {"state": {"w": array}, "config": regrow.Json({"a": 1})}
        reports.append(regrow.save_items(tmp_path / "run" / "1", items, job=job))

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 2
    loaded = regrow.load_items(tmp_path / "run")
    assert_same(loaded["state"], {"w": whole})
    assert loaded["config"] == {"a": 1}


@pytest.mark.parametrize("lost", ["iterator", "config", "state"])
def test_a_newest_step_that_lost_an_item_is_passed_over(tmp_path: Path, lost: str) -> None:
    """By a restore that takes the newest good step, whichever item is asked for."""
    with regrow.Manager(tmp_path) as steps:
        for step in (1, 2, 3):
            steps.save(
                step,
                items={
                    "state": {"w": np.full(4, step)},
                    "config": regrow.Json({"step": step}),
                    "iterator": regrow.Files({"position": str(step)}),
                },
            )
    shutil.rmtree(tmp_path / "3" / lost)
    for items in (["state"], ["config"], ["iterator"], ["state", "config", "iterator"]):
        with regrow.Manager(tmp_path) as steps, warnings.catch_warnings():
            warnings.simplefilter("ignore", regrow.errors.IncompleteCheckpointWarning)
            restored = steps.restore(items=items)
            assert steps.restored == 2, (items, steps.restored)
        if "state" in items:
            assert restored["state"]["w"].tolist() == [2] * 4
    with pytest.raises(regrow.RegrowError, match=lost), regrow.Manager(tmp_path) as steps:
        steps.restore(3, items=["state", "config", "iterator"])


def test_an_item_of_files_is_loaded_by_its_key_path(tmp_path: Path) -> None:
    files = regrow.Files({"a": b"1", "deep/b": "text"})
    regrow.save_items(tmp_path / "x", {"state": tree(), "files": files})
    loaded = regrow.load(tmp_path / "x", at="files")
    assert isinstance(loaded, regrow.Files)
    assert (loaded["a"], loaded["deep/b"]) == (b"1", b"text")
    with pytest.raises(regrow.errors.UnsupportedError, match=r"regrow\.load\(path, at='files'\)"):
        regrow.open(tmp_path / "x", at="files")
    for given in ({"like": tree()}, {"only": "a"}, {"cast": "float32"}):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="leave out all keywords but `at`"):
            regrow.load(tmp_path / "x", at="files", **given)


@pytest.mark.parametrize("others", [{}, {"config": regrow.Json({"a": 1})}, {"ema": {"w": np.zeros(2)}}])
def test_an_open_checkpoint_has_its_items_by_name(tmp_path: Path, others: dict[str, Any]) -> None:
    files = regrow.Files({"a": b"1"})
    regrow.save_items(tmp_path / "x", {"state": tree(), "files": files, **others})
    checkpoint = regrow.open(tmp_path / "x")
    assert checkpoint["files"]["a"] == b"1"
    assert_same(checkpoint["state"].load(), tree())
    assert_same(checkpoint["state/t"].load(), tree()["t"])
    assert checkpoint["state/w"][1:].shape == (2, 4)
    for name, wanted in others.items():
        assert_same(checkpoint[name].load(), wanted if name == "ema" else {"a": 1})
    # Items are names of the whole checkpoint only.
    for part in ("files", "state"):
        with pytest.raises(regrow.errors.LeafNotFoundError):
            checkpoint["state"][part]
        with pytest.raises(regrow.errors.LeafNotFoundError):
            regrow.open(tmp_path / "x", at="state")[part]
    with pytest.raises(
        regrow.errors.LeafNotFoundError, match=r"is files, not a pytree\n.*\n  help: .*checkpoint\['files'\]"
    ):
        checkpoint["files/a"]
    with pytest.raises(regrow.errors.LeafNotFoundError, match=r"the items are: .*files"):
        checkpoint["no_such"]

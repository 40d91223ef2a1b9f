"""Histories of calls, run once with `flax.training.checkpoints` and once with ours, each in a
folder of its own.

Results, types of errors and names in the folder must be the same after every call. What differs on
purpose stands in the guide (`docs/guide/flax.md`) and is left out here: steps that are no numbers,
`keep` below 0, steps spelled twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax.core import FrozenDict
from flax.training import checkpoints as theirs
from flax_trees import Stats

import regrow
from regrow.flax import checkpoints as ours

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("legacy_flax_files")]

Call = Callable[[Any, Path, Any], Any]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or the error it ends in."""
    try:
        return call()
    except Exception as error:
        return error


def assert_same_outcome(mine: Any, original: Any, where: str) -> None:
    """Equal values, or an error that `except` clauses for the original's catch."""
    if isinstance(original, Exception) or isinstance(mine, Exception):
        assert isinstance(mine, type(original)), f"{where}: {mine!r}, originally {original!r}"
        return
    if isinstance(original, str):
        assert os.path.basename(mine) == os.path.basename(original), where
        return
    assert jax.tree.structure(mine) == jax.tree.structure(original), f"{where}: {mine!r}, originally {original!r}"
    for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(original), strict=True):
        assert isinstance(one, jax.Array) == isinstance(other, jax.Array), f"{where}: {one!r}, originally {other!r}"
        assert np.array_equal(one, other), f"{where}: {one!r}, originally {other!r}"
        assert getattr(one, "sharding", None) == getattr(other, "sharding", None), where


def run_both(tmp_path: Path, history: list[tuple[str, Call]], checkpointers: dict[str, Any]) -> None:
    """Runs the calls one after the other in both packages."""
    for at, (text, call) in enumerate(history):
        outcomes = {}
        for name, package in (("theirs", theirs), ("ours", ours)):
            outcomes[name] = outcome(lambda: call(package, tmp_path / name, checkpointers[name]))  # noqa: B023
        where = f"call {at}, {text}"
        assert_same_outcome(outcomes["ours"], outcomes["theirs"], where)
        if not hasattr(checkpointers["ours"], "wait_until_finished") or text == "wait":
            listings = {name: sorted(os.listdir(tmp_path / name)) for name in outcomes if (tmp_path / name).exists()}
            assert listings.get("ours") == listings.get("theirs"), where


def state_of(step: float) -> dict[str, Any]:
    return {"step": step, "w": np.full(3, step, np.float32), "deep": {"b": np.arange(2), "none": None}}


# ---- files ----------------------------------------------------------------------------


def save(step: float, **options: Any) -> tuple[str, Call]:
    return f"save {step} {options}", lambda package, folder, _: package.save_checkpoint(
        folder, state_of(step), step, **options
    )


def save_multiprocess(step: float, **options: Any) -> tuple[str, Call]:
    return f"save_multiprocess {step} {options}", lambda package, folder, _: package.save_checkpoint_multiprocess(
        folder, state_of(step), step, **options
    )


def save_in_background(step: float, **options: Any) -> tuple[str, Call]:
    def call(package: Any, folder: Path, _: Any) -> Any:
        manager = package.AsyncManager()
        path = package.save_checkpoint(folder, state_of(step), step, async_manager=manager, **options)
        manager.wait_previous_save()
        return path

    return f"save in the background {step} {options}", call


def restore(target: Any, below: str = "", **options: Any) -> tuple[str, Call]:
    return f"restore {target!r} {below!r} {options}", lambda package, folder, _: package.restore_checkpoint(
        folder / below, target, **options
    )


def ask(name: str, **options: Any) -> tuple[str, Call]:
    return f"{name} {options}", lambda package, folder, _: getattr(package, name)(folder, **options)


TARGETS = [
    None,
    state_of(0),
    {"step": 0, "w": np.zeros(1)},
    {"unknown": 1},
    {"step": 0, "w": [1, 2]},
    FrozenDict(state_of(0)),
    Stats(0, 1),
    jax.tree.map(jnp.asarray, state_of(0)),
]


@pytest.mark.parametrize("seed", range(12))
def test_histories_of_files_are_the_same(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    pick = lambda *choices: choices[int(random.integers(len(choices)))]  # noqa: E731
    prefix = pick("checkpoint_", "m_", "model")
    step, history = 0.0, [restore(TARGETS[1]), restore(None, below="missing"), ask("latest_checkpoint")]
    for _ in range(30):
        step = int(step) + int(random.integers(-2, 5)) if random.random() < 0.9 else int(step) + 0.5
        options = {
            "prefix": prefix,
            "keep": int(random.integers(0, 4)),
            "overwrite": bool(random.random() < 0.3),
            "keep_every_n_steps": pick(None, 2, 5),
        }
        history.append(pick(save, save, save_multiprocess, save_in_background)(step, **options))
        target = TARGETS[int(random.integers(len(TARGETS)))]
        history.append(
            pick(
                restore(target, prefix=prefix, parallel=bool(random.random() < 0.5)),
                restore(target, prefix=prefix, step=step),
                restore(target, prefix=pick("other_", prefix)),
                restore(target, below=f"{prefix}{step}"),
                restore(target, below="missing", step=pick(None, 1)),
                ask("latest_checkpoint", prefix=prefix),
                ask("available_steps", prefix=prefix, step_type=float),
            )
        )
    run_both(tmp_path, history, {"ours": None, "theirs": None})


# ---- folders of Orbax, by Flax' switch ------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_histories_with_the_switch_on_are_the_same(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    pick = lambda *choices: choices[int(random.integers(len(choices)))]  # noqa: E731
    prefix = pick("checkpoint_", "m_")
    options = {"prefix": prefix, "keep": int(random.integers(0, 4)), "keep_every_n_steps": pick(None, 3)}
    step, history = 0, [restore(TARGETS[1]), ask("latest_checkpoint")]
    for _ in range(8):
        # Lower steps are left out: the original removes what it has just saved.
        step += int(random.integers(0, 3))
        way = pick(save, save, save_multiprocess)
        history.append(way(step, overwrite=bool(random.random() < 0.3), **options))
        history.append(restore(pick(state_of(0), {"w": np.zeros(2)}), prefix=prefix, step=pick(None, step, 99)))
        history.append(pick(ask("latest_checkpoint", prefix=prefix), ask("available_steps", prefix=prefix)))
    for target in (np.ones(2), 3, "text", {}, [], None):
        history.append((f"save {target!r}", lambda p, folder, _, target=target: p.save_checkpoint(folder, target, 98)))
    with flax.config.temp_flip_flag("use_orbax_checkpointing", True):
        run_both(tmp_path, history, {"ours": None, "theirs": None})


# ---- folders of Orbax, by a checkpointer ----------------------------------------------


def orbax_save(step: int, name: str = "save_checkpoint", **options: Any) -> tuple[str, Call]:
    return f"{name} {step} {options}", lambda package, folder, checkpointer: getattr(package, name)(
        folder, {"w": np.full((64, 64), step, np.float32)}, step, orbax_checkpointer=checkpointer, **options
    )


def orbax_restore(target: Any, **options: Any) -> tuple[str, Call]:
    def call(package: Any, folder: Path, checkpointer: Any) -> Any:
        return package.restore_checkpoint(folder, target, orbax_checkpointer=checkpointer, **options)

    return f"restore {options}", call


def wait() -> tuple[str, Call]:
    def call(_package: Any, _folder: Path, checkpointer: Any) -> None:
        if hasattr(checkpointer, "wait_until_finished"):
            checkpointer.wait_until_finished()

    return "wait", call


def checkpointers(is_async: bool) -> dict[str, Any]:
    """What the original leaves of asynchronous saves depends on how fast they are: ours have to
    leave what it leaves of saves that are waited for."""
    cls = ocp.AsyncCheckpointer if is_async else ocp.Checkpointer
    return {
        "ours": cls(ocp.PyTreeCheckpointHandler()),
        "theirs": ocp.Checkpointer(ocp.PyTreeCheckpointHandler()),
    }


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_histories_with_a_checkpointer_are_the_same(seed: int, is_async: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    target = {"w": np.zeros((64, 64), np.float32)}
    step, history = 0, [orbax_restore(target)]
    keep = int(random.integers(1, 4))
    every = [None, 3][int(random.integers(2))]
    name = ["save_checkpoint", "save_checkpoint", "save_checkpoint_multiprocess"][seed % 3]
    for _ in range(8):
        overwrite = bool(random.random() < 0.3)
        # Lower steps are left out: the original removes what it has just saved, or has in progress.
        step += int(random.integers(0, 3))
        history.append(orbax_save(step, name, keep=keep, overwrite=overwrite, keep_every_n_steps=every))
        if random.random() < 0.5:
            history.append(orbax_restore([None, target][int(random.integers(2))]))
        if random.random() < 0.5:
            history.append(orbax_restore(target, step=step))
        if random.random() < 0.5:
            history.append(wait())
    history += [wait(), orbax_restore(None), ask("available_steps"), ask("latest_checkpoint")]
    history += [
        ("a single leaf", lambda p, folder, c: p.save_checkpoint(folder, np.ones(2), 99, orbax_checkpointer=c)),
        wait(),
    ]
    both = checkpointers(is_async)
    try:
        run_both(tmp_path, history, both)
    finally:
        for checkpointer in both.values():
            checkpointer.close()


def test_until_a_save_has_been_committed_the_one_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original removes the only checkpoint while its successor is still being written."""
    state = {"w": np.ones(4)}
    with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        ours.save_checkpoint(tmp_path, state, 1, keep=1, orbax_checkpointer=checkpointer)
        ours.save_checkpoint(tmp_path, state, 2, keep=1, orbax_checkpointer=checkpointer)
        assert (tmp_path / "checkpoint_1").is_dir()
        checkpointer.wait_until_finished()
        assert os.listdir(tmp_path) == ["checkpoint_2"]

        def fail() -> None:
            raise RuntimeError("the disk is gone")

        monkeypatch.setattr(checkpointer, "_post_finalization_callback", fail)
        ours.save_checkpoint(tmp_path, state, 3, keep=1, orbax_checkpointer=checkpointer)
        with pytest.raises(RuntimeError, match="the disk is gone"):
            checkpointer.wait_until_finished()
        assert "checkpoint_2" in os.listdir(tmp_path)
        monkeypatch.setattr(checkpointer, "_post_finalization_callback", None)
        assert np.array_equal(ours.restore_checkpoint(tmp_path, state)["w"], state["w"])


STORED: dict[str, Any] = {
    "a": np.arange(3),
    "n": 3,
    "f": 2.5,
    "flag": True,
    "e": {},
    "none": None,
    "j": jnp.ones(2),
    "deep": {"x": [np.ones((2, 2), np.float16), np.int32(4)], "y": (jnp.arange(3),)},
}
SHARDING = jax.sharding.NamedSharding(
    jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("x",)), jax.sharding.PartitionSpec("x")
)
ORBAX_TARGETS: dict[str, Any] = {
    "all": {**STORED, "deep": {"x": [np.zeros((2, 2), np.float16), 0], "y": (jnp.zeros(3, int),)}},
    "some": {"a": np.zeros(3, int), "j": jnp.zeros(2)},
    "more": {"j": jnp.zeros(2), "b": np.ones(2), "c": {"d": jnp.ones(3)}},
    "more without JAX": {"a": np.zeros(3, int), "b": np.ones(2)},
    "another shape": {"a": np.zeros(5, int)},
    "another shape of JAX": {"j": jnp.zeros(1)},
    "another rank": {"j": jnp.zeros((5, 5))},
    "another dtype": {"a": np.zeros(3, np.float32)},
    "another dtype of JAX": {"j": jnp.zeros(2, jnp.int32), "a": np.zeros(3, np.float32)},
    "a sharding": {"j": jax.device_put(jnp.zeros(2), SHARDING)},
    "a sharding and another shape": {"j": jax.device_put(jnp.zeros(4), SHARDING)},
    "a number for an array": {"a": 0},
    "an array for a number": {"n": np.zeros(()), "f": np.zeros(())},
    "an array of JAX for a number": {"n": jnp.zeros((), int)},
    "None for an array": {"a": None},
    "a list for an array": {"a": [1, 2]},
    "a dict for an array": {"a": {"b": np.ones(2)}},
    "nothing in common": {"x": np.ones(2), "y": {"z": 3}},
    "nothing": {},
    "frozen": FrozenDict({"a": np.zeros(3, int), "deep": {"x": [np.zeros(1), np.zeros(1)]}}),
}


@pytest.mark.parametrize("transforms", [None, {}], ids=["no transforms", "empty transforms"])
@pytest.mark.parametrize("with_checkpointer", [False, True], ids=["regrow reads", "Orbax reads"])
@pytest.mark.parametrize("name", ORBAX_TARGETS)
def test_any_target_is_filled_as_the_original_fills_it(
    name: str, with_checkpointer: bool, transforms: Any, tmp_path: Path
) -> None:
    ocp.PyTreeCheckpointer().save(tmp_path / "checkpoint_1", STORED)
    checkpointer = ocp.PyTreeCheckpointer() if with_checkpointer else None
    outcomes = [
        outcome(
            lambda: package.restore_checkpoint(  # noqa: B023
                tmp_path, ORBAX_TARGETS[name], orbax_checkpointer=checkpointer, orbax_transforms=transforms
            )
        )
        for package in (ours, theirs)
    ]
    assert_same_outcome(*outcomes, name)
    assert not isinstance(outcomes[0], Exception)
    has_jax = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(outcomes[1]))
    for one, other in zip(*map(jax.tree.leaves, outcomes), strict=True):
        # Without JAX arrays in the target the original makes arrays of Python's numbers; here they
        # stay what they are.
        if has_jax or isinstance(one, np.ndarray):
            assert type(one) is type(other) and np.asarray(one).dtype == np.asarray(other).dtype, (one, other)


def test_transformations_of_orbax_need_it_and_work(tmp_path: Path) -> None:
    ocp.PyTreeCheckpointer().save(tmp_path / "checkpoint_1", {"old": np.arange(3)})
    transforms = {"new": ocp.Transform(original_key="old")}
    for package in (theirs, ours):
        restored = package.restore_checkpoint(tmp_path, {"new": np.zeros(3, int)}, orbax_transforms=transforms)
        assert np.array_equal(restored["new"], np.arange(3))


def test_strict_compares_folders_too(tmp_path: Path) -> None:
    ocp.PyTreeCheckpointer().save(tmp_path / "checkpoint_1", {"a": np.arange(3), "b": np.ones(1)})
    for target in ({"a": np.zeros(2, int), "b": np.ones(1)}, {"a": np.arange(3)}, {**state_of(0)}):
        with pytest.raises(regrow.errors.MismatchError):
            ours.restore_checkpoint(tmp_path, target, strict=True)

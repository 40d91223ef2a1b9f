"""`regrow.orbax` beside the original: the same calls give the same, and each restores what the
other saved.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as theirs
import pytest
from conftest import same_bits
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import regrow
from regrow import orbax as ours

MODULES = {"orbax": theirs, "regrow": ours}
TREE: dict[str, Any] = {"a": jnp.arange(4.0), "b": np.arange(3), "c": 5}


@pytest.fixture(params=MODULES)
def ocp(request: pytest.FixtureRequest) -> Any:
    """The original, and ours."""
    return MODULES[request.param]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pytree that the original has saved."""
    path = tmp_path_factory.mktemp("saved") / "tree"
    theirs.PyTreeCheckpointer().save(path, TREE)
    return path


def assert_same(left: Any, right: Any) -> None:
    """The same containers, types of leaves, and bits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert isinstance(one, jax.Array) == isinstance(other, jax.Array)
        assert isinstance(one, np.ndarray) == isinstance(other, np.ndarray)
        assert same_bits(one, other)


# ---- the table of behaviour -----------------------------------------------------------


def test_a_target_with_other_leaves_is_an_error(ocp: Any, saved: Path) -> None:
    checkpointer = ocp.PyTreeCheckpointer()
    with pytest.raises(ValueError, match="d:"):
        checkpointer.restore(saved, item={**TREE, "d": 1})
    with pytest.raises(ValueError, match="b:"):
        checkpointer.restore(saved, item={"a": TREE["a"]})
    with ocp.StandardCheckpointer() as standard, pytest.raises(ValueError, match="b:"):
        standard.restore(saved, {"a": TREE["a"]})


def test_partial_restore(ocp: Any, saved: Path) -> None:
    checkpointer, missing = ocp.PyTreeCheckpointer(), jax.ShapeDtypeStruct((2,), jnp.float32)
    wide = {"a": TREE["a"], "d": missing}
    for restored in (
        checkpointer.restore(saved, args=ocp.args.PyTreeRestore(wide, partial_restore=True)),
        checkpointer.restore(
            saved, item=wide, transforms={}, restore_args=ocp.checkpoint_utils.construct_restore_args(wide)
        ),
    ):
        assert restored.keys() == {"a", "d"}
        assert restored["d"] == missing
        assert same_bits(restored["a"], TREE["a"])
    with pytest.raises(ValueError, match="restore_args"):
        checkpointer.restore(saved, item=wide, transforms={})


def test_shapes_and_dtypes_of_targets(ocp: Any, saved: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        with pytest.raises(ValueError, match="not compatible with the stored shape"):
            checkpointer.restore(saved, {**TREE, "a": jnp.zeros(6)})
        padded = checkpointer.restore(saved, {**TREE, "a": jnp.zeros(6)}, strict=False)
        assert np.asarray(padded["a"]).tolist() == [0, 1, 2, 3, 0, 0]
        cast = checkpointer.restore(saved, {**TREE, "a": jnp.zeros(4, jnp.int32), "b": np.zeros(3, np.float32)})
        assert (cast["a"].dtype, cast["b"].dtype, cast["c"]) == (jnp.int32, np.float32, 5)


def test_a_numpy_target_of_another_shape(saved: Path) -> None:
    """The original gives the stored shape back without a word."""
    with ours.StandardCheckpointer() as checkpointer, pytest.raises(ValueError, match=r"\(7,\)"):
        checkpointer.restore(saved, {**TREE, "b": np.zeros(7)})


def test_restore_without_a_target(ocp: Any, tmp_path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    spread = jax.device_put(jnp.arange(16.0).reshape(8, 2), NamedSharding(mesh, PartitionSpec("x")))
    tree = {"w": spread, "n": np.ones(2), "i": 3, "f": 2.5, "s": "text", "t": (1, 2), "none": None, "empty": {}}
    theirs.PyTreeCheckpointer().save(tmp_path / "x", tree)
    restored = ocp.PyTreeCheckpointer().restore(tmp_path / "x")
    assert_same(restored, {**tree, "t": [1, 2]})
    assert restored["w"].sharding == spread.sharding
    assert (type(restored["i"]), type(restored["f"])) == (int, float)
    restored["n"][0] = 7


def test_restore_types(ocp: Any, saved: Path) -> None:
    checkpointer = ocp.PyTreeCheckpointer()
    args = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in TREE}
    assert_same(checkpointer.restore(saved, restore_args=args), jax.tree.map(np.asarray, TREE))
    args = {"a": ocp.RestoreArgs(), "b": ocp.RestoreArgs(dtype=np.float32), "c": ocp.RestoreArgs(restore_type=float)}
    restored = checkpointer.restore(saved, restore_args=args)
    assert_same(restored, {"a": TREE["a"], "b": TREE["b"].astype(np.float32), "c": 5.0})


def test_placeholders(ocp: Any, saved: Path) -> None:
    restored = ocp.PyTreeCheckpointer().restore(saved, item={"a": TREE["a"], "b": ..., "c": ocp.PLACEHOLDER})
    assert restored["b"] is ... and restored["c"] is ...
    assert same_bits(restored["a"], TREE["a"])


def test_places_that_hold_no_checkpoint(ocp: Any, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpointer = ocp.PyTreeCheckpointer()
    with pytest.raises(ValueError, match=r"already exists|exists already"):
        checkpointer.save(saved, TREE)
    with pytest.raises(ValueError, match="absolute"):
        checkpointer.save("relative/x", TREE)
    with pytest.raises(FileNotFoundError):
        checkpointer.restore(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        checkpointer.restore(tmp_path / "empty")
    (tmp_path / "x.orbax-checkpoint-tmp").mkdir()
    with pytest.raises(ValueError, match="incomplete"):
        checkpointer.restore(tmp_path / "x.orbax-checkpoint-tmp")
    assert checkpointer.metadata(tmp_path / "missing").item_metadata is None


def test_what_standard_refuses(ocp: Any, saved: Path, tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        for number, tree in enumerate(({"s": "text"}, jnp.ones(2), {})):
            with pytest.raises(ValueError):
                # Each elsewhere: Orbax' thread may still be writing to the folder of the save that
                # was refused.
                checkpointer.save(tmp_path / str(number), tree)
        with pytest.raises(ValueError, match="Unsupported type"):
            checkpointer.restore(saved, {**TREE, "c": np.int32(1)})


def test_arguments_in_any_place(ocp: Any, saved: Path) -> None:
    checkpointer = ocp.PyTreeCheckpointer()
    for restored in (
        checkpointer.restore(saved, ocp.args.PyTreeRestore()),
        checkpointer.restore(saved, item=ocp.args.PyTreeRestore()),
        checkpointer.restore(saved, args=ocp.args.PyTreeRestore()),
    ):
        assert_same(restored, TREE)


def test_metadata_is_a_mapping_and_a_pytree(ocp: Any, saved: Path) -> None:
    checkpointer = ocp.PyTreeCheckpointer()
    found = checkpointer.metadata(saved).item_metadata
    assert set(found.keys()) == set(TREE) and "a" in found and len(found) == 3 and found.get("z") is None
    assert (found["a"].shape, found["a"].dtype) == ((4,), np.float32)
    shapes = jax.tree.map(lambda leaf: leaf.shape, found)
    assert shapes["b"] == (3,)
    assert_same(checkpointer.restore(saved, item=found), TREE)
    described = jax.tree.map(ocp.tree.to_shape_dtype_struct, found.tree)
    assert described["a"].sharding.device_set == {jax.devices()[0]}


def test_construct_restore_args(ocp: Any) -> None:
    found = ocp.checkpoint_utils.construct_restore_args({**TREE, "d": jax.ShapeDtypeStruct((2,), jnp.float32)})
    assert (found["a"].restore_type, found["a"].global_shape, found["a"].sharding) == (
        jax.Array,
        (4,),
        TREE["a"].sharding,
    )
    assert (found["b"].restore_type, found["b"].dtype) == (np.ndarray, np.int64)
    assert found["c"].restore_type is int
    assert (found["d"].restore_type, found["d"].dtype) == (np.ndarray, np.float32)
    assert isinstance(dataclasses.replace(found["a"], strict=False), ocp.ArrayRestoreArgs)


# ---- checkpointers and handlers -------------------------------------------------------


def test_each_restores_what_the_other_saved(tmp_path: Path) -> None:
    composite = {"state": TREE, "config": {"width": 8}, "one": jnp.ones(3)}
    for writer, reader in ((ours, theirs), (theirs, ours)):
        root = tmp_path / reader.__name__
        args = writer.args
        with writer.AsyncCheckpointer(writer.StandardCheckpointHandler()) as checkpointer:
            checkpointer.save(root / "standard", args=args.StandardSave(TREE))
        with writer.Checkpointer(writer.CompositeCheckpointHandler()) as several:
            several.save(
                root / "items",
                args.Composite(
                    state=args.PyTreeSave(TREE),
                    config=args.JsonSave({"width": 8}),
                    one=args.ArraySave(composite["one"]),
                ),
                custom_metadata={"by": "me"},
            )
        with writer.Checkpointer(writer.JsonCheckpointHandler()) as texts:
            texts.save(root / "json", {"x": [1, 2]})
        with reader.StandardCheckpointer() as standard:
            assert_same(standard.restore(root / "standard"), TREE)
        with reader.Checkpointer(reader.CompositeCheckpointHandler()) as several:
            restored = several.restore(root / "items")
            assert_same(restored["state"], TREE)
            assert restored.config == {"width": 8}
            assert_same(restored["one"], composite["one"])
            found = several.metadata(root / "items")
            assert found.custom_metadata == {"by": "me"}
            assert "state" in found.item_metadata and found.item_metadata["config"] is None
            with pytest.raises(KeyError):
                several.restore(root / "items", reader.args.Composite(other=reader.args.JsonRestore()))
        with reader.Checkpointer(reader.JsonCheckpointHandler()) as texts:
            assert texts.restore(root / "json") == {"x": [1, 2]}


def test_regrows_own_layout_by_one_switch(tmp_path: Path) -> None:
    ours.use_layout("regrow")
    try:
        ours.PyTreeCheckpointer().save(tmp_path / "x", TREE)
    finally:
        ours.use_layout("orbax")
    assert regrow.open(tmp_path / "x").layout == "regrow"
    assert_same(theirs.PyTreeCheckpointer().restore(tmp_path / "x"), TREE)
    assert_same(ours.PyTreeCheckpointer().restore(tmp_path / "x"), TREE)


def test_a_save_in_the_background_is_a_snapshot(tmp_path: Path) -> None:
    array = np.zeros(4_000_000)
    with ours.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "x", {"a": array})
        array += 1
        checkpointer.wait_until_finished()
        assert checkpointer.restore(tmp_path / "x")["a"].sum() == 0


def test_a_failed_save_is_told_by_the_next_call_once(tmp_path: Path) -> None:
    class Failing(ours.AsyncCheckpointHandler):
        async def async_save(self, directory: Any, args: Any) -> Any:
            async def fail() -> None:
                raise OSError("the disk is gone")

            return [ours.future.CommitFutureAwaitingContractedSignals(fail())]

        def save(self, directory: Any, args: Any) -> None:
            raise NotImplementedError

        def restore(self, directory: Any, args: Any) -> None:
            raise NotImplementedError

    checkpointer = ours.AsyncCheckpointer(Failing())
    checkpointer.save(tmp_path / "x", args=ours.args.JsonSave({}))
    with pytest.raises(OSError, match="the disk is gone"):
        checkpointer.wait_until_finished()
    checkpointer.wait_until_finished()
    assert list(tmp_path.iterdir()) == []
    checkpointer.close()
    with pytest.raises(RuntimeError, match="after close"):
        checkpointer.save(tmp_path / "x", args=ours.args.JsonSave({}))


def test_save_args(ocp: Any, tmp_path: Path) -> None:
    tree = {"a": jnp.ones((64, 64)), "b": np.ones(3)}
    save_args = {"a": ocp.SaveArgs(dtype=np.dtype(jnp.bfloat16), chunk_byte_size=1024), "b": ocp.SaveArgs()}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_zarr3=True)) as checkpointer:
        checkpointer.save(tmp_path / "x", tree, save_args=save_args)
        restored = checkpointer.restore(tmp_path / "x")
    assert restored["a"].dtype == jnp.bfloat16 and restored["b"].dtype == np.float64
    assert np.prod(regrow.open(tmp_path / "x")["a"].chunk_shape or ()) * 2 <= 1024


def test_foreign_arguments_by_attribute(tmp_path: Path) -> None:
    """What flax and others make of the original's classes, given to ours."""
    checkpointer = ours.PyTreeCheckpointer()
    checkpointer.save(tmp_path / "x", TREE, save_args=jax.tree.map(lambda _: theirs.SaveArgs(), TREE))
    restored = checkpointer.restore(tmp_path / "x", restore_args=theirs.checkpoint_utils.construct_restore_args(TREE))
    assert_same(restored, TREE)
    manager = ours.CheckpointManager(tmp_path / "m")
    manager.save(0, args=theirs.args.Composite(state=theirs.args.StandardSave(TREE), n=theirs.args.JsonSave([1])))
    restored = manager.restore(0, args=theirs.args.Composite(state=theirs.args.StandardRestore(TREE)))
    assert_same(restored.state, TREE)
    manager.close()


def test_transforms(ocp: Any, tmp_path: Path) -> None:
    ours.PyTreeCheckpointer().save(tmp_path / "x", {"old": {"w": np.ones(2)}, "same": np.zeros(2)})
    target = {"new": {"w": np.zeros(2)}, "same": np.ones(2), "own": np.full(2, 5.0)}
    restored = ocp.PyTreeCheckpointer().restore(
        tmp_path / "x",
        item=target,
        restore_args=jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target),
        transforms={
            r"new/(.*)": ocp.Transform(original_key=r"old/\1", value_fn=lambda value: value * 3),
            "own": ocp.Transform(use_fallback=True),
        },
    )
    assert_same(restored, {"new": {"w": np.full(2, 3.0)}, "same": np.zeros(2), "own": np.full(2, 5.0)})


def test_helpers(ocp: Any, tmp_path: Path) -> None:
    tree = {"a": [1, {"b": 2}], "c": {}, "d": None}
    flat = ocp.tree.to_flat_dict(tree, sep="/", keep_empty_nodes=True)
    assert flat == {"a/0": 1, "a/1/b": 2, "c": {}, "d": None}
    assert ocp.tree.from_flat_dict(flat, target=tree, sep="/") == tree
    assert ocp.utils.to_flat_dict(tree) == {("a", "0"): 1, ("a", "1", "b"): 2}
    assert ocp.tree.from_flat_dict({"x/y": 1, "z": 2}, sep="/") == {"x": {"y": 1}, "z": 2}
    assert ocp.utils.serialize_tree({"a": (1, 2)}) == {"a": [1, 2]}
    folder = ocp.test_utils.erase_and_create_empty(tmp_path / "x")
    (folder / "7").mkdir()
    (folder / "ckpt_12").mkdir()
    (folder / "9.orbax-checkpoint-tmp").mkdir()
    assert sorted(ocp.utils.checkpoint_steps(folder)) == [7, 12]
    form = ocp.path.step.standard_name_format(step_prefix="ckpt", step_format_fixed_length=None)
    assert ocp.step.latest_step_metadata(folder, form).step == 12
    assert ocp.path.step.build_step_path(folder, form, 3).name == "ckpt_3"
    assert list(ocp.test_utils.erase_and_create_empty(folder).iterdir()) == []


def test_what_is_not_covered_says_its_name() -> None:
    with pytest.raises(NotImplementedError, match="emergency"):
        _ = ours.experimental.emergency
    with pytest.raises(NotImplementedError, match=r"path\.deleter"):
        _ = ours.path.deleter
    with pytest.raises(NotImplementedError, match="handler_impl"):
        ours.PyTreeCheckpointHandler(handler_impl=1)
    with pytest.raises(AttributeError):
        _ = ours.nothing


def test_every_public_name_of_the_original_is_there_or_says_why() -> None:
    missing = [name for name in vars(theirs) if not name.startswith("_") and not _is_known(name)]
    assert missing == ["contextlib", "functools", "abstract_checkpoint_manager", "event_tracking"][: len(missing)]


def _is_known(name: str) -> bool:
    try:
        return hasattr(ours, name)
    except NotImplementedError:
        return True


@pytest.mark.parametrize("saves", range(3))
@pytest.mark.parametrize("layout", ["orbax", "regrow"])
def test_force_keeps_files_of_the_user(layout: Any, saves: int, tmp_path: Path) -> None:
    """As brax writes its policies: with a configuration beside them, before or after the first
    save.
    """
    path = tmp_path / "x"
    path.mkdir()
    checkpointer = ours.PyTreeCheckpointer()
    ours.use_layout(layout)
    try:
        for _ in range(saves):
            checkpointer.save(path, {"old": TREE}, force=True)
        (path / "config.json").write_text(json.dumps({"layers": [32]}))
        (path / "plots" / "deep").mkdir(parents=True)
        (path / "plots" / "deep" / "x.svg").write_text("<svg/>")
        for tree in ({"other": TREE}, TREE):
            checkpointer.save(path, tree, force=True)
    finally:
        ours.use_layout("orbax")
    assert_same(checkpointer.restore(path), TREE)
    assert json.loads((path / "config.json").read_text()) == {"layers": [32]}
    assert (path / "plots" / "deep" / "x.svg").read_text() == "<svg/>"
    new = tmp_path / "new"
    ours.use_layout(layout)
    try:
        checkpointer.save(new, TREE)
    finally:
        ours.use_layout("orbax")
    # Nothing of the checkpoints before is taken for the user's.
    assert {file.name for file in path.iterdir()} == {file.name for file in new.iterdir()} | {"config.json", "plots"}
    assert [file.name for file in tmp_path.iterdir() if "tmp" in file.name] == []


def test_an_error_names_the_keyword_of_orbax(tmp_path: Path) -> None:
    for checkpointer in (
        ours.PyTreeCheckpointer(),
        ours.StandardCheckpointer(),
        ours.AsyncCheckpointer(ours.PyTreeCheckpointHandler()),
    ):
        path = tmp_path / type(checkpointer).__name__
        with checkpointer:
            checkpointer.save(path, TREE)
            with pytest.raises(FileExistsError, match="force=True") as raised:
                checkpointer.save(path, TREE)
        assert "overwrite" not in str(raised.value)


def test_force_refuses_a_file_of_the_user_that_the_checkpoint_would_replace(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "commit_success.txt").write_text("mine")
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "link").symlink_to(tmp_path)
    for name, text in (("x", "same name"), ("y", "found a link")):
        with pytest.raises(ValueError, match=text):
            ours.PyTreeCheckpointer().save(tmp_path / name, TREE, force=True)
    assert (tmp_path / "x" / "commit_success.txt").read_text() == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x", "y"]

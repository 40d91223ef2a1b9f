"""Handlers, registries, transformations and helpers of `regrow.orbax` beside the original's."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as theirs
import pytest
from conftest import same_bits
from google.protobuf import struct_pb2

from regrow import orbax as ours

MODULES = {"orbax": theirs, "regrow": ours}


@pytest.fixture(params=MODULES)
def ocp(request: pytest.FixtureRequest) -> Any:
    """The original, and ours."""
    return MODULES[request.param]


@pytest.fixture
def other(ocp: Any) -> Any:
    """The one that `ocp` is not."""
    return theirs if ocp is ours else ours


# ---- handlers: what one saves the other restores --------------------------------------


def restored_by(other: Any, ocp: Any, path: Path, kind: str, item: Any, *restore: Any) -> Any:
    """Saves with one of them and restores with the other, with the handler of that name."""
    handlers = {name: getattr(module, f"{kind}CheckpointHandler") for name, module in (("a", ocp), ("b", other))}
    with ocp.Checkpointer(handlers["a"]()) as checkpointer:
        checkpointer.save(path, args=getattr(ocp.args, f"{kind}Save")(item))
    with other.Checkpointer(handlers["b"]()) as checkpointer:
        return checkpointer.restore(path, args=getattr(other.args, f"{kind}Restore")(*restore))


class Mode(enum.IntEnum):
    EMA = 1


class Rate(float, enum.Enum):
    SLOW = 0.5


class Name(enum.StrEnum):
    ADAM = "adam"


def test_members_of_enums_are_their_numbers_and_texts(ocp: Any, other: Any, tmp_path: Path) -> None:
    item = {"mode": Mode.EMA, "rate": Rate.SLOW, "name": Name.ADAM, "is_on": True}
    back = restored_by(other, ocp, tmp_path / "c", "PyTree", item)
    assert back == {"mode": 1, "rate": 0.5, "name": "adam", "is_on": True}
    assert {type(back[key]) for key in ("mode", "rate", "name")} == {int, float, str}


def test_keys_of_jax(ocp: Any, other: Any, tmp_path: Path) -> None:
    typed, raw = jax.random.key(7), jax.random.PRNGKey(7)
    back = restored_by(other, ocp, tmp_path / "typed", "JaxRandomKey", typed)
    assert back.dtype == typed.dtype
    assert same_bits(jax.random.key_data(back), jax.random.key_data(typed))
    assert same_bits(restored_by(other, ocp, tmp_path / "raw", "JaxRandomKey", raw), raw)
    with pytest.raises(TypeError, match="Unsupported type"):
        restored_by(other, ocp, tmp_path / "none", "JaxRandomKey", np.zeros(2))


def test_keys_of_jax_keep_their_implementation(tmp_path: Path) -> None:
    key = jax.random.key(7, impl="rbg")
    back = restored_by(ours, ours, tmp_path / "rbg", "JaxRandomKey", key)
    assert back.dtype == key.dtype


def test_states_of_numpy(ocp: Any, other: Any, tmp_path: Path) -> None:
    for name, state in (
        ("old", np.random.RandomState(3).get_state()),
        ("new", np.random.RandomState(3).get_state(False)),
    ):
        back = restored_by(other, ocp, tmp_path / name, "NumpyRandomKey", state)
        assert type(back) is type(state)
        again = np.random.RandomState(0)
        again.set_state(back)
        assert again.randint(1 << 30) == np.random.RandomState(3).randint(1 << 30)


def test_keys_among_other_items(tmp_path: Path) -> None:
    manager = ours.CheckpointManager(tmp_path)
    items = {"rng": ours.args.JaxRandomKeySave(jax.random.key(1)), "n": ours.args.JsonSave({"a": 1})}
    manager.save(0, args=ours.args.Composite(**items))
    manager.close()
    manager = ours.CheckpointManager(tmp_path)
    restored = manager.restore(0)
    assert same_bits(jax.random.key_data(restored.rng), jax.random.key_data(jax.random.key(1)))
    assert restored.n == {"a": 1}
    manager.close()


def test_messages(ocp: Any, other: Any, tmp_path: Path) -> None:
    message = struct_pb2.Value(string_value="héllo")
    assert restored_by(other, ocp, tmp_path / "x", "Proto", message, struct_pb2.Value) == message
    assert (tmp_path / "x" / "proto.pbtxt").exists()
    with ocp.Checkpointer(ocp.ProtoCheckpointHandler()) as checkpointer, pytest.raises(ValueError, match="item"):
        checkpointer.handler.restore(tmp_path / "x")


def test_empty_nodes_and_leaves_in_each_others_place(ocp: Any, tmp_path: Path) -> None:
    """As of masked optimizers: what the checkpoint or the target leaves empty stays so."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "x", {"a": optax.MaskedNode(), "b": np.arange(3)})
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "x", {"a": np.zeros(2), "b": np.zeros(3, int)})
        assert restored["a"] is None
        assert restored["b"].tolist() == [0, 1, 2]
        assert checkpointer.restore(tmp_path / "x", {"a": None, "b": None}) == {"a": None, "b": None}


def test_descriptions_restore_what_was_saved(ocp: Any, tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "x", {"a": np.arange(3), "b": jax.numpy.arange(3)})
        checkpointer.wait_until_finished()
        like = {"a": jax.ShapeDtypeStruct((3,), np.int64), "b": jax.ShapeDtypeStruct((3,), np.int32)}
        restored = checkpointer.restore(tmp_path / "x", like)
    assert type(restored["a"]) is np.ndarray
    assert restored["a"].dtype == np.int64
    assert isinstance(restored["b"], jax.Array)


def test_descriptions_of_another_shape_are_an_error(tmp_path: Path) -> None:
    with ours.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "x", {"a": np.arange(3)})
        checkpointer.wait_until_finished()
        with pytest.raises(ValueError, match="not compatible with the stored shape"):
            checkpointer.restore(tmp_path / "x", {"a": jax.ShapeDtypeStruct((4,), np.int64)})


def test_what_cannot_be_saved_is_a_value_error(ocp: Any, tmp_path: Path) -> None:
    checkpointer = ocp.PyTreeCheckpointer()
    with pytest.raises(ValueError, match="TypeHandler lookup failed"):
        checkpointer.save(tmp_path / "x", {"a": object()})
    with pytest.raises(ValueError, match="zero size"):
        checkpointer.save(tmp_path / "y", {"a": np.zeros((0, 3))})


# ---- registries -----------------------------------------------------------------------


def test_registry(ocp: Any) -> None:
    registry = ocp.DefaultCheckpointHandlerRegistry()
    registry.add("state", ocp.args.StandardSave)
    registry.add(None, ocp.args.JsonSave, ocp.JsonCheckpointHandler())
    assert isinstance(registry.get("state", ocp.args.StandardSave({"a": 1})), ocp.StandardCheckpointHandler)
    assert not registry.has("state", ocp.args.JsonSave)
    assert set(registry.get_all_entries()) == {("state", ocp.args.StandardSave), (None, ocp.args.JsonSave)}
    assert set(ocp.DefaultCheckpointHandlerRegistry(registry).get_all_entries()) == set(registry.get_all_entries())
    with pytest.raises(ValueError, match="already exists"):
        registry.add("state", ocp.args.StandardSave)
    with pytest.raises(KeyError, match="No entry"):
        registry.get("state", ocp.args.JsonSave)

    @dataclasses.dataclass
    class Args(ocp.args.CheckpointArgs):  # type: ignore[misc,name-defined]
        pass

    with pytest.raises(ValueError, match="Provided a `None`"):
        registry.add("x", Args)
    with pytest.raises(ValueError, match="item_names"):
        ocp.CompositeCheckpointHandler("state", handler_registry=registry)


def test_several_classes_of_arguments_for_one_handler(ocp: Any) -> None:
    class Handler(ocp.CheckpointHandler):  # type: ignore[misc,name-defined]
        def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
            pass

        def restore(self, directory: Any, *args: Any, **kwargs: Any) -> None:
            pass

    @ocp.args.register_with_handler(Handler, for_save=True)
    @dataclasses.dataclass
    class Save(ocp.args.CheckpointArgs):  # type: ignore[misc,name-defined]
        pass

    assert not ocp.args.has_registered_args(Handler)

    @ocp.args.register_with_handler(Handler, for_save=True, for_restore=True)
    @dataclasses.dataclass
    class Both(ocp.args.CheckpointArgs):  # type: ignore[misc,name-defined]
        pass

    assert ocp.args.get_registered_args_cls(Handler) == (Save, Both)
    assert ocp.args.get_registered_handler_cls(Both) is Handler


# ---- transformations ------------------------------------------------------------------

ORIGINAL = {"a": 1, "b": {"c": 5, "d": [0, 1, 2]}, "e": 7}


@pytest.mark.parametrize("default_to_original", [True, False])
def test_apply_transformations(ocp: Any, default_to_original: bool) -> None:
    rules = {
        "renamed": ocp.Transform(original_key="a"),
        "b": {"c": ocp.Transform(value_fn=lambda value: value * 2)},
        r"list(\d)": ocp.Transform(original_key=r"b/d/\1"),
        "sum": ocp.Transform(multi_value_fn=lambda name, tree: (name, sum(tree["b"]["d"]))),
        "e": ocp.Transform(use_fallback=True),
    }
    new = {"renamed": 0, "b": {"c": 0, "d": [9, 9, 9]}, "list2": 0, "sum": 0, "e": 8, "own": 6}
    expected = {"renamed": 1, "b": {"c": 10, "d": [0, 1, 2]}, "list2": 2, "sum": ("sum", 3), "e": 8, "own": 6}
    if not default_to_original:
        expected["b"], expected["e"] = {"c": 10, "d": [9, 9, 9]}, 7
    assert ocp.apply_transformations(ORIGINAL, rules, new, default_to_original) == expected
    with pytest.raises(ValueError, match="not found in origin tree"):
        ocp.apply_transformations(ORIGINAL, {"x": ocp.Transform(original_key="y")}, {"x": 0})
    with pytest.raises(AssertionError):
        ocp.Transform(original_key="a", use_fallback=True)


def test_merge_and_intersect(ocp: Any) -> None:
    left, right = {"a": 1, "b": {"c": 2}}, {"b": {"c": 3}, "d": 4}
    assert ocp.merge_trees(left, right) == {"a": 1, "b": {"c": 3}, "d": 4}
    assert ocp.transform_utils.intersect_trees(left, right) == {"b": {"c": 3}}


@pytest.mark.parametrize("default_to_original", [True, False])
def test_restores_that_compute_leaves(ocp: Any, tmp_path: Path, default_to_original: bool) -> None:
    ours.PyTreeCheckpointer().save(tmp_path / "x", {"a": np.arange(3), "b": np.ones(3), "c": np.full(2, 4.0)})
    target = {"sum": np.zeros(3), "c": np.zeros(2), "d": np.full(1, 6.0)}
    args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
    rule = ocp.RestoreTransform(
        multi_value_fn=lambda name, tree, args: tree["a"] + tree["b"],
        multi_value_fn_input_args={"a|b": ocp.RestoreArgs(restore_type=np.ndarray)},
    )
    restored = ocp.PyTreeCheckpointer().restore(
        tmp_path / "x",
        item=target,
        restore_args=args,
        transforms={"sum": rule},
        transforms_default_to_original=default_to_original,
    )
    assert restored["sum"].tolist() == [1.0, 2.0, 3.0]
    assert restored["c"].tolist() == ([4.0, 4.0] if default_to_original else [0.0, 0.0])
    assert restored["d"].tolist() == [6.0]
    with pytest.raises(ValueError, match="multi_value_fn_input_args"):
        ocp.PyTreeCheckpointer().restore(
            tmp_path / "x",
            item=target,
            restore_args=args,
            transforms={"sum": ocp.RestoreTransform(multi_value_fn=lambda *_: 0)},
        )


# ---- helpers --------------------------------------------------------------------------


def test_waiting_for_a_checkpoint(ocp: Any, tmp_path: Path) -> None:
    ours.StandardCheckpointer().save(tmp_path / "3" / "default", {"a": 1})
    wait = ocp.checkpoint_utils.wait_for_new_checkpoint
    with wait(_path(ocp, tmp_path), timeout=5) as step:
        assert step == 3
    with wait(_path(ocp, tmp_path), until_step=4, timeout=0, seconds_to_sleep=1) as step:
        assert step == -1


def _path(ocp: Any, path: Path) -> Any:
    return ocp.test_utils.epath.Path(path) if ocp is theirs else path


def test_steps_that_are_being_saved(ocp: Any, tmp_path: Path) -> None:
    (tmp_path / "ckpt_4.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "ckpt_3").mkdir()
    form = ocp.step.standard_name_format(step_prefix="ckpt")
    (temporary,) = ocp.step.all_temporary_paths(tmp_path)
    assert temporary.get_final().name == "ckpt_4"
    assert ocp.step.tmp_checkpoints(tmp_path) == ["ckpt_4.orbax-checkpoint-tmp"]
    found = ocp.step.find_step_path(tmp_path, form, step=4, include_uncommitted=True)
    assert found.name == "ckpt_4.orbax-checkpoint-tmp"
    with pytest.raises(ValueError, match="4"):
        ocp.step.find_step_path(tmp_path, form, step=4)
    assert ocp.step.step_from_checkpoint_name("ckpt_4.orbax-checkpoint-tmp") == 4
    assert ocp.step.checkpoint_steps_paths(tmp_path / "none") == []
    assert ocp.step.get_save_directory(1, tmp_path, name="x", override_directory="/y") == _path(ocp, Path("/y/x"))


def test_temporary_paths(ocp: Any, tmp_path: Path) -> None:
    async def stage(kind: Any) -> Any:
        path = kind.from_final(_path(ocp, tmp_path) / kind.__name__)
        await path.create()
        assert path.get().exists()
        await path.finalize()
        return path.get_final()

    for kind in (ocp.path.atomicity.AtomicRenameTemporaryPath, ocp.path.atomicity.CommitFileTemporaryPath):
        assert (asyncio.run(stage(kind)) / "commit_success.txt").exists()


def test_what_a_folder_is(ocp: Any, tmp_path: Path) -> None:
    ours.PyTreeCheckpointer().save(tmp_path / "x", {"a": np.arange(3)})
    format_utils = ocp.path.format_utils
    assert format_utils.is_orbax_checkpoint(tmp_path / "x")
    assert format_utils.is_orbax_checkpoint(tmp_path)
    assert format_utils.is_ocdbt_checkpoint(tmp_path / "x")
    (tmp_path / "y").mkdir()
    assert not format_utils.is_orbax_checkpoint(tmp_path / "y")
    with pytest.raises(FileNotFoundError):
        format_utils.is_orbax_checkpoint(tmp_path / "z")


def test_msgpack(ocp: Any, other: Any) -> None:
    tree = {"a": [1, "b", (2, ("c", 1.5))], "d": {"e": np.arange(3, dtype=np.int16)}, "f": 1 + 2j}
    back = other.msgpack_utils.msgpack_restore(ocp.msgpack_utils.msgpack_serialize(tree))
    assert back["a"] == tree["a"] and back["f"] == tree["f"]
    assert same_bits(back["d"]["e"], np.arange(3, dtype=np.int16))


def test_shardings_as_metadata_and_back(ocp: Any) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    for sharding in (
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
        jax.sharding.SingleDeviceSharding(jax.devices()[1]),
    ):
        kind = getattr(ocp.metadata, f"{type(sharding).__name__}Metadata")
        told = kind.from_jax_sharding(sharding)
        assert told.to_jax_sharding() == sharding
        other = getattr((ours if ocp is theirs else theirs).metadata, kind.__name__).from_jax_sharding(sharding)
        assert told.to_serialized_string() == other.to_serialized_string()


def test_shardings_that_spread_evenly(ocp: Any) -> None:
    state = {"a": jax.ShapeDtypeStruct((16, 6), np.float32), "b": jax.ShapeDtypeStruct((3,), np.float32),
             "c": jax.ShapeDtypeStruct((), np.float32), "d": jax.ShapeDtypeStruct((6, 4), np.float32)}  # fmt: skip
    shardings = ocp.arrays.construct_maximal_shardings(state)
    shards = {name: shardings[name].shard_shape(state[name].shape) for name in state}
    assert shards == {"a": (2, 6), "b": (3,), "c": (), "d": (6, 4)}


def test_metadata_of_items_is_told_by_their_handlers(ocp: Any, tmp_path: Path) -> None:
    handler = ocp.CompositeCheckpointHandler(state=ocp.StandardCheckpointHandler())
    empty = handler.metadata(_path(ocp, tmp_path))
    assert dict(empty.item_handlers) == {}
    assert empty.performance_metrics == ocp.logging.step_statistics.SaveStepStatistics()
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "x", ocp.args.Composite(state=ocp.args.StandardSave({"a": 1})))
        told = checkpointer.metadata(tmp_path / "x")
    assert told.item_handlers == {"state": ocp.StandardCheckpointHandler().typestr()}
    flat, _ = jax.tree_util.tree_flatten_with_path(told.item_metadata["state"])
    assert [ocp.utils.tuple_path_from_keypath(path) for path, _ in flat] == [("a",)]


def test_a_function_that_lays_out_what_is_stored(ocp: Any, tmp_path: Path) -> None:
    """As t5x': leaves under other names, some of them left out; restore args are those of the
    result.
    """
    stored = {"target": {"w": np.arange(3.0), "old": np.ones(2)}, "step": 3, "none": None, "empty": {}}
    ocp.PyTreeCheckpointer().save(tmp_path / "x", stored)

    def rename(item: Any, structure: Any, infos: Any) -> Any:
        assert item == {"params": {"w": 0}, "list": [0], "empty": {}}
        assert infos["target"]["w"].name == "target.w" and structure["target"]["w"].value_type == "np.ndarray"
        return tuple(
            {"params": {"w": tree["target"]["w"]}, "list": [tree["step"]], "empty": tree["empty"]}
            for tree in (structure, infos)
        )

    item = {"params": {"w": 0}, "list": [0], "empty": {}}
    wanted = {"params": {"w": ocp.RestoreArgs(dtype="float32")}, "list": [ocp.RestoreArgs()], "empty": {}}
    for restore_args in (None, wanted):
        args = ocp.args.PyTreeRestore(item, restore_args, legacy_transform_fn=rename)
        with ocp.PyTreeCheckpointer() as checkpointer:
            restored = checkpointer.restore(tmp_path / "x", args=args)
        assert restored["params"]["w"].dtype == (np.float64 if restore_args is None else np.float32)
        assert restored["params"]["w"].tolist() == [0, 1, 2]
        assert restored["list"] == [3]
        # The original gives what it knows of an empty node.
        assert ocp is theirs or restored["empty"] == {}
    args = ocp.args.PyTreeRestore(item, wanted, transforms={}, legacy_transform_fn=rename)
    with ocp.PyTreeCheckpointer() as checkpointer, pytest.raises(ValueError, match="both"):
        checkpointer.restore(tmp_path / "x", args=args)


def test_what_such_a_function_may_not_give(tmp_path: Path) -> None:
    ours.PyTreeCheckpointer().save(tmp_path / "x", {"w": 1})
    args = ours.args.PyTreeRestore(legacy_transform_fn=lambda item, structure, infos: (structure, {"a": {"b": 7}}))
    with pytest.raises(ValueError, match=r"a/b\n  found 7"):
        ours.PyTreeCheckpointer().restore(tmp_path / "x", args=args)

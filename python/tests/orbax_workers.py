"""What two processes of JAX do with `regrow.orbax`, case after case: `run` in each of them, of the
same arguments.

A case is a function of its folder. Both processes run all of them in the same order; one that
raises is told of, and the next one begins. What a case returns is compared by the test.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import traceback
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import regrow
from regrow import orbax as ocp
from regrow.orbax import v1
from regrow.orbax._manager_folder import Folder

CASES: dict[str, Any] = {}


def case(function: Any) -> Any:
    CASES[function.__name__] = function
    return function


def run(arguments: dict[str, str]) -> dict[str, Any]:
    """What each case gave, or what it ended with."""
    found: dict[str, Any] = {}
    for name, function in CASES.items():
        folder = Path(arguments["folder"]) / name
        folder.mkdir(exist_ok=True)
        try:
            found[name] = function(folder, arguments)
        except BaseException:
            found[name] = {"raised": traceback.format_exc()}
        ocp.multihost.sync_global_processes(name)
    return found


# ---- trees ----------------------------------------------------------------------------


def mesh(shape: tuple[int, int] = (2, 2)) -> Any:
    return Mesh(np.array(jax.devices()).reshape(shape), ("data", "model"))


def put(value: Any, spec: Any, on: Any = None) -> Any:
    value = np.asarray(value)
    return jax.make_array_from_callback(value.shape, NamedSharding(on or mesh(), spec), lambda cut: value[cut])


SPECS = {
    "both": PartitionSpec("data", "model"),
    "rows": PartitionSpec("data"),
    "columns": PartitionSpec(None, "model"),
    "same": PartitionSpec(),
}


def values(step: int = 0) -> dict[str, Any]:
    return {name: np.arange(32, dtype=np.float32).reshape(4, 8) + 100 * at + step for at, name in enumerate(SPECS)}


def state(step: int = 0, on: Any = None) -> dict[str, Any]:
    arrays = {name: put(value, SPECS[name], on) for name, value in values(step).items()}
    return {"params": arrays, "table": np.arange(3) + step, "step": step}


def structs(on: Any = None) -> Any:
    def struct(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)

    return jax.tree.map(struct, state(on=on))


def check(restored: Any, step: int = 0, on: Any = None) -> None:
    """All that this process holds of it is right, and lies where it was asked for."""
    wanted = values(step)
    for name, array in restored["params"].items():
        assert array.sharding == NamedSharding(on or mesh(), SPECS[name]), (name, array.sharding)
        assert len(array.addressable_shards) == 2
        for shard in array.addressable_shards:
            assert np.array_equal(np.asarray(shard.data), wanted[name][shard.index]), name
    assert np.array_equal(restored["table"], np.arange(3) + step)
    assert int(restored["step"]) == step


def refused(function: Any) -> list[str]:
    """The error that a call ends with."""
    try:
        function()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


# ---- checkpointers --------------------------------------------------------------------


@case
def pytrees(folder: Path, _: Any) -> None:
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder / "a", state(1))
        checkpointer.save(folder / "a", state(2), force=True)
        args = ocp.checkpoint_utils.construct_restore_args(state())
        check(checkpointer.restore(folder / "a", item=structs(), restore_args=args), 2)
        # Onto the mesh of the save, and onto another.
        check(checkpointer.restore(folder / "a"), 2)
        other = mesh((4, 1))
        args = ocp.checkpoint_utils.construct_restore_args(state(on=other))
        check(checkpointer.restore(folder / "a", args=ocp.args.PyTreeRestore(restore_args=args)), 2, other)
        known = checkpointer.metadata(folder / "a").item_metadata
        assert known["params"]["both"].shape == (4, 8)
        args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), known)
        plain = checkpointer.restore(folder / "a", restore_args=args)
        assert np.array_equal(plain["params"]["rows"], values(2)["rows"])


@case
def background(folder: Path, _: Any) -> list[str]:
    with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        for step in (1, 2):
            checkpointer.save(folder / str(step), args=ocp.args.PyTreeSave(state(step), custom_metadata={"at": step}))
        checkpointer.wait_until_finished()
        assert checkpointer.metadata(folder / "2").item_metadata.custom_metadata == {"at": 2}
        args = ocp.checkpoint_utils.construct_restore_args(state())
        check(checkpointer.restore(folder / "2", args=ocp.args.PyTreeRestore(structs(), args)), 2)
    with ocp.StandardCheckpointer() as standard:
        standard.save(folder / "standard", state(3))
        standard.wait_until_finished()
        check(standard.restore(folder / "standard", structs()), 3)
        other = mesh((1, 4))
        check(standard.restore(folder / "standard", structs(other)), 3, other)
        return refused(lambda: standard.save(folder / "standard", state(4)))


# ---- handlers that write their own files ----------------------------------------------


class IteratorHandler(ocp.CheckpointHandler):
    """Each process' position in its data, as grain's handler keeps it."""

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        (directory / f"process_{jax.process_index()}.json").write_text(json.dumps(args.item))

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        return json.loads((directory / f"process_{jax.process_index()}.json").read_text())


@ocp.args.register_with_handler(IteratorHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class IteratorArgs(ocp.args.CheckpointArgs):
    item: Any = None


@case
def own_files(folder: Path, _: Any) -> list[str]:
    rank = jax.process_index()
    json_of = ocp.Checkpointer(ocp.JsonCheckpointHandler())
    json_of.save(folder / "json", {"width": 4})
    assert json_of.restore(folder / "json") == {"width": 4}
    composite = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    items = {
        "state": ocp.args.StandardSave(state(5)),
        "config": ocp.args.JsonSave([1, 2]),
        "data": IteratorArgs({"position": 10 + rank}),
    }
    composite.save(folder / "items", args=ocp.args.Composite(**items))
    wanted = {
        "state": ocp.args.StandardRestore(structs()),
        "config": ocp.args.JsonRestore(),
        "data": IteratorArgs(),
    }
    restored = composite.restore(folder / "items", args=ocp.args.Composite(**wanted))
    check(restored.state, 5)
    assert restored.config == [1, 2]
    assert restored.data == {"position": 10 + rank}
    own = ocp.Checkpointer(IteratorHandler())
    own.save(folder / "own", args=IteratorArgs(rank))
    assert own.restore(folder / "own", args=IteratorArgs()) == rank
    return sorted(os.listdir(folder / "items" / "data"))


class Position:
    """A leaf that each process has of its own."""

    def __init__(self, at: int) -> None:
        self.at = at


class PositionHandler(ocp.type_handlers.TypeHandler):
    """A leaf in files of each process, as axlearn's of iterators."""

    def typestr(self) -> str:
        return "Position"

    def _file(self, info: Any) -> Any:
        return info.path / f"worker_{jax.process_index()}"

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        for value, info in zip(values, infos, strict=True):
            info.path.mkdir(parents=True, exist_ok=True)
            self._file(info).write_text(str(value.at))
        return []

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        await asyncio.sleep(0)
        return [Position(int(self._file(info).read_text())) for info in infos]

    async def metadata(self, infos: Any) -> Any:
        return [ocp.metadata.Metadata(name=info.name, directory=info.path) for info in infos]


@case
def own_leaves(folder: Path, _: Any) -> None:
    types = ocp.type_handlers
    standard = [(ty, types.get_type_handler(ty)) for ty in types.supported_types()]
    registry = types.create_type_handler_registry((Position, PositionHandler()), *standard)
    rank = jax.process_index()
    tree = {**state(6), "data": Position(20 + rank)}
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry))
    checkpointer.save(folder / "alone", args=ocp.args.PyTreeSave(tree))
    restored = checkpointer.restore(folder / "alone")
    assert restored.pop("data").at == 20 + rank
    check(restored, 6)
    handlers = {"state": ocp.PyTreeCheckpointHandler(type_handler_registry=registry)}
    with ocp.CheckpointManager(folder / "run", item_handlers=handlers) as manager:
        manager.save(0, args=ocp.args.Composite(state=ocp.args.PyTreeSave(tree)))
        manager.wait_until_finished()
        restored = manager.restore(0)["state"]
        assert restored.pop("data").at == 20 + rank
        check(restored, 6)


# ---- the manager ----------------------------------------------------------------------


@case
def manager(folder: Path, _: Any) -> list[Any]:
    options = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=2, best_fn=None)
    with ocp.CheckpointManager(folder / "run", options=options) as manager:
        assert manager.latest_step() is None
        saved = []
        for step in range(7):
            items = {"state": ocp.args.StandardSave(state(step)), "config": ocp.args.JsonSave({"at": step})}
            saved.append(manager.save(step, args=ocp.args.Composite(**items), metrics={"loss": 1.0 / (step + 1)}))
            manager.reached_preemption(step)
        manager.wait_until_finished()
        wanted = {"state": ocp.args.StandardRestore(structs()), "config": ocp.args.JsonRestore()}
        restored = manager.restore(manager.latest_step(), args=ocp.args.Composite(**wanted))
        check(restored.state, 6)
        assert restored.config == {"at": 6}
        steps = manager.all_steps()
    with ocp.CheckpointManager(folder / "run", ocp.PyTreeCheckpointer(), options) as manager:
        # The older way, in the folder that is there: synchronous, one item without a name.
        assert manager.latest_step() == 6
        assert manager.save(8, state(8))
        args = ocp.checkpoint_utils.construct_restore_args(state())
        check(manager.restore(8, items=structs(), restore_kwargs={"restore_args": args}), 8)
        again = manager.all_steps(read=True)
    return [saved, steps, again]


# ---- one replica reads ----------------------------------------------------------------


class _Heard:
    """Which loads one replica has read for the others."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.read: list[int] = []
        self._load = regrow.Checkpoint.load

    def __enter__(self) -> _Heard:
        def load(checkpoint: Any, like: Any = None, *, options: Any, **keywords: Any) -> Any:
            rare = options

            def hear(report: Any) -> None:
                if rare.single_replica is not None:
                    self.received.append(report.received_bytes)
                    self.read.append(report.read_bytes)

            return self._load(checkpoint, like, options=dataclasses.replace(rare, on_report=hear), **keywords)

        regrow.Checkpoint.load = load  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: Any) -> None:
        regrow.Checkpoint.load = self._load  # type: ignore[method-assign]


def single_replica_args(leaf: Any) -> Any:
    """As MaxText makes them."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return ocp.RestoreArgs()
    devices = mesh().devices[:1]
    replica = NamedSharding(Mesh(devices, mesh().axis_names), leaf.sharding.spec)
    return ocp.type_handlers.SingleReplicaArrayRestoreArgs(
        sharding=leaf.sharding, single_replica_sharding=replica, global_shape=leaf.shape, dtype=leaf.dtype
    )


@case
def single_replica(folder: Path, _: Any) -> list[list[int]]:
    types = ocp.type_handlers
    before = types.get_type_handler(jax.Array)
    with ocp.CheckpointManager(folder) as manager, _Heard() as heard:
        manager.save(3, args=ocp.args.Composite(state=ocp.args.PyTreeSave(state(3))))
        manager.wait_until_finished()
        target = structs()
        args = jax.tree.map(single_replica_args, target)
        wanted = ocp.args.Composite(state=ocp.args.PyTreeRestore(item=target, restore_args=args, partial_restore=True))
        handler = types.SingleReplicaArrayHandler(replica_axis_index=0, broadcast_memory_limit_bytes=1024 * 1024)
        types.register_type_handler(jax.Array, handler, override=True)
        try:
            check(manager.restore(3, args=wanted)["state"], 3)
            # Of another dtype: the stored bytes are read once, too.
            half = [dataclasses.replace(each, dtype=each.dtype and "float16") for each in jax.tree.leaves(args)]
            half = jax.tree.unflatten(jax.tree.structure(args), half)
            cast = ocp.args.PyTreeRestore(item=target, restore_args=half)
            restored = manager.restore(3, args=ocp.args.Composite(state=cast))["state"]
            assert {array.dtype for array in restored["params"].values()} == {np.dtype("float16")}
            check(restored, 3)
            # Args that ask for nothing of the kind, and a save: as ever.
            check(manager.restore(3, args=ocp.args.Composite(state=ocp.args.PyTreeRestore(target))).state, 3)
            manager.save(4, args=ocp.args.Composite(state=ocp.args.PyTreeSave(state(4))))
            manager.wait_until_finished()
            # Replicas that share a process.
            types.register_type_handler(jax.Array, types.SingleReplicaArrayHandler(1), override=True)
            told = refused(lambda: manager.restore(4, args=wanted))
            assert told[0] == "InvalidArgumentError", told
            assert "share" in told[1], told
        finally:
            types.register_type_handler(jax.Array, before, override=True)
        check(manager.restore(4, args=wanted)["state"], 4)
    return [heard.received, heard.read]


@case
def single_replica_of_v1(folder: Path, _: Any) -> list[int]:
    """As MaxText's context of v1 asks for it."""
    context = v1.Context()
    context.array.loading.use_load_and_broadcast = True
    context.array.loading.load_and_broadcast_options.replica_axis_index = 0
    context.array.loading.load_and_broadcast_options.broadcast_memory_limit_bytes = 1024 * 1024
    v1.save(folder / "a", state(7))
    with context, _Heard() as heard:
        check(v1.load(folder / "a", structs()), 7)
    return heard.received


# ---- errors ---------------------------------------------------------------------------


@case
def errors(folder: Path, _: Any) -> list[list[str]]:
    """What one process cannot save, none saves; nothing of it stays, and the next save goes
    well.
    """
    wrong = {**state(), "odd": object() if jax.process_index() == 1 else 1}
    told = [refused(lambda: ocp.PyTreeCheckpointer().save(folder / "a", wrong))]
    with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(), timeout_secs=30) as checkpointer:

        def save() -> None:
            checkpointer.save(folder / "b", wrong)
            checkpointer.wait_until_finished()

        told.append(refused(save))
        checkpointer.save(folder / "good", state(1))
    with ocp.CheckpointManager(folder / "run") as manager:

        def step() -> None:
            manager.save(0, args=ocp.args.Composite(state=ocp.args.PyTreeSave(wrong)))
            manager.wait_until_finished()

        told.append(refused(step))
        assert manager.latest_step() is None
        assert manager.save(0, args=ocp.args.Composite(state=ocp.args.PyTreeSave(state(1))))
    ocp.multihost.sync_global_processes("listed")
    told.append(sorted(os.listdir(folder)) + sorted(os.listdir(folder / "run")))
    return told


# ---- the original's files -------------------------------------------------------------


@case
def of_the_original(_: Path, arguments: dict[str, str]) -> dict[str, list[int]]:
    """Checkpoints that two processes of the original have written: their sharded arrays on the
    devices of two.
    """
    found = {}
    for name in ("mp2_ocdbt_zarr2", "mp2_files_zarr2", "mp2_ocdbt_zarr3", "mp2_replica_folder"):
        path = Path(arguments["fixtures"]) / name / "ckpt"
        known = ocp.PyTreeCheckpointer().metadata(path).item_metadata

        def spread(leaf: Any) -> Any:
            shape = getattr(leaf, "shape", None)
            if shape is None or getattr(leaf, "sharding", None) is None:
                return ocp.RestoreArgs()
            is_even = len(shape) > 0 and shape[0] % 4 == 0
            spec = PartitionSpec(("data", "model")) if is_even else PartitionSpec()
            return ocp.ArrayRestoreArgs(sharding=NamedSharding(mesh(), spec))

        args = jax.tree.map(spread, known.tree, is_leaf=lambda leaf: hasattr(leaf, "directory"))
        restored = ocp.PyTreeCheckpointer().restore(path, restore_args=args)
        plain = regrow.load(path)
        wanted = jax.tree.leaves(args, is_leaf=lambda leaf: hasattr(leaf, "restore_type"))
        arrays = 0
        for leaf, whole, own in zip(jax.tree.leaves(restored), jax.tree.leaves(plain), wanted, strict=True):
            if isinstance(leaf, jax.Array) and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                arrays += 1
                assert leaf.sharding == own.sharding
                for shard in leaf.addressable_shards:
                    assert np.asarray(shard.data).tobytes() == np.asarray(whole)[shard.index].tobytes()
        found[name] = [arrays, len(jax.tree.leaves(plain))]
    return found


@case
def helpers(folder: Path, _: Any) -> list[Any]:
    local = {"scale": jnp.float32(2), "count": np.arange(2)}
    everywhere = ocp.utils.fully_replicated_host_local_array_to_global_array(local["scale"])
    assert everywhere.is_fully_replicated
    assert len(everywhere.sharding.device_set) == 4
    multihost = ocp.multihost
    steps = Folder(folder, ocp.CheckpointManagerOptions())
    assert steps.of_process_0("test", lambda: [jax.process_index(), "listed"]) == [0, "listed"]
    told = refused(lambda: steps.of_process_0("test", lambda: json.loads("no list")))
    assert told[0] != "nothing"
    assert "Expecting value" in told[1], told
    return [multihost.process_count(), multihost.is_primary_host(), multihost.is_jax_distributed_client_initialized()]

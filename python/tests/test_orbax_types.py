"""Type handlers of the caller's own, under `regrow.orbax` and the original: each restores what
the other saves.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as theirs
import pytest
from conftest import same_bits
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from regrow import orbax as ours

MODULES = {"orbax": theirs, "regrow": ours}


@dataclasses.dataclass(frozen=True)
class Config:
    """A leaf that is no array: JAX does not know the class."""

    members: tuple[tuple[str, int], ...]


class Later:
    """An array that is made when it is saved."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype, self.size = array, array.shape, array.dtype, array.size

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array if dtype is None else self.array.astype(dtype)


def config_handler(ocp: Any) -> Any:
    """As neuralgcm's: a folder for each leaf, written by a thread of its own."""

    class ConfigHandler(ocp.type_handlers.TypeHandler):
        @dataclasses.dataclass
        class RestoreArgs(ocp.type_handlers.RestoreArgs):
            item: Any = None

        def __init__(self) -> None:
            self.executor = ThreadPoolExecutor(max_workers=1)

        def typestr(self) -> str:
            return "Config"

        async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
            futures = []
            for value, info in zip(values, infos, strict=True):
                info.path.mkdir(exist_ok=True)
                text = json.dumps(value.members)
                futures.append(self.executor.submit((info.path / "config").write_text, text))
            return futures

        async def deserialize(self, infos: Any, args: Any = None) -> Any:
            found = [json.loads((info.path / "config").read_text()) for info in infos]
            given = [getattr(arg, "item", None) for arg in args]
            return [
                Config(tuple(map(tuple, members)) + (() if item is None else item.members))
                for members, item in zip(found, given, strict=True)
            ]

        async def metadata(self, infos: Any) -> Any:
            return [ocp.metadata.Metadata(name=info.name, directory=info.path) for info in infos]

    return ConfigHandler()


@pytest.fixture(params=MODULES)
def ocp(request: pytest.FixtureRequest) -> Any:
    """The original, and ours."""
    return MODULES[request.param]


@pytest.fixture
def registered() -> Iterator[None]:
    """Both have the handler of `Config`, until the test ends."""
    registries = [theirs._src.serialization.type_handler_registry.GLOBAL_TYPE_HANDLER_REGISTRY]
    registries.append(ours.type_handlers.GLOBAL_TYPE_HANDLER_REGISTRY)
    members = [name for name in vars(registries[0])], [name for name in vars(registries[1])]
    before = [
        {name: vars(registry)[name].copy() for name in names}
        for registry, names in zip(registries, members, strict=True)
    ]
    for module in MODULES.values():
        module.type_handlers.register_type_handler(Config, config_handler(module), override=True)
    yield
    for registry, known in zip(registries, before, strict=True):
        vars(registry).update(known)


TREE: dict[str, Any] = {
    "w": jnp.arange(6.0).reshape(2, 3),
    "config": Config((("width", 1024),)),
    "deep": {"config": Config((("depth", 3),)), "n": np.arange(3), "count": 7, "name": "moe"},
}


def check(restored: Any) -> None:
    assert restored["config"] == TREE["config"]
    assert restored["deep"]["config"] == TREE["deep"]["config"]
    assert same_bits(restored["w"], TREE["w"])
    assert same_bits(restored["deep"]["n"], TREE["deep"]["n"])
    assert (restored["deep"]["count"], restored["deep"]["name"]) == (7, "moe")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("use_ocdbt", [True, False])
def test_an_item_with_leaves_of_an_own_type(ocp: Any, tmp_path: Path, use_ocdbt: bool) -> None:
    for at, background in enumerate((False, True)):
        # The handler is called when its folder is there.
        in_time = ocp.options.AsyncOptions(create_directories_asynchronously=False)
        options = ocp.CheckpointManagerOptions(enable_async_checkpointing=background, async_options=in_time)
        handlers = {"state": ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt)}
        with ocp.CheckpointManager(tmp_path / "run", options=options, item_handlers=handlers) as manager:
            assert manager.save(at, args=ocp.args.Composite(state=ocp.args.PyTreeSave(TREE)))
    item = tmp_path / "run" / "1" / "state"
    assert json.loads((item / "config" / "config").read_text()) == [["width", 1024]]
    told = json.loads((item / "_METADATA").read_text())["tree_metadata"]
    assert told["('deep', 'config')"]["value_metadata"] == {"value_type": "Config", "skip_deserialize": False}
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["0", "1"]
    for reader in MODULES.values():
        restore_args = reader.args.PyTreeRestore
        with reader.CheckpointManager(tmp_path / "run") as manager:
            check(manager.restore(1, args=reader.args.Composite(state=restore_args()))["state"])
            # The caller's own restore args reach the handler.
            args = reader.checkpoint_utils.construct_restore_args(
                {**TREE, "config": 0, "deep": {**TREE["deep"], "config": 0}}
            )
            args["config"] = reader.type_handlers.get_type_handler(Config).RestoreArgs(item=Config((("more", 1),)))
            args["deep"]["config"] = reader.RestoreArgs()
            found = manager.restore(1, args=reader.args.Composite(state=restore_args(TREE, args)))["state"]
            assert found["config"].members == (("width", 1024), ("more", 1))
            known = manager.item_metadata(1)["state"]
            if known is not None:
                assert known["config"].name == "config"
                assert known["deep"]["n"].shape == (3,)


@pytest.mark.usefixtures("registered")
def test_a_pytree_alone_with_leaves_of_an_own_type(ocp: Any, tmp_path: Path) -> None:
    ocp.PyTreeCheckpointer().save(tmp_path / "sync", TREE)
    in_time = ocp.options.AsyncOptions(create_directories_asynchronously=False)
    with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(), async_options=in_time) as checkpointer:
        checkpointer.save(tmp_path / "async", args=ocp.args.PyTreeSave(TREE))
        checkpointer.wait_until_finished()
        with pytest.raises(ValueError, match="exists"):
            checkpointer.save(tmp_path / "async", args=ocp.args.PyTreeSave(TREE))
        checkpointer.save(tmp_path / "async", args=ocp.args.PyTreeSave(TREE), force=True)
    assert sorted(os.listdir(tmp_path)) == ["async", "sync"]
    for reader in MODULES.values():
        for name in ("sync", "async"):
            check(reader.PyTreeCheckpointer().restore(tmp_path / name))


def sequential(ocp: Any) -> Any:
    """As openpi's: one array at a time, each waited for."""

    class Sequential(ocp.type_handlers.ArrayHandler):
        calls = 0

        async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
            ended = []
            for at, (value, info) in enumerate(zip(values, infos, strict=True)):
                futures = await super().serialize([value], [info], None if args is None else [args[at]])
                for future in futures:
                    await asyncio.to_thread(future.result)
                ended.extend(futures)
                self.calls += 1
            return ended

        async def deserialize(self, infos: Any, args: Any = None) -> Any:
            found = []
            for at, info in enumerate(infos):
                found += await super().deserialize([info], [args[at]])
                self.calls += 1
            return found

    return Sequential()


def later(ocp: Any) -> Any:
    """As MaxText's converter: makes arrays, and calls them what NumPy's are called."""

    class LaterHandler(ocp.type_handlers.NumpyHandler):
        async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
            return await super().serialize([np.asarray(value) for value in values], infos, args)

    return LaterHandler()


def halved(ocp: Any) -> Any:
    """An array that is stored as another, under a name of its own."""

    class Halved(ocp.type_handlers.NumpyHandler):
        def typestr(self) -> str:
            return "Halved"

        async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
            return await super().serialize([value.array.astype(np.float16) for value in values], infos, args)

        async def deserialize(self, infos: Any, args: Any = None) -> Any:
            return [Later(array.astype(np.float32)) for array in await super().deserialize(infos, args)]

    return Halved()


def registry_of(ocp: Any, *own: Any) -> Any:
    standard = [(ty, ocp.type_handlers.get_type_handler(ty)) for ty in ocp.type_handlers.supported_types()]
    return ocp.type_handlers.create_type_handler_registry(*own, *standard)


def test_subclasses_that_hand_on_to_the_standard_handlers(ocp: Any, tmp_path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    tree = {"a": jax.device_put(jnp.arange(8.0), sharding), "b": Later(np.arange(5.0)), "c": 3, "d": jnp.ones(2)}
    handler = sequential(ocp)
    registry = ocp.type_handlers.create_type_handler_registry(
        (int, ocp.type_handlers.ScalarHandler()),
        (np.ndarray, ocp.type_handlers.NumpyHandler()),
        (jax.Array, handler),
        (Later, later(ocp)),
    )
    args = jax.tree.map(lambda _: ocp.SaveArgs(), tree)
    args["b"] = ocp.SaveArgs(dtype=np.dtype(np.float32))
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry))
    checkpointer.save(tmp_path / "a", args=ocp.args.PyTreeSave(tree, save_args=args))
    assert handler.calls == 2
    wanted = {"a": ocp.ArrayRestoreArgs(sharding=sharding), "b": ocp.RestoreArgs(), "c": ocp.RestoreArgs()}
    wanted["d"] = ocp.ArrayRestoreArgs(dtype=jnp.bfloat16)
    restored = checkpointer.restore(tmp_path / "a", args=ocp.args.PyTreeRestore(restore_args=wanted))
    assert handler.calls == 4
    assert restored["a"].sharding == sharding
    assert restored["d"].dtype == jnp.bfloat16
    assert same_bits(restored["b"], np.arange(5, dtype=np.float32))
    for reader in MODULES.values():
        plain = reader.PyTreeCheckpointer().restore(tmp_path / "a")
        assert same_bits(plain["b"], np.arange(5, dtype=np.float32))
        assert plain["c"] == 3
        assert plain["a"].sharding == sharding
    with pytest.raises(ValueError, match="lookup failed"):
        checkpointer.save(tmp_path / "b", {"text": "no handler"})
    assert ocp is theirs or os.listdir(tmp_path) == ["a"]


def test_an_array_under_an_own_name(ocp: Any, tmp_path: Path) -> None:
    tree = {"q": Later(np.arange(4, dtype=np.float32)), "n": np.arange(2)}
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry_of(ocp, (Later, halved(ocp))))
    ocp.Checkpointer(handler).save(tmp_path / "q", args=ocp.args.PyTreeSave(tree))
    told = json.loads((tmp_path / "q" / "_METADATA").read_text())["tree_metadata"]
    assert told["('q',)"]["value_metadata"]["value_type"] == "Halved"
    for reader in MODULES.values():
        registry = registry_of(reader, (Later, halved(reader)))
        own = reader.Checkpointer(reader.PyTreeCheckpointHandler(type_handler_registry=registry))
        restored = own.restore(tmp_path / "q")
        assert isinstance(restored["q"], Later)
        assert same_bits(restored["q"].array, np.arange(4, dtype=np.float32))
        # A reader without such a handler names the type of the leaf.
        args = {"q": reader.RestoreArgs(restore_type=np.ndarray), "n": reader.RestoreArgs()}
        plain = reader.PyTreeCheckpointer().restore(tmp_path / "q", restore_args=args)
        assert same_bits(plain["q"], np.arange(4, dtype=np.float16))


@pytest.mark.usefixtures("registered")
def test_a_handler_that_fails_leaves_nothing(ocp: Any, tmp_path: Path) -> None:
    class Fails(type(config_handler(ocp))):  # type: ignore[misc]
        async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
            await super().serialize(values, infos, args)
            raise OSError("no room")

    ocp.type_handlers.register_type_handler(Config, Fails(), override=True)
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
    with ocp.CheckpointManager(tmp_path, options=options) as manager, pytest.raises(OSError, match="no room"):
        manager.save(0, args=ocp.args.Composite(state=ocp.args.PyTreeSave(TREE)))
        manager.wait_until_finished()
    if ocp is ours:
        assert os.listdir(tmp_path) == []


def test_a_leaf_that_has_no_handler_here(tmp_path: Path) -> None:
    registry = registry_of(theirs, (Config, config_handler(theirs)))
    checkpointer = theirs.Checkpointer(theirs.PyTreeCheckpointHandler(type_handler_registry=registry))
    checkpointer.save(tmp_path / "a", args=theirs.args.PyTreeSave(TREE))
    with pytest.raises(ValueError, match=r"(?s)type=Config.*leaf config.*register"):
        ours.PyTreeCheckpointer().restore(tmp_path / "a")
    target = {**TREE, "config": ..., "deep": {**TREE["deep"], "config": ...}}
    restored = ours.PyTreeCheckpointer().restore(tmp_path / "a", item=target)
    assert restored["config"] is ...
    assert same_bits(restored["w"], TREE["w"])


def test_registries(ocp: Any) -> None:
    types = ocp.type_handlers
    registry = types.create_type_handler_registry((int, types.ScalarHandler()))
    assert registry.has(bool)
    assert registry.has("scalar")
    assert not registry.has(str)
    with pytest.raises(ValueError, match="already registered"):
        registry.add(int, types.ScalarHandler())
    with pytest.raises(ValueError, match="collides"):
        registry.add(np.number, types.ScalarHandler())
    with pytest.raises(ValueError, match="Unknown type"):
        registry.get(str)
    registry.add(str, types.StringHandler(), func=lambda cls: cls in (str, bytes))
    assert registry.get(bytes).typestr() == "string"
    assert types.has_type_handler(np.float32)
    assert types.get_type_handler("np.ndarray").typestr() == "np.ndarray"
    assert {int, float, np.ndarray, jax.Array, str} <= set(types.supported_types())


def test_handlers_that_need_the_original_are_refused_by_name() -> None:
    class NoCompression(ours.type_handlers.ArrayHandler):
        def _get_json_tspec_write(self) -> Any:
            return {}

    class Foreign(theirs.type_handlers.NumpyHandler):
        pass

    for handler, name in ((NoCompression(), "_get_json_tspec_write"), (Foreign(), "Foreign.*NumpyHandler")):
        with pytest.raises(NotImplementedError, match=name):
            ours.type_handlers.register_type_handler(Later, handler)
    for kind, keyword in (
        ("ArrayHandler", "metadata_key"),
        ("ArrayHandler", "dispatcher"),
        ("StringHandler", "filename"),
    ):
        with pytest.raises(NotImplementedError, match=keyword):
            getattr(ours.type_handlers, kind)(**{keyword: "x"})
    assert not ours.type_handlers.has_type_handler(Later)


def test_the_layout_regrow_has_no_own_types(tmp_path: Path) -> None:
    registry = registry_of(ours, (Config, config_handler(ours)))
    checkpointer = ours.Checkpointer(ours.PyTreeCheckpointHandler(type_handler_registry=registry))
    ours.use_layout("regrow")
    try:
        with pytest.raises(NotImplementedError, match="Config"):
            checkpointer.save(tmp_path / "a", TREE)
    finally:
        ours.use_layout("orbax")
    assert os.listdir(tmp_path) == []

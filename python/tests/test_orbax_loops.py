"""Checkpoint code in the shape of neuralgcm's, axlearn's and maxdiffusion's, under the original
and under ours.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as theirs
import pytest
from conftest import same_bits
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from regrow import orbax as ours

MODULES = {"orbax": theirs, "regrow": ours}


@pytest.fixture(params=MODULES)
def ocp(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The original, and ours, each with the type handlers that it had before the test."""
    module = MODULES[request.param]
    registry = module.type_handlers.register_type_handler.__globals__["GLOBAL_TYPE_HANDLER_REGISTRY"]
    before = {name: value.copy() for name, value in vars(registry).items()}
    yield module
    vars(registry).update(before)


@functools.cache
def mesh() -> Any:
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))


def params() -> dict[str, Any]:
    columns, everywhere = (NamedSharding(mesh(), PartitionSpec(*spec)) for spec in ((None, "model"), ()))
    weights = jax.device_put(jnp.arange(32.0).reshape(4, 8), columns)
    return {"w": weights, "b": jax.device_put(jnp.ones(8), everywhere)}


def assert_same(left: Any, right: Any) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert same_bits(one, other)


# ---- neuralgcm ------------------------------------------------------------------------


class Config:
    """A configuration that is a leaf."""

    def __init__(self, **members: Any) -> None:
        self.members = members


def test_neuralgcm_saves_a_configuration_beside_its_parameters(ocp: Any, tmp_path: Path) -> None:
    info_class, metadata_class = ocp.type_handlers.ParamInfo, ocp.metadata.value.Metadata

    class ConfigHandler(ocp.type_handlers.TypeHandler):
        def __init__(self, filename: str | None = None, primary_host: int | None = 0) -> None:
            self._filename = filename or "config"
            self._primary_host = primary_host
            self._executor = futures.ThreadPoolExecutor(max_workers=1)

        def typestr(self) -> str:
            return "Config"

        def _write(self, config: Config, path: Any) -> Any:
            if ocp.utils.is_primary_host(self._primary_host):
                (path / self._filename).write_text(json.dumps(config.members))
            return path

        async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
            begun = []
            for value, info in zip(values, infos, strict=True):
                assert isinstance(info, info_class)
                info.path.mkdir(exist_ok=True)
                begun.append(self._executor.submit(functools.partial(self._write, value, info.path)))
            return begun

        async def _read(self, path: Any) -> Config:
            return Config(**json.loads((path / self._filename).read_text()))

        async def deserialize(self, infos: Any, args: Any = None) -> Any:
            loop = asyncio.get_event_loop()
            begun = [
                await loop.run_in_executor(self._executor, functools.partial(self._read, info.path)) for info in infos
            ]
            return await asyncio.gather(*begun)

        async def metadata(self, infos: Any) -> Any:
            return [metadata_class(name=info.name, directory=info.path) for info in infos]

    ocp.type_handlers.register_type_handler(Config, ConfigHandler(), override=True)
    tree = {"params": params(), "config": Config(layers=3), "grid": np.arange(4)}
    ocp.PyTreeCheckpointer().save(tmp_path / "old", tree)
    restored = ocp.PyTreeCheckpointer().restore(tmp_path / "old")
    assert restored["config"].members == {"layers": 3}
    assert_same(restored["params"], tree["params"])
    # The newer way: the configuration is JSON, arguments are positional.
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    checkpointer.save(
        tmp_path / "new",
        ocp.args.Composite(state=ocp.args.PyTreeSave(params()), config=ocp.args.JsonSave({"layers": 3})),
    )
    found = checkpointer.restore(tmp_path / "new", ocp.args.Composite(config=ocp.args.JsonRestore()))["config"]
    assert found == {"layers": 3}
    wanted = ocp.args.Composite(state=ocp.args.PyTreeRestore(params()))
    assert_same(checkpointer.restore(tmp_path / "new", wanted)["state"], params())


# ---- axlearn --------------------------------------------------------------------------


class Data:
    """An iterator over data."""

    def __init__(self, at: int = 0) -> None:
        self.at = at


def test_axlearn_keeps_its_iterator_in_the_state(ocp: Any, tmp_path: Path) -> None:
    class DataHandler(ocp.type_handlers.TypeHandler):
        @dataclasses.dataclass
        class RestoreArgs(ocp.type_handlers.RestoreArgs):
            item: Any = None

        def typestr(self) -> str:
            return "DataIterator"

        def _folder(self, info: Any) -> Any:
            return info.parent_dir / f"data_{jax.process_index()}"

        async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
            begun = []
            with futures.ThreadPoolExecutor(max_workers=1) as executor:
                for value, info in zip(values, infos, strict=True):
                    self._folder(info).mkdir(parents=True, exist_ok=True)
                    begun.append(executor.submit((self._folder(info) / info.name).write_text, str(value.at)))
            return begun

        async def deserialize(self, infos: Any, args: Any = None) -> Any:
            if args is None:
                raise ValueError("RestoreArgs are needed")
            for arg, info in zip(args, infos, strict=True):
                arg.item.at = int((self._folder(info) / info.name).read_text())
            return [arg.item for arg in args]

        async def metadata(self, infos: Any) -> Any:
            return [ocp.metadata.Metadata(name=info.name, directory=info.path) for info in infos]

    ocp.type_handlers.register_type_handler(Data, DataHandler(), override=True)
    ocp.type_handlers.register_type_handler(
        jax.Array,
        ocp.type_handlers.ArrayHandler(use_replica_parallel=False, enable_write_sharding_file=False),
        override=True,
    )
    summaries: dict[str, float] = {}
    names = ocp.step.standard_name_format(step_prefix="step", step_format_fixed_length=8)
    options = ocp.CheckpointManagerOptions(
        create=True,
        max_to_keep=1,
        enable_async_checkpointing=True,
        step_name_format=names,
        should_save_fn=lambda step, last: step % 2 == 0 or summaries.get("loss", 1) < 0.5,
        enable_background_delete=True,
        async_options=ocp.options.AsyncOptions(timeout_secs=300, create_directories_asynchronously=False),
    )
    handlers = {"index": ocp.JsonCheckpointHandler(filename="index"), "state": ocp.PyTreeCheckpointHandler()}
    manager = ocp.CheckpointManager(directory=tmp_path, options=options, item_handlers=handlers)

    def restore(step: int | None, state: Any) -> Any:
        def args_of(leaf: Any) -> Any:
            if isinstance(leaf, Data):
                return DataHandler.RestoreArgs(item=leaf)
            wanted = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            return ocp.checkpoint_utils.construct_restore_args(wanted)

        args = jax.tree.map(args_of, state)
        items = ocp.args.Composite(
            index=ocp.args.JsonRestore(None), state=ocp.args.PyTreeRestore(item=state, restore_args=args)
        )
        return manager.restore(step, args=items)

    with pytest.raises((FileNotFoundError, TypeError)):
        restore(None, {"data": Data(), "params": params()})
    for step in range(4):
        summaries["loss"] = 1.0 / (step + 1)
        state = {"data": Data(step), "params": jax.tree.map(lambda leaf, at=step: leaf + at, params())}
        index = [["step", step], ["params/w", {"shape": "(4, 8)"}]]
        manager.save(
            step=step, args=ocp.args.Composite(index=ocp.args.JsonSave(index), state=ocp.args.PyTreeSave(item=state))
        )
        assert not manager.reached_preemption(step)
    manager.wait_until_finished()
    restored = restore(None, {"data": Data(), "params": params()})
    assert restored["index"][0] == ["step", 3]
    assert restored["state"]["data"].at == 3
    assert_same(restored["state"]["params"], jax.tree.map(lambda leaf: leaf + 3, params()))
    step = ocp.step.build_step_path(tmp_path, names, 3)
    assert (step / "state" / "data_0" / "data").read_text() == "3"
    assert not (step / "state" / "_sharding").exists()
    manager.close()


# ---- maxdiffusion ---------------------------------------------------------------------


def test_maxdiffusion_restores_many_items_by_their_metadata(ocp: Any, tmp_path: Path) -> None:
    names = ("unet_state", "vae_state", "config")
    handlers = {
        "unet_state": ocp.PyTreeCheckpointHandler(),
        "vae_state": ocp.PyTreeCheckpointHandler(),
        "config": ocp.JsonCheckpointHandler(),
    }
    state = {"step": 3, "params": params(), "opt": optax.adam(1e-3).init(params())}
    options = ocp.CheckpointManagerOptions(create=True, max_to_keep=10, enable_async_checkpointing=True)
    with ocp.CheckpointManager(tmp_path, item_names=names, options=options) as manager:
        items = {"unet_state": ocp.args.PyTreeSave(state), "vae_state": ocp.args.PyTreeSave({"params": params()})}
        manager.save(3, args=ocp.args.Composite(**items, config=ocp.args.JsonSave({"model": "moe"})))
    with ocp.CheckpointManager(tmp_path, item_names=names, item_handlers=handlers, options=options) as manager:
        step = manager.latest_step()
        known = manager.item_metadata(step)
        single = ocp.type_handlers.SingleReplicaArrayHandler(replica_axis_index=0, broadcast_memory_limit_bytes=10**9)

        def args_of(leaf: Any, registers: bool) -> Any:
            if not hasattr(leaf, "shape") or leaf.sharding is None:
                return ocp.RestoreArgs()
            sharding = leaf.sharding.to_jax_sharding()
            if not registers or not isinstance(sharding, NamedSharding):
                return ocp.ArrayRestoreArgs(sharding=sharding)
            ocp.type_handlers.register_type_handler(jax.Array, single, override=True)
            replica = Mesh(sharding.mesh.devices[:1], sharding.mesh.axis_names)
            return ocp.type_handlers.SingleReplicaArrayRestoreArgs(
                sharding=sharding,
                single_replica_sharding=NamedSharding(replica, sharding.spec),
                global_shape=leaf.shape,
                dtype=leaf.dtype,
            )

        args = jax.tree_util.tree_map(lambda leaf: args_of(leaf, False), known.unet_state)
        vae = jax.tree_util.tree_map(lambda leaf: args_of(leaf, ocp is ours), known.vae_state)
        restored = manager.restore(
            step,
            args=ocp.args.Composite(
                unet_state=ocp.args.PyTreeRestore(restore_args=dict(args)),
                config=ocp.args.JsonRestore(),
            ),
        )
        assert_same(restored.unet_state["params"], state["params"])
        assert_same(restored.unet_state["opt"][0]["mu"], state["opt"][0].mu)
        assert restored.config == {"model": "moe"}
        wanted = ocp.args.Composite(vae_state=ocp.args.PyTreeRestore(restore_args=dict(vae)))
        assert_same(manager.restore(step, args=wanted).vae_state, {"params": params()})

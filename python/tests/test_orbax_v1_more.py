"""v1 beside the original: saves in parts, contexts, targets, layouts, steps."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as originals
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from test_orbax_dropin import assert_same

import regrow.orbax
from regrow.orbax import v1 as ours

theirs = originals.v1
MODULES = {"orbax": theirs, "regrow": ours}


# ---- saves in parts -------------------------------------------------------------------


@pytest.mark.parametrize("v1", MODULES.values(), ids=MODULES)
def test_a_checkpoint_that_is_saved_in_parts(tmp_path: Path, v1: Any) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    w = jax.device_put(jnp.arange(16.0).reshape(8, 2), sharding)
    path = tmp_path / "x"
    v1.partial.save(path, {"model": {"w": w}, "step": 3}, custom_metadata={"a": 1})
    assert (
        v1.partial.save_async(path, {"model": {"b": np.arange(3)}, "name": "m"}, custom_metadata={"b": 2}).result()
        is None
    )
    assert not path.exists()
    with pytest.raises(v1.errors.InvalidLayoutError):
        v1.load(path)
    with pytest.raises(Exception, match=r"model.*w"):
        v1.partial.save(path, {"model": {"w": w}})
    with pytest.raises(ValueError, match="empty"):
        v1.partial.save(path, {})
    v1.partial.finalize(path)
    assert v1 is theirs or os.listdir(tmp_path) == ["x"]
    with pytest.raises(FileExistsError):
        v1.partial.save(path, {"more": 1})
    with pytest.raises(FileExistsError):
        v1.partial.finalize(path)
    with pytest.raises(FileNotFoundError):
        v1.partial.finalize(tmp_path / "y")
    for reader in MODULES.values():
        loaded = reader.load(path)
        assert_same(loaded, {"model": {"w": w, "b": np.arange(3)}, "step": 3, "name": "m"})
        assert loaded["model"]["w"].sharding == sharding
        assert reader.metadata(path).custom_metadata == {"a": 1, "b": 2}


def test_parts_are_saved_with_the_options_of_the_first(tmp_path: Path) -> None:
    context = ours.Context()
    context.array.saving.use_ocdbt = False
    context.array.saving.storage_options.dtype = jnp.float16
    with context:
        ours.partial.save(tmp_path / "x", {"a": [jnp.ones(2), np.ones(2)], "t": "text"})
    ours.partial.save(tmp_path / "x", {"key": jax.random.key(7), "none": None, "empty": {}})
    ours.partial.finalize(tmp_path / "x.partial_save")
    assert not (tmp_path / "x" / "state" / "manifest.ocdbt").exists()
    loaded = theirs.load(tmp_path / "x")
    assert loaded["a"][0].dtype == loaded["a"][1].dtype == np.float16 and isinstance(loaded["a"][1], np.ndarray)
    assert loaded["key"] == jax.random.key(7) and loaded["none"] is None and loaded["empty"] == {}


# ---- contexts -------------------------------------------------------------------------


@pytest.mark.parametrize("v1", MODULES.values(), ids=MODULES)
def test_contexts(tmp_path: Path, v1: Any) -> None:
    options = v1.options.ArrayOptions.Saving.StorageOptions
    context = v1.Context()
    context.array.saving.storage_options.dtype = jnp.bfloat16
    context.array.saving.scoped_storage_options_creator = lambda keys, leaf: (
        options(dtype=jnp.float16) if "half" in jax.tree_util.keystr(keys) else None
    )
    context.array.saving.enable_write_sharding_file = False
    with context:
        with pytest.raises(RuntimeError, match=r"active|in force"):
            context.array.saving.use_zarr3 = False
        with pytest.raises(RuntimeError, match=r"active|in force"):
            context.checkpoint_layout = "auto"
        inner = v1.Context(context, checkpoint_layout="auto")
        inner.array.saving.use_zarr3 = False
        assert context.array.saving.use_zarr3 and inner.checkpoint_layout is v1.options.CheckpointLayout.AUTO
        v1.save(tmp_path / "x", {"half": jnp.ones(2), "other": jnp.ones(3)})
        with inner:
            v1.save(tmp_path / "y", {"a": jnp.ones(2)})
    context.array.saving.use_zarr3 = False
    assert v1.Context().array.saving.use_zarr3
    assert not (tmp_path / "x" / "state" / "_sharding").exists()
    assert '"use_zarr3": true' in (tmp_path / "x" / "state" / "_METADATA").read_text()
    assert '"use_zarr3": false' in (tmp_path / "y" / "state" / "_METADATA").read_text()
    for reader in MODULES.values():
        found = reader.metadata(tmp_path / "x").metadata
        assert found["half"].dtype == jnp.float16 and found["other"].dtype == jnp.bfloat16


def test_options_that_change_what_is_done_here(tmp_path: Path) -> None:
    context = ours.Context()
    context.file.path_permission_mode = 0o750
    context.array.saving.use_compression = False
    context.array.saving.array_metadata_store = None
    context.memory.write_concurrent_bytes = 1 << 20
    called = threading.Event()
    context.asynchronous.post_finalization_callback = called.set
    with context:
        ours.save(tmp_path / "x", {"w": jnp.zeros(1 << 16)})
        assert not called.is_set()
        ours.save_async(tmp_path / "y", {"w": jnp.zeros(1 << 16)}).result()
    assert called.is_set() and os.stat(tmp_path / "y").st_mode & 0o777 == 0o750
    assert not (tmp_path / "x" / "state" / "array_metadatas").exists()
    assert sum(file.stat().st_size for file in (tmp_path / "x").rglob("*") if file.is_file()) > 1 << 18
    context.checkpoint_layout = "safetensors"
    with context, pytest.raises(NotImplementedError, match="safetensors"):
        ours.save(tmp_path / "z", {"w": jnp.zeros(2)})


def test_the_layout_of_regrow(tmp_path: Path) -> None:
    """The one switch holds for v1, too; the original loads what is written then."""
    tree = {"w": jnp.arange(8.0), "n": np.arange(3)}
    context = ours.Context()
    context.array.saving.storage_options.chunk_byte_size = 16
    regrow.orbax.use_layout("regrow")
    try:
        with context:
            ours.save(tmp_path / "x", tree, custom_metadata={"by": "me"})
            ours.partial.save(tmp_path / "y", tree)
        ours.save_checkpointables_async(tmp_path / "z", {"a": tree, "b": {"c": 1}}).result()
        ours.partial.finalize(tmp_path / "y")
    finally:
        regrow.orbax.use_layout("orbax")
    assert all((tmp_path / name / "state" / "model.safetensors").exists() for name in "xy")
    assert ours.delete(tmp_path / "z", checkpointable_name="b")
    for v1 in MODULES.values():
        assert_same(v1.load(tmp_path / "x"), tree)
        assert_same(v1.load(tmp_path / "y", tree), tree)
        assert_same(v1.load_checkpointables(tmp_path / "z")["a"], tree)
        assert v1.metadata(tmp_path / "x").metadata["w"].storage_metadata.chunk_shape == (4,)


# ---- targets and layouts --------------------------------------------------------------


def test_targets(tmp_path: Path) -> None:
    """What stands for a leaf in a target, and what comes of it, in both."""
    stored = {"a": jnp.arange(4.0), "n": np.arange(3), "i": 3, "s": "text", "no": None, "t": (1, jnp.ones(2))}
    ours.save(tmp_path / "x", stored)
    struct = jax.ShapeDtypeStruct((4,), jnp.bfloat16)
    targets: list[dict[str, Any]] = [
        stored,
        {**stored, "a": struct, "n": np.zeros(3, np.int16), "i": int, "s": str},
        {**stored, "a": jax.ShapeDtypeStruct, "n": np.ndarray, "i": float},
        {**stored, "a": np.zeros(4), "n": ours.arrays.NumpyShapeDtype((3,), np.dtype(np.float32)), "t": (..., None)},
        {**stored, "a": ..., "i": ..., "s": None},
    ]
    for target in targets:
        assert_same(ours.load(tmp_path / "x", target), theirs.load(tmp_path / "x", target))
    for v1 in MODULES.values():
        assert_same(v1.load(tmp_path / "x", v1.metadata(tmp_path / "x")), v1.load(tmp_path / "x"))
        with pytest.raises(TypeError, match="Unsupported abstract leaf"):
            v1.load(tmp_path / "x", {**stored, "a": object()})
        with pytest.raises(ValueError, match="compatible"):
            v1.load(tmp_path / "x", {**stored, "a": jnp.ones(5)})
        with pytest.raises(ValueError, match="do not match"):
            v1.load(tmp_path / "x", {"a": struct})
        with pytest.raises(ValueError, match="Unsupported leaf"):
            v1.save(tmp_path / "y", {"a": object()})
        with pytest.raises(ValueError, match="empty"):
            v1.save(tmp_path / "y", {})
        context = v1.Context()
        context.array.loading.enable_padding_and_truncation = True
        with context:
            padded = v1.load(tmp_path / "x", {**stored, "a": jax.ShapeDtypeStruct((5,), jnp.float32)})
        assert padded["a"].tolist() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("v1", MODULES.values(), ids=MODULES)
def test_checkpoints_of_v0(tmp_path: Path, v1: Any) -> None:
    tree = {"w": np.arange(3.0), "step": 2}
    with originals.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "flat", tree)
    with regrow.orbax.CheckpointManager(tmp_path / "run") as manager:
        args = regrow.orbax.args
        manager.save(1, args=args.Composite(state=args.StandardSave(tree), config=args.JsonSave({"a": 1})))
    assert_same(v1.load(tmp_path / "flat"), tree)
    assert_same(v1.load(tmp_path / "flat", tree, checkpointable_name=None), tree)
    assert v1.metadata(tmp_path / "flat").metadata["step"] == 0
    with pytest.raises(v1.errors.InvalidLayoutError):
        v1.load(tmp_path / "flat", checkpointable_name="state")
    with pytest.raises(v1.errors.InvalidLayoutError):
        v1.load_checkpointables(tmp_path / "flat")
    loaded = v1.load_checkpointables(tmp_path / "run" / "1")
    assert_same(loaded["state"], tree)
    assert (
        loaded["config"] == {"a": 1} and v1.checkpointables_metadata(tmp_path / "run" / "1").metadata["config"] is None
    )
    for root in (tmp_path / "run", tmp_path / "nothing"):
        with pytest.raises(v1.errors.InvalidLayoutError):
            v1.load(root)
        with pytest.raises(v1.errors.InvalidLayoutError):
            v1.load_checkpointables(root)
    assert [v1.is_orbax_checkpoint(tmp_path / name) for name in ("flat", "run/1", "run", "nothing")] == [1, 1, 0, 0]
    v1.save(tmp_path / "new", tree, checkpointable_name="default")
    with originals.CheckpointManager(tmp_path / "run") as manager:
        os.rename(tmp_path / "new", tmp_path / "run" / "2")
        manager.reload()
        assert_same(manager.restore(2, args=originals.args.StandardRestore(tree)), tree)


@pytest.mark.parametrize("v1", MODULES.values(), ids=MODULES)
def test_safetensors(tmp_path: Path, v1: Any) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.arange(3.0), "b.c": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    context = v1.Context()
    context.checkpoint_layout = "safetensors"
    with context:
        loaded = v1.load(tmp_path)
        target = {"a": jax.ShapeDtypeStruct((3,), jnp.float32), "b.c": jax.ShapeDtypeStruct((2,), jnp.float32)}
        assert isinstance(v1.load(tmp_path / "model.safetensors", target)["a"], jax.Array)
        assert v1.load_async(tmp_path).result().keys() == loaded.keys()
        assert v1.metadata(tmp_path).metadata["a"].shape == (3,)
        with pytest.raises((NotImplementedError, v1.errors.InvalidLayoutError)):
            v1.load_checkpointables(tmp_path)
    assert_same(loaded, {"a": np.arange(3.0), "b.c": np.ones(2, np.float32)})


# ---- steps ----------------------------------------------------------------------------


@pytest.mark.parametrize("v1", MODULES.values(), ids=MODULES)
def test_steps(tmp_path: Path, v1: Any) -> None:
    errors = v1.training.errors
    tree = {"w": np.arange(3.0)}
    with v1.training.Checkpointer(tmp_path / "run", custom_metadata={"run": 1}) as checkpointer:
        assert checkpointer.latest is None
        assert checkpointer.save_checkpointables(1, {"state": tree, "more": {"b": 1}}, metrics={"loss": 0.5})
        done = threading.Event()
        begun = checkpointer.save_async(2, tree, custom_metadata={"at": 2})
        begun.on_complete(lambda saved: done.set())
        checkpointer.wait()
        assert begun.result() is True and done.wait(60) and not checkpointer.is_saving_in_progress()
        with pytest.raises(errors.StepAlreadyExistsError):
            checkpointer.save(2, tree)
        assert checkpointer.save(2, {"w": np.zeros(3)}, overwrite=True)
        assert [(found.step, found.metrics) for found in checkpointer.checkpoints] == [(1, {"loss": 0.5}), (2, None)]
        assert checkpointer.latest.path.name == "2" and checkpointer.latest.time is not None
        assert_same(checkpointer.load(), {"w": np.zeros(3)})
        assert_same(checkpointer.load(checkpointer.checkpoints[0]), tree)
        found = checkpointer.metadata(1)
        assert (found.step, found.metrics, found.metadata["w"].shape) == (1, {"loss": 0.5}, (3,))
        for call in (checkpointer.load, checkpointer.metadata, checkpointer.delete):
            with pytest.raises(errors.StepNotFoundError):
                call(9)
        for step in (True, -1, 1.0, None):
            with pytest.raises((TypeError, ValueError)):
                checkpointer.delete(step)
        assert checkpointer.delete(9, missing_ok=True) is False
        assert checkpointer.delete(1, checkpointable_name="more") is True
        assert list(checkpointer.load_checkpointables(1)) == ["state"]
        assert checkpointer.checkpointables_metadata(1).metrics == {"loss": 0.5}
        assert checkpointer.delete_async(2).result() is True
        assert [found.step for found in checkpointer.checkpoints] == [1]
        assert checkpointer.root_metadata().custom_metadata == {"run": 1}
        with pytest.warns(DeprecationWarning, match="load"):
            checkpointer.load_pytree(1)


def test_a_step_is_saved_right_after_another(tmp_path: Path) -> None:
    """A save that has returned is not in progress: the next one is not passed over."""
    with ours.training.Checkpointer(tmp_path / "run") as checkpointer:
        assert all(checkpointer.save(step, {"w": np.arange(3.0)}) for step in range(10))
        assert len(checkpointer.checkpoints) == 10
        loaded = checkpointer.load_checkpointables_async(3).result()
        assert loaded["state"]["w"].tolist() == checkpointer.load_async(4).result()["w"].tolist()
        checkpointer.save_async(10, {"w": np.arange(3.0)})
        checkpointer.cancel(3)
        assert 3 not in [found.step for found in checkpointer.checkpoints]

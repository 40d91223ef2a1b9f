"""`PyTreeHandler` by itself, as handlers of one's own call it, and what it writes: beside the
original.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as theirs
import pytest
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import regrow.orbax as ours_v0
from regrow.orbax import v1 as ours

MODULES = {"orbax": theirs, "regrow": ours}
TREE = {"a": np.arange(6.0), "j": jax.numpy.arange(4), "n": 3, "text": "x"}


class Folder:
    """A folder that is there when a handler waits for it."""

    def __init__(self, path: Path) -> None:
        self.path = epath.Path(path)
        self.name = self.path.name

    async def await_creation(self) -> Any:
        self.path.mkdir(parents=True, exist_ok=True)
        return self.path

    def __truediv__(self, name: str) -> Folder:
        return Folder(Path(self.path / name))


async def save(v1: Any, path: Path, tree: Any) -> None:
    await (await v1.handlers.PyTreeHandler().save(Folder(path), tree))


async def load(v1: Any, path: Path, target: Any = None) -> Any:
    return await (await v1.handlers.PyTreeHandler().load(epath.Path(path), target))


def files(path: Path) -> set[str]:
    """All files, those with random names as one."""
    names = (str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    return {re.sub(r"[0-9a-f]{32}", "*", name) for name in names}


def test_a_pytree_handler_writes_the_files_of_the_original(tmp_path: Path) -> None:
    """No more: the folder is a part of a checkpoint, and not one itself."""
    for name, v1 in MODULES.items():
        asyncio.run(save(v1, tmp_path / name, TREE))
    assert files(tmp_path / "regrow") == files(tmp_path / "orbax")
    for reader in MODULES.values():
        for name in MODULES:
            loaded = asyncio.run(load(reader, tmp_path / name))
            assert loaded["n"] == 3 and loaded["text"] == "x" and loaded["a"].tolist() == TREE["a"].tolist()


@pytest.mark.parametrize("v1", MODULES.values(), ids=MODULES)
def test_a_pytree_handler_has_no_metadata_without_the_file(tmp_path: Path, v1: Any) -> None:
    asyncio.run(save(theirs, tmp_path / "x", TREE))
    (tmp_path / "x" / "_METADATA").unlink()
    with pytest.raises(FileNotFoundError):
        asyncio.run(v1.handlers.PyTreeHandler().metadata(epath.Path(tmp_path / "x")))


@pytest.mark.parametrize("v1", MODULES.values(), ids=MODULES)
def test_a_placeholder_may_stand_where_nothing_is_stored(tmp_path: Path, v1: Any) -> None:
    theirs.save(tmp_path / "x", {"a": {"b": np.arange(3)}, "c": 1})
    target = {"a": {"b": v1.PLACEHOLDER, "more": v1.PLACEHOLDER}, "c": 0, "z": v1.PLACEHOLDER}
    assert v1.load(tmp_path / "x", target) == {"a": {"b": ..., "more": ...}, "c": 1, "z": ...}


@pytest.mark.parametrize("writer", MODULES)
def test_keys_come_back_on_the_devices_of_the_save(tmp_path: Path, writer: str) -> None:
    """Without a target, by v0 and v1: replicated, sharded, on one device, of each
    implementation.
    """
    mesh = Mesh(np.array(jax.devices()), ("x",))
    replicated, sharded = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("x",)))
    many = jax.random.split(jax.random.key(1), len(jax.devices()))
    keys = {
        "one": jax.device_put(jax.random.key(0), replicated),
        "rbg": jax.device_put(jax.random.key(0, impl="rbg"), replicated),
        "sharded": jax.device_put(many, sharded),
        "single": jax.device_put(many, jax.devices()[2]),
    }
    MODULES[writer].save(tmp_path / "x", keys)
    readers = [v1.load for v1 in MODULES.values()]
    readers += [lambda path, v0=v0: v0.PyTreeCheckpointer().restore(path / "state") for v0 in (ocp, ours_v0)]
    for read in readers:
        found = read(epath.Path(tmp_path / "x"))
        for name, key in keys.items():
            assert found[name].sharding == key.sharding, name
            assert found[name].dtype == key.dtype
            assert (jax.random.key_data(found[name]) == jax.random.key_data(key)).all()


def test_no_write_shapes_without_array_metadatas(tmp_path: Path) -> None:
    """`_METADATA` is as the original's, with rich types and without."""
    for rich in (False, True):
        written = {}
        for name, v1 in MODULES.items():
            context = v1.Context()
            context.array.saving.array_metadata_store = None
            options = context.pytree.saving.pytree_metadata_options
            context.pytree.saving.pytree_metadata_options = dataclasses.replace(options, support_rich_types=rich)
            path = tmp_path / f"{name}-{rich}"
            with context:
                v1.save(path, TREE)
            assert v1.metadata(path).metadata["j"].storage_metadata.write_shape is None
            written[name] = json.loads((path / "state" / "_METADATA").read_text())
        assert written["regrow"] == written["orbax"]

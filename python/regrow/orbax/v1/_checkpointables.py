"""Things that a checkpoint holds by name: pytrees, JSON, and objects that write files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..._items import ItemsSave
from ..._options import OrbaxOptions
from .. import _interfaces, _read, _replicas
from .._jax import jax
from .._paths import as_path
from ..checkpoint_utils import construct_restore_args
from ..metadata import TreeMetadata
from ..tree import is_empty_node
from ._context import Context
from ._metadata import CheckpointMetadata

STATEFUL = (
    "orbax.checkpoint.experimental.v1._src.handlers.stateful_checkpointable_handler.StatefulCheckpointableHandler"
)


@runtime_checkable
class StatefulCheckpointable(Protocol):
    """An object that saves itself: grain's iterators, adapters of your own."""

    async def save(self, directory: Any) -> Any:
        """Saves what must be saved now; gives the coroutine that saves the rest."""

    async def load(self, directory: Any) -> Any:
        """Loads what must be loaded now; gives the coroutine that loads the rest."""


class Directory:
    """A folder, which Orbax' checkpointables wait for before they write into it: here it is there already."""

    def __init__(self, path: Any) -> None:
        self.path = as_path(path)

    async def await_creation(self) -> Any:
        """The path."""
        return self.path

    def __truediv__(self, name: str) -> Directory:
        return Directory(self.path / name)

    def __fspath__(self) -> str:
        return str(self.path)


def options_of(context: Context) -> OrbaxOptions:
    """The storage options that a context asks for."""
    saving = context.array.saving
    return OrbaxOptions(
        v1=True,
        use_ocdbt=saving.use_ocdbt,
        use_zarr3=saving.use_zarr3,
        ocdbt_target_data_file_size=saving.ocdbt_target_data_file_size,
        chunk_byte_size=getattr(saving.storage_options, "chunk_byte_size", None),
    )


def add(save: ItemsSave, name: str, value: Any, *, in_background: bool) -> None:
    """Adds one of them. What writes files of its own has written them when this returns."""
    if isinstance(value, StatefulCheckpointable):
        folder = Directory(Path(save.folder(name)))
        save.handler(name, STATEFUL)
        _interfaces.run(_save_stateful(value, folder))
    elif is_empty_node(value) or _is_json(value):
        save.json(name, value)
    else:
        (save.later if in_background else save.tree)(name, value)


async def _save_stateful(value: Any, folder: Directory) -> None:
    rest = await value.save(folder)
    if rest is not None:
        await rest


async def _load_stateful(value: Any, path: Any) -> None:
    rest = await value.load(as_path(path))
    if rest is not None:
        await rest


def _is_json(value: Any) -> bool:
    """Whether it is a dict or list of text alone, of which pytrees have no use."""
    leaves = jax.tree_util.tree_leaves(value)
    return bool(leaves) and all(isinstance(leaf, str) for leaf in leaves)


def load(path: Any, abstract: Any, context: Context) -> Any:
    """Loads one of them, as `abstract` has it."""
    if isinstance(abstract, StatefulCheckpointable) and not isinstance(abstract, type):
        _interfaces.run(_load_stateful(abstract, path))
        return abstract
    for file in ("data.json", "metadata"):
        if (as_path(path) / file).is_file():
            from .._other_handlers import JsonCheckpointHandler

            return JsonCheckpointHandler(file).restore(path)
    return load_pytree(path, abstract, context)


def load_pytree(path: Any, abstract: Any, context: Context) -> Any:
    """Loads a pytree, as `abstract` has it: arrays, their descriptions, metadata, numbers."""
    if isinstance(abstract, CheckpointMetadata):
        abstract = abstract.metadata
    if isinstance(abstract, TreeMetadata):
        abstract = abstract.tree
    if abstract is None:
        return _read.restore(path)
    strict = not getattr(context.array.loading, "enable_padding_and_truncation", False)
    args = jax.tree.map(
        lambda leaf: construct_restore_args(_described(leaf), strict=strict),
        abstract,
        is_leaf=lambda leaf: hasattr(leaf, "shape"),
    )
    loading, partial = context.array.loading, context.pytree.loading.partial_load
    return _read.restore(path, abstract, args, partial=partial, replica=_replicas.of_loading(loading))


def _described(leaf: Any) -> Any:
    """A leaf by which one may mean a type (`int`), a NumPy number, or one that has no sharding yet."""
    if isinstance(leaf, type) and issubclass(leaf, (int, float)):
        return leaf(0)
    if isinstance(leaf, np.generic):
        return np.asarray(leaf)
    return leaf


def described(path: Any) -> Any:
    """What is known of one of them; `None` where that is nothing."""
    if (as_path(path) / "_METADATA").exists() or (as_path(path) / "regrow.json").exists():
        return _read.pytree_metadata(path).tree
    return None

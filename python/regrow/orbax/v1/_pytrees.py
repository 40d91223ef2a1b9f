"""Pytrees: the options of their saves from a context, and the restore args of targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..._core._arguments import BUDGET_MIN_BYTES
from ..._core._duck import has, own_attribute
from ..._core._options import Options
from ..._errors import failure
from ...layouts import Orbax, Regrow
from .. import _leaf_args, _read, _replicas, _settings
from .._errors import as_orbax
from .._handlers import cast_leaves, chunking, plain_leaves
from .._jax import jax
from .._targets import args_by_path, refuse_other_shapes
from ..metadata import StorageMetadata, TreeMetadata, sharding_from_json
from ..tree import is_empty_node, tuple_path_from_keypath
from ._context import Context
from ._metadata import CheckpointMetadata
from .arrays import ArrayMetadata, NumpyMetadata
from .tree import Leaf

LEAF_TYPES = (jax.Array, np.ndarray, np.generic, int, float, complex, bool, str, bytes)


def check_leaves(tree: Any) -> None:
    """Refuses trees that cannot be saved."""
    if is_empty_node(tree):
        raise ValueError("Found empty item.")
    if all(map(is_leaf, jax.tree_util.tree_leaves(tree))):
        return
    keys, leaf = next(found for found in jax.tree_util.tree_leaves_with_path(tree) if not is_leaf(found[1]))
    raise failure(
        ValueError,
        f"Unsupported leaf type for saving: `{type(leaf)}`. Supported leaf types are: {Leaf}.",
        leaf="/".join(tuple_path_from_keypath(keys)),
        help="save arrays, numbers and text; for objects of your own register a CheckpointableHandler",
    )


def is_leaf(leaf: Any) -> bool:
    return leaf is ... or isinstance(leaf, LEAF_TYPES) or type(leaf).__module__ == "torch"


def save_plan(tree: Any, context: Context) -> tuple[Any, dict[str, Any]]:
    """The tree to save, and the keywords of the engine's save."""
    saving = context.array.saving
    storage = saving.storage_options
    scoped = saving.scoped_storage_options_creator
    rules: dict[str, Any] = {}
    tree = plain_leaves(tree)
    if storage.dtype is not None or scoped is not None:
        save_args = jax.tree_util.tree_map_with_path(lambda keys, leaf: _save_args(keys, leaf, storage, scoped), tree)
        wanted = _leaf_args.by_path(save_args, _leaf_args.is_save_args)
        rules = chunking(wanted)
        tree = cast_leaves(tree, wanted)
    chunks: dict[str, Any] = {
        "chunk_byte_size": storage.chunk_byte_size,
        "shard_axes": storage.shard_axes or (),
        "per_leaf": rules,
    }
    keywords: dict[str, Any] = {}
    if _settings.layout() == "orbax":
        keywords["layout"] = Orbax(
            v1=True,
            ocdbt=saving.use_ocdbt,
            zarr3=saving.use_zarr3,
            ocdbt_target_data_file_size=saving.ocdbt_target_data_file_size or None,
            rich_types=bool(getattr(context.pytree.saving.pytree_metadata_options, "support_rich_types", False)),
            write_sharding=saving.enable_write_sharding_file,
            write_array_metadatas=saving.array_metadata_store is not None,
            **chunks,
        )
    else:
        keywords["layout"] = Regrow(**{name: value for name, value in chunks.items() if value})
    if not saving.use_compression:
        keywords["compression"] = "none"
    budget_bytes = context.memory.write_concurrent_bytes
    keywords["options"] = Options(
        budget_bytes=None if budget_bytes is None else max(budget_bytes, BUDGET_MIN_BYTES),
        replica_parallel=bool(saving.use_replica_parallel),
    )
    return tree, keywords


def _save_args(keys: Any, leaf: Any, storage: Any, scoped: Callable[..., Any] | None) -> Any:
    own = None if scoped is None else scoped(keys, leaf)

    def chosen(name: str) -> Any:
        found = getattr(own, name, None)
        return getattr(storage, name) if found is None else found

    return _leaf_args.SaveArgs(
        dtype=chosen("dtype"), chunk_byte_size=chosen("chunk_byte_size"), shard_axes=chosen("shard_axes") or ()
    )


def load(path: Any, abstract: Any, context: Context) -> Any:
    """Loads a pytree into the form of `abstract`, a tree of arrays, descriptions or types."""
    if isinstance(abstract, CheckpointMetadata):
        abstract = abstract.metadata
    if isinstance(abstract, TreeMetadata):
        abstract = abstract.tree
    if abstract is None:
        return _read.restore(path)
    strict = not context.array.loading.enable_padding_and_truncation
    stored, target = _read.open_pytree(path), _read.Target.of(abstract)
    left_out = [at for at, leaf in target.leaves.items() if leaf is None and not is_empty_node(stored.leaves.get(at))]
    target.leaves.update(dict.fromkeys(left_out, ...))
    args = args_by_path(target.leaves, lambda leaf: restore_args(leaf, strict))
    if strict:
        refuse_other_shapes(stored, {at: _as_array(leaf) for at, leaf in target.leaves.items()})
    replica = _replicas.of_loading(context.array.loading)
    restored = _read.restore_into(stored, target, args, partial=context.pytree.loading.partial_load, replica=replica)
    if not left_out:
        return restored
    gone = set(left_out)
    return jax.tree_util.tree_map_with_path(
        lambda keys, leaf: None if tuple_path_from_keypath(keys) in gone else leaf, restored
    )


def restore_args(leaf: Any, strict: bool) -> Any:
    if leaf is ...:
        return _leaf_args.RestoreArgs(restore_type=type(...))
    if isinstance(leaf, type):
        return _of_type(leaf)
    if isinstance(leaf, (bool, int, float, complex, str, bytes)) and not isinstance(leaf, np.generic):
        return _leaf_args.RestoreArgs(restore_type=type(leaf))
    if not has(leaf, "shape", "dtype"):
        help = "give arrays, jax.ShapeDtypeStruct, numbers, text, or types of them"
        raise failure(TypeError, f"Unsupported abstract leaf type for loading: {type(leaf)}", help=help)
    if not has(leaf, "sharding"):
        return _leaf_args.RestoreArgs(restore_type=np.ndarray, dtype=leaf.dtype)
    is_key = leaf.dtype is not None and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return _leaf_args.ArrayRestoreArgs(
        sharding=_sharding(leaf.sharding),
        global_shape=None if is_key else leaf.shape,
        dtype=None if is_key else leaf.dtype,
        strict=strict,
    )


def _of_type(kind: type[Any]) -> Any:
    if issubclass(kind, np.generic):
        return _leaf_args.RestoreArgs(restore_type=np.ndarray, dtype=kind)
    if issubclass(kind, (bool, int, float, complex, str, bytes, np.ndarray)):
        return _leaf_args.RestoreArgs(restore_type=kind)
    if has(kind, "sharding") or "sharding" in getattr(kind, "__annotations__", {}):
        return _leaf_args.ArrayRestoreArgs()
    if has(kind, "shape") or "shape" in getattr(kind, "__annotations__", {}):
        return _leaf_args.RestoreArgs(restore_type=np.ndarray)
    raise TypeError(f"Unsupported abstract leaf type for loading: {kind}")


def _sharding(sharding: Any) -> Any:
    """The sharding. If it is on an abstract mesh, it is moved to the current mesh."""
    if isinstance(sharding, jax.sharding.NamedSharding) and isinstance(sharding.mesh, jax.sharding.AbstractMesh):
        return jax.sharding.NamedSharding(jax.sharding.get_mesh(), sharding.spec)
    return sharding


def _as_array(leaf: Any) -> Any:
    """A NumPy array instead of a description. One without elements carries only a dtype."""
    shape = own_attribute(leaf, "shape")
    if type(leaf) is np.ndarray and shape == (0,):
        return ...
    if not isinstance(shape, tuple) or has(leaf, "sharding") or isinstance(leaf, (type, np.ndarray)):
        return leaf
    return np.broadcast_to(np.zeros(()), shape)


def metadata(path: Any) -> tuple[Any, dict[str, Any]]:
    """A tree of the metadata of the leaves, and the caller's metadata from its files."""
    with as_orbax():
        stored = _read.open_pytree(path)
    leaves = [_of_leaf(stored.leaves[at]) for at in stored.order]
    return jax.tree_util.tree_unflatten(stored.structure, leaves), stored.checkpoint.metadata or {}


def _of_leaf(leaf: Any) -> Any:
    if is_empty_node(leaf):
        return leaf
    if leaf.kind == "str":
        return "string"
    if leaf.kind == "scalar":
        return _read._number_like(leaf.dtype)
    if leaf.kind in ("placeholder", "unknown"):
        return ...
    storage = StorageMetadata(leaf.chunk_shape, leaf.write_shape)
    if leaf.kind in ("jax_array", "prng_key"):
        return ArrayMetadata(leaf.shape, leaf.dtype, sharding_from_json(leaf.sharding), storage)
    return NumpyMetadata(leaf.shape, leaf.dtype, storage)

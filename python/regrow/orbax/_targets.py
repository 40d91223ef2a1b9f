"""Makes restore args from a target: the form of each restored leaf. Restores standard targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._core._duck import has, is_a, own_attribute
from . import _leaf_args, _read, metadata
from ._jax import jax
from .tree import KeyPath, is_empty_node

STANDARD_ARRAY_TYPES = (int, float, np.ndarray, jax.Array)


def construct_restore_args(
    target: Any,
    sharding_tree: Any = None,
    set_global_shape: bool = True,
    support_layout: bool = False,
    strict: bool = True,
) -> Any:
    if isinstance(target, metadata.TreeMetadata):
        shardings = sharding_tree.tree if isinstance(sharding_tree, metadata.TreeMetadata) else sharding_tree
        args = construct_restore_args(target.tree, shardings, set_global_shape, support_layout, strict)
        return metadata.TreeMetadata(args, target.custom_metadata)
    if sharding_tree is None:
        return jax.tree.map(lambda leaf: _of_leaf(leaf, _sharding(leaf), set_global_shape, strict), target)
    return jax.tree.map(
        lambda leaf, sharding: _of_leaf(leaf, sharding, set_global_shape, strict), target, sharding_tree
    )


def _sharding(leaf: Any) -> Any:
    sharding: Any = own_attribute(leaf, "sharding")
    return sharding.to_jax_sharding() if has(sharding, "to_jax_sharding") else sharding


def _of_leaf(leaf: Any, sharding: Any, set_global_shape: bool, strict: bool) -> Any:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return _leaf_args.ArrayRestoreArgs(sharding=sharding, strict=strict)
    if isinstance(leaf, metadata.StringMetadata) or type(leaf).__name__ == "StringMetadata" or isinstance(leaf, str):
        return _leaf_args.RestoreArgs(restore_type=str)
    if type(leaf).__name__ == "ScalarMetadata":
        kinds = {"i": int, "u": int, "f": float, "b": bool}
        return _leaf_args.RestoreArgs(restore_type=kinds.get(np.dtype(leaf.dtype).kind, float), dtype=leaf.dtype)
    is_described = isinstance(leaf, jax.ShapeDtypeStruct) or type(leaf).__name__ == "ArrayMetadata"
    if isinstance(leaf, jax.Array) or (is_described and sharding is not None):
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        shape = leaf.shape if set_global_shape and not is_key else None
        dtype = None if is_key else leaf.dtype
        return _leaf_args.ArrayRestoreArgs(sharding=sharding, global_shape=shape, dtype=dtype, strict=strict)
    if is_described or isinstance(leaf, np.ndarray):
        return _leaf_args.RestoreArgs(restore_type=np.ndarray, dtype=leaf.dtype)
    if isinstance(leaf, (int, float)) and not isinstance(leaf, np.generic):
        return _leaf_args.RestoreArgs(restore_type=type(leaf))
    if leaf is _leaf_args.PLACEHOLDER:
        return _leaf_args.RestoreArgs(restore_type=type(...))
    raise ValueError(f"Unsupported type: {type(leaf)}")


def args_by_path(leaves: Mapping[KeyPath, Any], args_of: Callable[[Any], Any]) -> dict[KeyPath, Any]:
    """The restore args of a target's leaves. Thousands of equal descriptions share one object."""
    known: dict[tuple[Any, ...], Any] = {}

    def of(leaf: Any) -> Any:
        if is_empty_node(leaf):
            return None
        if type(leaf) is not jax.ShapeDtypeStruct:
            return args_of(leaf)
        key = (leaf.shape, leaf.dtype, leaf.sharding)
        if (found := known.get(key)) is None:
            found = known[key] = args_of(leaf)
        return found

    return {path: of(leaf) for path, leaf in leaves.items()}


def check_standard(leaves: Mapping[KeyPath, Any], *described: type[Any]) -> None:
    """Refuses leaves that are neither arrays nor numbers nor of the given types."""
    for path, leaf in leaves.items():
        if not isinstance(leaf, (*STANDARD_ARRAY_TYPES, *described)) and not is_empty_node(leaf):
            raise ValueError(f"Unsupported type: {type(leaf)} for key: {path}.")


def restore_standard(directory: Any, args: Any) -> Any:
    """Restores into the form of the target, as `StandardCheckpointHandler` does."""
    target, strict = args.item, getattr(args, "strict", True)
    fallback = getattr(args, "fallback_sharding", None)
    if target is None:
        return _restore_with_fallback(directory, fallback)
    if is_a(target, "TreeMetadata"):
        return _read.restore(directory, target, construct_restore_args(target, strict=strict))
    wanted = _read.Target.of(target)
    if type(target).__name__ != "CompositeMetadata":
        check_standard(wanted.leaves, jax.ShapeDtypeStruct)

    def args_of(leaf: Any) -> Any:
        if type(leaf) is not jax.ShapeDtypeStruct or leaf.sharding is not None:
            return construct_restore_args(leaf, strict=strict)
        # Without a sharding in the target, restore the saved kind of leaf: for a JAX array with its
        # saved sharding, or the fallback.
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        dtype, shape = (None, None) if is_key else (leaf.dtype, leaf.shape)
        return _leaf_args.AsItWas(dtype=dtype, sharding=fallback, global_shape=shape, strict=strict)

    restore_args = args_by_path(wanted.leaves, args_of)
    stored = _read.open_pytree(directory, by_names=True)
    if strict:
        refuse_other_shapes(stored, wanted.leaves)
    return _read.restore_into(stored, wanted, restore_args)


def _restore_with_fallback(directory: Any, sharding: Any) -> Any:
    if sharding is None:
        return _read.restore(directory)
    known = _read.pytree_metadata(directory).tree
    args = jax.tree_util.tree_map(
        lambda leaf: (
            _leaf_args.ArrayRestoreArgs(sharding=sharding)
            if getattr(leaf, "sharding", None) is not None
            else _leaf_args.RestoreArgs()
        ),
        known,
        is_leaf=lambda leaf: is_a(leaf, "Metadata"),
    )
    return _read.restore(directory, restore_args=args)


def refuse_other_shapes(stored: _read.Stored, targets: Mapping[KeyPath, Any]) -> None:
    """Refuses NumPy targets with a shape that differs from the stored one. Orbax ignores it."""
    for path, leaf in targets.items():
        found = getattr(stored.leaves.get(path), "shape", None)
        if isinstance(leaf, np.ndarray) and found not in (None, leaf.shape):
            raise _read.other_shape(path, leaf.shape, found)

"""Arguments of one leaf: how it is saved, and what it is restored as."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any

from .._core._duck import has, is_a, own_attribute
from .._errors import failure
from ._errors import StructureError
from ._jax import jax
from .tree import KeyPath, is_empty_node, tuple_path_from_keypath

PLACEHOLDER = ...
"""A placeholder in a target: this leaf is not restored, and the placeholder is returned."""


@dataclasses.dataclass
class SaveArgs:
    """How a leaf is saved. `aggregate` is for old layouts, and ignored."""

    aggregate: bool = False
    dtype: Any = None
    chunk_byte_size: int | None = None
    shard_axes: tuple[int, ...] = ()


@dataclasses.dataclass
class RestoreArgs:
    """The form in which a leaf is restored. `None` keeps the saved type and dtype."""

    restore_type: Any = None
    dtype: Any = None


@dataclasses.dataclass
class ArrayRestoreArgs(RestoreArgs):
    """The form of a JAX array. Unless `strict`, axes are cut or filled with zeros to the shape."""

    restore_type: Any = jax.Array
    mesh: Any = None
    mesh_axes: Any = None
    sharding: Any = None
    global_shape: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    strict: bool = True


@dataclasses.dataclass
class AsItWas(ArrayRestoreArgs):
    """As `ArrayRestoreArgs` for a saved JAX array; all other leaves become NumPy arrays."""


@dataclasses.dataclass
class SingleReplicaArrayRestoreArgs(ArrayRestoreArgs):
    """As `ArrayRestoreArgs`. One replica reads the data that all replicas hold."""

    single_replica_sharding: Any = None
    replica_axis_index: int | None = None
    primary_replica_id: int | None = None


def is_restore_args(value: Any) -> bool:
    """Whether a value is one of these classes or the original's, by its class."""
    return is_a(value, "RestoreArgs")


def is_save_args(value: Any) -> bool:
    """Whether a value is `SaveArgs` or the original's, by its class."""
    return is_a(value, "SaveArgs")


def by_path(tree: Any, is_args: Callable[[Any], bool]) -> dict[KeyPath, Any]:
    if tree is None:
        return {}
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: is_args(node) or is_empty_node(node))
    return {tuple_path_from_keypath(keys): args for keys, args in flat if is_args(args)}


def refuse_idle(found: Iterable[KeyPath], known: Collection[KeyPath], what: str) -> None:
    """Refuses args that fit no leaf: they would be ignored."""
    idle = sorted("/".join(path) for path in found if path not in known)
    if not idle:
        return
    help = f"give a tree of the structure of the item, such as jax.tree.map(lambda leaf: ..., item), as {what}"
    named = "".join(f"\n    {path}" for path in idle[:20]) + ("\n    ..." if len(idle) > 20 else "")
    raise failure(StructureError, f"{what} name missing leaves:{named}", first_leaf=idle[0], help=help)


def sharding_of(args: Any) -> Any:
    """The sharding that restore args ask for; `None` for the one of the checkpoint."""
    sharding: Any = getattr(args, "sharding", None)
    if sharding is None and getattr(args, "mesh", None) is not None and args.mesh_axes is not None:
        return jax.sharding.NamedSharding(args.mesh, args.mesh_axes)
    if has(sharding, "to_jax_sharding"):
        return sharding.to_jax_sharding()
    if sharding is not None and not isinstance(sharding, jax.sharding.Sharding):
        # JAX' `Format` has a memory layout and a sharding: only the sharding is used.
        return own_attribute(sharding, "sharding")
    return sharding

"""Reads pytrees: turns Orbax' `item` and `restore_args` into one load of the engine.

Leaves of the checkpoint and of the target are matched by key path, as strings. A `Wish` says what a
leaf becomes: the template for the engine, and the steps after the read. The engine loads into a
tree of templates with the stored structure. ``...`` leaves a leaf out. The results go into the
structure of the target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  # makes NumPy know the names of its dtypes
import numpy as np

from .._core._collector import Paused
from .._core._duck import is_a, own_attribute
from .._core._options import Options
from .._errors import UncommittedError, failure
from .._jax._single_replica import SingleReplica
from .._load._checkpoint import Checkpoint, Leaf
from .._load._open import open as open_checkpoint
from .._load._open import open_by_names
from .._save._writing import AsNumpy
from . import _leaf_args, _replicas, metadata
from ._errors import NoStructureError, StructureError, as_orbax
from ._jax import jax
from ._own_leaves import OwnRestore, unknown_leaf
from ._paths import TMP_DIR_SUFFIX, as_path
from .tree import KeyPath, flatten_with_path, from_flattened_with_keypath, is_empty_node, tuple_path_from_keypath
from .type_handlers import GLOBAL_TYPE_HANDLER_REGISTRY, knows_all

Args = Mapping[KeyPath, Any]
"""Restore args by key path."""
Sources = Mapping[KeyPath, KeyPath] | None
"""The stored leaf of a leaf, if its key path differs."""


class Stored(NamedTuple):
    path: Any
    checkpoint: Checkpoint
    leaves: dict[KeyPath, Any]
    """Leaves and empty nodes by key path."""
    order: list[KeyPath]
    """The key paths in the order of the structure."""
    structure: Any
    """The structure of a restore without a target: dicts and lists, as in Orbax."""
    own_order: list[KeyPath]
    own_structure: Any
    """The structure of the checkpoint itself, with its own classes of containers."""
    registry: Any
    """The registry whose handlers restore leaves of the caller's own types."""

    def own_leaves(self) -> OwnRestore | None:
        """Leaves of the caller's own types; `None` if the engine knows all."""
        if knows_all(self.registry):
            return None
        return OwnRestore(self.path, self.registry, self._leaves, lambda at: _leaf_metadata(self.leaves[at], self.path))

    def _leaves(self, wanted: Sequence[tuple[KeyPath, Any]]) -> list[Any]:
        wishes: dict[KeyPath, list[tuple[Any, Wish]]] = {}
        wish = _Wishes()
        for at, (source, args) in enumerate(wanted):
            wishes.setdefault(source, []).append((at, wish.of(self.leaves[source], args, source)))
        found = _read(self, wishes)
        return [found[at] for at in range(len(wanted))]


@Paused()
def open_pytree(path: Any, registry: Any = None, *, by_names: bool = False) -> Stored:
    """Opens a pytree, or the only item in it; with `by_names` also one without ``_METADATA``."""
    name = as_path(path).name
    with as_orbax():
        if TMP_DIR_SUFFIX in name and as_path(path).exists():
            help = "restore one that was committed"
            raise failure(UncommittedError, f"Found incomplete checkpoint at {path}.", file=str(path), help=help)
        checkpoint = open_by_names(path) if by_names else open_checkpoint(path)
        if checkpoint.step is not None:
            raise failure(
                NoStructureError,
                f"No structure could be identified for the checkpoint at {path}: it is a folder of steps.",
                file=str(path),
                help=f"give the path of a step, such as {checkpoint.step}, or use a CheckpointManager",
            )
        tree = checkpoint.tree
    flat, own_structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_end)
    own_order = [tuple_path_from_keypath(keys) for keys, _ in flat]
    order, structure = own_order, own_structure
    if checkpoint.layout == "regrow" and len({*own_order}) == len(flat) and all(keys for keys, _ in flat):
        flat = [(keys, _as_stored_by_orbax(leaf)) for keys, leaf in flat]
        plain, structure = jax.tree_util.tree_flatten_with_path(from_flattened_with_keypath(flat), is_leaf=_is_end)
        order = [tuple_path_from_keypath(keys) for keys, _ in plain]
    leaves = dict(zip(own_order, (leaf for _, leaf in flat), strict=True))
    registry = GLOBAL_TYPE_HANDLER_REGISTRY if registry is None else registry
    return Stored(path, checkpoint, leaves, order, structure, own_order, own_structure, registry)


def _as_stored_by_orbax(leaf: Any) -> Any:
    """An empty node of another class in the form in which Orbax stores it."""
    if isinstance(leaf, Leaf) or leaf is None or type(leaf) in (dict, list, tuple):
        return leaf
    return {} if isinstance(leaf, Mapping) else None


def _is_end(node: Any) -> bool:
    return isinstance(node, Leaf) or is_empty_node(node)


class Target(NamedTuple):
    """A target, flattened."""

    order: list[KeyPath]
    """The key paths in the order of the structure."""
    leaves: dict[KeyPath, Any]
    """Leaves and empty nodes by key path."""
    structure: Any

    @classmethod
    def of(cls, item: Any) -> Target:
        flat, structure = flatten_with_path(item)
        order = [tuple_path_from_keypath(keys) for keys, _ in flat]
        return cls(order, dict(zip(order, (leaf for _, leaf in flat), strict=True)), structure)


class Wish(NamedTuple):
    """The template that a leaf is loaded into, and the steps after the read."""

    like: Any
    finish: Callable[[Any], Any] | None = None
    resized: bool = False
    cast: np.dtype[Any] | None = None
    """The dtype that the engine casts to while it reads, as NumPy does."""


_MISSING = object()
"""Stands for a leaf that the target or the checkpoint lacks."""


def restore(
    path: Any,
    item: Any = None,
    restore_args: Any = None,
    *,
    partial: bool = False,
    transforms: Mapping[str, Any] | None = None,
    default_to_original: bool = True,
    registry: Any = None,
    replica: SingleReplica | None = None,
) -> Any:
    """Restores a pytree as `PyTreeCheckpointHandler` does."""
    stored = open_pytree(path, registry, by_names=item is not None)
    if is_a(item, "TreeMetadata"):
        item = item.tree
    if is_a(restore_args, "TreeMetadata"):
        restore_args = restore_args.tree
    if transforms is not None and item is not None:
        if restore_args is None:
            raise ValueError(
                "If providing `transforms`, must provide `restore_args` matching structure of expected result."
            )
        return _restore_transformed(stored, item, restore_args, transforms, default_to_original)
    args = _leaf_args.by_path(restore_args, _leaf_args.is_restore_args)
    if item is None:
        _leaf_args.refuse_idle(args, stored.leaves, "restore_args")
        return _load(stored, args, Target(stored.order, {}, stored.structure), replica=replica)
    target = Target.of(item)
    if not partial:
        _check_structure(stored, target.leaves)
    # Args may name leaves that a partial restore skips.
    _leaf_args.refuse_idle(args, target.leaves.keys() | stored.leaves.keys(), "restore_args")
    return restore_into(stored, target, args, partial=partial, replica=replica)


def restore_into(
    stored: Stored, target: Target, args: Args, *, partial: bool = False, replica: SingleReplica | None = None
) -> Any:
    """Restores an opened pytree into a flattened target; `args` are by key path."""
    if not partial:
        _check_structure(stored, target.leaves)
    for path, own in args.items():
        _refuse_target(stored.leaves.get(path), target.leaves.get(path), own, path)
    return _load(stored, args, target, replica=replica)


def _check_structure(stored: Stored, targets: Mapping[KeyPath, Any]) -> None:
    """Refuses a target with other leaves, and names all of them."""
    if stored.leaves.keys() == targets.keys():
        return
    theirs = {path for path, leaf in stored.leaves.items() if not is_empty_node(leaf)}
    wanted = {path for path, leaf in targets.items() if leaf is not ... and not is_empty_node(leaf)}
    differences = sorted(path for path in theirs ^ wanted if path not in stored.leaves or path not in targets)
    if not differences:
        return
    lines = []
    for path in differences:
        where = "/".join(path)
        lines.append(f"\n    {where}: only in the {'checkpoint' if path in theirs else 'target'}")
    help = "give a target with the stored leaves, or `partial_restore=True` to restore the common ones"
    raise failure(
        StructureError,
        f"User-provided restore item and on-disk value metadata tree structures do not match:{''.join(lines)}",
        first_leaf="/".join(differences[0]),
        help=help,
    )


@Paused()
def _load(
    stored: Stored, args: Args, wanted: Target, sources: Sources = None, replica: SingleReplica | None = None
) -> Any:
    """The target's structure, with the leaves of the checkpoint that the target asks for."""
    results: dict[KeyPath, Any] = {}
    wishes: dict[KeyPath, list[tuple[KeyPath, Wish]]] = {}
    wish = _Wishes()
    own = stored.own_leaves()
    for path in wanted.order:
        target = wanted.leaves.get(path, _MISSING)
        source = path if sources is None else sources.get(path, path)
        leaf = stored.leaves.get(source, _MISSING)
        if target is ... or is_empty_node(target) or (leaf is _MISSING and target is not _MISSING):
            results[path] = target
        elif is_empty_node(leaf):
            results[path] = leaf
        elif own is None or not own.takes(path, source, args.get(path)):
            wishes.setdefault(source, []).append((path, wish.of(leaf, args.get(path), source)))
    results |= _read(stored, wishes, replica or _replicas.chosen(stored.registry, args.values()))
    if own is not None:
        results |= own.results()
    return jax.tree_util.tree_unflatten(wanted.structure, [results[path] for path in wanted.order])


def _read(
    stored: Stored, wishes: Mapping[KeyPath, list[tuple[Any, Wish]]], replica: SingleReplica | None = None
) -> dict[Any, Any]:
    """Reads the leaves in one load for each dtype. Resized leaves have loads of their own."""
    results: dict[Any, Any] = {}
    rounds: dict[Any, dict[KeyPath, tuple[Any, Wish]]] = {}
    for source, wanted in wishes.items():
        # If several places ask for one leaf, the second and later ones are read separately.
        for at, (path, wish) in enumerate(wanted):
            which = wish.resized, wish.cast, (source, at) if at else None
            rounds.setdefault(which, {})[source] = path, wish
    for (resized, cast, _), chosen in rounds.items():
        likes = [chosen[path][1].like if path in chosen else ... for path in stored.own_order]
        like = jax.tree_util.tree_unflatten(stored.own_structure, likes)
        reads = _replicas.of_round(replica, (wish.like for _, wish in chosen.values()))
        with as_orbax():
            as_numpy = None if cast is None else AsNumpy(cast)
            loaded = stored.checkpoint.load(
                like, cast=as_numpy, progress=False, options=Options(pad_or_truncate=resized, single_replica=reads)
            )
        flat = jax.tree_util.tree_leaves(loaded, is_leaf=is_empty_node)
        for source, value in zip(stored.own_order, flat, strict=True):
            if source in chosen:
                path, wish = chosen[source]
                results[path] = value if wish.finish is None else wish.finish(value)
    return results


_NUMBERS = {"b": bool, "i": int, "u": int, "f": float, "V": float, "c": complex}


class _Wishes:
    """The wishes for leaves, cached: thousands of leaves have the same description."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Wish] = {}
        self._args: list[Any] = []
        """Keeps objects alive whose addresses are keys of the cache."""

    def of(self, leaf: Leaf, args: Any, path: KeyPath) -> Wish:
        kind = leaf.kind
        # Cache only arrays with a requested sharding: their wishes depend on the key below alone.
        # All others depend on the leaf itself.
        if kind not in ("jax_array", "numpy_array") or getattr(args, "sharding", None) is None:
            return _wish(leaf, args, path)
        key = (kind, leaf.dtype, leaf.shape, id(args))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _wish(leaf, args, path)
            self._args.append(args)
        return found


def _wish(leaf: Leaf, args: Any, path: KeyPath) -> Wish:
    kind = leaf.kind
    if kind == "placeholder":
        return Wish(...)
    if kind == "str":
        return Wish("")
    if kind == "unknown":
        raise unknown_leaf(path, leaf.read().type_name)
    wanted = getattr(args, "restore_type", None)
    if kind == "prng_key":
        return _wish_key(leaf, args, wanted)
    cast = getattr(args, "dtype", None)
    cast = None if cast is None or not isinstance(np.dtype(cast), np.dtype) else np.dtype(cast)
    if isinstance(args, _leaf_args.AsItWas):
        wanted = jax.Array if kind == "jax_array" else np.ndarray
        _refuse_shape(leaf, args, path)
    if wanted is None:
        wanted = jax.Array if kind == "jax_array" else int if kind == "scalar" else np.ndarray
    if isinstance(wanted, type) and issubclass(wanted, jax.Array):
        return _wish_jax(leaf, args, cast, path)
    return _wish_numpy(leaf, args, cast, wanted)


def _wish_numpy(leaf: Leaf, args: Any, cast: np.dtype[Any] | None, wanted: Any) -> Wish:
    """A number if a class of numbers is wanted, else an array of NumPy."""
    dtype, shape, is_scalar = leaf.dtype, leaf.shape, leaf.kind == "scalar"
    template = _number_like(dtype) if is_scalar else np.broadcast_to(np.zeros((), dtype), shape)
    if isinstance(wanted, type) and issubclass(wanted, (int, float, complex)) and shape == ():
        if is_scalar and getattr(args, "restore_type", None) is None:
            number: Callable[[Any], Any] | None = None if cast is None else lambda value: _NUMBERS[cast.kind](value)
            return Wish(template, number)
        to_number = wanted if wanted in (int, float, complex, bool) else _NUMBERS[dtype.kind]
        return Wish(template, lambda value: to_number(np.asarray(value).item()))
    to = cast or dtype
    return Wish(template, lambda value: _own_array(value, to))


def _number_like(dtype: np.dtype[Any]) -> Any:
    return _NUMBERS[dtype.kind](0)


def _own_array(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array that the caller may write to."""
    array = np.asarray(value)
    if array.dtype == dtype and array.flags.writeable:
        return array
    return np.array(array, dtype)


def _wish_key(leaf: Leaf, args: Any, wanted: Any) -> Wish:
    if isinstance(wanted, type) and issubclass(wanted, np.ndarray):
        return Wish(..., lambda _: _own_array(leaf.read().data, leaf.dtype))
    sharding = _sharding(leaf, args)

    def to_key(value: Any) -> Any:
        impl = getattr(value, "impl", None) or "threefry2x32"
        # Put the data, not the keys, on the devices: the sharding is that of the data, which may
        # have one axis more than the keys.
        return jax.random.wrap_key_data(_put(np.asarray(value.data), sharding), impl=impl)

    # Keys are read as data: the keys themselves know their implementation.
    return Wish(..., lambda _: to_key(leaf.read()))


def _wish_jax(leaf: Leaf, args: Any, cast: np.dtype[Any] | None, path: KeyPath) -> Wish:
    dtype, shape = leaf.dtype, leaf.shape
    sharding = _sharding(leaf, args)
    wanted_shape = _wanted_shape(args)
    resized = wanted_shape is not None and wanted_shape != shape
    _refuse_shape(leaf, args, path)
    final_shape = wanted_shape if resized and wanted_shape is not None else shape
    to = jax.dtypes.canonicalize_dtype(cast or dtype)
    if leaf.kind == "scalar":
        return Wish(_number_like(dtype), lambda value: _put(np.asarray(value).astype(to), sharding), resized)
    return Wish(_described(final_shape, to, sharding), None, resized, None if to == dtype else to)


def _sharding(leaf: Leaf, args: Any) -> Any:
    """The sharding that was asked for; else the saved one; else one device."""
    sharding = _leaf_args.sharding_of(args)
    if sharding is not None:
        return sharding
    saved = metadata.sharding_from_json(leaf.sharding)
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0]) if saved is None else saved.to_jax_sharding()


@lru_cache(maxsize=1024)
def _described(shape: tuple[int, ...], dtype: np.dtype[Any], sharding: Any) -> Any:
    # Cached: thousands of leaves have the same description, and JAX takes long to make one.
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _refuse_target(leaf: Any, target: Any, args: Any, path: KeyPath) -> None:
    """Refuses a target of another shape, for strict args that give no shape, as Orbax does."""
    shape = own_attribute(target, "shape")
    if not isinstance(shape, tuple) or not is_a(args, "ArrayRestoreArgs") or _wanted_shape(args) is not None:
        return
    is_array = isinstance(leaf, Leaf) and leaf.kind not in ("prng_key", "str", "placeholder", "unknown")
    if is_array and getattr(args, "strict", True):
        _refuse_shape(leaf, dataclasses.replace(args, global_shape=tuple(shape)), path)


def _refuse_shape(leaf: Any, args: Any, path: KeyPath) -> None:
    """Refuses a shape that differs from the stored one, unless the args ask for it."""
    wanted = _wanted_shape(args)
    if wanted is None or wanted == leaf.shape or (not getattr(args, "strict", True) and leaf.kind != "scalar"):
        return
    raise other_shape(path, wanted, leaf.shape, ", or strict=False to cut axes at their ends or fill them with zeros")


def other_shape(path: KeyPath, wanted: Any, stored: Any, or_else: str = "") -> StructureError:
    """The error for a target with a shape that differs from the stored one."""
    return failure(
        StructureError,
        f"Requested shape: {wanted} is not compatible with the stored shape: {stored}.",
        leaf="/".join(path),
        help=f"give a target of the stored shape{or_else}",
    )


def _wanted_shape(args: Any) -> tuple[int, ...] | None:
    for name in ("global_shape", "shape"):
        found = getattr(args, name, None)
        if found is not None:
            return tuple(map(int, found))
    return None


def _put(array: np.ndarray[Any, Any], sharding: Any) -> Any:
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _restore_transformed(
    stored: Stored, item: Any, restore_args: Any, transforms: Any, default_to_original: bool
) -> Any:
    """Restores leaves from where a `Transform` says, all others from their own key path."""
    from .transform_utils import inputs_of, plan

    order, targets, structure = Target.of(item)
    wanted_inputs = inputs_of(transforms, stored.leaves)
    found = plan(transforms, order, stored.leaves, default_to_original=default_to_original)
    args = _leaf_args.by_path(restore_args, _leaf_args.is_restore_args)
    _leaf_args.refuse_idle(args, targets, "restore_args")
    values = {path: leaf for path, leaf in targets.items() if path in found.kept}
    values |= load_flat(stored, args, [path for path in order if path not in found.kept | found.computed.keys()],
                         targets, found.sources)  # fmt: skip
    if found.computed:
        inputs = load_flat(stored, wanted_inputs, list(wanted_inputs), {}, None)
        tree = jax.tree_util.tree_unflatten(stored.structure, [inputs.get(path, ...) for path in stored.order])
        for path, function in found.computed.items():
            values[path] = function("/".join(path), tree, args.get(path))
    for path, function in found.functions.items():
        values[path] = function(values[path])
    return jax.tree_util.tree_unflatten(structure, [values[path] for path in order])


def load_flat(
    stored: Stored, args: Args, order: list[KeyPath], targets: dict[KeyPath, Any], sources: Sources
) -> dict[KeyPath, Any]:
    target = Target(order, targets, jax.tree_util.tree_structure([0] * len(order)))
    return dict(zip(order, _load(stored, args, target, sources), strict=True))


def pytree_metadata(path: Any, registry: Any = None) -> metadata.TreeMetadata:
    stored = open_pytree(path, registry)
    own = stored.own_leaves()
    leaves = [
        (None if own is None or is_empty_node(leaf) else own.metadata(at)) or _leaf_metadata(leaf, path)
        for at, leaf in ((at, stored.leaves[at]) for at in stored.order)
    ]
    tree = jax.tree_util.tree_unflatten(stored.structure, leaves)
    return metadata.TreeMetadata(tree, stored.checkpoint.metadata, "zarr v3" in stored.checkpoint.variant)


def _leaf_metadata(leaf: Any, directory: Any) -> Any:
    if is_empty_node(leaf):
        return leaf
    name, directory = leaf.name, as_path(directory)
    if leaf.kind == "str":
        return metadata.StringMetadata(name, directory)
    if leaf.kind == "scalar":
        return metadata.ScalarMetadata(name, directory, (), None, leaf.dtype)
    if leaf.kind in ("placeholder", "unknown"):
        return ...
    storage = metadata.StorageMetadata(leaf.chunk_shape, leaf.write_shape)
    sharding = metadata.sharding_from_json(leaf.sharding)
    return metadata.ArrayMetadata(name, directory, leaf.shape, sharding, leaf.dtype, storage)

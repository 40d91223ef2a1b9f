"""Handlers of pytrees, of single arrays, and of JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._core._duck import has, is_a, own_attribute
from .._core._options import Options
from .._errors import failure
from .._save._save import save_as
from .._save._writing import Writing
from ..layouts import Orbax
from . import _leaf_args, _legacy_transforms, _read, _settings
from ._errors import StructureError, as_orbax, not_covered
from ._interfaces import AsyncCheckpointHandler, NoopFuture
from ._jax import jax
from ._own_leaves import OwnSave, of_save
from ._type_handlers import ArrayHandler
from ._type_registry import GLOBAL_TYPE_HANDLER_REGISTRY, array_handler
from .checkpoint_args import CheckpointArgs, register_with_handler
from .options import MultiprocessingOptions
from .tree import KeyPath, is_empty_node, tuple_path_from_keypath

HANDLERS = "orbax.checkpoint._src.handlers"


class OwnHandler(AsyncCheckpointHandler):
    """A handler whose folder the engine writes. A subclass only implements `plan`."""

    def plan(self, args: Any) -> tuple[Any, dict[str, Any]]:
        """The pytree to save, and keywords of the engine's save.

        Raises:
            ValueError: for pytrees that Orbax refuses.
        """
        raise NotImplementedError

    def own_leaves(self, args: Any) -> OwnSave | None:
        """The leaves that type handlers save; `None` if the engine saves all leaves."""
        return None

    def plan_beside(self, args: Any, own: OwnSave) -> tuple[Any, dict[str, Any]]:
        """As `plan`, after the type handlers have written: with placeholders for their leaves."""
        raise NotImplementedError

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        """Saves at a path, and replaces an empty folder or a checkpoint."""
        with as_orbax():
            tree, options = self.plan(self.save_arguments(*args, **kwargs))
            save_as(directory, tree, Writing(overwrite=True, **options), progress=False)

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Saves before it returns; the list of futures is empty."""
        self.save(directory, *args, **kwargs)
        return [NoopFuture()]

    def save_arguments(self, item: Any = None, save_args: Any = None, args: Any = None) -> Any:
        """The arguments of a save, from a call of the older interface."""
        raise NotImplementedError


class PyTreeCheckpointHandler(OwnHandler):
    """Pytrees. Options of Orbax' implementation are accepted and ignored."""

    def __init__(
        self,
        aggregate_filename: str | None = None,
        *,
        save_concurrent_gb: int | None = None,
        restore_concurrent_gb: int | None = None,
        save_device_host_concurrent_gb: int | str | None = None,
        memory_limit_options: Any = None,
        use_ocdbt: bool = True,
        use_zarr3: bool = False,
        use_compression: bool = True,
        multiprocessing_options: MultiprocessingOptions | None = None,
        type_handler_registry: Any = None,
        handler_impl: Any = None,
        pytree_metadata_options: Any = None,
        array_metadata_validator: Any = None,
        enable_pinned_host_transfer: bool | None = None,
        is_prioritized_key_fn: Any = None,
        primary_host: int | None = 0,
    ) -> None:
        if handler_impl is not None:
            raise not_covered("PyTreeCheckpointHandler(handler_impl=)", "leave it out: the engine saves")
        self._use_ocdbt, self._use_zarr3, self._use_compression = use_ocdbt, use_zarr3, use_compression
        self._rich_types = bool(getattr(pytree_metadata_options, "support_rich_types", False))
        self._registry = GLOBAL_TYPE_HANDLER_REGISTRY if type_handler_registry is None else type_handler_registry

    def save_arguments(self, item: Any = None, save_args: Any = None, args: Any = None) -> Any:
        """As `OwnHandler`."""
        return PyTreeSaveArgs(item, save_args) if args is None else args

    def plan(self, args: Any) -> tuple[Any, dict[str, Any]]:
        """As `OwnHandler`.

        Raises:
            ValueError: for a tree without leaves, as in Orbax.
        """
        self.check(args.item)
        return self._plan(args.item, args, {})

    def own_leaves(self, args: Any) -> OwnSave | None:
        """As `OwnHandler`."""
        own = of_save(args.item, getattr(args, "save_args", None), self._registry)
        if own is not None:
            self.check(args.item)
        return own

    def plan_beside(self, args: Any, own: OwnSave) -> tuple[Any, dict[str, Any]]:
        """As `OwnHandler`."""
        return self._plan(own.tree, args, own.value_types)

    def _plan(self, tree: Any, args: Any, value_types: dict[str, str]) -> tuple[Any, dict[str, Any]]:
        wanted = _leaf_args.by_path(getattr(args, "save_args", None), _leaf_args.is_save_args)
        if wanted:
            _leaf_args.refuse_idle(wanted, _read.Target.of(args.item).leaves, "save_args")
        arrays = array_handler(self._registry)
        of_arrays = arrays.save_options() if isinstance(arrays, ArrayHandler) else {}
        options: dict[str, Any] = {
            "layout": _settings.layout(),
            "metadata": getattr(args, "custom_metadata", None),
            "options": Options(replica_parallel=of_arrays.get("replica_parallel", False)),
        }
        if options["layout"] == "orbax":
            options["layout"] = Orbax(
                ocdbt=self._use_ocdbt,
                zarr3=self._use_zarr3,
                ocdbt_target_data_file_size=getattr(args, "ocdbt_target_data_file_size", None) or None,
                rich_types=self._rich_types,
                write_sharding=of_arrays.get("write_sharding", True),
                per_leaf=_chunking(wanted),
                value_types=value_types,
            )
            if not self._use_compression:
                options["compression"] = "none"
        elif value_types:
            kinds = ", ".join(sorted(set(value_types.values())))
            raise not_covered(f"leaves of type handlers ({kinds}) in the layout regrow", 'give use_layout("orbax")')
        return _cast(_plain(tree), wanted), options

    def check(self, tree: Any) -> None:
        """Refuses pytrees that Orbax refuses."""
        if is_empty_node(tree):
            raise ValueError("Found empty item.")

    def restore(
        self,
        directory: Any,
        item: Any = None,
        restore_args: Any = None,
        transforms: Any = None,
        transforms_default_to_original: bool = True,
        legacy_transform_fn: Any = None,
        args: Any = None,
    ) -> Any:
        """Restores a pytree; see `PyTreeRestoreArgs`."""
        if args is None:
            args = PyTreeRestoreArgs(
                item, restore_args, transforms, transforms_default_to_original, legacy_transform_fn
            )
        return restore_pytree(directory, args, self._registry)

    def metadata(self, directory: Any) -> Any:
        """The metadata of the pytree."""
        return _read.pytree_metadata(directory, self._registry)

    @classmethod
    def typestr(cls) -> str:
        """The name of the original's class, for its readers."""
        return f"{HANDLERS}.pytree_checkpoint_handler.PyTreeCheckpointHandler"


def _chunking(found: Mapping[KeyPath, Any]) -> dict[str, dict[str, Any]]:
    """Chunk shapes by leaf; one rule for all leaves if they ask for the same."""
    rules: dict[str, dict[str, Any]] = {}
    for path, args in found.items():
        rule = {"chunk_byte_size": args.chunk_byte_size, "shard_axes": tuple(args.shard_axes or ())}
        rules["/".join(path)] = rule
    different = {json.dumps(rule, sort_keys=True) for rule in rules.values()}
    if len(different) == 1:
        (rule,) = [next(iter(rules.values()))]
        return {} if rule == {"chunk_byte_size": None, "shard_axes": ()} else {"**": rule}
    return rules


_PLAIN: dict[type[Any], Callable[[Any], Any]] = {int: int.__int__, float: float.__float__, str: str.__str__}


def _plain(tree: Any) -> Any:
    """The tree with members of `IntEnum` and the like as their numbers and texts, as Orbax saves them."""

    def subclassed(leaf: Any) -> type[Any] | None:
        if type(leaf) is bool or isinstance(leaf, np.generic):
            return None
        return next((kind for kind in _PLAIN if isinstance(leaf, kind) and type(leaf) is not kind), None)

    def plain(leaf: Any) -> Any:
        kind = subclassed(leaf)
        return leaf if kind is None else _PLAIN[kind](leaf)

    return jax.tree.map(plain, tree) if any(map(subclassed, jax.tree.leaves(tree))) else tree


def _cast(tree: Any, found: Mapping[KeyPath, Any]) -> Any:
    """The tree with leaves cast to the dtypes of their save args."""
    wanted = {path: args.dtype for path, args in found.items() if args.dtype is not None}
    if not wanted:
        return tree

    def cast(keys: Any, leaf: Any) -> Any:
        dtype = wanted.get(tuple_path_from_keypath(keys))
        if dtype is None or isinstance(leaf, str):
            return leaf
        if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
            return leaf if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf.astype(dtype)
        # As in Orbax, the stored number gets the dtype.
        return np.asarray(leaf).astype(dtype)[()]

    return jax.tree_util.tree_map_with_path(cast, tree)


def restore_pytree(directory: Any, args: Any, registry: Any = None) -> Any:
    """Restores with any class of arguments, by its attributes."""
    if own_attribute(args, "legacy_transform_fn") is not None:
        return _legacy_transforms.restore(directory, args, registry)
    if not has(args, "restore_args"):
        return restore_standard(directory, args)
    return _read.restore(
        directory,
        args.item,
        args.restore_args,
        partial=getattr(args, "partial_restore", False),
        transforms=getattr(args, "transforms", None),
        default_to_original=getattr(args, "transforms_default_to_original", True),
        registry=registry,
    )


class BasePyTreeCheckpointHandler(PyTreeCheckpointHandler):
    """As `PyTreeCheckpointHandler`, with its own classes of arguments."""

    def restore(self, directory: Any, args: Any = None) -> Any:  # type: ignore[override]
        """Restores a pytree; see `BasePyTreeRestoreArgs`."""
        return restore_pytree(directory, BasePyTreeRestoreArgs() if args is None else args, self._registry)

    def get_param_names(self, item: Any) -> Any:
        """The names under which leaves are stored."""
        from .tree import get_param_names

        return get_param_names(item)

    def __init__(
        self,
        *,
        save_concurrent_bytes: int | None = None,
        restore_concurrent_bytes: int | None = None,
        save_device_host_concurrent_bytes: int | None = None,
        memory_limit_options: Any = None,
        use_ocdbt: bool = True,
        use_zarr3: bool = False,
        use_compression: bool = True,
        multiprocessing_options: MultiprocessingOptions | None = None,
        type_handler_registry: Any = None,
        enable_post_merge_validation: bool = True,
        pytree_metadata_options: Any = None,
        array_metadata_validator: Any = None,
        enable_pinned_host_transfer: bool | None = None,
        is_prioritized_key_fn: Any = None,
        partial_save_mode: bool = False,
    ) -> None:
        if partial_save_mode:
            raise not_covered("BasePyTreeCheckpointHandler(partial_save_mode=True)", "save the whole pytree at once")
        super().__init__(
            use_ocdbt=use_ocdbt,
            use_zarr3=use_zarr3,
            use_compression=use_compression,
            type_handler_registry=type_handler_registry,
            pytree_metadata_options=pytree_metadata_options,
        )

    @classmethod
    def typestr(cls) -> str:
        """The name of the original's class, for its readers."""
        return f"{HANDLERS}.base_pytree_checkpoint_handler.BasePyTreeCheckpointHandler"


# ---- Standard -------------------------------------------------------------------------


class StandardCheckpointHandler(PyTreeCheckpointHandler):
    """Pytrees of arrays and numbers. Only the target says what the leaves become."""

    def __init__(
        self,
        *,
        save_concurrent_gb: int = 96,
        restore_concurrent_gb: int = 96,
        multiprocessing_options: MultiprocessingOptions | None = None,
        pytree_metadata_options: Any = None,
        use_ocdbt: bool = True,
    ) -> None:
        super().__init__(use_ocdbt=use_ocdbt, pytree_metadata_options=pytree_metadata_options)

    def save_arguments(self, item: Any = None, save_args: Any = None, args: Any = None) -> Any:
        """As `OwnHandler`."""
        return StandardSaveArgs(item, save_args) if args is None else args

    def check(self, tree: Any) -> None:
        """Refuses pytrees that Orbax refuses.

        Raises:
            ValueError: for single leaves, text and objects.
        """
        super().check(tree)
        if jax.tree_util.treedef_is_leaf(jax.tree_util.tree_structure(tree)):
            raise ValueError(
                "StandardCheckpointHandler / StandardSave does not support single arrays or scalars."
                " Use ArrayCheckpointHandler / ArraySave"
            )
        _check_standard(_read.Target.of(tree).leaves, (np.ndarray, np.generic, jax.Array, int, float))

    def restore(self, directory: Any, item: Any = None, args: Any = None, **_: Any) -> Any:  # type: ignore[override]
        """Restores a pytree; see `StandardRestoreArgs`."""
        return restore_pytree(directory, StandardRestoreArgs(item) if args is None else args)

    @classmethod
    def typestr(cls) -> str:
        """The name of the original's class, for its readers."""
        return f"{HANDLERS}.standard_checkpoint_handler.StandardCheckpointHandler"


def _check_standard(leaves: Mapping[KeyPath, Any], kinds: tuple[type[Any], ...]) -> None:
    for path, leaf in leaves.items():
        if not isinstance(leaf, kinds) and not is_empty_node(leaf):
            raise ValueError(f"Unsupported type: {type(leaf)} for key: {path}.")


def restore_standard(directory: Any, args: Any) -> Any:
    """Restores into the form of the target."""
    from .checkpoint_utils import construct_restore_args

    target = args.item
    if target is None:
        return _restore_with_fallback(directory, getattr(args, "fallback_sharding", None))
    strict = getattr(args, "strict", True)
    if is_a(target, "TreeMetadata"):
        return _read.restore(directory, target, construct_restore_args(target, strict=strict))
    wanted = _read.Target.of(target)
    if type(target).__name__ != "CompositeMetadata":
        _check_standard(wanted.leaves, (np.ndarray, jax.Array, jax.ShapeDtypeStruct, int, float))
    known: dict[tuple[Any, ...], Any] = {}
    restore_args = {path: _args_of(leaf, args, known) for path, leaf in wanted.leaves.items()}
    stored = _read.open_pytree(directory, by_names=True)
    if strict:
        refuse_other_shapes(stored, wanted.leaves)
    return _read.restore_into(stored, wanted, restore_args)


def _args_of(leaf: Any, args: Any, known: dict[tuple[Any, ...], Any]) -> Any:
    """The restore args of a target's leaf. Equal descriptions share one object, since there are
    thousands.
    """
    from .checkpoint_utils import construct_restore_args

    if is_empty_node(leaf):
        return None
    strict = getattr(args, "strict", True)
    if type(leaf) is not jax.ShapeDtypeStruct:
        return construct_restore_args(leaf, strict=strict)
    key = (leaf.shape, leaf.dtype, leaf.sharding)
    if (found := known.get(key)) is None:
        found = known[key] = _where_it_was(leaf, construct_restore_args(leaf, strict=strict), args)
    return found


def _where_it_was(leaf: Any, own: Any, args: Any) -> Any:
    """A description without a sharding restores the saved kind of leaf: a JAX array gets its saved
    sharding, or the fallback.
    """
    if leaf.sharding is not None:
        return own
    fallback = getattr(args, "fallback_sharding", None)
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return _leaf_args.AsItWas(
        dtype=None if is_key else leaf.dtype,
        sharding=fallback,
        global_shape=None if is_key else leaf.shape,
        strict=getattr(args, "strict", True),
    )


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
    """Refuses NumPy targets with a shape that differs from the stored one. Orbax ignores such
    shapes.
    """
    for path, leaf in targets.items():
        if not isinstance(leaf, np.ndarray):
            continue
        found = getattr(stored.leaves.get(path), "shape", leaf.shape)
        if found != leaf.shape:
            where = "/".join(path)
            help = "give a target of the stored shape"
            raise failure(
                StructureError,
                f"Requested shape: {leaf.shape} is not compatible with the stored shape: {found}.",
                leaf=where,
                help=help,
            )


# ---- arguments ------------------------------------------------------------------------


@register_with_handler(PyTreeCheckpointHandler, for_save=True)
@dataclasses.dataclass
class PyTreeSaveArgs(CheckpointArgs):
    """Saves a pytree; `save_args` is a tree of `SaveArgs`."""

    item: Any
    save_args: Any = None
    ocdbt_target_data_file_size: int | None = None
    custom_metadata: Any = None


@register_with_handler(PyTreeCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class PyTreeRestoreArgs(CheckpointArgs):
    """Restores a pytree; `item` gives the structure, `restore_args` says what leaves become."""

    item: Any = None
    restore_args: Any = None
    transforms: Any = None
    transforms_default_to_original: bool = True
    legacy_transform_fn: Any = None
    partial_restore: bool = False


@register_with_handler(BasePyTreeCheckpointHandler, for_save=True)
@dataclasses.dataclass
class BasePyTreeSaveArgs(CheckpointArgs):
    """Saves a pytree, as `PyTreeSaveArgs`."""

    item: Any
    save_args: Any = None
    ocdbt_target_data_file_size: int | None = None
    custom_metadata: Any = None


@register_with_handler(BasePyTreeCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class BasePyTreeRestoreArgs(CheckpointArgs):
    """Restores a pytree, as `PyTreeRestoreArgs` without transformations."""

    item: Any = None
    restore_args: Any = None
    partial_restore: bool = False


@register_with_handler(StandardCheckpointHandler, for_save=True)
@dataclasses.dataclass
class StandardSaveArgs(CheckpointArgs):
    """Saves a pytree of arrays and numbers."""

    item: Any
    save_args: Any = None
    custom_metadata: Any = None


@register_with_handler(StandardCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class StandardRestoreArgs(CheckpointArgs):
    """Restores a pytree into the form of the target `item`."""

    item: Any = None
    strict: bool = True
    support_layout: bool = False
    fallback_sharding: Any = None

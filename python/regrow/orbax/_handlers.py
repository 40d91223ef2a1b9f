"""The handlers of items, and the handler of each class of arguments.

engine      pytrees, arrays     a subclass plans; the engine writes the folder
text        JSON, messages      one file
two items   random keys         in `_key_handlers`
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._core._duck import has, own_attribute
from .._core._enums import plain
from .._core._options import Options
from .._save._save import save_as
from .._save._writing import Writing
from ..layouts import Orbax
from . import _handler_args, _leaf_args, _legacy_transforms, _read, _settings
from ._errors import as_orbax, not_covered
from ._interfaces import OrbaxHandler
from ._jax import jax
from ._own_leaves import OwnSave, of_save
from ._paths import as_path
from ._targets import check_standard, restore_standard
from .checkpoint_args import get_registered_handler_cls, register_with_handler
from .multihost import is_primary_host
from .options import MultiprocessingOptions
from .tree import KeyPath, get_param_names, is_empty_node, tuple_path_from_keypath
from .type_handlers import GLOBAL_TYPE_HANDLER_REGISTRY, ArrayHandler, array_handler


class OwnHandler(OrbaxHandler):
    """A handler whose folder the engine writes. A subclass only implements `plan`."""

    _save_args: type[Any]

    def plan(self, args: Any) -> tuple[Any, dict[str, Any]]:
        """The pytree to save, and keywords of the engine's save."""
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
            tree, options = self.plan(self._arguments(*args, **kwargs))
            save_as(directory, tree, Writing(overwrite=True, **options), progress=False)

    def _arguments(self, item: Any = None, save_args: Any = None, args: Any = None) -> Any:
        return self._save_args(item, save_args) if args is None else args


class PyTreeCheckpointHandler(OwnHandler):
    """Pytrees. Options of Orbax' implementation are accepted and ignored."""

    _typestr = "pytree_checkpoint_handler.PyTreeCheckpointHandler"
    _save_args: type[Any] = _handler_args.PyTreeSaveArgs

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

    def plan(self, args: Any) -> tuple[Any, dict[str, Any]]:
        self.check(args.item)
        return self._plan(args.item, args, {})

    def own_leaves(self, args: Any) -> OwnSave | None:
        own = of_save(args.item, getattr(args, "save_args", None), self._registry)
        if own is not None:
            self.check(args.item)
        return own

    def plan_beside(self, args: Any, own: OwnSave) -> tuple[Any, dict[str, Any]]:
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
                per_leaf=chunking(wanted),
                value_types=value_types,
            )
            if not self._use_compression:
                options["compression"] = "none"
        elif value_types:
            kinds = ", ".join(sorted(set(value_types.values())))
            raise not_covered(f"leaves of type handlers ({kinds}) in the layout regrow", 'give use_layout("orbax")')
        return cast_leaves(plain_leaves(tree), wanted), options

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
            args = _handler_args.PyTreeRestoreArgs(
                item, restore_args, transforms, transforms_default_to_original, legacy_transform_fn
            )
        return restore_pytree(directory, args, self._registry)

    def metadata(self, directory: Any) -> Any:
        return _read.pytree_metadata(directory, self._registry)


class BasePyTreeCheckpointHandler(PyTreeCheckpointHandler):
    """As `PyTreeCheckpointHandler`, with its own classes of arguments."""

    _typestr = "base_pytree_checkpoint_handler.BasePyTreeCheckpointHandler"

    def restore(self, directory: Any, args: Any = None) -> Any:  # type: ignore[override]
        """Restores a pytree; see `BasePyTreeRestoreArgs`."""
        args = _handler_args.BasePyTreeRestoreArgs() if args is None else args
        return restore_pytree(directory, args, self._registry)

    def get_param_names(self, item: Any) -> Any:
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


class StandardCheckpointHandler(PyTreeCheckpointHandler):
    """Pytrees of arrays and numbers. Only the target says what the leaves become."""

    _typestr = "standard_checkpoint_handler.StandardCheckpointHandler"
    _save_args = _handler_args.StandardSaveArgs

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

    def check(self, tree: Any) -> None:
        super().check(tree)
        if jax.tree_util.treedef_is_leaf(jax.tree_util.tree_structure(tree)):
            raise ValueError(
                "StandardCheckpointHandler / StandardSave does not support single arrays or scalars."
                " Use ArrayCheckpointHandler / ArraySave"
            )
        check_standard(_read.Target.of(tree).leaves, np.generic)

    def restore(self, directory: Any, item: Any = None, args: Any = None, **_: Any) -> Any:  # type: ignore[override]
        """Restores a pytree; see `StandardRestoreArgs`."""
        return restore_pytree(directory, _handler_args.StandardRestoreArgs(item) if args is None else args)


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


def chunking(found: Mapping[KeyPath, Any]) -> dict[str, dict[str, Any]]:
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


_EXACT = (bool, int, float, str)


def plain_leaves(tree: Any) -> Any:
    """The tree with plain numbers and text for those of subclasses, as Orbax saves them."""

    def is_of_subclass(leaf: Any) -> bool:
        return isinstance(leaf, _EXACT) and type(leaf) not in _EXACT and not isinstance(leaf, np.generic)

    def plain_leaf(leaf: Any) -> Any:
        return plain(leaf) if is_of_subclass(leaf) else leaf

    return jax.tree.map(plain_leaf, tree) if any(map(is_of_subclass, jax.tree.leaves(tree))) else tree


def cast_leaves(tree: Any, found: Mapping[KeyPath, Any]) -> Any:
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
        # As in Orbax, convert a stored number to the wanted dtype.
        return np.asarray(leaf).astype(dtype)[()]

    return jax.tree_util.tree_map_with_path(cast, tree)


class ArrayCheckpointHandler(OwnHandler):
    """One array or number."""

    _typestr = "array_checkpoint_handler.ArrayCheckpointHandler"
    _save_args = _handler_args.ArraySaveArgs

    def __init__(self, checkpoint_name: str | None = None) -> None:
        self._name = checkpoint_name or "checkpoint"
        self._pytrees = PyTreeCheckpointHandler(use_ocdbt=False)

    def plan(self, args: Any) -> tuple[Any, dict[str, Any]]:
        if not isinstance(args.item, (int, float, np.ndarray, np.generic, jax.Array)):
            raise TypeError(f"Unsupported type: {type(args.item)}.")
        wanted = None if args.save_args is None else {self._name: args.save_args}
        return self._pytrees.plan(_handler_args.PyTreeSaveArgs({self._name: args.item}, wanted))

    def restore(self, directory: Any, item: Any = None, restore_args: Any = None, args: Any = None) -> Any:
        wanted = getattr(args, "restore_args", None) if args is not None else restore_args
        tree = None if wanted is None else {self._name: wanted}
        return _read.restore(directory, restore_args=tree)[self._name]


class _TextHandler(OrbaxHandler):
    """A handler that stores a value as text in one file."""

    def __init__(self, filename: str) -> None:
        self._filename = filename

    def _text(self, value: Any) -> str:
        raise NotImplementedError

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        value = item if args is None else args.item
        if is_primary_host():
            (as_path(directory) / self._filename).write_text(self._text(value))

    def _read(self, directory: Any) -> str:
        file = as_path(directory) / self._filename
        if not file.exists():
            raise FileNotFoundError(f"File {self._filename} not found in {directory}.")
        text: str = file.read_text()
        return text


class JsonCheckpointHandler(_TextHandler):
    """A JSON value, in a file."""

    _typestr = "json_checkpoint_handler.JsonCheckpointHandler"

    def __init__(
        self, filename: str | None = None, *, multiprocessing_options: MultiprocessingOptions | None = None
    ) -> None:
        super().__init__(filename or "metadata")

    @property
    def filename(self) -> str:
        return self._filename

    def _text(self, value: Any) -> str:
        return json.dumps(value)

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """The saved value."""
        return json.loads(self._read(directory))


class ProtoCheckpointHandler(_TextHandler):
    """One message of protocol buffers, as text. It needs the ``protobuf`` package."""

    _typestr = "proto_checkpoint_handler.ProtoCheckpointHandler"

    def __init__(
        self, filename: str = "proto.pbtxt", *, multiprocessing_options: MultiprocessingOptions | None = None
    ) -> None:
        super().__init__(filename)

    def _text(self, value: Any) -> str:
        text: str = text_format().MessageToString(value)
        return text

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """The saved message, of the class `item`."""
        cls = item if args is None else args.item
        if cls is None:
            raise ValueError("Must provide `item` in order to deserialize proto to the correct type.")
        return text_format().Parse(self._read(directory), cls())


def text_format() -> Any:
    """The module of protobuf that reads and writes messages as text."""
    return importlib.import_module("google.protobuf.text_format")


def register_all(*handlers: type[Any]) -> None:
    """Registers the arguments of handlers: the classes that have their names."""
    for handler in handlers:
        name = handler.__name__.removesuffix("CheckpointHandler")
        register_with_handler(handler, for_save=True)(getattr(_handler_args, f"{name}SaveArgs"))
        register_with_handler(handler, for_restore=True)(getattr(_handler_args, f"{name}RestoreArgs"))


register_all(PyTreeCheckpointHandler, BasePyTreeCheckpointHandler, StandardCheckpointHandler)
register_all(ArrayCheckpointHandler, JsonCheckpointHandler, ProtoCheckpointHandler)


def handler_of_args(args: Any) -> Any:
    """A handler for arguments, also for the original's: a new one of the registered class."""
    cls = type(args)
    own = vars(_handler_args).get(cls.__name__) if cls.__module__.split(".")[0] == "orbax" else None
    return get_registered_handler_cls(args if own is None else own)()

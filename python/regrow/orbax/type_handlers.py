"""Handlers for types of leaves: the interface for callers, the handlers of the engine's types, and
registries of both.

The engine writes and reads arrays, numbers and text. A registry may add handlers of the caller:

    handler writes its own files              they lie beside the tree, in the same checkpoint
    handler calls `ArrayHandler` and others   the engine saves the leaves that it passes on
    standard handler                          never called: the engine knows these types

The `ParamInfo` of each leaf connects a handler with the engine; see `_own_leaves`.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._core._duck import has
from .._errors import failure
from ._errors import not_covered, refusing
from ._interfaces import NoopFuture
from ._jax import jax
from ._leaf_args import PLACEHOLDER as PLACEHOLDER
from ._leaf_args import ArrayRestoreArgs as ArrayRestoreArgs
from ._leaf_args import RestoreArgs as RestoreArgs
from ._leaf_args import SaveArgs as SaveArgs
from ._leaf_args import SingleReplicaArrayRestoreArgs as SingleReplicaArrayRestoreArgs
from .metadata import PYTREE_METADATA_OPTIONS, PyTreeMetadataOptions
from .path.format_utils import is_ocdbt_checkpoint as is_ocdbt_checkpoint

__getattr__ = refusing(
    __name__,
    (
        "get_cast_tspec_deserialize get_cast_tspec_serialize get_json_tspec_read get_json_tspec_write "
        "get_ts_context merge_ocdbt_per_process_files",
        "the engine writes and reads arrays: use TensorStore itself",
    ),
)

_log = logging.getLogger("regrow.orbax")


@dataclasses.dataclass(kw_only=True)
class ParamInfo:
    """The location of one leaf. Most fields describe Orbax' implementation and are not used."""

    name: str
    """The keys on the path to the leaf, joined by dots."""
    parent_dir: Any
    """The folder of the pytree."""
    path: Any = None
    """The path for this leaf's own files. Nothing exists there before its handler makes it."""
    keypath: Any = None
    skip_deserialize: bool | None = None
    byte_limiter: Any = None
    device_host_byte_limiter: Any = None
    is_ocdbt_checkpoint: bool | None = None
    use_compression: bool | None = True
    use_zarr3: bool | None = False
    ocdbt_target_data_file_size: int | None = None
    ts_context: Any = None
    value_typestr: str | None = None
    enable_pinned_host_transfer: bool = False
    raise_array_data_missing_error: bool = True
    write_shape: tuple[int, ...] | None = None
    is_prioritized_key_fn: Any = None
    engine: Any = dataclasses.field(default=None, repr=False, compare=False)
    """The save or restore that this info belongs to."""

    def __post_init__(self) -> None:
        if self.path is None and self.parent_dir is not None:
            self.path = self.parent_dir / self.name

    def replace(self, **changes: Any) -> ParamInfo:
        """A copy with changed fields."""
        new = copy.copy(self)
        for name, value in changes.items():
            setattr(new, name, value)
        return new

    async def await_path_creation(self) -> None:
        """Returns at once: the folder exists before a handler is called."""


class TypeHandler(abc.ABC):
    @abc.abstractmethod
    def typestr(self) -> str: ...

    @abc.abstractmethod
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[Any]:
        """The metadata of leaves, without their data."""

    @abc.abstractmethod
    async def serialize(
        self, values: Sequence[Any], infos: Sequence[ParamInfo], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Saves leaves. Returns futures that end when all is written."""

    @abc.abstractmethod
    async def deserialize(self, infos: Sequence[ParamInfo], args: Sequence[Any] | None = None) -> Sequence[Any]: ...

    def finalize(self, directory: Any) -> None:  # noqa: B027
        """Called on process 0 after all files are written, before the commit."""


def check_input_arguments(*args: Any) -> None:
    """Refuses arguments of different lengths, and empty ones."""
    lengths = [len(arg) for arg in args]
    if 0 in lengths[:-1]:
        raise ValueError("Cannot pass TypeHandler input of length 0.")
    if len(set(lengths)) > 1:
        raise ValueError("Found input args with mismatched lengths.")


class EngineHandler(TypeHandler):
    """A type that the engine saves and restores. A subclass may convert leaves."""

    _type_name: str
    _restore_type: Any = None
    """The type that leaves are restored as, for any type of the caller."""

    def typestr(self) -> str:
        return self._type_name

    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[Any]:
        return [_engine(self, info).describe(info) for info in infos]

    async def serialize(
        self, values: Sequence[Any], infos: Sequence[ParamInfo], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Passes the leaves to the engine, which writes them after all handlers were called."""
        args = [None] * len(values) if args is None else args
        check_input_arguments(values, infos, args)
        for value, info, arg in zip(values, infos, args, strict=True):
            _engine(self, info).keep(info, self._value(value), arg)
        return [NoopFuture()]

    async def deserialize(self, infos: Sequence[ParamInfo], args: Sequence[Any] | None = None) -> Sequence[Any]:
        args = [RestoreArgs()] * len(infos) if args is None else args
        check_input_arguments(infos, args)
        if not infos:
            return []
        wanted = [self._wanted(arg) for arg in args]
        restored: Sequence[Any] = _engine(self, infos[0]).read(infos, wanted)
        return restored

    def _value(self, value: Any) -> Any:
        return value

    def _wanted(self, arg: Any) -> Any:
        return dataclasses.replace(arg, restore_type=self._restore_type)


def _engine(handler: EngineHandler, info: Any) -> Any:
    engine = getattr(info, "engine", None)
    if engine is None:
        name = type(handler).__name__
        raise not_covered(f"calls of {name} outside of a save or restore", "save a pytree with PyTreeCheckpointHandler")
    return engine


class ArrayHandler(EngineHandler):
    _type_name = "jax.Array"
    _restore_type = jax.Array

    def __init__(
        self,
        metadata_key: str | None = None,
        primary_host: int | None = 0,
        replica_id: int | None = 0,
        use_replica_parallel: bool | None = None,
        min_slice_bytes_for_replica_parallel: int | None = None,
        max_replicas_for_replica_parallel: int | None = None,
        enable_write_sharding_file: bool = True,
        array_metadata_store: Any = None,
        enable_replica_parallel_separate_folder: bool = False,
        dispatcher: Any = None,
        callback: Any = None,
    ) -> None:
        """Uses `use_replica_parallel`, false if `None`, and `enable_write_sharding_file`."""
        _refuse_metadata_key(self, metadata_key)
        if dispatcher is not None:
            raise not_covered("ArrayHandler(dispatcher=)", "use the original with Pathways")
        self._metadata_key = metadata_key
        self._primary_host = primary_host
        self._replica_id = replica_id
        self._use_replica_parallel = bool(use_replica_parallel)
        self._enable_write_sharding_file = enable_write_sharding_file
        self._array_metadata_store = array_metadata_store

    def has_dispatcher(self) -> bool:
        """False: dispatchers belong to Pathways."""
        return False

    def save_options(self) -> dict[str, Any]:
        """The constructor's options that the engine uses, under its own names."""
        return {"replica_parallel": self._use_replica_parallel, "write_sharding": self._enable_write_sharding_file}

    def _wanted(self, arg: Any) -> Any:
        if not has(arg, "sharding"):
            return ArrayRestoreArgs(dtype=arg.dtype)
        return super()._wanted(arg)


class SingleReplicaArrayHandler(ArrayHandler):
    """JAX arrays that one replica reads and sends to the others, where args give a sharding."""

    def __init__(
        self,
        replica_axis_index: int | None = 0,
        primary_replica_id: int | None = 0,
        broadcast_memory_limit_bytes: int | None = None,
        broadcast_memory_scaling_factor: float | None = 0.75,
        **kwargs: Any,
    ) -> None:
        """Broadcasts use 256 MiB of memory on a device if there is no limit."""
        super().__init__(**kwargs)
        self.replica_axis_index = replica_axis_index
        self.primary_replica_id = primary_replica_id
        self.broadcast_memory_limit_bytes = broadcast_memory_limit_bytes
        self.broadcast_memory_scaling_factor = broadcast_memory_scaling_factor


class NumpyHandler(EngineHandler):
    _type_name = "np.ndarray"
    _restore_type = np.ndarray

    def __init__(
        self, metadata_key: str | None = None, ocdbt_process_id: str | None = None, deepcopy_host_arrays: bool = True
    ) -> None:
        """Takes the original's options: `metadata_key` is not covered, the others are ignored."""
        _refuse_metadata_key(self, metadata_key)
        self._metadata_key = metadata_key

    def _value(self, value: Any) -> Any:
        return value if isinstance(value, (np.ndarray, np.generic, int, float, complex)) else np.asarray(value)


class ScalarHandler(NumpyHandler):
    _type_name = "scalar"

    def __init__(self, metadata_key: str | None = None, ocdbt_process_id: str | None = None) -> None:
        super().__init__(metadata_key, ocdbt_process_id)

    def _wanted(self, arg: Any) -> Any:
        kind = arg.restore_type
        is_number = isinstance(kind, type) and issubclass(kind, (int, float, complex))
        return dataclasses.replace(arg, restore_type=kind if is_number else None)


class StringHandler(EngineHandler):
    _type_name = "string"
    _restore_type = str

    def __init__(self, filename: str | None = None) -> None:
        if filename not in (None, "_strings.json"):
            raise not_covered("StringHandler(filename=)", "leave it out: text is in _strings.json")


class PlaceholderHandler(EngineHandler):
    """Leaves that are not saved."""

    _type_name = "placeholder"


def _refuse_metadata_key(handler: Any, metadata_key: str | None) -> None:
    if metadata_key is not None:
        raise not_covered(
            f"{type(handler).__name__}(metadata_key=)", "leave it out: arrays have the names that zarr gives them"
        )


_STANDARD = (ArrayHandler, SingleReplicaArrayHandler, NumpyHandler, ScalarHandler, StringHandler, PlaceholderHandler)

_HOOKS = "_background_serialize _get_json_tspec _get_json_tspec_read _get_json_tspec_write _open_and_write".split()
"""Methods of the original's handlers that subclasses may override, and that exist only there."""


def is_standard(handler: Any) -> bool:
    """Whether the engine does the work of a handler: one of ours, or of the original's."""
    return type(handler) in _STANDARD or type(handler).__module__.startswith("orbax.checkpoint")


def _check(handler: Any) -> None:
    """Refuses handlers that write arrays through the original's."""
    cls = type(handler)
    if is_standard(handler):
        return
    theirs = next((base for base in cls.__mro__ if base.__module__.startswith("orbax.checkpoint")), None)
    if theirs is not None and theirs.__name__ != "TypeHandler":
        raise not_covered(
            f"{cls.__name__}, which subclasses the original's {theirs.__name__}",
            f"subclass regrow.orbax.type_handlers.{theirs.__name__}, or call regrow.orbax.install() first",
        )
    hooks = [name for name in _HOOKS if hasattr(cls, name)]
    if isinstance(handler, EngineHandler) and hooks and cls.serialize is EngineHandler.serialize:
        raise not_covered(f"{cls.__name__}.{hooks[0]}", "override `serialize`, and call that of the base class")


class TypeHandlerRegistry:
    """Maps types to handlers. The first handler that fits is used."""

    def __init__(self, *handlers: tuple[Any, Any]) -> None:
        self._of_types: list[tuple[Callable[[Any], bool], Any]] = []
        self._of_names: dict[str, Any] = {}
        for ty, handler in handlers:
            self.add(ty, handler, override=True, ignore_warnings=True)

    def add(
        self,
        ty: Any,
        handler: Any,
        func: Callable[[Any], bool] | None = None,
        override: bool = False,
        ignore_warnings: bool = False,
    ) -> None:
        """Adds a handler for a class and its subclasses, or for those for which `func` is true."""
        _check(handler)
        fits = func or (lambda cls: issubclass(cls, ty))
        name = handler.typestr()
        at = next((at for at, (known, _) in enumerate(self._of_types) if known(ty)), None)
        if not override and at is not None:
            raise failure(ValueError, f'A TypeHandler for "{ty}" is already registered.', help="give override=True")
        if not override and name in self._of_names:
            raise ValueError(f'Type "{ty}" has a `typestr` ("{name}") which collides with that of another TypeHandler.')
        if not ignore_warnings and (at is not None or name in self._of_names):
            _log.warning('Type handler registry: "%s" is now handled by %s', ty, handler)
        if at is None:
            self._of_types.append((fits, handler))
        else:
            self._of_types[at] = fits, handler
        self._of_names[name] = handler

    def get(self, ty: Any) -> Any:
        if isinstance(ty, str):
            if ty in self._of_names:
                return self._of_names[ty]
        else:
            for fits, handler in self._of_types:
                if fits(ty):
                    return handler
        raise ValueError(f'Unknown type: "{ty}". Must register a TypeHandler.')

    def has(self, ty: Any) -> bool:
        try:
            self.get(ty)
        except ValueError:
            return False
        return True

    @property
    def handlers(self) -> list[Any]:
        return [handler for _, handler in self._of_types]


_DEFAULTS: tuple[tuple[Any, Any], ...] = (
    (int, ScalarHandler()),
    (float, ScalarHandler()),
    (bytes, ScalarHandler()),
    (np.number, ScalarHandler()),
    (np.ndarray, NumpyHandler()),
    (jax.Array, ArrayHandler()),
    (str, StringHandler()),
    (type(PLACEHOLDER), PlaceholderHandler()),
)

GLOBAL_TYPE_HANDLER_REGISTRY = TypeHandlerRegistry(*_DEFAULTS)
"""The registry of pytree handlers that get none."""


def knows_all(registry: Any) -> bool:
    """Whether the engine needs no handlers: the program's registry has only standard handlers."""
    return registry is GLOBAL_TYPE_HANDLER_REGISTRY and all(map(is_standard, registry.handlers))


def array_handler(registry: Any) -> Any:
    return registry.get(jax.Array) if registry.has(jax.Array) else None


create_type_handler_registry = TypeHandlerRegistry
get_type_handler = GLOBAL_TYPE_HANDLER_REGISTRY.get
has_type_handler = GLOBAL_TYPE_HANDLER_REGISTRY.has


def register_type_handler(
    ty: Any, handler: Any, func: Callable[[Any], bool] | None = None, override: bool = False
) -> None:
    """Adds a handler for a class to the program's registry; see `TypeHandlerRegistry.add`."""
    GLOBAL_TYPE_HANDLER_REGISTRY.add(ty, handler, func, override)


def supported_types() -> list[Any]:
    return [ty for ty, _ in _DEFAULTS]


def register_standard_handlers_with_options(**kwargs: Any) -> None:
    for name in ("use_ocdbt", "ts_context"):
        kwargs.pop(name, None)
    array = SingleReplicaArrayHandler if kwargs.pop("use_single_replica_array_handler", False) else ArrayHandler
    key = kwargs.get("metadata_key")
    for ty in (int, float, bytes, np.number):
        GLOBAL_TYPE_HANDLER_REGISTRY.add(ty, ScalarHandler(key), override=True, ignore_warnings=True)
    GLOBAL_TYPE_HANDLER_REGISTRY.add(np.ndarray, NumpyHandler(key), override=True, ignore_warnings=True)
    GLOBAL_TYPE_HANDLER_REGISTRY.add(jax.Array, array(**kwargs), override=True, ignore_warnings=True)


def is_supported_type(value: Any, pytree_metadata_options: Any = None) -> bool:
    """Whether a value is an empty node, or needs no handler of the caller."""
    return is_supported_empty_value(value) or isinstance(value, tuple(supported_types()))


def is_supported_empty_value(
    value: Any, pytree_metadata_options: PyTreeMetadataOptions = PYTREE_METADATA_OPTIONS
) -> bool:
    """Whether a value is empty and needs no handler; of named tuples, only with rich types."""
    if isinstance(value, tuple) and hasattr(type(value), "_fields"):
        return pytree_metadata_options.support_rich_types and not value
    return value is None or (isinstance(value, (list, tuple, Mapping)) and not value)

"""Handlers for types of leaves: the interface for callers, the handlers of the engine's types, and
registries.

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
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._core._duck import has
from . import _leaf_args
from ._errors import not_covered
from ._interfaces import NoopFuture
from ._jax import jax


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
    """Saves and restores leaves of one type."""

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


# ---- the types that the engine knows --------------------------------------------------


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
        args = [_leaf_args.RestoreArgs()] * len(infos) if args is None else args
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
    """JAX arrays."""

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
        return {
            "replica_parallel": self._use_replica_parallel,
            "write_sharding": self._enable_write_sharding_file,
        }

    def _wanted(self, arg: Any) -> Any:
        if not has(arg, "sharding"):
            return _leaf_args.ArrayRestoreArgs(dtype=arg.dtype)
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
    """NumPy arrays."""

    _type_name = "np.ndarray"
    _restore_type = np.ndarray

    def __init__(
        self,
        metadata_key: str | None = None,
        ocdbt_process_id: str | None = None,
        deepcopy_host_arrays: bool = True,
    ) -> None:
        """Takes the original's options: `metadata_key` is not covered, the others are ignored."""
        _refuse_metadata_key(self, metadata_key)
        self._metadata_key = metadata_key

    def _value(self, value: Any) -> Any:
        return value if isinstance(value, (np.ndarray, np.generic, int, float, complex)) else np.asarray(value)


class ScalarHandler(NumpyHandler):
    """Numbers."""

    _type_name = "scalar"

    def __init__(self, metadata_key: str | None = None, ocdbt_process_id: str | None = None) -> None:
        super().__init__(metadata_key, ocdbt_process_id)

    def _wanted(self, arg: Any) -> Any:
        kind = arg.restore_type
        is_number = isinstance(kind, type) and issubclass(kind, (int, float, complex))
        return dataclasses.replace(arg, restore_type=kind if is_number else None)


class StringHandler(EngineHandler):
    """Text."""

    _type_name = "string"
    _restore_type = str

    def __init__(self, filename: str | None = None) -> None:
        """`filename` is not covered."""
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

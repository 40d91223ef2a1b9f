"""Handlers of types of leaves: the interface that callers implement, those of the engine's own
types, and registries.

The engine writes and reads arrays, numbers and text. A handler of the caller's own comes in where a
registry has one:

    a handler that writes its own files      beside the tree, in the same checkpoint
    one that hands on to `ArrayHandler` & co.   what it hands on is what the engine saves
    the standard ones                        are never called: the engine knows these types by itself

What the engine does for a handler hangs on the `ParamInfo` of each leaf; see `_own_leaves`.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._duck import has
from . import _leaf_args
from ._errors import not_covered
from ._interfaces import NoopFuture
from ._jax import jax


@dataclasses.dataclass(kw_only=True)
class ParamInfo:
    """Where one leaf is. The members after `keypath` say how Orbax does its work, and are not
    used here.
    """

    name: str
    """The keys on the way to the leaf, with dots between them."""
    parent_dir: Any
    """The folder of the pytree."""
    path: Any = None
    """The place of this leaf's own files: nothing is there before its handler makes it."""
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
    """The save or restore that this is part of."""

    def __post_init__(self) -> None:
        if self.path is None and self.parent_dir is not None:
            self.path = self.parent_dir / self.name

    def replace(self, **changes: Any) -> ParamInfo:
        """A copy with other members."""
        new = copy.copy(self)
        for name, value in changes.items():
            setattr(new, name, value)
        return new

    async def await_path_creation(self) -> None:
        """Returns: the folder is there before a handler is called."""


class TypeHandler(abc.ABC):
    """What saves and restores leaves of one type."""

    @abc.abstractmethod
    def typestr(self) -> str:
        """The name of the type in ``_METADATA``."""

    @abc.abstractmethod
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[Any]:
        """What is known of leaves, their data left alone."""

    @abc.abstractmethod
    async def serialize(
        self, values: Sequence[Any], infos: Sequence[ParamInfo], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Saves leaves; futures that end when all is written."""

    @abc.abstractmethod
    async def deserialize(self, infos: Sequence[ParamInfo], args: Sequence[Any] | None = None) -> Sequence[Any]:
        """Restores leaves."""

    def finalize(self, directory: Any) -> None:  # noqa: B027
        """Is called on process 0 when all is written, before the commit."""


def check_input_arguments(*args: Any) -> None:
    """Refuses arguments of different lengths, and of none."""
    lengths = [len(arg) for arg in args]
    if 0 in lengths[:-1]:
        raise ValueError("Cannot pass TypeHandler input of length 0.")
    if len(set(lengths)) > 1:
        raise ValueError("Found input args with mismatched lengths.")


# ---- the types that the engine knows --------------------------------------------------


class EngineHandler(TypeHandler):
    """A type that the engine saves and restores. A subclass may change leaves on the way there
    and back.
    """

    _type_name: str
    _restore_type: Any = None
    """What leaves are restored as, whatever a caller's own type is."""

    def typestr(self) -> str:
        """As Orbax has it."""
        return self._type_name

    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[Any]:
        """As the engine knows it."""
        return [_engine(self, info).describe(info) for info in infos]

    async def serialize(
        self, values: Sequence[Any], infos: Sequence[ParamInfo], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Hands the leaves on to the engine, which writes them when all handlers have been
        called.
        """
        args = [None] * len(values) if args is None else args
        check_input_arguments(values, infos, args)
        for value, info, arg in zip(values, infos, args, strict=True):
            _engine(self, info).keep(info, self._value(value), arg)
        return [NoopFuture()]

    async def deserialize(self, infos: Sequence[ParamInfo], args: Sequence[Any] | None = None) -> Sequence[Any]:
        """The leaves, as the engine restores them."""
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
        """Of options. What is not listed is accepted and changes nothing.

        Args:
            metadata_key: Not covered.
            primary_host: Process 0 commits, whatever it says.
            replica_id: Accepted.
            use_replica_parallel: Each replica of a shard writes a slice of it; Orbax does that by
                default, and regrow where this is `True`.
            min_slice_bytes_for_replica_parallel: Accepted.
            max_replicas_for_replica_parallel: Accepted.
            enable_write_sharding_file: Write ``_sharding``.
            array_metadata_store: Accepted: ``array_metadatas`` are always written.
            enable_replica_parallel_separate_folder: Accepted.
            dispatcher: Not covered.
            callback: Accepted, and never called.
        """
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
        """No: that is of Pathways."""
        return False

    def save_options(self) -> dict[str, Any]:
        """What of the constructor's options the engine is told, by its own names."""
        return {
            "replica_parallel": self._use_replica_parallel,
            "write_sharding": self._enable_write_sharding_file,
        }

    def _wanted(self, arg: Any) -> Any:
        if not has(arg, "sharding"):
            return _leaf_args.ArrayRestoreArgs(dtype=arg.dtype)
        return super()._wanted(arg)


class SingleReplicaArrayHandler(ArrayHandler):
    """JAX arrays, read by one replica and sent to the others: what `regrow.jobs.SingleReplica` is
    to `regrow.load`.

    It reads so where several processes restore, and a leaf's `SingleReplicaArrayRestoreArgs` say
    where it goes. Leaves that are cut along the axis of the replicas every process reads for
    itself.
    """

    def __init__(
        self,
        replica_axis_index: int | None = 0,
        primary_replica_id: int | None = 0,
        broadcast_memory_limit_bytes: int | None = None,
        broadcast_memory_scaling_factor: float | None = 0.75,
        **kwargs: Any,
    ) -> None:
        """Of options.

        Args:
            replica_axis_index: The axis of the mesh along which replicas lie.
            primary_replica_id: Which one reads.
            broadcast_memory_limit_bytes: Memory of each device that broadcasts may take; 256 MiB if
                `None`.
            broadcast_memory_scaling_factor: Accepted.
            **kwargs: Those of `ArrayHandler`.
        """
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
        """Of options: `metadata_key` is not covered, the others change nothing."""
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
        """Of the name of a file, which is the usual one."""
        if filename not in (None, "_strings.json"):
            raise not_covered("StringHandler(filename=)", "leave it out: text is in _strings.json")


class PlaceholderHandler(EngineHandler):
    """Leaves that are left out."""

    _type_name = "placeholder"


def _refuse_metadata_key(handler: Any, metadata_key: str | None) -> None:
    if metadata_key is not None:
        raise not_covered(
            f"{type(handler).__name__}(metadata_key=)", "leave it out: arrays have the names that zarr gives them"
        )

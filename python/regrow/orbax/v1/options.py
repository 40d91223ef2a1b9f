"""The groups of options of a context.

Options that the guide does not name describe Orbax' implementation: they are accepted and ignored.
"""

from __future__ import annotations

import contextvars
import dataclasses
import enum
from collections.abc import Callable
from dataclasses import field
from typing import Any, Protocol

from ..._errors import failure
from .. import options as v0_options
from ..metadata import PyTreeMetadataOptions as PyTreeMetadataOptions
from ..options import AtomicityMode as AtomicityMode
from . import _registration
from .path import Path

FROZEN: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar("regrow.orbax.v1.frozen", default=frozenset())
"""The options, by `id`, of contexts that are in force."""


class Options:
    """A group of options. It cannot be changed while its context is in force."""

    def __setattr__(self, name: str, value: Any) -> None:
        if id(self) in FROZEN.get():
            help = "set it before the `with` block, or in Context(context), a copy of it"
            raise failure(RuntimeError, f"the option {name} cannot be set in a context that is in force", help=help)
        object.__setattr__(self, name, value)

    def v0(self) -> Any:
        cls = getattr(v0_options, type(self).__name__)
        names = {each.name for each in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in vars(self).items() if name in names})


class CheckpointLayout(enum.Enum):
    """The layout to load. regrow recognises all layouts that it knows without this option."""

    ORBAX = "orbax"
    SAFETENSORS = "safetensors"
    AUTO = "auto"


@dataclasses.dataclass(kw_only=True)
class AsyncOptions(Options):
    """Saves in the background. `timeout_secs` limits the wait for other processes in a phase."""

    timeout_secs: int = 1200
    post_finalization_callback: Callable[[], None] | None = None
    create_directories_asynchronously: bool = True


@dataclasses.dataclass(kw_only=True)
class AtomicityOptions(Options):
    """How a committed checkpoint on a disk is recognised; see `AtomicityOptions` of v0."""

    mode: AtomicityMode = AtomicityMode.AUTO
    allow_legacy_atomic_rename: bool = False


@dataclasses.dataclass(kw_only=True)
class MultiprocessingOptions(Options):
    """Accepted and ignored: all processes of the job take part, and process 0 commits."""

    primary_host: int | None = 0
    active_processes: set[int] | None = None
    barrier_sync_key_prefix: str | None = None


@dataclasses.dataclass(kw_only=True)
class FileOptions(Options):
    """The mode of a checkpoint's folder, and the class of the paths that handlers get."""

    path_permission_mode: int | None = None
    path_class: Any = Path
    skip_sync_file_validations: bool = False


@dataclasses.dataclass(kw_only=True)
class PyTreeOptions(Options):
    @dataclasses.dataclass(kw_only=True)
    class Saving(Options):
        pytree_metadata_options: Any = field(default_factory=PyTreeMetadataOptions)

    @dataclasses.dataclass(kw_only=True)
    class Loading(Options):
        """Options of loads: with `partial_load` a target may lack stored leaves."""

        partial_load: bool = False

    saving: PyTreeOptions.Saving = field(default_factory=Saving)
    loading: PyTreeOptions.Loading = field(default_factory=Loading)


@dataclasses.dataclass(kw_only=True)
class ArrayOptions(Options):
    @dataclasses.dataclass(kw_only=True)
    class Saving(Options):
        class ScopedStorageOptionsCreator(Protocol):
            """Chooses how a leaf is stored; `None` for the common options."""

            def __call__(self, key: Any, value: Any) -> ArrayOptions.Saving.StorageOptions | None: ...

        @dataclasses.dataclass(kw_only=True)
        class StorageOptions(Options):
            """The stored dtype, the largest chunk in bytes, and the axes that are divided first."""

            dtype: Any = None
            chunk_byte_size: int | None = None
            shard_axes: tuple[int, ...] | None = None

        storage_options: ArrayOptions.Saving.StorageOptions = field(default_factory=StorageOptions)
        use_ocdbt: bool = True
        use_zarr3: bool = True
        use_compression: bool = True
        ocdbt_target_data_file_size: int | None = None
        enable_pinned_host_transfer: bool | None = None
        enable_post_merge_validation: bool = True
        use_replica_parallel: bool | None = None
        min_slice_bytes_for_replica_parallel: int | None = None
        max_replicas_for_replica_parallel: int | None = None
        enable_replica_parallel_separate_folder: bool = False
        enable_write_sharding_file: bool = True
        array_metadata_store: Any = True
        scoped_storage_options_creator: ArrayOptions.Saving.ScopedStorageOptionsCreator | None = None

    @dataclasses.dataclass(kw_only=True)
    class Loading(Options):
        @dataclasses.dataclass(kw_only=True)
        class LoadAndBroadcastOptions(Options):
            """The replica that reads for the others."""

            replica_axis_index: int | None = 0
            primary_replica_id: int | None = 0
            broadcast_memory_limit_bytes: int | None = None
            broadcast_memory_scaling_factor: float | None = 0.75

        enable_padding_and_truncation: bool = False
        raise_array_data_missing_error: bool = True
        use_load_and_broadcast: bool = False
        load_and_broadcast_options: ArrayOptions.Loading.LoadAndBroadcastOptions = field(
            default_factory=LoadAndBroadcastOptions
        )

    saving: ArrayOptions.Saving = field(default_factory=Saving)
    loading: ArrayOptions.Loading = field(default_factory=Loading)


@dataclasses.dataclass(kw_only=True)
class CheckpointablesOptions(Options):
    """The registry of handlers for checkpointables; by default the global one."""

    registry: _registration.CheckpointableHandlerRegistry = field(
        default_factory=lambda: _registration.ReadOnlyCheckpointableHandlerRegistry(_registration.local_registry())
    )


@dataclasses.dataclass(kw_only=True)
class PathwaysOptions(Options):
    """Accepted and ignored."""

    checkpointing_impl: Any = None


@dataclasses.dataclass(kw_only=True)
class DeletionOptions(Options):
    @dataclasses.dataclass(kw_only=True)
    class GcsDeletionOptions(Options):
        """The path in a bucket that deleted checkpoints are moved to."""

        todelete_full_path: str | None = None

    gcs_deletion_options: DeletionOptions.GcsDeletionOptions = field(default_factory=GcsDeletionOptions)


@dataclasses.dataclass(kw_only=True)
class MemoryOptions(Options):
    """`write_concurrent_bytes` is the memory budget of a save, in addition to the saved data."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class RegulatorOptions:
        """Accepted and ignored: the engine keeps its budget."""

        max_memory_limit_gib: float
        profiler: Any
        target_ratio: float = 0.80
        min_memory_limit_gib: float = 10.0
        kp: float = 0.4
        ki: float = 0.05
        kd: float = 0.1

        def __post_init__(self) -> None:
            if self.profiler is None:
                raise ValueError("profiler: expected a profiler of memory, found None")

    write_concurrent_bytes: int | None = None
    read_concurrent_bytes: int | None = None
    transfer_concurrent_bytes: int | None = None
    regulator_options: MemoryOptions.RegulatorOptions | None = None
    expected_surge_bytes: int | float | None = None
    is_prioritized_key_fn: Callable[[Any], bool] | None = None
    serialization_status_callback: Any = None
    deepcopy_host_arrays: bool = True


@dataclasses.dataclass(kw_only=True)
class SafetensorsOptions(Options):
    """Accepted and ignored: the engine plans its reads."""

    max_over_read_ratio: float | None = None
    read_chunk_bytes: int | None = None

"""Options, under Orbax' names. Those of Orbax' implementation are accepted and ignored."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from .._errors import failure


@dataclasses.dataclass
class AsyncOptions:
    """Saves in the background. `timeout_secs` limits the wait for other processes in a phase."""

    timeout_secs: int = 1200
    barrier_sync_fn: Any = None
    post_finalization_callback: Callable[[], None] | None = None
    create_directories_asynchronously: bool = True


def timeout_of(options: Any, given: int | None = None) -> int:
    """The time-out that a caller passes, or that options of any class have."""
    seconds: int = given or int(getattr(options, "timeout_secs", AsyncOptions.timeout_secs))
    if seconds <= 0:
        raise failure(ValueError, f"Timeout must be positive, but got {seconds} seconds.", help="set timeout_secs")
    return seconds


@dataclasses.dataclass
class MultiprocessingOptions:
    """The processes that take part. Process 0 always commits."""

    primary_host: int | None = 0
    active_processes: set[int] | None = None
    barrier_sync_key_prefix: str | None = None


class AtomicityMode(enum.Enum):
    """How a committed checkpoint is recognised. Saves write both the name and the file."""

    AUTO = "auto"
    ATOMIC_RENAME = "atomic_rename"
    COMMIT_FILE = "commit_file"


@dataclasses.dataclass
class AtomicityOptions:
    """Which folders on a disk are checkpoints; saves commit in the way of the storage."""

    mode: AtomicityMode = AtomicityMode.AUTO
    allow_legacy_atomic_rename: bool = False


@dataclasses.dataclass
class FileOptions:
    """Permissions of new folders."""

    path_permission_mode: int | None = None
    skip_sync_file_validations: bool = False
    cns2_storage_options: Any = None


@dataclasses.dataclass
class MemoryLimitOptions:
    """Accepted and ignored; the engine has its own budget."""

    max_transfer_concurrent_gb: int | None = None


@dataclasses.dataclass
class Cns2StorageOptions:
    """Accepted and ignored."""

    default_data_governance_annotations: Any = None

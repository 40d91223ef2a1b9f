"""Options, as Orbax names them. Those that say how Orbax does its work are accepted and change
nothing here.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

__all__ = [
    "AsyncOptions",
    "AtomicityMode",
    "AtomicityOptions",
    "Cns2StorageOptions",
    "FileOptions",
    "MemoryLimitOptions",
    "MultiprocessingOptions",
]


@dataclasses.dataclass
class AsyncOptions:
    """How saves in the background go.

    Attributes:
        timeout_secs: How long the processes of a job wait for each other, in each phase of a save
            in the background.
        barrier_sync_fn: Orbax' own barrier; not used, the engine has one.
        post_finalization_callback: Is called when a checkpoint has been committed.
        create_directories_asynchronously: Not used: nothing is created before the background save
            begins.
    """

    timeout_secs: int = 1200
    barrier_sync_fn: Any = None
    post_finalization_callback: Callable[[], None] | None = None
    create_directories_asynchronously: bool = True


def timeout_of(options: Any, given: int | None = None) -> int:
    """The time-out that a caller has given, or that is in options of any class.

    Raises:
        ValueError: for one that nobody could keep.
    """
    seconds: int = given or int(getattr(options, "timeout_secs", AsyncOptions.timeout_secs))
    if seconds <= 0:
        raise ValueError(f"Timeout must be positive, but got {seconds} seconds.\n  help: set timeout_secs")
    return seconds


@dataclasses.dataclass
class MultiprocessingOptions:
    """Which processes take part, and who commits: always process 0."""

    primary_host: int | None = 0
    active_processes: set[int] | None = None
    barrier_sync_key_prefix: str | None = None


class AtomicityMode(enum.Enum):
    """What says that a checkpoint is committed: its name, or the file ``commit_success.txt``.
    Saves leave both.
    """

    AUTO = "auto"
    ATOMIC_RENAME = "atomic_rename"
    COMMIT_FILE = "commit_file"


@dataclasses.dataclass
class AtomicityOptions:
    """What is read as a checkpoint on a disk: with `COMMIT_FILE`, what has the file, or if the
    older form is allowed anything of the name of one. How a save makes it appear the engine
    decides, by the storage."""

    mode: AtomicityMode = AtomicityMode.AUTO
    allow_legacy_atomic_rename: bool = False


@dataclasses.dataclass
class FileOptions:
    """Permissions of the folders that are made."""

    path_permission_mode: int | None = None
    skip_sync_file_validations: bool = False
    cns2_storage_options: Any = None


@dataclasses.dataclass
class MemoryLimitOptions:
    """Accepted; the engine works under a budget of its own."""

    max_transfer_concurrent_gb: int | None = None


@dataclasses.dataclass
class Cns2StorageOptions:
    """Accepted and not used."""

    default_data_governance_annotations: Any = None

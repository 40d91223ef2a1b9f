"""Atomic publication of folders that a caller writes. The engine's own saves choose the method by
storage.
"""

from __future__ import annotations

import abc
import asyncio
import shutil
from collections.abc import Sequence
from typing import Any, Self

from ... import _native
from .._errors import refusing
from .._paths import COMMIT_SUCCESS_FILE as COMMIT_SUCCESS_FILE
from .._paths import TMP_DIR_SUFFIX as TMP_DIR_SUFFIX
from .._paths import as_path
from ..multihost import is_primary_host, sync_global_processes

__getattr__ = refusing(
    __name__,
    (
        "AsyncMakeDirFunc DeferredPath DeferredWritableTemporaryPath ReadOnlyTemporaryPath "
        "TemporaryPathBase on_commit_callback record_saved_duration validate_atomic_rename_final_path "
        "validate_atomic_rename_temporary_path create_all_async get_default_temporary_path_class "
        "get_item_default_temporary_path_class",
        "create and finalize a TemporaryPath, or let a checkpointer do it",
    ),
)


class ValidationError(ValueError):
    """A folder does not fit its name."""


class TemporaryPath(abc.ABC):
    """A folder that is being written, and its final path."""

    def __init__(
        self,
        temporary_path: Any,
        final_path: Any,
        *,
        checkpoint_metadata_store: Any = None,
        file_options: Any = None,
        snapshot_type: Any = None,
    ) -> None:
        self._tmp_path, self._final_path = as_path(temporary_path), as_path(final_path)
        self._mode = getattr(file_options, "path_permission_mode", None)

    @classmethod
    @abc.abstractmethod
    def from_final(cls, final_path: Any, **options: Any) -> Self: ...

    @classmethod
    @abc.abstractmethod
    def from_temporary(cls, temporary_path: Any, **options: Any) -> Self:
        """The object for a folder that is being written."""

    @classmethod
    async def validate(cls, temporary_path: Any) -> None:
        """Raises an error unless the path is a folder that is being written."""
        path = as_path(temporary_path)
        if TMP_DIR_SUFFIX not in path.name or not path.is_dir():
            raise ValidationError(f"Expected {path} to be a directory with {TMP_DIR_SUFFIX} in its name.")

    @classmethod
    async def validate_final(cls, final_path: Any) -> None:
        """Raises an error unless the path is a committed folder."""
        path = as_path(final_path)
        if TMP_DIR_SUFFIX in path.name or not path.is_dir():
            raise ValidationError(f"Expected {path} to be a directory without {TMP_DIR_SUFFIX} in its name.")

    def get(self) -> Any:
        return self._tmp_path

    def get_final(self) -> Any:
        return self._final_path

    async def create(self) -> Any:
        """Makes the folder, and removes the temporary files of an earlier save there."""
        await asyncio.to_thread(self._create)
        return self._tmp_path

    def _create(self) -> None:
        if self._tmp_path.exists():
            if TMP_DIR_SUFFIX not in self._tmp_path.name:
                raise FileExistsError(f"{self._tmp_path} already exists, and appears to be a finalized checkpoint.")
            shutil.rmtree(self._tmp_path)
        self._tmp_path.mkdir(parents=True)
        if self._mode is not None:
            _native.set_mode(self._tmp_path, self._mode)

    async def finalize(self) -> None:
        await asyncio.to_thread(self._finalize)

    @abc.abstractmethod
    def _finalize(self) -> None:
        pass

    def _mark(self) -> None:
        told = f"Checkpoint commit was successful to {self._final_path}"
        (self._tmp_path / COMMIT_SUCCESS_FILE).write_text(told)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tmp={str(self._tmp_path)!r}, final={str(self._final_path)!r})"


class AtomicRenameTemporaryPath(TemporaryPath):
    """Writes under another name and renames, as the engine does on a local disk."""

    @classmethod
    def from_final(cls, final_path: Any, **options: Any) -> Self:
        final = as_path(final_path)
        return cls(final.parent / f"{final.name}{TMP_DIR_SUFFIX}", final, **options)

    @classmethod
    def from_temporary(cls, temporary_path: Any, **options: Any) -> Self:
        temporary = as_path(temporary_path)
        name, suffix, _ = temporary.name.partition(TMP_DIR_SUFFIX)
        if not suffix:
            raise ValueError(f'Expected {temporary} to end with "{TMP_DIR_SUFFIX}".')
        return cls(temporary, temporary.parent / name, **options)

    def _finalize(self) -> None:
        self._mark()
        self._tmp_path.rename(self._final_path)


class CommitFileTemporaryPath(TemporaryPath):
    """Writes under the final name, the marker last, as the engine does in a bucket."""

    @classmethod
    def from_final(cls, final_path: Any, **options: Any) -> Self:
        return cls(final_path, final_path, **options)

    @classmethod
    def from_temporary(cls, temporary_path: Any, **options: Any) -> Self:
        return cls(temporary_path, temporary_path, **options)

    def _finalize(self) -> None:
        self._mark()


async def create_all(paths: Sequence[TemporaryPath], *, multiprocessing_options: Any = None) -> None:
    """Makes several folders. In a job of several processes, process 0 makes them."""
    if is_primary_host():
        for path in paths:
            await path.create()
    sync_global_processes("create_all")

"""Removes a checkpoint, and no other file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _native
from .._core import _arguments
from .._core._location import StrPath, place
from .._core._progress import format_bytes
from .._core._readable import readable
from .._errors import InvalidArgumentError
from .._text import counted, printable


@readable
class RemoveReport(NamedTuple):
    """The report of a removal."""

    path: str
    """The path of the removed checkpoint."""
    file_count: int
    """The number of removed files."""
    bytes: int
    """The bytes of the removed files."""

    def __str__(self) -> str:
        return (
            f"{printable(self.path)}: removed {counted(self.file_count, 'file', 'files')}, {format_bytes(self.bytes)}"
        )


def remove(
    path: StrPath,
    *,
    unfinished: bool = False,
    force: bool = False,
    wait: float = _arguments.WAIT_DEFAULT,
    storage_options: Mapping[str, Any] | None = None,
) -> RemoveReport:
    """Removes the checkpoint at `path`, of any layout.

    After a kill the checkpoint is complete or removed. The next save to the same path removes
    remaining files.

    Args:
        path: One checkpoint: a step, not the folder of steps.
        unfinished: Remove the files of a save or copy to `path` that did not end, instead of a
            checkpoint.
        force: With `unfinished`: also if the writer may still run.
        wait: The seconds to wait for another process that changes the checkpoint.
        storage_options: Options for the storage of a URL, as for `save`.

    Raises:
        NotFoundError: if `path` does not exist.
        NotACheckpointError: if `path` contains no checkpoint.
        InvalidArgumentError: for a folder of steps, a folder with other files in it, a part of a
            checkpoint, or a link; for `force` without `unfinished`.
        UncommittedError: for a save that did not end, without `unfinished`.
        BusyError: if another process still changes it after `wait` seconds.
        AlreadyExistsError: if the writer may still run, without `force`.
    """
    at = place("path", path, storage_options)
    of_unfinished = _arguments.flag("unfinished", unfinished)
    forced = _arguments.flag("force", force)
    if forced and not of_unfinished:
        raise InvalidArgumentError("force=True needs unfinished=True: a checkpoint is removed without force")
    patience = _arguments.seconds("wait", wait)
    return RemoveReport(*_native.remove(at, of_unfinished, forced, patience))

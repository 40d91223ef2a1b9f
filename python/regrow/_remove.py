"""Removing a checkpoint: all of it, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from . import _arguments, _native
from ._errors import InvalidArgumentError
from ._location import StrPath, place
from ._progress import format_bytes
from ._readable import readable
from ._text import counted, printable


@readable
class RemoveReport(NamedTuple):
    """What was removed."""

    path: str
    """Where it was."""
    file_count: int
    """Files that are gone."""
    bytes: int
    """Their bytes."""

    def __str__(self) -> str:
        return (
            f"{printable(self.path)}: removed {counted(self.file_count, 'file', 'files')}, {format_bytes(self.bytes)}"
        )


def remove(
    path: StrPath,
    *,
    unfinished: bool = False,
    force: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> RemoveReport:
    """Removes the checkpoint at `path`, of any layout.

    Whatever happens meanwhile, all of it is left, or no checkpoint: on a disk it is renamed first, in a bucket its
    marker goes first. The next save to the same path removes what is left.

    Args:
        path: One checkpoint; a step, not the folder of steps.
        unfinished: Remove what a save or a copy to `path` has left that never ended, instead of a checkpoint.
        force: With `unfinished`: also if its writer may still be at it.
        storage_options: How to reach the storage of a URL, as for `save`.

    Raises:
        NotFoundError: if nothing is there.
        NotACheckpointError: for something else.
        InvalidArgumentError: for a folder of steps, for one with something beside the checkpoint, for a part of a
            checkpoint, for a link; for `force` without `unfinished`.
        UncommittedError: for a save that never ended, without `unfinished`.
        AlreadyExistsError: if the writer of one may still live, without `force`.
    """
    at = place("path", path, storage_options)
    of_unfinished = _arguments.flag("unfinished", unfinished)
    forced = _arguments.flag("force", force)
    if forced and not of_unfinished:
        raise InvalidArgumentError("force=True goes with unfinished=True: a checkpoint needs no force to be removed")
    return RemoveReport(*_native.remove(at, of_unfinished, forced))

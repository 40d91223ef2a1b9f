"""Seals a checkpoint: writes checksums beside layouts that have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _native
from .._core import _arguments
from .._core._location import StrPath, place
from .._core._progress import Progress, Watch, format_bytes
from .._core._readable import readable
from .._text import counted, printable


@readable
class SealReport(NamedTuple):
    """The report of a seal."""

    path: str
    """The file of the seal; the checkpoint, if its layout needs no seal."""
    file_count: int
    """The files that it covers; 0 if it was removed or is not needed."""
    bytes: int
    """The bytes of these files."""
    has_changed: bool
    """Whether a seal was made or removed."""

    def __str__(self) -> str:
        return f"{printable(self.path)}: {counted(self.file_count, 'file', 'files')}, {format_bytes(self.bytes)}"


def seal(
    path: StrPath,
    *,
    remove: bool = False,
    step: int | None = None,
    wait: float = _arguments.WAIT_DEFAULT,
    progress: Progress = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SealReport:
    """Puts a seal beside a checkpoint of any layout: a checksum of each 32 KiB of its files.

    From then on `open`, `load`, `verify` and `diff` check every byte that they read. The checkpoint
    is verified first, and does not change; other tools read it as before. The seal is
    ``regrow.seal.json`` in the folder, or ``regrow.seal.NAME.json`` beside a file: 256 KiB for each
    GiB. All files are read once, at the speed of the disk.

    The layout regrow already has such checksums: for it, the call does nothing.

    Args:
        path: A checkpoint, or a folder of steps.
        remove: Remove the seal instead.
        step: The step of a folder of steps; the newest if `None`.
        wait: The seconds to wait for another process that changes the checkpoint.
        progress: As for `save`.
        storage_options: Options for the storage of a URL, as for `save`.

    Raises:
        CorruptError: if the checkpoint is already damaged.
        InvalidArgumentError: for one file of a checkpoint of several.
        BusyError: if another process still changes it after `wait` seconds.
        ReplacedError: if another program writes to it in between.
        UnsupportedError: in an archive, on a web server.
        PermissionDeniedError: if nothing can be written there. After any error an earlier seal is
            unchanged.
    """
    at = place("path", path, storage_options)
    chosen = _arguments.count("step", step)
    is_removed = _arguments.flag("remove", remove)
    patience = _arguments.seconds("wait", wait)
    with Watch(progress, "sealing") as watch:
        return SealReport(*_native.seal(at, chosen, is_removed, patience, watch))

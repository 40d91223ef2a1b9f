"""Copies a checkpoint to another path or URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _native
from .._core import _arguments
from .._core._keywords import keywords
from .._core._location import StrPath, places
from .._core._progress import Progress, Watch, format_bytes, format_seconds, format_speed
from .._core._readable import readable
from .._core._requests import CopyRequest
from .._text import counted, printable


@readable
class CopyReport(NamedTuple):
    """The report of a copy. As text it is a line."""

    path: str
    """The path of the copy."""
    file_count: int
    """Files of the checkpoint."""
    bytes: int
    """Bytes of all files."""
    reused_bytes: int
    """Bytes that an earlier, interrupted copy had already copied. `bytes` includes these bytes."""
    seconds: float
    """The time of the whole copy."""

    @property
    def gb_per_s(self) -> float:
        """The speed in 10^9 bytes a second, without the bytes of an earlier, interrupted copy."""
        return (self.bytes - self.reused_bytes) / self.seconds / 1e9 if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        files = counted(self.file_count, "file", "files")
        text = f"{printable(self.path)}: {files}, {format_bytes(self.bytes)} in {format_seconds(self.seconds)}"
        speed = format_speed(self.bytes, self.gb_per_s)
        if speed:
            text += f" ({speed})"
        return f"{text}; {format_bytes(self.reused_bytes)} already copied" if self.reused_bytes else text


@keywords
def copy(
    source: StrPath,
    target: StrPath,
    *,
    overwrite: bool = False,
    durable: bool = True,
    verify: bool = True,
    wait: float = _arguments.WAIT_DEFAULT,
    budget_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
) -> CopyReport:
    """Copies the checkpoint at `source` to `target`, byte for byte, in any layout.

    Source and target are on disks or in buckets, in any combination. A folder of steps is copied
    with all its committed steps. Each file is read back and compared before the target becomes a
    checkpoint. The same call continues an interrupted copy.

    Args:
        source: A checkpoint, or a folder of steps.
        target: The path of the copy.
        overwrite: Replace the checkpoint at `target`, as `save` does. A folder of steps cannot be
            replaced as a whole.
        durable: As for `save`.
        verify: Read the copy back, and compare.
        wait: The seconds to wait for another process that changes the target.
        budget_bytes: Memory for data in transit, at least 1 MiB; 64 MiB if `None`.
        storage_options: Options for the storage of URLs, as for `save`; a `Location` has its own.
        progress: As for `save`. Bytes that are read back count too.

    Raises:
        BusyError: if another process still changes the target after `wait` seconds.
        AlreadyExistsError: if the target exists and `overwrite` was not given; if another copy to
            it is running.
        InvalidArgumentError: if source and target are the same, or one is inside the other; with
            `overwrite` for a folder of steps.
        UnsupportedError: for a checkpoint that could not be opened at the target.
        CorruptError: if the copy that is read back differs.
        NotFoundError, NotACheckpointError, UncommittedError: if there is no checkpoint to copy.
    """
    request = CopyRequest(
        overwrite=_arguments.flag("overwrite", overwrite),
        durable=_arguments.flag("durable", durable),
        verify=_arguments.flag("verify", verify),
        wait=_arguments.seconds("wait", wait),
        budget_bytes=_arguments.budget(budget_bytes),
    )
    at = places(storage_options, source=source, target=target)
    with Watch(progress, "copying") as watch:
        return CopyReport(*_native.copy(at["source"], at["target"], request, watch))

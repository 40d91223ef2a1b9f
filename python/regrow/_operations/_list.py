"""Lists the checkpoints in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _native
from .._core._location import StrPath, place
from .._core._progress import format_bytes
from .._core._readable import readable
from .._core._report import Finding
from .._text import counted, printable


@readable
class Listed(NamedTuple):
    """One checkpoint in a folder."""

    name: str
    """The name in the folder."""
    path: str
    """The path or URL."""
    layout: str | None
    """The layout; `None` if the checkpoint cannot be opened."""
    state: str
    """``committed``; ``unfinished`` if a save or a copy is in progress or was interrupted;
    ``damaged``.
    """
    steps: list[int]
    """The numbers of the steps, if this is a folder of steps."""
    file_count: int | None
    """The number of files; `None` if the storage cannot tell."""
    bytes: int | None
    """The bytes of all files; `None` if the storage cannot tell."""
    modified: float | None
    """The time of the last change of a file, in seconds since 1970; `None` if the storage cannot
    tell.
    """
    error: Finding | None
    """The reason why a damaged checkpoint cannot be opened."""

    def __str__(self) -> str:
        parts = [self.state, *([self.layout] if self.layout else [])]
        if self.steps:
            parts.append(counted(len(self.steps), "step", "steps"))
        if self.bytes is not None:
            parts.append(format_bytes(self.bytes))
        return f"{printable(self.path)}: {', '.join(parts)}"


def list_checkpoints(folder: StrPath, *, storage_options: Mapping[str, Any] | None = None) -> list[Listed]:
    """The checkpoints directly in a folder, finished or not, by name, with numbers at the end of
    names in numeric order.

    It reads metadata and no data: ``committed`` means that the checkpoint can be opened. Use
        `verify` to check the data.

    Args:
        folder: A folder of steps, or of any checkpoints.
        storage_options: Options for the storage of a URL, as for `save`.

    Raises:
        NotFoundError: if there is no folder.
        UncommittedError: for a folder that is itself being written.
    """
    found = _native.list_checkpoints(place("folder", folder, storage_options))
    return [
        Listed(name, path, layout, state, steps, *stock, Finding(*error) if error is not None else None)
        for name, path, layout, state, steps, stock, error in found
    ]

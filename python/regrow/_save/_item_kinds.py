"""Items that are no pytrees: JSON documents, and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._core import _arguments, _json
from .._core._location import StrPath


class Json:
    """An item that is a JSON document, in the form of Orbax' ``JsonCheckpointHandler``. The value
    is one that `json.dumps` accepts.
    """

    def __init__(self, value: Any, *, file: str | None = None) -> None:
        """Makes an item of a value. `file` is the name of the item's file, if the name differs from
        the usual one.

        Raises:
            InvalidArgumentError: for a value that JSON cannot express.
        """
        self.value = value
        self.file = file
        self.text = _json.text("an item", value)

    def __repr__(self) -> str:
        return f"regrow.Json({self.value!r})"


class Files:
    """An item of files in their own form: the state of a data iterator, or the files of another
    library.
    """

    def __init__(
        self,
        source: Mapping[str, bytes | str] | StrPath | Callable[[Path], object],
        *,
        handler: str | None = None,
    ) -> None:
        """Makes an item of contents by name, of a local file or folder that is copied, or of a
        function that writes the files.

        Args:
            source: ``{"process_0.json": b"..."}``; a path; or a function that is called with an
                empty local folder and writes files into it. The function is called by the save
                itself, not in the background. In a job every process calls it; on a disk that they
                share the folder is one and the same.
            handler: The full name of the class with which Orbax reads the item.
        """
        is_path = isinstance(source, (str, os.PathLike))
        if not (is_path or callable(source) or isinstance(source, Mapping)):
            raise _arguments.wrong("source", source, "contents by name, a path, or a function of a folder")
        self.source = source
        self.handler = _arguments.text("handler", handler)

    def __getitem__(self, name: str) -> bytes:
        """The content of a file that was given or loaded by name."""
        if not isinstance(self.source, Mapping):
            raise TypeError("these files have no names")
        return as_bytes(self.source[name])

    def __repr__(self) -> str:
        names = sorted(self.source) if isinstance(self.source, Mapping) else self.source
        return f"regrow.Files({names!r})"


# ---- what is written ------------------------------------------------------------------


def json_object(name: str, value: Any) -> str:
    """A dict in JSON."""
    if not isinstance(value, Mapping):
        raise _arguments.wrong(name, value, "a dict that JSON can hold")
    return _json.text(name, dict(value))


def as_bytes(data: Any) -> bytes:
    """The content of a file."""
    if isinstance(data, str):
        return data.encode()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise _arguments.wrong("a file", data, "bytes or text")
    return bytes(data)

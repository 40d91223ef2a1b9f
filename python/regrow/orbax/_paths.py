"""Paths as callers of Orbax use them: of etils if it is installed, else of the standard library.

Paths in buckets have the methods that callers and handlers use, and read through the engine.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from .._core._location import Location, is_url, local_path, place
from .._errors import failure

TMP_DIR_SUFFIX = ".orbax-checkpoint-tmp"
COMMIT_SUCCESS_FILE = "commit_success.txt"

_LEN_MAX_BYTES = 64 << 20
"""Longest document that is read whole, in bytes."""


def as_path(path: Any) -> Any:
    """A path with ``/``, ``exists`` and ``iterdir``. One in a bucket reads through the engine."""
    found = bucket_path(path)
    return path_class()(os.fspath(path)) if found is None else found


def path_class() -> Any:
    """The class of paths of the local file system."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("etils.epath").Path
    return pathlib.Path


def absolute(path: Any) -> Any:
    path = as_path(path)
    if not path.is_absolute():
        help = f"give os.path.abspath({str(path)!r})"
        raise failure(ValueError, f"Checkpoint path should be absolute. Got {path}", help=help)
    return path


def read_json(file: Any) -> dict[str, Any] | None:
    """The JSON object in a file; `None` if the file is missing or holds anything else."""
    try:
        told = json.loads(as_path(file).read_text())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def is_pytree(path: Any) -> bool:
    """Whether a folder is a pytree in the layout of Orbax or regrow."""
    return any((as_path(path) / name).exists() for name in ("_METADATA", "regrow.json"))


def is_temporary(path: Any) -> bool:
    """Whether a folder is a save in progress, or the temporary files of a broken one."""
    path = as_path(path)
    return TMP_DIR_SUFFIX in path.name and not os.path.islink(path)


def wants_marker(atomicity_options: Any) -> bool:
    """Whether options accept a folder on a disk only with the marker of a commit."""
    if atomicity_options is None:
        return False
    mode = getattr(atomicity_options.mode, "name", None)
    if mode not in ("AUTO", "ATOMIC_RENAME", "COMMIT_FILE"):
        raise ValueError(f"Unsupported atomicity_mode: {atomicity_options.mode}.")
    return mode == "COMMIT_FILE" and not atomicity_options.allow_legacy_atomic_rename


def lacks_marker(path: Any, atomicity_options: Any) -> bool:
    """Whether options want a marker and a folder has none: its save never ended."""
    return wants_marker(atomicity_options) and not (as_path(path) / COMMIT_SUCCESS_FILE).is_file()


def is_finalized(path: Any, atomicity_options: Any = None) -> bool:
    """Whether a folder is committed: by its marker in a bucket or on request, else by its name."""
    path = as_path(path)
    if not path.exists():
        raise FileNotFoundError(f"Checkpoint path {path} does not exist.")
    if not path.is_dir():
        raise NotADirectoryError(f"Checkpoint path {path} is not a directory.")
    if isinstance(path, BucketPath) and not (path / COMMIT_SUCCESS_FILE).is_file():
        return False
    return not is_temporary(path) and not lacks_marker(path, atomicity_options)


def bucket_path(path: Any) -> BucketPath | None:
    """The path as a path in a bucket; `None` for a path on the local file system."""
    if isinstance(path, BucketPath):
        return path
    if not isinstance(path, Location):
        if not is_url(str(path)):
            return None
        path = Location(path)
    return BucketPath(path) if local_path(place("path", path)) is None else None


class BucketPath(Location):
    """A path in a bucket: ``/``, ``exists``, ``iterdir`` and more."""

    def __init__(self, location: Location, is_folder: bool | None = None) -> None:
        super().__init__(location)
        self._is_folder = is_folder

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The options that reach the storage. They may hold secrets."""
        return self._options

    def _look(self) -> str | None:
        if self._is_folder is not None:
            return "folder" if self._is_folder else "file"
        return self._native.look()

    @property
    def name(self) -> str:
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> BucketPath:
        """The path without its last part. The parent of a bucket is the bucket."""
        scheme, _, rest = self.url.rstrip("/").partition("://")
        above = rest.rpartition("/")[0]
        return BucketPath(Location(f"{scheme}://{above}", **self._options)) if above else self

    def __truediv__(self, name: Any) -> BucketPath:
        text = os.fspath(name)
        return BucketPath(Location(text, **self._options) if is_url(text) else super().__truediv__(text.strip("/")))

    def joinpath(self, *names: Any) -> BucketPath:
        path = self
        for name in names:
            path = path / name
        return path

    def is_absolute(self) -> bool:
        return True

    def as_posix(self) -> str:
        return self.url

    def __lt__(self, other: BucketPath) -> bool:
        return self.url < other.url

    def exists(self) -> bool:
        return self._look() is not None

    def is_dir(self) -> bool:
        return self._look() == "folder"

    def is_file(self) -> bool:
        return self._look() == "file"

    def iterdir(self) -> Iterator[BucketPath]:
        for name, is_folder in self._native.entries():
            yield BucketPath(super().__truediv__(name), is_folder)

    def read_bytes(self) -> bytes:
        found = self._native.read(_LEN_MAX_BYTES)
        if found is None:
            raise FileNotFoundError(f"the object {self} does not exist")
        return found

    def read_text(self, encoding: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def write_bytes(self, data: bytes) -> int:
        self._native.write(data)
        return len(data)

    def write_text(self, text: str, encoding: str | None = None) -> int:
        return self.write_bytes(text.encode(encoding or "utf-8"))

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a bucket has no folders."""

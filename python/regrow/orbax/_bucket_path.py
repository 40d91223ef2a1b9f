"""Paths in buckets, with the methods that callers and handlers of Orbax use. They read through the
engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from .. import _native
from .._core._location import Location, is_url, local_path, place

_LEN_MAX_BYTES = 64 << 20
"""Longest document that is read whole, in bytes."""


def bucket_path(path: Any) -> BucketPath | None:
    """The path as a path in a bucket; `None` for a path on the local file system."""
    if isinstance(path, BucketPath):
        return path
    if not isinstance(path, Location):
        if not is_url(str(path)):
            return None
        path = Location(path)
    return BucketPath(path) if local_path(place("path", path)) is None else None


class BucketPath(os.PathLike[str]):
    """A path in a bucket: ``/``, ``exists``, ``iterdir`` and more."""

    def __init__(self, location: Location, is_folder: bool | None = None) -> None:
        self.location = location
        self._is_folder = is_folder

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The options that reach the storage. They may hold secrets."""
        return self.location._options

    @property
    def _place(self) -> _native.Location:
        found = place("path", self.location)
        assert isinstance(found, _native.Location)
        return found

    def _look(self) -> str | None:
        if self._is_folder is not None:
            return "folder" if self._is_folder else "file"
        return self._place.look()

    @property
    def name(self) -> str:
        return self.location.url.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> BucketPath:
        """The path without its last part. The parent of a bucket is the bucket."""
        scheme, _, rest = self.location.url.rstrip("/").partition("://")
        above = rest.rpartition("/")[0]
        return BucketPath(Location(f"{scheme}://{above}", **self.location._options)) if above else self

    def __truediv__(self, name: Any) -> BucketPath:
        text = os.fspath(name)
        if is_url(text):
            return BucketPath(Location(text, **self.location._options))
        return BucketPath(self.location / text.strip("/"))

    def joinpath(self, *names: Any) -> BucketPath:
        path = self
        for name in names:
            path = path / name
        return path

    def is_absolute(self) -> bool:
        return True

    def as_posix(self) -> str:
        return self.location.url

    def __fspath__(self) -> str:
        return self.location.url

    def __str__(self) -> str:
        return self.location.url

    def __repr__(self) -> str:
        return f"BucketPath({self.location.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BucketPath) and self.location == other.location

    def __hash__(self) -> int:
        return hash(self.location)

    def __lt__(self, other: BucketPath) -> bool:
        return self.location.url < other.location.url

    def exists(self) -> bool:
        return self._look() is not None

    def is_dir(self) -> bool:
        return self._look() == "folder"

    def is_file(self) -> bool:
        return self._look() == "file"

    def iterdir(self) -> Iterator[BucketPath]:
        for name, is_folder in self._place.entries():
            yield BucketPath(self.location / name, is_folder)

    def read_bytes(self) -> bytes:
        found = self._place.read(_LEN_MAX_BYTES)
        if found is None:
            raise FileNotFoundError(f"the object {self} does not exist")
        return found

    def read_text(self, encoding: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def write_bytes(self, data: bytes) -> int:
        self._place.write(data)
        return len(data)

    def write_text(self, text: str, encoding: str | None = None) -> int:
        return self.write_bytes(text.encode(encoding or "utf-8"))

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a bucket has no folders."""

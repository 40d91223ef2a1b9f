"""A read-through cache: keeps blocks of a bucket on a local disk for the next load."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from .. import _native
from .._text import counted
from ._arguments import wrong
from ._location import Place, StrPath, is_url
from ._progress import format_bytes
from ._readable import readable


@readable
class CacheReport(NamedTuple):
    """The work of a `Cache` in this process."""

    hit_bytes: int
    """Bytes of blocks that were read from the cache's folder."""
    miss_bytes: int
    """Bytes of blocks that were fetched because the folder did not have them."""
    damaged: int
    """Blocks that were damaged. They were removed and fetched again."""

    def __str__(self) -> str:
        damaged = f", {counted(self.damaged, 'damaged block', 'damaged blocks')}" if self.damaged else ""
        return f"{format_bytes(self.hit_bytes)} from the cache, {format_bytes(self.miss_bytes)} fetched{damaged}"


class Cache:
    """A folder of a local disk that keeps blocks read from buckets and web servers.

        cache = regrow.Cache("/scratch/regrow-cache", max_size="50GB")
        with regrow.options(cache=cache):
            params = regrow.load("s3://bucket/runs/step_100")

    Several processes may share a folder. Every block is checked when it is read. Each open asks the
    bucket for the current version, and an object that was replaced is fetched again. When
    `max_size` is reached, the least recently used blocks are removed.
    """

    __slots__ = ("_folder", "_max_size", "_native")

    def __init__(self, folder: StrPath, *, max_size: int | str = "10GiB") -> None:
        """Uses `folder`, and makes the folder if it does not exist. The cache holds at most
        `max_size` bytes; a text such as ``"50GB"`` is allowed.

        Raises:
            InvalidArgumentError: for a bad size, or a folder that every user of the machine may
                write into.
            OSError: if the folder cannot be made.
        """
        if not isinstance(folder, (str, bytes, os.PathLike)):
            raise wrong("folder", folder, "a path: str, bytes or os.PathLike")
        if isinstance(max_size, bool) or not isinstance(max_size, (int, str)):
            raise wrong("max_size", max_size, 'a number of bytes, or text such as "50GB"')
        self._folder = os.path.abspath(os.fsdecode(folder))
        self._max_size = max_size
        self._native = _native.Cache(self._folder, str(max_size))

    @property
    def folder(self) -> str:
        """The folder."""
        return self._folder

    @property
    def report(self) -> CacheReport:
        """The work of the cache so far, in this process."""
        return CacheReport(*self._native.report())

    def __repr__(self) -> str:
        return f"regrow.Cache({self._folder!r}, max_size={self._max_size!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self._folder, self._max_size)


def _made(folder: str, max_size: int | str) -> Cache:
    return Cache(folder, max_size=max_size)


def through(cache: StrPath | Cache | None, at: Place) -> Place:
    """The place as it is read through a cache. Local paths are read as before."""
    if cache is None:
        return at
    if not isinstance(cache, (str, bytes, os.PathLike, Cache)):
        raise wrong("cache", cache, "a folder, or a regrow.Cache")
    if isinstance(at, str):
        if not is_url(at):
            return at
        at = _native.Location(at, [])
    made = cache if isinstance(cache, Cache) else Cache(cache)
    return at.cached(made._native)

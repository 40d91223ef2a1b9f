"""The two sides of a comparison: a path or URL, an opened checkpoint, a pytree."""

from __future__ import annotations

import os
from typing import Any

from .. import _native
from .._core._location import Location, Place, StrPath, place
from .._leaves._columns import to_native
from .._load._checkpoint import Checkpoint
from .._load._opening import Opening
from .._tree._flatten import flatten


def is_place(side: Any) -> bool:
    """Whether a side is a path or URL. Any other object that is not a `Checkpoint` is a pytree."""
    return isinstance(side, (str, bytes, os.PathLike, Location)) or hasattr(type(side), "joinpath")


def taken(name: str, side: Any, storage_options: Any) -> Place | _native.Checkpoint:
    """A side in the form of the native half."""
    if isinstance(side, Checkpoint):
        return side._native
    if is_place(side):
        given: StrPath = side
        return place(name, given, storage_options)
    flat = flatten(side)
    return _native.held(flat.structure, to_native(flat))


def opened(side: Place | _native.Checkpoint, step: int | None, item: str | None) -> _native.Checkpoint:
    """A side, opened if it is a path or URL."""
    return side if isinstance(side, _native.Checkpoint) else _native.open(side, Opening(step, item))

"""Types of Flax' msgpack that Python lacks, for the native half of `regrow.flax`."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ._errors import CorruptError


class MsgpackError(CorruptError, ValueError):
    """Bytes that are not one msgpack object of Flax'. Carries ``offset_bytes`` and, below the
    root, ``leaf``.
    """


class ExtType(NamedTuple):
    """An extension that Flax does not know: its code and its payload."""

    code: int
    data: bytes


class Timestamp(NamedTuple):
    """msgpack's own extension -1: seconds since 1970, and nanoseconds from 0 to 999999999."""

    seconds: int
    nanoseconds: int


_UNREADABLE = {"str": ("<U", 32), "bytes": ("S", 8), "void": ("V", 8)}
"""Names that Flax writes and cannot read: how NumPy spells the dtype, and the bits of its unit."""


def dtype_of(name: str) -> np.dtype[Any] | None:
    """The dtype of NumPy or ml_dtypes whose ``name`` this is; `None` if there is none that a
    file may hold.
    """
    try:
        dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    except (TypeError, ValueError, SyntaxError, KeyError, MemoryError):
        found = re.fullmatch(r"(str|bytes|void)([1-9][0-9]{0,8})", name)
        if found is None:
            return None
        code, bits = _UNREADABLE[found[1]]
        count, rest = divmod(int(found[2]), bits)
        return None if rest else np.dtype(f"{code}{count}")
    # NumPy also accepts `>f4`, `i2,i2` and `O`, but no dtype has such a name.
    return dtype if dtype.name == name and not dtype.hasobject else None

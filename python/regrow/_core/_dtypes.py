"""The engine's dtypes as dtypes of NumPy and ml_dtypes.

The import of ml_dtypes takes some milliseconds. So it is imported by the program, or when the first
of its dtypes is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, overload

import numpy as np

from .. import _native


@cache
def _dtype(number: int) -> np.dtype[Any]:
    name = _native.DTYPES[number]
    if name in np.sctypeDict:
        return np.dtype(name)
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


class Dtypes(Sequence[np.dtype[Any]]):
    """Every dtype of the engine, by its number."""

    def __len__(self) -> int:
        return len(_native.DTYPES)

    @overload
    def __getitem__(self, number: int) -> np.dtype[Any]: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[np.dtype[Any]]: ...

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [_dtype(at) for at in range(*number.indices(len(self)))]
        return _dtype(number)


DTYPES = Dtypes()

_numbers = {_dtype(number): number for number, name in enumerate(_native.DTYPES) if name in np.sctypeDict}


def dtype_numbers() -> dict[np.dtype[Any], int]:
    """The number of each dtype that an array of this program can have."""
    if len(_numbers) < len(DTYPES) and "ml_dtypes" in sys.modules:
        _numbers.update((dtype, number) for number, dtype in enumerate(DTYPES))
    return _numbers

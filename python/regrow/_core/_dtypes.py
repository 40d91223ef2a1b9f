"""The engine's dtypes as dtypes of NumPy and ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .. import _native

DTYPES: tuple[np.dtype[Any], ...] = tuple(np.dtype(getattr(ml_dtypes, name, None) or name) for name in _native.DTYPES)
"""Every dtype of the engine. The position of a dtype is its number in the engine."""

DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}

"""Protection and repair: seals, signatures, parity."""

from __future__ import annotations

from ._repair import add_parity, repair
from ._seal import seal
from ._sign import sign

__all__ = [
    "add_parity",
    "repair",
    "seal",
    "sign",
]

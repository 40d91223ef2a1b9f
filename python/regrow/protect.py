"""Protection and repair: seals, signatures, parity."""

from __future__ import annotations

from ._operations._repair import add_parity, repair
from ._operations._seal import seal
from ._operations._sign import sign

__all__ = [
    "add_parity",
    "repair",
    "seal",
    "sign",
]

"""How a checkpoint is opened: what the engine is told with its path."""

from __future__ import annotations

from typing import NamedTuple


class Opening(NamedTuple):
    """The columns of the engine's options, with their defaults."""

    step: int | None = None
    item: str | None = None
    strict: bool = False
    bare: bool = False
    mmap: bool = False
    ignore_seal: bool = False

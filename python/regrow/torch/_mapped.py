"""Tensors in private maps of a file. The system reads a page at its first use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import _native
from .._errors import ReplacedError
from ._library import torch


class Maps:
    """Private maps of the files that contain leaves. It is empty if there are no maps."""

    def __init__(self, native: _native.Checkpoint, leaves: Sequence[int], verify: bool, watch: Any) -> None:
        """Maps the files of these leaves. Checks the leaves first if requested."""
        self._files: list[Any] = []
        self._places: dict[int, tuple[int, int, int]] = {}
        if leaves:
            self._files, places = native.map_private(leaves, not verify, watch)
            self._places = {leaf: place for leaf, place in zip(leaves, places, strict=True) if place is not None}
        if self._files and native.is_replaced():
            raise ReplacedError("the checkpoint was replaced while it was mapped")

    def tensor(self, leaf: int, dtype: Any, shape: tuple[int, ...]) -> Any | None:
        """Returns a leaf that is stored in C order; `None` for other leaves."""
        place = self._places.get(leaf)
        if place is None or place[2] != dtype.itemsize * math.prod(shape):
            return None
        return self._bytes(*place).view(dtype).reshape(shape)

    def storage(self, leaf: int, offset: int, len_bytes: int) -> Any | None:
        """Returns the bytes of the storage in which a leaf begins at byte ``offset``; `None` if
        they are not mapped.
        """
        place = self._places.get(leaf)
        return None if place is None else self._bytes(place[0], place[1] - offset, len_bytes)

    def _bytes(self, file: int, start: int, count: int) -> Any:
        return torch.frombuffer(self._files[file], dtype=torch.uint8, count=count, offset=start)

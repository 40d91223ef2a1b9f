"""Arrays in shards without JAX: NumPy slices of MPI ranks, local parts of a DTensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .._errors import InvalidArgumentError

Starts = Sequence[int | slice]


class ShardedArray:
    """A leaf for `regrow.save`: the shards of one array that this process holds, each with the
    index of its first element.

    Every process of a job saves such a leaf at the same place of its tree, with the shards that no
    other one holds. Together they cover the array.

        rows = np.arange(50).reshape(5, 10)  # rank 1 of 2: the last 5 rows
        w = regrow.jobs.ShardedArray((10, 10), [((5, 0), rows)])
        regrow.save(path, {"w": w})
    """

    __slots__ = ("chunk_shape", "dtype", "shape", "shards")

    def __init__(
        self,
        shape: Sequence[int],
        shards: Iterable[tuple[Starts, Any]],
        *,
        chunk_shape: Sequence[int] | None = None,
        dtype: Any = None,
    ) -> None:
        """An array of `shape`.

        Args:
            shape: Of the whole array.
            shards: For each the first index along every axis (or slices), and a NumPy array.
            chunk_shape: How the whole array is cut, the same in all processes: each shard is a box
                of such chunks, which tile the array from its origin. That of the first shard if
                `None`.
            dtype: Of the array; that of the first shard if `None`.

        Raises:
            InvalidArgumentError: without shards, if `chunk_shape` or `dtype` is not given.
        """
        self.shape = tuple(int(length) for length in shape)
        self.shards = [(_first(starts), np.asarray(array)) for starts, array in shards]
        if not self.shards and (chunk_shape is None or dtype is None):
            raise InvalidArgumentError("a process without a shard must pass chunk_shape and dtype")
        self.chunk_shape = tuple(self.shards[0][1].shape if chunk_shape is None else map(int, chunk_shape))
        self.dtype = np.dtype(self.shards[0][1].dtype if dtype is None else dtype)

    def __repr__(self) -> str:
        held = ", ".join(str(list(starts)) for starts, _ in self.shards)
        return f"ShardedArray({self.shape}, {self.dtype}, shards at {held or 'none'})"


def _first(starts: Starts) -> tuple[int, ...]:
    return tuple((start.start or 0) if isinstance(start, slice) else int(start) for start in starts)

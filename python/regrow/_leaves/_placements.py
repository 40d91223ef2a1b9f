"""The places of the shards of JAX arrays, and the shards that this process gives.

A sharding and a shape determine a placement, and thousands of leaves share both. The native half
asks for the placement once for each pair, and takes the memory of the shards. This module handles
all other arrays: on devices with memory of their own, with dtypes that DLPack lacks, or saved as
slices of replicas.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np


class Part(NamedTuple):
    """A shard that this process gives to the engine."""

    number: int
    """The number of the shard among the shards of this process."""
    device: int
    """The device, as DLPack names it."""
    starts: tuple[int, ...]
    lens: tuple[int, ...]


class Placement(NamedTuple):
    """The positions of the parts of an array. All arrays of one sharding and shape have the same
    placement.
    """

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    is_replicated: bool
    """Whether every process has the whole array."""
    parts: list[Part]
    """The parts of this process. Of equal replicas only replica 0 counts."""


def placement(leaf: Any) -> Placement | None:
    """The placement of an array on several devices. `None` if each device of this process has the
    whole array, and no other process has the array.
    """
    shape = tuple(leaf.shape)
    if leaf.size == 0 or (leaf.is_fully_replicated and leaf.is_fully_addressable):
        return None
    shard_shape = tuple(leaf.sharding.shard_shape(shape))
    shards = list(enumerate(leaf.addressable_shards))
    # If every process has the whole array, one shard is enough.
    chosen = shards[:1] if leaf.is_fully_replicated else [each for each in shards if each[1].replica_id == 0]
    parts = []
    for number, shard in chosen:
        starts = tuple(cut.start or 0 for cut in shard.index)
        parts.append(Part(number, shard.device.local_hardware_id or 0, starts, tuple(shard.data.shape)))
    return Placement(shape, shard_shape, leaf.is_fully_replicated, parts)


def replicas(leaf: Any) -> int:
    """The number of devices that hold each part of an array."""
    return len(leaf.sharding.device_set) * leaf.addressable_data(0).size // leaf.size if leaf.size else 1


def shards_of(leaf: Any, replica_parallel: bool) -> Any:
    """An array on several devices, as the native half takes it: dtype, shape, shape of a chunk,
    whether every process has all of it, and the shards of this process with where each begins. Of
    replicas, those numbered 0, or of each a slice."""
    placed = placement(leaf)
    if placed is None:
        return np.asarray(leaf.addressable_data(0))
    shape, shard_shape, is_replicated, parts = placed
    copies = replicas(leaf)
    axis = next((axis for axis, length in enumerate(shard_shape) if length % copies == 0), None)
    if replica_parallel and copies > 1 and axis is not None:
        length = shard_shape[axis] // copies
        shards = []
        for shard in leaf.addressable_shards:
            starts = [cut.start or 0 for cut in shard.index]
            starts[axis] += shard.replica_id * length
            part = [slice(None)] * len(shape)
            part[axis] = slice(shard.replica_id * length, (shard.replica_id + 1) * length)
            shards.append((tuple(starts), np.asarray(shard.data)[tuple(part)]))
        chunk_shape = (*shard_shape[:axis], length, *shard_shape[axis + 1 :])
        return leaf.dtype.name, shape, chunk_shape, False, shards
    shards = [(part.starts, np.asarray(leaf.addressable_data(part.number))) for part in parts]
    return _dtype_name(leaf.dtype), shape, shard_shape, is_replicated, shards


@lru_cache(maxsize=64)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of a dtype, cached. NumPy makes the name at each access, which takes longer than all
    other checks of a leaf.
    """
    return dtype.name

"""Descriptions of arrays, and shardings that distribute them over devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._jax import jax
from .tree import to_shape_dtype_struct as to_shape_dtype_struct

Shape = tuple[int, ...]
Index = tuple[slice, ...]


def construct_maximal_shardings(abstract_state: Any, devices: Sequence[Any] | None = None) -> Any:
    """Shardings that divide each array into as many shards as possible, each on its own mesh."""
    chosen = list(jax.devices() if devices is None else devices)
    return jax.tree.map(lambda leaf: _spread(tuple(leaf.shape), chosen), abstract_state)


def _spread(shape: Shape, devices: list[Any]) -> Any:
    """Divides the axes, longest first, by the greatest common divisor of length and remaining
    devices.
    """
    left = len(devices)
    sizes: list[int] = []
    cuts: dict[int, str] = {}
    if max(shape, default=0) >= len(devices):
        for axis in np.argsort(shape, kind="stable")[::-1]:
            parts = math.gcd(shape[axis], left)
            if parts > 1:
                cuts[int(axis)] = f"axis{len(sizes)}"
                sizes.append(parts)
                left //= parts
    names = [f"axis{at}" for at in range(len(sizes))]
    if left > 1 or not sizes:
        names.append("replica")
        sizes.append(left)
    mesh = jax.sharding.Mesh(np.array(devices).reshape(sizes), tuple(names))
    spec = jax.sharding.PartitionSpec(*(cuts.get(axis) for axis in range(len(shape)))) if cuts else ()
    return jax.sharding.NamedSharding(mesh, spec if cuts else jax.sharding.PartitionSpec())

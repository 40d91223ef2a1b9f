"""The part of an array that each process of a mesh holds.

    mesh (2, 2), axes of an array of 5 rows       (0, 0)   (0, 1)   (1, 0)   (1, 1)
    cut by both, the left one first                0-1       2        3        4
    cut by both, the right one first               0-1       3        2        4

An axis is cut as `torch.chunk` cuts it: parts of ``ceil(length / count)``. The last parts may be
shorter, or empty. A second axis of the mesh can cut the parts of the first axis again. This module
only computes: it uses no device, no process and no framework.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class Box(NamedTuple):
    """A hyper-rectangle, in elements."""

    starts: Shape
    lens: Shape


class AxisCut(NamedTuple):
    """How one axis of the mesh divides an array."""

    axis: int | None
    """The axis of the array that the mesh axis divides. `None`: every process along the mesh axis
    holds the same part.
    """
    behind: int = 0
    """Not 0 if mesh axes to the right divide the array axis first: the number of their parts. This
    mesh axis then divides each of these parts.
    """


class Piece(NamedTuple):
    """A box of the array, and its position in the memory of a process."""

    box: Box
    at: Shape


class Unknown(Exception):
    """The part of an array that a process holds is unknown."""


class Placed(NamedTuple):
    """An array on a mesh."""

    shape: Shape
    mesh: Shape
    """The number of processes along each axis of the mesh."""
    cuts: tuple[AxisCut, ...]
    """The cut of each axis of the mesh."""

    def pieces(self, coordinate: Sequence[int]) -> list[Piece]:
        """The pieces that the process at this coordinate holds; an empty list if it holds none.

        Raises:
            Unknown: if the cuts do not say it.
        """
        spans = [_spans(dim, order, coordinate) for dim, order in zip(self.shape, _orders(self), strict=True)]
        found = []
        for chosen in itertools.product(*spans):
            starts, lens, at = (tuple(span[part] for span in chosen) for part in range(3))
            if all(lens):
                found.append(Piece(Box(starts, lens), at))
        return found

    def local_shape(self, coordinate: Sequence[int]) -> Shape:
        """The shape of the part that the process at this coordinate holds.

        Raises:
            Unknown: as `pieces`.
        """
        spans = [_spans(dim, order, coordinate) for dim, order in zip(self.shape, _orders(self), strict=True)]
        return tuple(sum(length for _, length, _ in each) for each in spans)

    def chunk_shape(self) -> Shape:
        """The largest chunks of one shape such that every piece of every process consists of whole
        chunks.

        Raises:
            Unknown: as `pieces`.
        """
        return tuple(_step(dim, order) for dim, order in zip(self.shape, _orders(self), strict=True))

    def replicas(self) -> int:
        """The number of processes that hold each piece."""
        return math.prod(size for size, cut in zip(self.mesh, self.cuts, strict=True) if cut.axis is None)

    def replica(self, coordinate: Sequence[int]) -> int:
        """The number of the process at this coordinate among the processes that hold the same
        pieces.
        """
        number = 0
        for size, cut, at in zip(self.mesh, self.cuts, coordinate, strict=True):
            if cut.axis is None:
                number = number * size + at
        return number

    def spec(self) -> tuple[tuple[int, ...], ...] | None:
        """For each axis of the array, the axes of the mesh that divide it, in order; `None` if the
        parts have different lengths.

        That is what a `PartitionSpec` of JAX says.
        """
        found = []
        for dim, order in zip(self.shape, _orders(self), strict=True):
            if order.behind or dim % math.prod(size for _, size in order.cuts):
                return None
            found.append(tuple(axis for axis, _ in order.cuts))
        while found and not found[-1]:
            found.pop()
        return tuple(found)


def named_sharding(spec: tuple[tuple[int, ...], ...], names: Sequence[str], ids: Any) -> str:
    """The `NamedSharding` of JAX in Orbax' JSON.

    Args:
        spec: As `Placed.spec` has it.
        names: Of the axes of the mesh.
        ids: Numbers of the processes, as lists in lists, one for each axis of the mesh.
    """
    import json

    entries: list[Any] = [[names[axis] for axis in axes] for axes in spec]
    shape, level = [], ids
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0]
    return json.dumps(
        {
            "sharding_type": "NamedSharding",
            "shape": shape,
            "axis_names": list(names),
            "axis_types": ["AxisType.Auto"] * len(names),
            "partition_spec": [axes if len(axes) > 1 else axes[0] if axes else None for axes in entries],
            "device_mesh": {"mesh": _with_ids(ids)},
        }
    )


class _Order(NamedTuple):
    """The mesh axes that divide one axis of an array, in order."""

    cuts: tuple[tuple[int, int], ...]
    """Axes of the mesh, with their sizes."""
    behind: tuple[int, int, int] | None
    """An axis of the mesh that comes after others, which are no longer there; its size, and into
    how many parts they had cut."""


@lru_cache(maxsize=4096)
def _orders(placed: Placed) -> tuple[_Order, ...]:
    """The order for each axis of the array."""
    shape, mesh, cuts = placed
    if len(mesh) != len(cuts):
        raise Unknown(f"a mesh of {len(mesh)} axes, and {len(cuts)} placements")
    found: list[list[tuple[int, int]]] = [[] for _ in shape]
    waiting: list[list[tuple[int, int, int]]] = [[] for _ in shape]
    are_done = [False] * len(shape)
    for axis, (size, cut) in enumerate(zip(mesh, cuts, strict=True)):
        if cut.axis is None:
            continue
        if not 0 <= cut.axis < len(shape):
            raise Unknown(f"axis {cut.axis} of an array of {len(shape)} axes is cut")
        if cut.behind:
            waiting[cut.axis].append((axis, size, cut.behind))
            continue
        if are_done[cut.axis]:
            raise Unknown(f"axis {cut.axis} is sharded again after a strided placement")
        found[cut.axis].append((axis, size))
        parts = size
        while waiting[cut.axis]:
            before, before_size, behind = waiting[cut.axis].pop()
            if behind != parts:
                raise Unknown(f"a strided cut comes after {behind} parts, and there are {parts}")
            found[cut.axis].append((before, before_size))
            parts *= before_size
            are_done[cut.axis] = True
    if any(len(each) > 1 for each in waiting):
        raise Unknown("two strided placements of one axis without a plain one")
    return tuple(_Order(tuple(each), rest[0] if rest else None) for each, rest in zip(found, waiting, strict=True))


def _chunk(start: int, length: int, count: int, at: int) -> tuple[int, int]:
    """Start and length of part number `at` of `count` parts."""
    step = -(-length // count)
    first = min(at * step, length)
    return start + first, min(step, length - first)


def _spans(dim: int, order: _Order, coordinate: Sequence[int] | Mapping[int, int]) -> list[tuple[int, int, int]]:
    """The pieces of one axis in the process at `coordinate`: start and length, and the start in the
    process's own part.
    """
    start, length = 0, dim
    for axis, size in order.cuts:
        start, length = _chunk(start, length, size, coordinate[axis])
    if order.behind is None:
        return [(start, length, 0)]
    axis, size, parts = order.behind
    if length % (parts * size):
        raise Unknown(f"a strided cut of {length} elements into {parts} times {size} parts, which are uneven")
    small = length // (parts * size)
    return [(start + part * small * size + coordinate[axis] * small, small, part * small) for part in range(parts)]


@lru_cache(maxsize=4096)
def _step(dim: int, order: _Order) -> int:
    """The longest step for which all bounds between pieces are multiples."""
    axes = {axis: size for axis, size in order.cuts}
    if order.behind is not None:
        axes[order.behind[0]] = order.behind[1]
    places = list(axes)
    step = 0
    for coordinate in itertools.product(*(range(axes[axis]) for axis in places)):
        for start, length, _ in _spans(dim, order, dict(zip(places, coordinate, strict=True))):
            if length:
                # The end of the axis does not count: the last chunk may be shorter.
                step = math.gcd(step, start, start + length if start + length < dim else 0)
    return step or dim


def _with_ids(ids: Any) -> Any:
    return [_with_ids(each) if isinstance(each, list) else {"id": each} for each in ids]

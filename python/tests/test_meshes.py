"""Which part each process of a mesh holds: against cutting an array as `torch.chunk` does, and
against JAX.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from regrow._leaves._meshes import AxisCut, Piece, Placed, Unknown, named_sharding

WHOLE = AxisCut(None)

MESHES = {
    "one axis": ((4,), [AxisCut(0)]),
    "one axis, columns": ((3,), [AxisCut(1)]),
    "replicas and rows": ((2, 3), [WHOLE, AxisCut(0)]),
    "rows and columns": ((2, 3), [AxisCut(0), AxisCut(1)]),
    "one after the other": ((2, 3), [AxisCut(0), AxisCut(0)]),
    "the right one first": ((3, 2), [AxisCut(0, 2), AxisCut(0)]),
    "first, last, in between": ((2, 2, 2), [AxisCut(0), AxisCut(0, 2), AxisCut(0)]),
    "two behind the right one": ((2, 2, 2), [AxisCut(0, 4), AxisCut(0, 2), AxisCut(0)]),
    "behind columns": ((2, 2), [AxisCut(1, 2), AxisCut(1)]),
    "replicas alone": ((2, 2), [WHOLE, WHOLE]),
    "one device": ((1,), [AxisCut(0)]),
}

ORDERS: dict[str, list[int]] = {
    "the right one first": [1, 0],
    "first, last, in between": [0, 2, 1],
    "two behind the right one": [2, 1, 0],
    "behind columns": [1, 0],
}
"""In which order the axes of a mesh cut, where that is not from the left."""


def chunk(array: Any, axis: int, count: int, at: int) -> Any:
    step = -(-array.shape[axis] // count)
    return array[(slice(None),) * axis + (slice(min(at * step, array.shape[axis]), (at + 1) * step),)]


def cut_by_hand(name: str, array: Any, coordinate: tuple[int, ...]) -> Any:
    mesh, cuts = MESHES[name]
    for axis in ORDERS.get(name, range(len(mesh))):
        if cuts[axis].axis is not None:
            array = chunk(array, cuts[axis].axis, mesh[axis], coordinate[axis])
    return array


def put_together(shape: tuple[int, ...], array: Any, pieces: list[Piece]) -> Any:
    local = np.full(shape, -1)
    for (starts, lens), at in pieces:
        to = tuple(slice(first, first + size) for first, size in zip(at, lens, strict=True))
        local[to] = array[tuple(slice(first, first + size) for first, size in zip(starts, lens, strict=True))]
    return local


def coordinates(mesh: tuple[int, ...]) -> Any:
    return itertools.product(*map(range, mesh))


@pytest.mark.parametrize("name", MESHES)
def test_parts_are_what_chunk_gives_even_and_uneven_and_empty(name: str) -> None:
    mesh, cuts = MESHES[name]
    for shape in itertools.product((0, 1, 3, 5, 7, 8, 16, 24), (1, 2, 7, 8)):
        placed = Placed(shape, mesh, tuple(cuts))
        array = np.arange(math.prod(shape)).reshape(shape)
        steps = placed.chunk_shape()
        bounds: list[set[int]] = [set(), set()]
        times = np.zeros(shape, int)
        for coordinate in coordinates(mesh):
            pieces, local = placed.pieces(coordinate), cut_by_hand(name, array, coordinate)
            assert placed.local_shape(coordinate) == local.shape, (shape, coordinate)
            np.testing.assert_array_equal(put_together(local.shape, array, pieces), local)
            for (starts, lens), _ in pieces:
                assert all(lens), "what is empty is no piece"
                times[tuple(slice(first, first + size) for first, size in zip(starts, lens, strict=True))] += 1
                for axis in range(2):
                    bounds[axis] |= {starts[axis], starts[axis] + lens[axis]} - {0, shape[axis]}
        assert np.all(times == placed.replicas())
        for axis, step in enumerate(steps):
            if array.size:
                # The largest step such that all bounds are multiples of it; all of the axis if
                # there is none.
                assert step == max(
                    size for size in range(1, shape[axis] + 1) if all(bound % size == 0 for bound in bounds[axis])
                ), (shape, axis)


def test_a_strided_cut_whose_right_one_is_gone_has_its_pieces_side_by_side() -> None:
    placed = Placed((8, 3), (2, 2), (AxisCut(0, 2), WHOLE))
    assert [piece.box.starts[0] for piece in placed.pieces((1, 0))] == [2, 6]
    assert [piece.at[0] for piece in placed.pieces((1, 0))] == [0, 2]
    assert placed.local_shape((1, 1)) == (4, 3)
    assert placed.chunk_shape() == (2, 3)
    assert placed.spec() is None


@pytest.mark.parametrize(
    ("cuts", "says"),
    [
        ((AxisCut(0, 3), AxisCut(0)), "3 parts, and there are 2"),
        ((AxisCut(0, 2), WHOLE), "uneven"),
        ((AxisCut(2), WHOLE), "axis 2 of an array of 2 axes"),
        ((AxisCut(0),), "2 axes, and 1 placements"),
        ((AxisCut(0, 2), AxisCut(0, 2)), "two strided placements"),
    ],
)
def test_cuts_that_do_not_say_it_are_refused(cuts: tuple[AxisCut, ...], says: str) -> None:
    with pytest.raises(Unknown, match=says):
        Placed((5, 4), (2, 2), cuts).pieces((0, 0))


def test_nothing_is_cut_again_behind_a_strided_cut() -> None:
    with pytest.raises(Unknown, match="after a strided placement"):
        Placed((8,), (2, 2, 2), (AxisCut(0, 2), AxisCut(0), AxisCut(0))).chunk_shape()


def test_replicas_are_numbered_from_the_left() -> None:
    placed = Placed((8,), (2, 3, 2), (WHOLE, AxisCut(0), WHOLE))
    assert placed.replicas() == 4
    assert [placed.replica((i, 1, j)) for i in range(2) for j in range(2)] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", MESHES)
def test_what_is_even_is_the_named_sharding_of_jax(name: str) -> None:
    mesh, cuts = MESHES[name]
    names = [f"m{axis}" for axis in range(len(mesh))]
    ids = np.arange(math.prod(mesh)).reshape(mesh)
    shape = (24, 12)
    spec = Placed(shape, mesh, tuple(cuts)).spec()
    assert spec is not None
    told = json.loads(named_sharding(spec, names, ids.tolist()))
    flat = np.array([device["id"] for device in np.array(told["device_mesh"]["mesh"], object).ravel()])
    assert flat.reshape(mesh).tolist() == ids.tolist()
    devices = np.array(jax.devices()[: ids.size]).reshape(told["shape"])
    axes = [tuple(entry) if isinstance(entry, list) else entry for entry in told["partition_spec"]]
    sharding = NamedSharding(Mesh(devices, told["axis_names"]), P(*axes))
    found = sharding.devices_indices_map(shape)
    placed = Placed(shape, mesh, tuple(cuts))
    for coordinate in coordinates(mesh):
        (piece,) = placed.pieces(coordinate)
        indices = [cut.indices(dim) for cut, dim in zip(found[devices[coordinate]], shape, strict=True)]
        assert piece.box.starts == tuple(first for first, _, _ in indices)
        assert piece.box.lens == tuple(end - first for first, end, _ in indices)


def test_what_is_uneven_is_no_sharding_of_jax() -> None:
    assert Placed((7,), (2,), (AxisCut(0),)).spec() is None

"""`get_slice(...)[...]` beside the original: the same arrays, and the same refusals in the same
words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from conftest import same_bits

import regrow.safetensors as ours

ERRORS = (safetensors.SafetensorError, ours.SafetensorError, TypeError, OverflowError)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def random_entry(rng: np.random.Generator, dim: int) -> Any:
    """One entry of an index, now and then one that makes no sense."""

    def bound() -> int | None:
        below = dim if rng.integers(6) == 0 else 0
        return None if rng.integers(3) == 0 else int(rng.integers(0, dim + 2)) - below

    step = [None, None, 1, 2, 3, int(rng.integers(-1, 3))][int(rng.integers(6))]
    number = int(rng.integers(-dim - 1, dim + 1))
    choices = [number, number, np.int64(number), bool(rng.integers(2)), 1.5, None, "a", [0, 1], 2**40]
    choices += [slice(bound(), bound(), step)] * 20 + [slice(None)] * 6 + [number] * 6
    return choices[int(rng.integers(len(choices)))]


def random_index(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    entries = [random_entry(rng, dim) for dim in shape[: int(rng.integers(0, len(shape) + 1))]]
    if rng.integers(20) == 0:
        entries.append(0)
    if rng.integers(4) == 0:
        entries.insert(int(rng.integers(0, len(entries) + 1)), Ellipsis)
    if rng.integers(40) == 0:
        entries.append(Ellipsis)
    if rng.integers(30) == 0:
        return []
    return entries[0] if len(entries) == 1 and rng.integers(2) else tuple(entries)


def ends_before_it_begins(index: Any) -> bool:
    """Here safetensors counts below zero, and fails without a word; NumPy gives nothing."""
    entries = index if isinstance(index, tuple) else (index,)
    slices = [entry for entry in entries if isinstance(entry, slice)]
    return any(entry.stop is not None and (entry.start or 0) > entry.stop for entry in slices)


def takes_true_for_one(index: Any) -> bool:
    """As safetensors, and unlike NumPy. Nor does NumPy take `[]` for a slice."""
    entries = index if isinstance(index, tuple) else (index,)
    return any(isinstance(entry, (bool, list)) for entry in entries)


def outcome(tensor: Any, index: Any) -> Any:
    try:
        return tensor[index]
    except ERRORS as error:
        return error


def test_random_slices_are_theirs_and_so_are_refusals(file: Path) -> None:
    rng = np.random.default_rng(5)
    given = refused = 0
    for _ in range(40):
        shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 5)))
        raw = rng.integers(0, 256, int(np.prod(shape)) * 2, dtype=np.uint8)
        tensors = {"f2": raw.view(np.float16).reshape(shape), "bf16": raw.view(ml_dtypes.bfloat16).reshape(shape)}
        safetensors.numpy.save_file(tensors, file)
        with safetensors.safe_open(file, "np") as theirs, ours.safe_open(file, "np") as opened:
            for _ in range(60):
                index = random_index(rng, shape)
                for name, tensor in tensors.items():
                    part = opened.get_slice(name)
                    assert part.get_shape() == theirs.get_slice(name).get_shape() == list(shape)
                    if ends_before_it_begins(index):
                        continue
                    expected, found = outcome(theirs.get_slice(name), index), outcome(part, index)
                    if isinstance(expected, Exception):
                        assert isinstance(found, Exception), (shape, index, expected)
                        is_theirs = isinstance(expected, safetensors.SafetensorError)
                        assert isinstance(found, ours.SafetensorError if is_theirs else type(expected)), (shape, index)
                        if not isinstance(expected, TypeError):
                            assert str(found).startswith(str(expected)), (shape, index)
                        refused += 1
                        continue
                    assert type(found) is np.ndarray and found.flags.writeable
                    assert same_bits(found, expected), (shape, index)
                    if not takes_true_for_one(index):
                        assert same_bits(found, np.asarray(tensor[index])), (shape, index)
                    given += 1
    assert given > 1500 and refused > 500, (given, refused)


def test_no_entry_at_all_gives_no_rows(file: Path) -> None:
    safetensors.numpy.save_file({"x": np.arange(6).reshape(2, 3)}, file)
    with safetensors.safe_open(file, "np") as theirs, ours.safe_open(file, "np") as opened:
        assert opened.get_slice("x")[[]].shape == theirs.get_slice("x")[[]].shape == (0, 3)


def test_what_is_given_though_they_fail(file: Path) -> None:
    tensor = np.arange(24).reshape(2, 3, 4)
    ours.save_file({"x": tensor, "empty": np.zeros((0, 3)), "scalar": np.array(7)}, file)
    opened = ours.safe_open(file, "np")
    assert opened.get_slice("x")[1:0].shape == (0, 3, 4)
    assert opened.get_slice("x")[:, 2:1, 2:].shape == (2, 0, 2)
    assert opened.get_slice("empty")[:, 1].shape == (0,)
    assert opened.get_slice("empty")[...].shape == (0, 3)
    assert opened.get_slice("scalar")[()].shape == opened.get_slice("scalar")[...].shape == ()


def test_all_of_numpy_s_indexing_is_there_beside_the_drop_in(file: Path) -> None:
    """The guide sends readers there."""
    import regrow

    tensor = np.arange(24).reshape(2, 3, 4)
    ours.save_file({"x": tensor}, file)
    leaf = regrow.open(file)["x"]
    for index in (
        slice(None, None, -1),
        (slice(None), slice(-2, 3)),
        slice(0, 5),
        (0, None),
        (Ellipsis, slice(3, 0, -2)),
    ):
        assert same_bits(leaf[index], tensor[index]), index

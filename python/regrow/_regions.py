"""Regions of leaves: which parts of which leaves a process needs, and reading them, a group of leaves at a time.

    place of a result -> regions it is made of -> one read for many places -> parts -> the result

A `Place` is made of boxes, in elements of the shape that is wanted; what lies outside of the saved shape is zero.
Devices that hold the same box, and places that want the same of a leaf, share what is read. Nothing here knows of a
framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _native
from ._errors import MismatchError
from ._leaves import DTYPES
from ._placements import Box
from ._progress import Progress, Watch

BUDGET_DEFAULT_BYTES = 64 << 20

Report = Callable[[int, int], object]


class Place(NamedTuple):
    """A place of a result, and what it is made of."""

    at: int
    """The number of the result's leaf."""
    leaf: int
    """The position of the leaf in the checkpoint."""
    dtype: int
    """The number of the dtype that is wanted."""
    saved: tuple[int, ...]
    """The shape that is stored."""
    boxes: tuple[Box, ...]
    """What is wanted of it; they may reach beyond it."""

    def len_bytes(self) -> int:
        """Bytes of the distinct boxes."""
        itemsize = DTYPES[self.dtype].itemsize
        return sum(_size(box.lens) * itemsize for box in set(self.boxes))


def whole(shape: tuple[int, ...]) -> Box:
    """All of an array."""
    return Box((0,) * len(shape), shape)


def box_of(index: Sequence[slice], shape: tuple[int, ...]) -> Box:
    """The box of slices that lie inside of a shape, as JAX has them: without steps, `None` for what is whole."""
    starts, lens = [], []
    for entry, dim in zip(index, shape, strict=True):
        start, stop, _ = entry.indices(dim)
        starts.append(start)
        lens.append(max(stop - start, 0))
    return Box(tuple(starts), tuple(lens))


class Reading:
    """Reads of one checkpoint, one after another, with one progress."""

    def __init__(
        self, native: _native.Checkpoint, *, verify: bool, budget: int | None, progress: Progress, total: int
    ) -> None:
        self._native = native
        self._verify = verify
        self._budget = BUDGET_DEFAULT_BYTES if budget is None else budget
        self._watch = Watch(progress, "loading")
        self._gets_signals = False
        self._report: Report | None = None
        self._total = total
        self._done = 0

    def __enter__(self) -> Reading:
        self._gets_signals, self._report = self._watch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)

    def watch(self, len_bytes: int) -> tuple[bool, Report | None]:
        """Who is told about the next read, of so many bytes."""
        before, report = self._done, self._report
        self._done += len_bytes
        if report is None:
            return self._gets_signals, None

        def told(done: int, _total: int) -> object:
            return report(min(before + done, self._total), self._total)

        return self._gets_signals, told

    def read(self, places: Sequence[Place]) -> list[list[np.ndarray[Any, Any]]]:
        """An array for each box of each place, read-only, in memory of its own.

        Each byte of a raw leaf is read once, each chunk decoded once.
        """
        numbers: dict[tuple[int, Sequence[int], Sequence[int], int], int] = {}
        inside = [[stored_part(box, place) for box in place.boxes] for place in places]
        for place, boxes in zip(places, inside, strict=True):
            for box in boxes:
                if box is not None:
                    numbers.setdefault((place.leaf, box.starts, box.lens, place.dtype), len(numbers))
        watch = self.watch(sum(place.len_bytes() for place in places))
        arrays = self._native.load_regions(list(numbers), not self._verify, self._budget // 2, watch)

        def part(place: Place, box: Box, known: Box | None) -> np.ndarray[Any, Any]:
            array = None if known is None else arrays[numbers[place.leaf, known.starts, known.lens, place.dtype]]
            return _padded(array, box, known, DTYPES[place.dtype])

        return [
            [part(place, *pair) for pair in zip(place.boxes, known, strict=True)]
            for place, known in zip(places, inside, strict=True)
        ]

    def read_into(self, places: Sequence[Place], outs: Sequence[np.ndarray[Any, Any]]) -> list[bool]:
        """Reads places of one box each to where the caller wants them; says for which of them that could be done.

        Those that share memory, or are not contiguous, are left as they are.
        """
        wanted = [(place.leaf, box.starts, box.lens, place.dtype) for place in places for box in place.boxes]
        len_bytes = sum(place.len_bytes() for place in places)
        if not wanted:
            return []
        filled = _native.load_regions_into(
            self._native, wanted, outs, not self._verify, self._budget // 2, self.watch(len_bytes)
        )
        # The others are read again, and counted then.
        self._done -= sum(place.len_bytes() for place, is_filled in zip(places, filled, strict=True) if not is_filled)
        return filled

    def groups(self, places: Sequence[Place]) -> Iterator[list[Place]]:
        """Places in groups of bounded size, so that two of them take half of the budget; a larger one is alone."""
        group: list[Place] = []
        len_bytes = 0
        # In the order of the checkpoint: neighbours in a group are neighbours on disk.
        for place in sorted(places, key=lambda place: place.leaf):
            more = place.len_bytes()
            if group and len_bytes + more > self._budget // 4:
                yield group
                group, len_bytes = [], 0
            group.append(place)
            len_bytes += more
        if group:
            yield group


def check_axes(path: str, saved: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Refuses a shape with more or fewer axes than the saved one."""
    if len(saved) == len(wanted):
        return
    help = "padding and truncating keep the number of axes: reshape it afterwards, or convert the checkpoint"
    raise MismatchError(
        f"an array with another number of axes is wanted than was saved\n  leaf {path}\n"
        f"  expected {list(wanted)}, found {list(saved)}\n  help: {help}",
        leaf=path,
        help=help,
    )


def slices_box(path: str, given: Any, saved: tuple[int, ...], *, pad: bool) -> Box:
    """The box of a caller's slices of a leaf.

    Raises:
        MismatchError: if they leave the saved shape, unless zeros are asked for (`pad`), or are more than its axes.
    """
    entries = given if isinstance(given, tuple) else tuple(given) if isinstance(given, list) else (given,)
    starts, lens = [], []
    for axis, dim in enumerate(saved):
        entry = entries[axis] if axis < len(entries) else slice(None)
        if not isinstance(entry, slice) or entry.step not in (None, 1):
            raise MismatchError(
                f"a region is made of slices without steps, one an axis, not of {entry!r}\n  leaf {path}", leaf=path
            )
        start = 0 if entry.start is None else entry.start + dim * (entry.start < 0)
        stop = dim if entry.stop is None else entry.stop + dim * (entry.stop < 0)
        starts.append(start)
        lens.append(max(stop - start, 0))
    ends = [start + size for start, size in zip(starts, lens, strict=True)]
    leaves = any(start < 0 or end > dim for start, end, dim in zip(starts, ends, saved, strict=True))
    if len(entries) > len(saved) or min(starts, default=0) < 0 or (leaves and not pad):
        help = "slices end at most where the leaf does; pad_or_truncate=True fills with zeros what lies behind it"
        raise MismatchError(
            f"the region {list(entries)} leaves the array\n  leaf {path}\n"
            f"  expected a region of {list(saved)}, found one that reaches to {ends}\n  help: {help}",
            leaf=path,
            help=help,
        )
    return Box(tuple(starts), tuple(lens))


def stored_part(box: Box, place: Place) -> Box | None:
    """What of a box is stored; `None` if nothing is."""
    lens = [min(size, max(dim - start, 0)) for start, size, dim in zip(box.starts, box.lens, place.saved, strict=True)]
    return Box(box.starts, tuple(lens)) if all(lens) else None


def _padded(
    array: np.ndarray[Any, Any] | None, box: Box, known: Box | None, dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    if array is not None and known == box:
        return array
    padded = np.zeros(box.lens, dtype)
    if array is not None:
        padded[tuple(map(slice, array.shape))] = array
    padded.flags.writeable = False
    return padded


def _size(lens: tuple[int, ...]) -> int:
    size = 1
    for each in lens:
        size *= each
    return size

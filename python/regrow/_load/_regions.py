"""Regions of leaves: the parts of each leaf that a process needs.

    place of a result -> regions it is made of -> one read for many places -> parts -> the result

A `Place` consists of boxes in elements of the wanted shape; zeros fill the parts that are not
stored. A `Cut` lists the boxes of an array: thousands of leaves may share one `Cut`. Devices that
hold the same box share one read. Each read covers a group of leaves. This module imports neither
JAX nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .._core._progress import Progress, Watch
from .._core._report import Stages
from .._core._requests import RegionsRequest
from .._errors import MismatchError, failure
from .._leaves._columns import DTYPES
from .._leaves._meshes import Box

BUDGET_DEFAULT_BYTES = 64 << 20

Report = Callable[[int, int], object]


class Cut:
    """The wanted boxes of arrays of one shape."""

    __slots__ = ("boxes", "len_elements", "regions", "regions_len", "sources")

    def __init__(self, boxes: Sequence[Box], saved: tuple[int, ...]) -> None:
        """Boxes, which may reach beyond the saved shape."""
        self.boxes = tuple(boxes)
        distinct = dict.fromkeys(boxes)
        self.len_elements = sum(_size(box.lens) for box in distinct)
        """Elements of the distinct boxes."""
        inside = {box: _inside(box, saved) for box in distinct}
        stored = dict.fromkeys(known for known in inside.values() if known is not None)
        numbers = {known: number for number, known in enumerate(stored)}
        self.regions = _native.Regions(list(stored))
        """The stored part of each distinct box."""
        self.regions_len = len(stored)
        self.sources: list[tuple[int, Box | None]] = []
        """For each box the number of its region (-1: none), and the box itself if it is larger than
        the region.
        """
        for box in boxes:
            known = inside[box]
            self.sources.append((-1 if known is None else numbers[known], None if known == box else box))

    def is_stored(self) -> bool:
        """Whether every box lies within the saved shape."""
        return all(box is None for _, box in self.sources)


class Place(NamedTuple):
    """A position in a result, and the boxes that it consists of."""

    at: int
    """The number of the result's leaf."""
    leaf: int
    """The position of the leaf in the checkpoint."""
    dtype: int
    """The number of the wanted dtype."""
    cut: Cut
    """The wanted boxes."""

    def len_bytes(self) -> int:
        """Bytes of the distinct boxes."""
        return self.cut.len_elements * DTYPES[self.dtype].itemsize


def whole(shape: tuple[int, ...]) -> Box:
    """The box of a whole array."""
    return Box((0,) * len(shape), shape)


def box_of(index: Sequence[slice], shape: tuple[int, ...]) -> Box:
    """The box of JAX' slices of an array: slices without steps and inside the shape, with `None`
    for a whole axis.
    """
    starts, lens = [], []
    for entry, dim in zip(index, shape, strict=True):
        start, stop, _ = entry.indices(dim)
        starts.append(start)
        lens.append(max(stop - start, 0))
    return Box(tuple(starts), tuple(lens))


class Reading:
    """Reads of one checkpoint, one after another, with one progress."""

    def __init__(
        self,
        native: _native.Checkpoint,
        *,
        casting: str = "checked",
        verify: bool,
        budget: int | None,
        progress: Progress,
        total: int,
        stages: Stages,
    ) -> None:
        self._native = native
        self._budget = BUDGET_DEFAULT_BYTES if budget is None else budget
        self._how = RegionsRequest(casting=casting, verify=verify, budget_bytes=self._budget // 2)
        self._watch = Watch(progress, "loading")
        self._gets_signals = False
        self._report: Report | None = None
        self._total = total
        self._done = 0
        self.stages = stages
        """The clock of the stages."""

    def __enter__(self) -> Reading:
        self._gets_signals, self._report = self._watch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)

    def watch(self, len_bytes: int) -> tuple[bool, Report | None]:
        """The progress function for the next read, of this many bytes."""
        before, report = self._done, self._report
        self._done += len_bytes
        if report is None:
            return self._gets_signals, None

        def told(done: int, _total: int) -> object:
            return report(min(before + done, self._total), self._total)

        return self._gets_signals, told

    def read(self, places: Sequence[Place]) -> list[list[np.ndarray[Any, Any]]]:
        """An array for each box of each place. Each array is read-only and has its own memory.

        Each byte of a raw leaf is read once, each chunk decoded once.
        """
        firsts: dict[tuple[int, int, Cut], int] = {}
        wanted: list[tuple[int, int, _native.Regions]] = []
        count = 0
        for _, leaf, dtype, cut in places:
            if (leaf, dtype, cut) not in firsts:
                firsts[leaf, dtype, cut] = count
                wanted.append((leaf, dtype, cut.regions))
                count += cut.regions_len
        len_bytes = sum(place.len_bytes() for place in places)
        with self.stages.stage("read", len_bytes):
            arrays = self._native.load_regions(wanted, self._how, self.watch(len_bytes))
        read = []
        for _, leaf, dtype, cut in places:
            first = firsts[leaf, dtype, cut]
            read.append(
                [
                    arrays[first + number] if box is None else _padded(arrays, first, number, box, DTYPES[dtype])
                    for number, box in cut.sources
                ]
            )
        return read

    def received(self, len_bytes: int) -> None:
        """Reports that this many bytes have come from another process."""
        self._done += len_bytes
        if self._report is not None:
            self._report(min(self._done, self._total), self._total)

    def read_into(self, places: Sequence[Place], outs: Sequence[np.ndarray[Any, Any]]) -> list[bool]:
        """Reads places of one box each into the caller's arrays. Returns for each place whether it
        was read.

        Arrays that share memory, or are not contiguous, are left unchanged.
        """
        wanted = [(place.leaf, place.dtype, place.cut.regions) for place in places]
        len_bytes = sum(place.len_bytes() for place in places)
        if not wanted:
            return []
        filled = _native.load_regions_into(self._native, wanted, outs, self._how, self.watch(len_bytes))
        # The caller reads the other places again, and counts their bytes then.
        self._done -= sum(place.len_bytes() for place, is_filled in zip(places, filled, strict=True) if not is_filled)
        return filled

    def groups(self, places: Sequence[Place]) -> Iterator[list[Place]]:
        """Divides places into groups. Two groups take at most half of the budget; a longer place is
        a group of its own.
        """
        group: list[Place] = []
        len_bytes = 0
        # Sort by leaf, because neighbours in the checkpoint are usually neighbours on disk.
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
    help = "reshape the array afterwards, or convert the checkpoint: padding and truncating keep the number of axes"
    raise failure(
        MismatchError,
        "the wanted array and the saved one differ in their number of axes",
        f"expected {list(wanted)}, found {list(saved)}",
        leaf=path,
        help=help,
    )


def slices_box(path: str, given: Any, saved: tuple[int, ...], *, pad: bool) -> Box:
    """The box of a caller's slices of a leaf.

    Raises:
        MismatchError: if the slices reach outside the saved shape and `pad` does not request zeros,
            or if there are more slices than axes.
    """
    entries = given if isinstance(given, tuple) else tuple(given) if isinstance(given, list) else (given,)
    starts, lens = [], []
    for axis, dim in enumerate(saved):
        entry = entries[axis] if axis < len(entries) else slice(None)
        if not isinstance(entry, slice) or entry.step not in (None, 1):
            raise MismatchError(
                f"a region is one slice per axis, without steps, not {entry!r}\n  leaf {path}", leaf=path
            )
        start = 0 if entry.start is None else entry.start + dim * (entry.start < 0)
        stop = dim if entry.stop is None else entry.stop + dim * (entry.stop < 0)
        starts.append(start)
        lens.append(max(stop - start, 0))
    ends = [start + size for start, size in zip(starts, lens, strict=True)]
    leaves = any(start < 0 or end > dim for start, end, dim in zip(starts, ends, saved, strict=True))
    if len(entries) > len(saved) or min(starts, default=0) < 0 or (leaves and not pad):
        help = (
            "end the slices at the shape of the leaf, or pass Options(pad_or_truncate=True) to fill the rest with zeros"
        )
        raise failure(
            MismatchError,
            f"the region {list(entries)} is outside the array",
            f"expected a region of {list(saved)}, found one that ends at {ends}",
            leaf=path,
            help=help,
        )
    return Box(tuple(starts), tuple(lens))


def _inside(box: Box, saved: tuple[int, ...]) -> Box | None:
    """The stored part of a box; `None` if nothing is stored there."""
    lens = [min(size, max(dim - start, 0)) for start, size, dim in zip(box.starts, box.lens, saved, strict=True)]
    return Box(box.starts, tuple(lens)) if all(lens) else None


def _padded(
    arrays: list[np.ndarray[Any, Any]], first: int, number: int, box: Box, dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """Makes a box that exceeds the stored part, with zeros for the rest."""
    padded = np.zeros(box.lens, dtype)
    if number >= 0:
        array = arrays[first + number]
        padded[tuple(map(slice, array.shape))] = array
    padded.flags.writeable = False
    return padded


def _size(lens: tuple[int, ...]) -> int:
    size = 1
    for each in lens:
        size *= each
    return size

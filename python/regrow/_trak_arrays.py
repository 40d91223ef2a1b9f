"""The arrays of a TRAK store as NumPy memory maps whose rows go to disk before their marks do.

An assignment to rows (`array[rows] = values`) is one `pwrite` in the engine; everything else that NumPy can do to a
map (views, in-place operators) writes to the map itself, as with `numpy.memmap`. The mask is a private map: what is
assigned to it shows at once, and reaches the file only after the rows it speaks of.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._errors import InvalidArgumentError

Rows = NDArray[np.int64]
Place = tuple[str, str, str, int, int, int]
"""Key, path, dtype, rows, columns, where the data begins."""

_ACCESS = {"r": mmap.ACCESS_READ, "r+": mmap.ACCESS_WRITE, "c": mmap.ACCESS_COPY}


class StoreArray(np.memmap):
    """An array of a store: a `numpy.memmap` whose rows can be assigned to safely."""

    _mmap: Any
    _write: Callable[[Rows, NDArray[Any]], None] | None
    _MODE: ClassVar[str] = "r+"

    def __array_finalize__(self, obj: Any) -> None:
        super().__array_finalize__(obj)
        # Views write to the map: only the whole array knows which rows are meant.
        self._write = None

    def __setitem__(self, index: Any, value: Any) -> None:
        found = None if self._write is None else rows_of(index, len(self))
        if self._write is None or found is None:
            super().__setitem__(index, value)
            return
        rows, shape = found
        values = np.asarray(value)
        if values.dtype != self.dtype:
            values = values.astype(self.dtype)
        values = self._of_rows(rows, values)
        whole = np.broadcast_to(values, (*shape, *self.shape[1:]))
        self._write(rows, np.ascontiguousarray(whole).reshape(len(rows), *self.shape[1:]))

    def _of_rows(self, rows: Rows, values: NDArray[Any]) -> NDArray[Any]:
        """The values of these rows; a place for those who know more."""
        return values


class DataArray(StoreArray):
    """Gradients or weights: rows of which a mask speaks."""

    _mask: MaskArray | None

    def __array_finalize__(self, obj: Any) -> None:
        super().__array_finalize__(obj)
        self._mask = None

    def _of_rows(self, rows: Rows, values: NDArray[Any]) -> NDArray[Any]:
        """TRAKer leaves out rows that are done, but computes values for the whole batch: picks those of the others."""
        asked = None if self._mask is None else self._mask.asked
        if asked is None or values.ndim != self.ndim or len(values) in (1, len(rows)):
            return values
        batch, done = asked
        if len(batch) == len(values) and np.array_equal(batch[~done], rows):
            return values[~done]
        return values


class MaskArray(StoreArray):
    """Which rows are done: 0 or 1 each, `int32`, one column."""

    _MODE = "c"

    asked: tuple[Rows, NDArray[np.bool_]] | None
    """The rows asked for last, and which of them were done: the batch that is being worked on."""
    done_count: int
    """How many rows are done, as far as this process knows."""

    def __array_finalize__(self, obj: Any) -> None:
        super().__array_finalize__(obj)
        self.asked = None
        self.done_count = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        rows = None if self._write is None else rows_of(index, len(self))
        if rows is not None:
            self.asked = rows[0], np.array(found).reshape(-1) == 1
        return np.asarray(found) if isinstance(found, np.ndarray) else found


def open_array(
    kind: type[StoreArray], place: Place, writable: bool, write: Callable[[Any], Callable[[Rows, Any], None]]
) -> Any:
    """Maps an array of the store; `write` makes what an assignment to rows calls."""
    _, path, dtype, rows, columns, offset = place
    mode = kind._MODE if writable else "r"
    with open(path, "r+b" if mode == "r+" else "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=_ACCESS[mode])
    array: Any = np.ndarray.__new__(kind, (rows, columns), dtype=np.dtype(dtype), buffer=mapped, offset=offset)
    array._mmap, array.filename, array.offset, array.mode = mapped, path, offset, mode
    if writable:
        array._write = write(array)
    return array


def open_arrays(
    native: _native.TrakArrays,
    writable: bool,
    logger: logging.Logger,
    before_plain: Callable[[], None],
    marks_itself: bool,
) -> dict[str, Any]:
    """All arrays of a model or of an experiment, by key; the mask as ``mask``.

    Args:
        native: The open arrays.
        writable: Whether rows can be assigned to.
        logger: Is told of rows that are not finite.
        before_plain: Called before the array of which no mask speaks is written to.
        marks_itself: Rows count as done once they are written; otherwise the mask is assigned to.
    """

    def write_mask(mask: MaskArray) -> Callable[[Rows, Any], None]:
        def write(rows: Rows, values: Any) -> None:
            marks = values.reshape(-1)
            if not np.isin(marks, (0, 1)).all():
                raise InvalidArgumentError("a row is done (1) or not (0): a mask holds nothing else")
            before = int(np.asarray(mask)[np.unique(rows)].sum())
            np.ndarray.__setitem__(mask, rows, values)
            mask.done_count += int(np.asarray(mask)[np.unique(rows)].sum()) - before
            if (marks == 0).any():
                native.mark(np.ascontiguousarray(rows[marks == 0]), False)
            if (marks == 1).any():
                native.mark(np.ascontiguousarray(rows[marks == 1]), True)

        return write

    places = {place[0]: place for place in native.describe()}
    mask = open_array(MaskArray, places.pop("mask"), writable, write_mask)
    mask.done_count = int(np.count_nonzero(np.asarray(mask) == 1))
    arrays: dict[str, Any] = {}

    def write_data(key: str, is_plain: bool) -> Callable[[Any], Callable[[Rows, Any], None]]:
        def write(rows: Rows, values: Any) -> None:
            if is_plain:
                before_plain()
            elif not np.isfinite(values).all():
                logger.warning(f"NaN or infinity in {len(rows)} rows of {key}, beginning with row {rows[0]}")
            native.write_rows(key, rows, values)
            if not is_plain and marks_itself:
                mask[rows] = 1

        return lambda _array: write

    for key, place in places.items():
        is_plain = key in ("features", "scores")
        array = open_array(StoreArray if is_plain else DataArray, place, writable, write_data(key, is_plain))
        if isinstance(array, DataArray):
            array._mask = mask
        arrays[key] = array
    arrays["mask"] = mask
    return arrays


def rows_of(index: Any, length: int) -> tuple[Rows, tuple[int, ...]] | None:
    """The rows that an index along the first axis names, and its shape; `None` for every other index."""
    if isinstance(index, tuple):
        return None
    if index is Ellipsis:
        return np.arange(length), (length,)
    if isinstance(index, slice):
        rows = np.arange(*index.indices(length))
        return rows, rows.shape
    array = np.asarray(index)
    if array.dtype == np.bool_:
        if array.shape != (length,):
            return None
        rows = np.flatnonzero(array)
        return rows, rows.shape
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        return None
    rows = array.astype(np.int64).reshape(-1)
    rows = np.where(rows < 0, rows + length, rows)
    if rows.size and (rows.min() < 0 or rows.max() >= length):
        raise IndexError(f"there is no such row: {length} rows, asked for {index!r}")
    return rows, array.shape

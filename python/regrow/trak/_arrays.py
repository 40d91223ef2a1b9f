"""Arrays of a TRAK store as NumPy memory maps that write rows to disk before their marks.

An assignment to rows (`array[rows] = values`) is one `pwrite` in the engine. Views and in-place
operators write to the map itself, as with `numpy.memmap`. The mask is a private map: an assignment
shows at once, and reaches the file only after the rows that it marks.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import _native
from .._errors import CorruptError, InvalidArgumentError, UnsupportedError, failure
from .._text import counted

Rows = NDArray[np.int64]
Place = tuple[str, str, str, int, int, int]
"""The key, path, dtype, rows, columns, and the offset of the data."""

_ONLY_0_AND_1 = "a mask has only 0 and 1: a row is done (1) or not (0)"
_PIECE_LEN_BYTES = 1 << 24
"""The most bytes that are copied from a map at once."""
_ACCESS = {"r": mmap.ACCESS_READ, "r+": mmap.ACCESS_WRITE, "c": mmap.ACCESS_COPY}


class StoreArray(np.memmap):
    """An array of a store: a `numpy.memmap` with safe assignment to rows."""

    _mmap: Any
    _write: Callable[[Rows, NDArray[Any]], None] | None
    _before: Callable[[], None] | None
    _MODE: ClassVar[str] = "r+"

    def __array_finalize__(self, obj: Any) -> None:
        super().__array_finalize__(obj)
        # Views write directly to the map: only the whole array knows the rows.
        self._write = None
        self._before = None

    def __setitem__(self, index: Any, value: Any) -> None:
        found = None if self._write is None else rows_of(index, self.shape)
        if self._write is None or found is None:
            if self._before is not None:
                self._before()
            super().__setitem__(index, value)
            return
        rows, shape = found
        values = np.asarray(value)
        if values.dtype != self.dtype:
            values = values.astype(self.dtype)
        values = self._of_rows(rows, values)
        wanted = (*shape, *self.shape[1:])
        if values.shape != wanted:
            values = np.broadcast_to(values, wanted)
        self._write(rows, np.ascontiguousarray(values).reshape(len(rows), *self.shape[1:]))

    def fill(self, value: Any) -> None:
        """Assigns one value to all rows."""
        self[...] = value

    def revoke(self) -> None:
        """Forbids all further assignments: the saver has released this array."""

        def refuse(*_arguments: object) -> None:
            raise InvalidArgumentError(
                "the saver released this array: load its model again, and take it from `current_store`"
            )

        if self._write is not None:
            self._write, self._before = refuse, refuse
            self.flags.writeable = False

    def _of_rows(self, rows: Rows, values: NDArray[Any]) -> NDArray[Any]:
        """The values for these rows. Subclasses extend it."""
        return values


class DataArray(StoreArray):
    """Gradients or weights: rows with a mask."""

    _mask: MaskArray | None
    _marks_itself: bool

    def __array_finalize__(self, obj: Any) -> None:
        super().__array_finalize__(obj)
        self._mask = None
        self._marks_itself = False

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        if self._write is None or not self._marks_itself or rows_of(index, self.shape) is not None:
            return
        # Single elements are already in the map. A row is complete when all of its columns are.
        touched = np.zeros(self.shape, np.bool_)
        touched[index] = True
        rows = np.flatnonzero(touched.all(axis=1))
        count = max(1, _PIECE_LEN_BYTES // max(1, self.shape[1] * self.itemsize))
        for start in range(0, len(rows), count):
            part = rows[start : start + count]
            self._write(part, np.asarray(self)[part])

    def _of_rows(self, rows: Rows, values: NDArray[Any]) -> NDArray[Any]:
        """The values of the rows that are not done. TRAKer leaves out done rows, but computes
        values for the whole batch.
        """
        asked = None if self._mask is None else self._mask.asked
        if asked is None or values.ndim != self.ndim or len(values) in (1, len(rows)):
            return values
        batch, done = asked
        if len(batch) == len(values) and np.array_equal(batch[~done], rows):
            return values[~done]
        return values


class MaskArray(StoreArray):
    """Marks the rows that are done: 0 or 1 for each, `int32`, one column.

    Each assignment to it, or to views of it, is compared with the engine's marks: rows that became
        1 are marked as done, rows that became 0 as not done. Changes through views that NumPy
        creates without this class (`numpy.asarray`) are found when the saver flushes.
    """

    _MODE = "c"

    asked: tuple[Rows, NDArray[np.bool_]] | None
    """The rows of the last request, and which of them were done: the current batch."""
    _tell: Callable[[Rows, bool], None] | None
    _plain: NDArray[np.int32] | None
    """The marks of the whole array. A change is visible at once."""
    _told: NDArray[np.int32] | None
    """The marks of rows that the engine has."""
    _whole: MaskArray | None
    _views: weakref.WeakValueDictionary[int, MaskArray]

    def __array_finalize__(self, obj: Any) -> None:
        super().__array_finalize__(obj)
        self.asked = None
        self._tell = self._plain = self._told = None
        whole = getattr(obj, "_whole", None)
        self._whole = whole if whole is not None and np.may_share_memory(self, whole) else None
        if self._whole is not None:
            self._whole._views[id(self)] = self

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:
            self._reconcile_whole()
            return array
        return array[()] if return_scalar else np.asarray(array)

    def __getitem__(self, index: Any) -> Any:
        rows = None if self._write is None else rows_of(index, self.shape)
        if rows is not None and self._plain is not None and isinstance(index, np.ndarray):
            # The most common case: rows by number. NumPy copies them, so a plain array is enough.
            marks = self._plain[rows[0]]
            self.asked = rows[0].copy(), marks == 1
            return marks.reshape(*rows[1], 1)
        found = super().__getitem__(index)
        if rows is not None:
            self.asked = rows[0], np.array(found).reshape(-1) == 1
        is_view = isinstance(found, MaskArray) and found._whole is not None
        return np.asarray(found) if isinstance(found, np.ndarray) and not is_view else found

    def __setitem__(self, index: Any, value: Any) -> None:
        is_one = type(value) is int
        if value not in (0, 1) if is_one else not np.isin(np.asarray(value), (0, 1)).all():
            raise InvalidArgumentError(_ONLY_0_AND_1)
        rows = None if self._told is None or self._write is None else rows_of(index, self.shape)
        if rows is not None and is_one and self._plain is not None:
            self._plain[rows[0]] = value
            self._tell_rows(rows[0], value == 1)
            return
        if self._told is None or rows is not None:
            super().__setitem__(index, value)
            self._reconcile_whole()
            return
        # A row that is marked again is reported again. So report the rows of the assignment, not
        # only the rows that change.
        touched = np.zeros(self.shape, np.bool_)
        touched[index] = True
        if self._write is not None:
            values = np.array(self)
            values[index] = value
            numbers = np.flatnonzero(touched)
            self._write(numbers, values.reshape(-1)[numbers])

    @property
    def done_count(self) -> int:
        """Returns the number of rows that are done, as far as this process knows."""
        return int(np.count_nonzero(np.asarray(self) == 1 if self._told is None else self._told))

    def start(self, tell: Callable[[Rows, bool], None]) -> None:
        """Makes the mask writable: `tell` marks rows in the engine."""
        plain = np.asarray(self).reshape(-1)
        # Unwritten pages of a private map show the current content of the file. A mark that is
        # neither 0 nor 1 counts as not done.
        plain[...] = plain.copy() == 1
        self._tell, self._plain, self._told = tell, plain, plain.copy()
        self._views = weakref.WeakValueDictionary()
        self._whole = self
        self._write = self._mark

    def any_told(self, rows: Rows) -> bool:
        """Whether the engine knows any of these rows as done."""
        return self._told is not None and bool(self._told[rows].any())

    def restore(self, missing: Rows) -> None:
        """After an error, shows all rows as done except the `missing` ones."""
        if self._plain is not None and self._told is not None:
            self._plain[...] = 1
            self._plain[missing] = 0
            self._told[...] = self._plain

    def _mark(self, rows: Rows, values: NDArray[Any]) -> None:
        """Assigns to rows and reports them to the engine, including rows that were already marked."""
        plain = np.asarray(self).reshape(-1)
        plain[rows] = values.reshape(-1)
        # If a row appears twice, the last value counts.
        rows = np.unique(rows)
        marks = plain[rows] == 1
        self._tell_rows(rows[~marks], False)
        self._tell_rows(rows[marks], True)

    def reconcile(self) -> None:
        """Reports the changes by views and in-place operators to the engine."""
        if self._told is None or self._plain is None:
            return
        differs = self._plain != self._told
        if not differs.any():
            return
        plain, changed = self._plain, np.flatnonzero(differs)
        odd = changed[(plain[changed] != 0) & (plain[changed] != 1)]
        if odd.size:
            plain[odd] = self._told[odd]
            self.reconcile()
            raise InvalidArgumentError(f"{_ONLY_0_AND_1}; row {odd[0]} is what it was before")
        self._mark(changed, plain[changed])

    def revoke(self) -> None:
        """Forbids all further assignments, also to views of the array."""
        super().revoke()
        self._plain = None
        if self._told is not None:
            for view in list(self._views.values()):
                view.flags.writeable = False

    def _tell_rows(self, rows: Rows, is_done: bool) -> None:
        if rows.size and self._tell is not None and self._told is not None:
            self._tell(np.ascontiguousarray(rows), is_done)
            self._told[rows] = is_done

    def _reconcile_whole(self) -> None:
        if self._whole is not None:
            self._whole.reconcile()


class OpenArrays:
    """All arrays of a model, or of an experiment for one model, and the state that the engine
    knows.

    After an error of the engine the mask shows the engine's marks: rows that waited for a failed
        sync are not done.
    """

    def __init__(
        self,
        native: _native.TrakArrays,
        writable: bool,
        logger: logging.Logger,
        before_plain: Callable[[], None],
        before_undone: Callable[[bool], None],
        marks_itself: bool,
    ) -> None:
        """Maps the arrays.

        Args:
            native: The open arrays.
            writable: Whether rows can be assigned to.
            logger: Receives a message about rows that are not finite.
            before_plain: Called before an array without a mask is written to.
            before_undone: Called with `True` before done rows are written again, and with `False`
                before they are marked as not done. It must remove the flags that mark all rows as
                done.
            marks_itself: Rows count as done once they are written. Otherwise the caller assigns to
                the mask.
        """
        self.native = native
        self._logger = logger
        self._before_plain = before_plain
        self._before_undone = before_undone
        self._marks_itself = marks_itself
        places = {place[0]: place for place in native.describe()}
        self.mask: MaskArray = open_array(MaskArray, places.pop("mask"), writable)
        if writable:
            self.mask.start(self._tell)
        self.arrays: dict[str, Any] = {"mask": self.mask}
        for key, place in places.items():
            is_plain = key in ("features", "scores")
            array = open_array(StoreArray if is_plain else DataArray, place, writable)
            if isinstance(array, DataArray):
                array._mask = self.mask
            if writable:
                array._write = partial(self._write, key, is_plain)
                array._before = before_plain if is_plain else None
                if isinstance(array, DataArray):
                    array._marks_itself = marks_itself
            self.arrays[key] = array

    def flush(self) -> None:
        """Writes all rows, and then their marks, to disk."""
        try:
            self.mask.reconcile()
        finally:
            self._do(self.native.flush)

    def missing(self) -> list[int]:
        """Returns the rows that are not done."""
        self.mask.reconcile()
        return self.native.missing()

    def _tell(self, rows: Rows, is_done: bool) -> None:
        if not is_done:
            self._before_undone(False)
        self._do(self.native.mark, rows, is_done)

    def _write(self, key: str, is_plain: bool, rows: Rows, values: Any) -> None:
        if is_plain:
            self._before_plain()
        elif self.mask.any_told(rows):
            self._before_undone(True)
        odd = self._do(self.native.write_rows, key, rows, values)
        if odd is not None:
            self._logger.warning(
                f"NaN or infinity in {counted(len(rows), 'row', 'rows')} of {key}, beginning with row {odd}"
            )
        if not is_plain and self._marks_itself:
            self.mask[rows] = 1

    def _do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the engine. If the call fails, the mask is reset to the state of the engine."""
        try:
            return work(*arguments)
        except BaseException:
            # A row that cannot be read counts as not done.
            missing = np.arange(len(self.mask))
            try:
                missing = np.array(self.native.missing(), np.int64)
            finally:
                self.mask.restore(missing)
            raise


def open_array(kind: type[StoreArray], place: Place, writable: bool) -> Any:
    """Maps an array of the store."""
    _, path, dtype, rows, columns, offset = place
    mode = kind._MODE if writable else "r"
    access = os.O_RDWR if mode == "r+" else os.O_RDONLY
    # The engine has opened this file before. If it is a pipe now, this open does not wait for its
    # other end.
    file = os.open(path, access | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise CorruptError(f"{path} was replaced by something that is not a file", file=path)
        mapped = _map(file, path, mode)
    finally:
        os.close(file)
    array: Any = np.ndarray.__new__(kind, (rows, columns), dtype=np.dtype(dtype), buffer=mapped, offset=offset)
    array._mmap, array.filename, array.offset, array.mode = mapped, path, offset, mode
    return array


def _map(file: int, path: str, mode: str) -> Any:
    try:
        return mmap.mmap(file, 0, access=_ACCESS[mode])
    except OSError as error:
        if mode == "r+":
            raise failure(
                UnsupportedError,
                f"cannot map {path} for writing: {error.strerror}",
                file=path,
                help="make the store on another file system: this one has no shared maps",
            ) from error
    with open(file, "rb", closefd=False) as opened:
        return bytearray(opened.read())


def rows_of(index: Any, sizes: tuple[int, ...]) -> tuple[Rows, tuple[int, ...]] | None:
    """Returns the whole rows that an index names, and its shape; `None` for every other index.

    Args:
        index: An index of the rows alone, or of the rows and all columns.
        sizes: The sizes of the array.
    """
    length = sizes[0] if sizes else 0
    if isinstance(index, tuple):
        index = _part_of_rows(index, sizes)
    if index is Ellipsis:
        return np.arange(length), (length,)
    if isinstance(index, slice):
        rows = np.arange(*index.indices(length))
        return rows, rows.shape
    array = np.asarray(index)
    # Check the usual case first. As unsigned numbers, negative rows are not below `length`.
    if array.dtype == np.int64 and array.ndim == 1 and array.size and array.view(np.uint64).max() < length:
        return array, array.shape
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
        raise IndexError(f"row {index!r} does not exist: there are {length} rows")
    return rows, array.shape


def _part_of_rows(index: tuple[Any, ...], sizes: tuple[int, ...]) -> Any:
    """Returns the part of an index that names the rows; `None` if the rows are not whole."""
    rest = [part for part in index[1:] if part is not Ellipsis]
    is_whole = all(isinstance(part, slice) and part.indices(sizes[-1]) == (0, sizes[-1], 1) for part in rest)
    if not index or not is_whole or len(rest) >= len(sizes) or (index[0] is Ellipsis and rest):
        return None
    return index[0]

"""Checks slices of a tensor by the rules of safetensors, with its errors.

An index consists of integers, slices with bounds inside the tensor and a positive step, one
``...``, or ``[]`` for nothing. The texts of errors are those of safetensors, because tests of other
programs compare them. Two slices at which safetensors fails are allowed: all of an axis of length
0, and a slice that ends before it begins.
"""

from __future__ import annotations

import operator
from typing import Any

from ._errors import SafetensorBoundError, SafetensorError, SafetensorIndexError

_INDEX_MAX = 2**31
"""safetensors uses indices of 32 bits."""


def checked(index: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Returns the index as a tuple of integers, slices and ``...`` for NumPy. Refuses an index
    outside the tensor.

    Raises:
        SafetensorIndexError: for an index out of bounds.
        SafetensorBoundError: for negative bounds.
        SafetensorError: for any other index that safetensors does not accept.
    """
    if isinstance(index, list):
        if index:
            raise SafetensorError("Non empty lists are not implemented")
        index = slice(0, 0)
    entries = index if isinstance(index, tuple) else (index,)
    if sum(entry is Ellipsis for entry in entries) > 1:
        raise SafetensorError("Only one ellipsis (...) is allowed in slice index")
    out: list[Any] = []
    axis = 0
    for entry in entries:
        if entry is Ellipsis:
            skipped = max(len(shape) - (len(entries) - 1), 0)
            out += [slice(None)] * skipped
            axis += skipped
            continue
        out.append(_slice(entry) if isinstance(entry, slice) else _integer(entry, axis, shape))
        axis += 1
    _check_bounds(out, shape)
    return (*out, Ellipsis)


def _slice(entry: slice) -> slice:
    start, stop, step = (
        None if part is None else operator.index(part) for part in (entry.start, entry.stop, entry.step)
    )
    for bound in (start, stop):
        if bound is not None and bound < 0:
            raise SafetensorBoundError(f"can't convert negative int to unsigned: a slice is bounded by {bound}")
    if step is not None and step <= 0:
        raise SafetensorError(f"Slice step must be a positive integer, got {step}")
    return slice(start, stop, step)


def _integer(entry: Any, axis: int, shape: tuple[int, ...]) -> int:
    try:
        at = operator.index(entry)
    except TypeError:
        at = _INDEX_MAX
    if not -_INDEX_MAX <= at < _INDEX_MAX:
        raise SafetensorError(f"Unsupported slice index at position {axis}: expected slice, int, or ellipsis")
    size = shape[axis] if axis < len(shape) else 0
    if at + size < 0:
        raise SafetensorIndexError(f"Invalid index {at} for dimension {axis} of size {size}")
    return at % size if at < 0 else at


def _check_bounds(entries: list[Any], shape: tuple[int, ...]) -> None:
    if len(entries) > len(shape):
        raise _outside(entries, shape, "more slicing indexes than dimensions in tensor")
    # From the last axis back: if several bounds exceed the tensor, the error is about the last
    # axis.
    for axis, (entry, size) in reversed(list(enumerate(zip(entries, shape, strict=False)))):
        if isinstance(entry, slice):
            start, stop = entry.start or 0, size if entry.stop is None else entry.stop
            is_inside = (start < size or start == stop == size == 0) and stop <= size
        else:
            start, stop = entry, entry + 1
            is_inside = start < size
        if not is_inside:
            asked = start if start >= size else stop - 1
            raise _outside(entries, shape, f"index {asked} out of bounds for tensor dimension #{axis} of size {size}")


def _outside(entries: list[Any], shape: tuple[int, ...], why: str) -> SafetensorIndexError:
    shown = ", ".join(map(_shown, entries))
    return SafetensorIndexError(f"Error during slicing [{shown}] with shape {list(shape)}: {why}")


def _shown(entry: Any) -> str:
    if not isinstance(entry, slice):
        return str(entry)
    start, stop = ("" if bound is None else str(bound) for bound in (entry.start, entry.stop))
    return f"{start}:{stop}" + ("" if entry.step in (None, 1) else f":{entry.step}")

"""Leaf files with a path: one call of the engine writes or reads a file.

The engine compares all leaves before it reads data.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from .. import _native
from .._core._duck import own_attribute
from .._errors import RegrowError
from .._leaves._columns import JAX_ARRAY, NUMPY_ARRAY, NUMPY_SCALAR, PLACEHOLDER, PRNG_KEY, SCALAR
from .._text import counted, printable
from .._tree._flatten import Structure, flatten
from .._tree._nodes import PrngKey
from ._likes import (
    Kind,
    Problem,
    difference,
    failed_at,
    finish,
    kind_of,
    raise_problems,
    result_of,
    to_jax,
)
from ._pytrees import Flattened, IsLeaf, Path, flatten_with_path, imported
from ._records import Header, Options, Record, allocate, dtype_of, is_ml_dtype, raw_view, read_record, to_record

_NAMED_MAX = 5
"""The most leaves that a warning names."""

Trailer = tuple[Structure, bytes, list[Any], dict[int, str], dict[int, str]]

# ---- saving ---------------------------------------------------------------------------


def save_file(
    path: FilePath,
    pytree: Any,
    is_leaf: IsLeaf,
    options: Options,
    *,
    line: bytes,
    trailer: bool,
    stop_at_first: bool,
    durable: bool,
) -> None:
    """Writes all leaves to a file: the whole file or nothing."""
    flat = flatten_with_path(pytree, is_leaf)
    records: list[Record] = []
    record_of: list[int | None] = []
    problems = []
    for at, leaf in zip(flat.paths, flat.leaves, strict=True):
        try:
            record = to_record(leaf, options)
        except Exception as error:  # an error of a user's leaf belongs to that leaf
            problems.append(Problem(at, failed_at(at), error))
            continue
        record_of.append(None if record is None else len(records))
        if record is not None:
            records.append(record)
    raise_problems(problems, stop_at_first)
    index = _trailer(pytree, flat.leaves, record_of) if trailer else None
    _native.write_equinox(os.fspath(path), line, records, index, durable)


def _trailer(pytree: Any, leaves: list[Any], record_of: list[int | None]) -> Trailer | None:
    """The pytree in regrow's index; `None` if JAX and regrow flatten the pytree differently.

    They differ for dict keys that are neither text nor integers, for dataclasses that are not
    registered, and for containers that `is_leaf` makes leaves.
    """
    try:
        own = flatten(pytree)
        order = _native.jax_leaf_order(own.structure)
    except RegrowError:
        return None
    if len(order) != len(leaves) or any(own.leaves[at] is not leaf for at, leaf in zip(order, leaves, strict=True)):
        return None
    kinds = bytearray([PLACEHOLDER] * len(leaves))
    values: list[Any] = [None] * len(leaves)
    implementations: dict[int, str] = {}
    dtypes: dict[int, str] = {}
    for at, leaf, record in zip(order, leaves, record_of, strict=True):
        if record is None:
            values[at] = leaf if isinstance(leaf, bytes) or (isinstance(leaf, str) and _is_unicode(leaf)) else None
            continue
        values[at], kinds[at] = record, _kind_number(leaf)
        if kinds[at] == PRNG_KEY:
            impl = leaf.impl if isinstance(leaf, PrngKey) else imported("jax").random.key_impl(leaf)
            implementations[at] = str(impl)
        dtype = own_attribute(leaf, "dtype")
        if isinstance(dtype, np.dtype) and is_ml_dtype(dtype) and dtype.name in _native.DTYPES:
            dtypes[at] = dtype.name
    return own.structure, bytes(kinds), values, implementations, dtypes


def _kind_number(leaf: Any) -> int:
    if isinstance(leaf, np.ndarray):
        return NUMPY_ARRAY
    if isinstance(leaf, np.generic):
        return NUMPY_SCALAR
    if isinstance(leaf, PrngKey):
        return PRNG_KEY
    jax = imported("jax")
    if jax is not None and isinstance(leaf, jax.Array):
        return PRNG_KEY if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else JAX_ARRAY
    return SCALAR


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---- restoring ------------------------------------------------------------------------


def restore_file(
    path: FilePath, like: Any, is_leaf: IsLeaf, options: Options, *, strict: bool, stop_at_first: bool
) -> Any:
    """Reads all leaves of `like` from a file, after all headers have been compared."""
    restore = _Restore(path, flatten_with_path(like, is_leaf), options, stop_at_first)
    restore.compare()
    restore.check_end(strict)
    return restore.read()


class _Restore:
    """One call: the record of each leaf, and the differences found."""

    def __init__(self, path: FilePath, flat: Flattened, options: Options, stop_at_first: bool) -> None:
        self._path = path
        self._file = _native.open_equinox(os.fspath(path))
        self._headers = [Header(*header) for header in self._file.headers]
        self._flat = flat
        self._options = options
        self._stop_at_first = stop_at_first
        self._wanted: list[tuple[int, Kind, int, np.dtype[Any]]] = []
        self._used = 0
        self._cached_names: list[str] | None = None

    def compare(self) -> None:
        """Compares all headers with all leaves. Reads no data."""
        problems: list[Problem] = []
        rounded: list[Path] = []
        dtypes: dict[str, np.dtype[Any]] = {}
        for at, (path, leaf) in enumerate(zip(self._flat.paths, self._flat.leaves, strict=True)):
            kind = kind_of(leaf, self._options)
            if kind is Kind.SKIP:
                continue
            record = self._used
            if record >= len(self._headers):
                problems.append(Problem(path, failed_at(path), self._missing(record)))
                if self._file.is_broken:
                    break
                continue
            self._used += 1
            header = self._headers[record]
            try:
                dtype = dtypes.get(header.descr)
                if dtype is None:
                    dtype = dtypes[header.descr] = dtype_of(header.descr)
                result = result_of(leaf, kind, header.shape, dtype, self._options)
            except ValueError as error:
                problems.append(Problem(path, failed_at(path), error, self._name(record)))
                continue
            message = difference(path, result, leaf, kind)
            if message is not None:
                problems.append(Problem(path, message, None, self._name(record)))
            if kind is Kind.JAX and result.dtype.itemsize < dtype.itemsize:
                rounded.append(path)
            self._wanted.append((at, kind, record, dtype))
        raise_problems(problems, self._stop_at_first)
        if rounded:
            names = ", ".join(map(str, rounded[:_NAMED_MAX]))
            warnings.warn(f"64-bit data becomes 32-bit data, as jax_enable_x64 is off: {names}", stacklevel=4)

    def _missing(self, record: int) -> Exception:
        """The reason why a record is missing."""
        if record == len(self._headers) and self._file.is_broken:
            with open(self._path, "rb") as file:
                file.seek(self._file.end)
                try:
                    read_record(file)
                except (EOFError, ValueError) as error:
                    return error
        return EOFError("No data left in file")

    def _name(self, record: int) -> str | None:
        names = self._names()
        return names[record] if names else None

    def _names(self) -> list[str]:
        if self._cached_names is None:
            self._cached_names = self._file.names() or []
        return self._cached_names

    def check_end(self, strict: bool) -> None:
        """Reports records in the file that `like` does not have."""
        count, trailing = len(self._headers) - self._used, self._file.trailing_len
        if self._file.trailer_damage is not None:
            warnings.warn(f"the leaves cannot be checked: {self._file.trailer_damage}", stacklevel=4)
        what = []
        if count or self._file.is_broken:
            names = self._names()
            shown = f" ({', '.join(names[self._used :][:_NAMED_MAX])})" if names else ""
            more = f"{counted(count, 'more record', 'more records')}{shown}"
            what.append(more if count else "the beginning of another record")
        if trailing:
            what.append(counted(trailing, "byte after the last record", "bytes after the last record"))
        if not what:
            return
        message = printable(f"{self._path} has {' and '.join(what)} after the leaves of `like`")
        if strict:
            raise RuntimeError(message)
        warnings.warn(message, stacklevel=4)

    def read(self) -> Any:
        """Reads the data, and builds the pytree."""
        arrays = []
        for _, _, record, dtype in self._wanted:
            header = self._headers[record]
            arrays.append(allocate(header, dtype))
        raw = [raw_view(array) for array in arrays]
        self._file.read([(record, out) for (_, _, record, _), out in zip(self._wanted, raw, strict=True)])
        values = list(self._flat.leaves)
        problems = []
        for_jax: list[int] = []
        for (at, kind, record, _), array in zip(self._wanted, arrays, strict=True):
            path = self._flat.paths[at]
            try:
                values[at] = finish(array, values[at], kind)
            except Exception as error:  # an error of a user's number class belongs to that leaf
                problems.append(Problem(path, failed_at(path), error, self._name(record)))
            if kind is Kind.JAX:
                for_jax.append(at)
        raise_problems(problems, self._stop_at_first)
        for at, value in zip(for_jax, to_jax([values[at] for at in for_jax]), strict=True):
            values[at] = value
        return self._flat.treedef.unflatten(values)

"""The npy records of leaves: makes the record of a leaf, and reads a record as a NumPy array.

This module writes records to file objects, and reads records from file objects. `_files` handles
files with a path. Nothing is ever pickled or unpickled.
"""

from __future__ import annotations

import functools
import io
import mmap
import os
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from .. import _native
from .._core._duck import has
from .._errors import RegrowError
from .._leaves._columns import dtype_of_descr
from .._tree._nodes import PrngKey
from ._pytrees import imported

PYTHON_NUMBERS = (bool, int, float, complex)

MAGIC = b"\x93NUMPY"
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")

_HEADER_LEN_MAX = 1 << 20
"""The limit for the length of a header before the parser checks the exact length."""

_PIECE_LEN = 16 << 20
"""The bytes that are copied at a time if a file object accepts or returns only `bytes`."""

_ALIGNMENT = 64
"""JAX on CPUs uses memory without a copy if the memory begins at a multiple of this."""

_LARGE_PAGE = 2 << 20
_MAPPED_FROM_BYTES = 2 * _LARGE_PAGE
"""Longer memory comes from the system, not from NumPy."""


class Options(NamedTuple):
    """Options of writing and reading leaves."""

    strict: bool = False
    """Write exactly the bytes of Equinox, even if Equinox cannot read these bytes."""
    prng_keys: bool = False
    """Write typed PRNG keys as their key data, and make keys of this data if `like` has keys."""
    strict_scalars: bool = False
    """Read a Python bool, int, float or complex only from a record of the same kind."""


class Header(NamedTuple):
    """The header of a record."""

    descr: str
    """The dtype as a Python literal."""
    fortran_order: bool
    shape: tuple[int, ...]


class Record(NamedTuple):
    """A leaf in the form of the file."""

    header: Header
    data: np.ndarray[Any, Any]
    """The bytes, one dimension of `uint8`."""


# ---- from a leaf to its record --------------------------------------------------------


def to_record(leaf: Any, options: Options) -> Record | None:
    """The record of a leaf; `None` for leaves that Equinox leaves out.

    Raises:
        TypeError: for a leaf that has data which no record can hold.
    """
    jax = imported("jax")
    is_numpy = isinstance(leaf, np.ndarray)
    if jax is not None and isinstance(leaf, jax.Array):
        if options.prng_keys and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
    elif is_numpy:
        array = np.asarray(leaf)
    elif isinstance(leaf, (*PYTHON_NUMBERS, np.generic)):
        array = _of_number(leaf, options)
    elif isinstance(leaf, PrngKey) and options.prng_keys:
        array = leaf.data
    elif jax is not None and isinstance(leaf, jax.ShapeDtypeStruct):
        raise TypeError(f"{leaf} has a shape and a dtype, but no data")
    elif has(leaf, "__jax_array__"):
        raise TypeError(f"a {type(leaf).__name__} is not an array yet: save the result of its __jax_array__()")
    else:
        return None
    if array.dtype.hasobject or not type(array.dtype)._legacy:
        raise TypeError(f"an array of dtype {array.dtype} needs pickle, which regrow never uses")
    header = Header(_descr(array.dtype, is_numpy, options), _is_fortran(array), array.shape)
    return Record(header, _raw(array.T if header.fortran_order else array))


def _of_number(leaf: Any, options: Options) -> np.ndarray[Any, Any]:
    array = np.asarray(leaf)
    if not array.dtype.hasobject:
        return array
    if options.strict:
        raise TypeError("an integer of more than 64 bits needs pickle, which regrow never uses")
    # `int()` accepts decimal bytes, so Equinox reads this record into an int without changes.
    return np.array(str(int(leaf)).encode())


def _is_fortran(array: np.ndarray[Any, Any]) -> bool:
    return array.flags.f_contiguous and not array.flags.c_contiguous


def _raw(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.nbytes == 0:
        return np.empty(0, np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@functools.lru_cache(maxsize=1024)
def is_ml_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether NumPy itself does not have this dtype."""
    return getattr(ml_dtypes, dtype.name, None) is dtype.type


@functools.lru_cache(maxsize=1024)
def _descr(dtype: np.dtype[Any], is_numpy: bool, options: Options) -> str:
    # A JAX leaf or a scalar reads `<V2` as bfloat16. A NumPy leaf, and every other type, needs the
    # name.
    is_lost = is_ml_dtype(dtype) and (dtype != ml_dtypes.bfloat16 or is_numpy)
    if is_lost and not options.strict:
        return repr(dtype.name)
    return repr(np.lib.format.dtype_to_descr(dtype))


def write_record(file: Any, record: Record) -> None:
    """Writes a record to a file object."""
    _write(file, _native.npy_header(*record.header))
    if isinstance(file, io.IOBase):
        _write(file, memoryview(record.data))  # type: ignore[arg-type]
        return
    for start in range(0, len(record.data), _PIECE_LEN):
        file.write(record.data[start : start + _PIECE_LEN].tobytes())


def _write(file: Any, data: bytes | memoryview) -> None:
    if not isinstance(file, io.RawIOBase):
        file.write(data)
        return
    # An unbuffered file may write fewer bytes than it gets.
    rest = memoryview(data)
    while len(rest):
        rest = rest[file.write(rest) :]


# ---- from a file object to an array ---------------------------------------------------


def read_record(file: Any) -> np.ndarray[Any, Any]:
    """The next record of a file object, as an array with its own memory.

    Raises:
        EOFError: if there is no record.
        ValueError: if the record is not complete.
    """
    start = bytes(_read_up_to(file, len(MAGIC)))
    if not start or is_trailer(start):
        _step_back(file, start)
        raise EOFError("No data left in file")
    if start != MAGIC:
        _step_back(file, start)
        raise ValueError(not_a_record(start))
    prelude = start + _read(file, 2, "magic string", len(MAGIC))
    header_len_bytes = _read(file, 2 if prelude[6] < 2 else 4, "array header length")
    header_len = int.from_bytes(header_len_bytes, "little")
    if header_len > _HEADER_LEN_MAX:
        raise ValueError(f"Header info length ({header_len}) is large and may not be safe to load securely.")
    header = parse_header(prelude + header_len_bytes + _read(file, header_len, "array header"))
    dtype = dtype_of(header.descr)
    length = len_bytes(header, dtype)
    left = _left(file)
    if left is not None and length <= left:
        array = allocate(header, dtype)
        _read_into(file, raw_view(array))
        return array
    # Never allocate more memory than the bytes that the file really has.
    data = _read_up_to(file, length)
    if len(data) < length:
        raise ValueError(_cut_off(file, header, dtype, len(data)))
    if dtype.itemsize == 0:
        return np.empty(header.shape, dtype)
    return np.frombuffer(data, dtype).reshape(header.shape, order="F" if header.fortran_order else "C")


def not_a_record(start: bytes) -> str:
    """The text for bytes that begin no record."""
    if start.startswith(ZIP_MAGICS):
        return "This is a zip archive (.npz), not a record; read it with layout npy."
    return "This file contains pickled (object) data, or no npy record at all. Neither is read."


def is_trailer(start: bytes) -> bool:
    """Whether these bytes begin regrow's trailer: the records end here."""
    return len(start) == len(MAGIC) and _native.EQUINOX_TRAILER_MAGIC.startswith(start)


def parse_header(prelude: bytes) -> Header:
    """The header of a record, beginning with its magic bytes.

    Raises:
        ValueError: if it is no header.
    """
    try:
        return Header(*_native.parse_npy_header(prelude))
    except RegrowError as error:
        raise ValueError(error.message) from error


def dtype_of(descr: str) -> np.dtype[Any]:
    """The dtype of a literal in a header. NumPy writes `<f1` for float8_e5m2, and `<W4` for
    complex32.

    Raises:
        ValueError: if NumPy has no such dtype, or one that holds Python objects.
    """
    try:
        parsed = _native.literal(descr)
        if parsed in ("<f1", "|f1"):
            parsed = "float8_e5m2"
        dtype: np.dtype[Any] = np.dtype("V4")
        if parsed not in ("<W4", "|W4"):
            dtype = dtype_of_descr(parsed)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, RegrowError):
        raise ValueError(f"descr is not a valid dtype descriptor: {descr}") from None
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded when allow_pickle=False")
    return dtype


def len_bytes(header: Header, dtype: np.dtype[Any]) -> int:
    """Bytes of the data of a record."""
    length = dtype.itemsize
    for dim in header.shape:
        length *= dim
    if length > np.iinfo(np.int64).max:
        raise ValueError(f"an array of shape {header.shape} is larger than any memory")
    return length


def allocate(header: Header, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Memory for the data of a record. The bytes have the order of the file."""
    order: Any = "F" if header.fortran_order else "C"
    length = len_bytes(header, dtype)
    if dtype.itemsize == 0:
        return np.empty(header.shape, dtype)
    if length >= _MAPPED_FROM_BYTES:
        # NumPy asks the system for large pages, which takes seconds if the system must move other
        # pages. The engine asks for one large page at a time. The map begins on a large page.
        mapped = mmap.mmap(-1, -(-length // _LARGE_PAGE) * _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(mapped, dtype, length // dtype.itemsize).reshape(header.shape, order=order)
    memory = np.empty(length + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + length].view(dtype).reshape(header.shape, order=order)


def raw_view(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of a contiguous array (in C or Fortran order), in the order of its memory."""
    flat = array.reshape(-1, order="F" if _is_fortran(array) else "C")
    return flat.view(np.uint8) if array.nbytes else np.empty(0, np.uint8)


def _is_real(file: Any) -> bool:
    """Whether it is a file of the system. False for an object that decodes another file or only
    resembles a file.
    """
    raw = getattr(file, "raw", file) if isinstance(file, (io.BufferedReader, io.BufferedRandom)) else file
    return isinstance(raw, io.FileIO)


def _left(file: Any) -> int | None:
    """The number of remaining bytes, if the file can tell without reading; otherwise `None`."""
    if isinstance(file, io.BytesIO):
        return len(file.getbuffer()) - file.tell()
    if _is_real(file) and file.seekable():
        return os.fstat(file.fileno()).st_size - int(file.tell())
    return None


def _read_into(file: Any, out: np.ndarray[Any, Any]) -> None:
    view = memoryview(out)  # type: ignore[arg-type]
    got = 0
    while got < len(view):
        count = file.readinto(view[got:])
        if not count:
            raise ValueError(_short("array data", len(view), got))
        got += count


def _cut_off(file: Any, header: Header, dtype: np.dtype[Any], got: int) -> str:
    """The error for a truncated file. NumPy's text differs for a file of the system."""
    length = len_bytes(header, dtype)
    if not _is_real(file):
        return _short("array data", length, got)
    return (
        f"Failed to read all data for array. Expected {header.shape} = {length // dtype.itemsize} elements, "
        f"could only read {got // dtype.itemsize} elements. (file seems not fully written?)"
    )


def _read(file: Any, length: int, what: str, before: int = 0) -> bytes:
    data = _read_up_to(file, length)
    if len(data) < length:
        raise ValueError(_short(what, length + before, len(data) + before))
    return bytes(data)


def _short(what: str, expected: int, got: int) -> str:
    return f"EOF: reading {what}, expected {expected} bytes got {got}"


def _read_up_to(file: Any, length: int) -> bytearray:
    """Reads `length` bytes, or fewer at the end of the file. Allocates only memory for bytes that
    exist.
    """
    out = bytearray()
    while len(out) < length:
        data = file.read(min(length - len(out), _PIECE_LEN))
        if not data:
            break
        out += data
    return out


def _step_back(file: Any, start: bytes) -> None:
    if start:
        file.seek(-len(start), 1)

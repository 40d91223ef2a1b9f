"""The value that a leaf of `like` makes of a record, and the check of the result.

Type, shape and dtype of the result follow from the record's header, so all leaves of a file are
compared before any data is read. The result of a user's function gets the same check.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from .._core._duck import has, own_attribute
from .._tree._nodes import PrngKey
from ._pytrees import Path, imported, keystr
from ._records import PYTHON_NUMBERS, Options, is_ml_dtype

_PROBLEMS_MAX = 20
"""The most leaves that one message names. The message counts the others."""


class Kind(Enum):
    """The kind of a leaf for a reader."""

    SKIP = auto()
    """The leaf has no record."""
    JAX = auto()
    KEY = auto()
    NUMPY = auto()
    NUMBER = auto()


class TreePathError(RuntimeError):
    """A leaf could not be written or read. The reason is the cause of this error's cause."""

    path: Path
    """Where the leaf is, as JAX' key objects."""


class Problem(NamedTuple):
    """The fault of one leaf."""

    path: Path
    message: str
    cause: Exception | None
    """The error of the write or the read; `None` if the leaf only differs from the leaf of `like`.
    """
    stored: str | None = None
    """The kind of the record in regrow's trailer."""


class Result(NamedTuple):
    """The value that a read of a leaf gives: class, and for arrays shape and dtype."""

    cls: type[Any]
    shape: tuple[int, ...] | None
    dtype: Any


def kind_of(leaf: Any, options: Options) -> Kind:
    """The way in which a leaf of `like` is read."""
    jax = imported("jax")
    if jax is not None and isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
        is_key = options.prng_keys and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return Kind.KEY if is_key else Kind.JAX
    if isinstance(leaf, np.ndarray):
        return Kind.NUMPY
    if isinstance(leaf, (*PYTHON_NUMBERS, np.generic)) or has(leaf, "__jax_array__"):
        return Kind.NUMBER
    return Kind.KEY if options.prng_keys and isinstance(leaf, PrngKey) else Kind.SKIP


# ---- before the data is read ----------------------------------------------------------


def read_as(stored: np.dtype[Any], like: Any) -> np.dtype[Any]:
    """The dtype of a record for a leaf of `like`. Bytes that have lost the name of their dtype get
    the dtype back.
    """
    wanted: Any = own_attribute(like, "dtype")
    if stored.kind == "V" and stored.names is None and stored.subdtype is None and not is_ml_dtype(stored):
        if isinstance(wanted, np.dtype) and is_ml_dtype(wanted) and wanted.itemsize == stored.itemsize:
            stored = wanted
        elif stored.itemsize == 2 and not isinstance(like, np.ndarray):
            stored = np.dtype(ml_dtypes.bfloat16)
    return stored


def result_of(like: Any, kind: Kind, shape: tuple[int, ...], stored: np.dtype[Any], options: Options) -> Result:
    """The result of a read, from the header alone.

    Raises:
        ValueError: if an array would have to become a number.
    """
    dtype = read_as(stored, like)
    if kind is Kind.NUMPY:
        return Result(np.ndarray, shape, dtype)
    if kind is Kind.JAX:
        canonical = jax_dtype(dtype)
        return Result(np.ndarray, shape, dtype) if canonical is None else Result(array_impl(), shape, canonical)
    if kind is Kind.KEY:
        return Result(np.ndarray, shape, dtype)
    if np.prod(shape, dtype=object) != 1:
        raise ValueError("can only convert an array of size 1 to a Python scalar")
    if options.strict_scalars and isinstance(like, PYTHON_NUMBERS) and not _is_of_kind(dtype, like):
        return Result(type(like), None, dtype)
    return Result(type(like), None, None)


def jax_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype of the JAX array for a NumPy array; `None` if JAX has no such array."""
    dtypes = imported("jax").dtypes
    if dtype.type in (np.longdouble, np.clongdouble) or not (dtype == np.bool_ or dtypes.issubdtype(dtype, np.number)):
        return None
    canonical: np.dtype[Any] = np.dtype(dtypes.canonicalize_dtype(dtype.newbyteorder("=")))
    return canonical


def array_impl() -> type[Any]:
    """The class of concrete JAX arrays, which has no public name."""
    jax = imported("jax")
    with jax.ensure_compile_time_eval():
        return type(jax.numpy.array(0))


_NUMBER_KINDS = {bool: "b", int: "iu", float: "f", complex: "c"}


def _is_of_kind(dtype: np.dtype[Any], like: Any) -> bool:
    cls = next(cls for cls in PYTHON_NUMBERS if isinstance(like, cls))
    # An integer of more than 64 bits is stored as its digits.
    return dtype.kind in _NUMBER_KINDS[cls] or (cls is int and dtype.kind == "S")


def difference(path: Path, result: Result, like: Any, kind: Kind = Kind.SKIP) -> str | None:
    """The difference between a result and `like`, in Equinox' words: type, shape, then dtype."""
    jax = imported("jax")
    wanted = type(like)
    if kind is Kind.KEY:
        shape, dtype = _key_data(like)
        return _of_array(path, result, shape, dtype)
    # In a function that JAX traces, the arrays of `like` are tracers. The loaded arrays stay
    # arrays.
    if jax is not None and (wanted is jax.ShapeDtypeStruct or isinstance(like, jax.core.Tracer)):
        wanted = array_impl()
    if result.cls is not wanted:
        return (
            f"Deserialised leaf at path '{keystr(path)}' has changed type from "
            f"{type(like)} in `like` to {result.cls} on disk."
        )
    if result.shape is None:
        if result.dtype is None:
            return None
        return changed_message(path, "dtype", type(like).__name__, result.dtype)
    return _of_array(path, result, like.shape, like.dtype)


def _of_array(path: Path, result: Result, shape: tuple[int, ...], dtype: Any) -> str | None:
    if result.shape != shape:
        return changed_message(path, "shape", shape, result.shape)
    if result.dtype != dtype:
        return changed_message(path, "dtype", dtype, result.dtype)
    return None


def changed_message(path: Path, what: str, wanted: object, found: object) -> str:
    """Equinox' text for a leaf with another shape or dtype."""
    return f"Deserialised leaf at path {path} has changed {what} from {wanted} in `like` to {found} on disk."


def _key_data(like: Any) -> tuple[tuple[int, ...], Any]:
    if isinstance(like, PrngKey):
        return like.data.shape, like.data.dtype
    jax = imported("jax")
    data = jax.eval_shape(jax.random.key_data, like)
    return data.shape, data.dtype


# ---- when the data is there -----------------------------------------------------------


def finish(array: np.ndarray[Any, Any], like: Any, kind: Kind) -> Any:
    """The leaf for a record. `to_jax` makes JAX arrays.

    Raises:
        TypeError, ValueError: if the record does not contain such a number.
    """
    dtype = read_as(array.dtype, like)
    if dtype is not array.dtype:
        array = array.view(dtype)
    if kind is Kind.KEY:
        return _to_key(array, like)
    if kind is not Kind.NUMBER:
        return array
    if isinstance(like, np.generic) and array.dtype == like.dtype:
        return array.reshape(())[()]
    return type(like)(array.item())


def _to_key(array: np.ndarray[Any, Any], like: Any) -> Any:
    if isinstance(like, PrngKey):
        return PrngKey(array, like.impl)
    jax = imported("jax")
    impl = jax.random.key_impl(like) if isinstance(like, jax.Array) else like.dtype._impl.name
    return jax.random.wrap_key_data(array, impl=impl)


def to_jax(arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    """Makes JAX arrays on the default device, in one call. Other values are returned unchanged."""
    if not arrays:
        return []
    jax = imported("jax")
    out: list[Any] = list(arrays)
    places = [at for at, array in enumerate(arrays) if jax_dtype(array.dtype) is not None]
    native = [_native_order(arrays[at]) for at in places]
    with jax.ensure_compile_time_eval():
        made = jax.device_put(native)
    for at, value in zip(places, made, strict=True):
        out[at] = value
    return out


def _native_order(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


# ---- saying it ------------------------------------------------------------------------


def raise_problems(problems: list[Problem], stop_at_first: bool) -> None:
    """Raises one error for all problems, if there are any. The first line is the text of Equinox.

    Raises:
        TreePathError: if leaves could not be written or read.
        RuntimeError: if leaves differ from those in `like`.
    """
    if not problems:
        return
    failed = [problem for problem in problems if problem.cause is not None]
    # Report a failed read first: Equinox reads all data before it compares anything.
    first = failed[0] if failed else problems[0]
    lines = [first.message, *_about(first)]
    others = [problem for problem in problems if problem is not first]
    if not stop_at_first:
        for problem in others[: _PROBLEMS_MAX - 1]:
            reason = "" if problem.cause is None else f": {problem.cause}"
            lines += [f"{problem.message}{reason}", *_about(problem)]
        if len(others) >= _PROBLEMS_MAX:
            lines.append(f"and {len(others) - _PROBLEMS_MAX + 1} more leaves")
    message = "\n".join(lines)
    if first.cause is None:
        raise RuntimeError(message)
    raise tree_path_error(message, first.path) from _inner(first)


def tree_path_error(message: str, path: Path) -> TreePathError:
    """The error of a leaf."""
    error = TreePathError(message)
    error.path = path
    return error


def failed_at(path: Path) -> str:
    """Equinox' text for a leaf that could not be written or read."""
    return f"Error at leaf with path {path}"


def _about(problem: Problem) -> list[str]:
    return [] if problem.stored is None else [f"  (this is where {problem.stored} was stored)"]


def _inner(problem: Problem) -> TreePathError:
    """The inner error of two: Equinox walks over filters, and below each filter over leaves."""
    inner = tree_path_error(failed_at(problem.path), problem.path)
    inner.__cause__ = problem.cause
    return inner

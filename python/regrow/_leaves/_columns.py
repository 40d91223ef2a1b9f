"""Converts leaves in both directions: the user's leaves to the engine's, and back.

The engine gets NumPy arrays (JAX arrays as views of their own memory), numbers, text and bytes.
The native half converts the common leaves without a copy, and asks this module for all others. For
loaded leaves, the native half returns read-only views and text, and this module makes the rest.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .. import _native
from .._core._dtypes import DTYPES as DTYPES
from .._core._dtypes import dtype_numbers as dtype_numbers
from .._core._duck import has
from .._core._enums import is_plain_member, plain
from .._errors import CorruptError, InvalidArgumentError, LeafTypeError, RegrowError, UnsupportedError, failure
from .._torch import _tensors
from .._tree._flatten import Flat, path_text
from .._tree._nodes import PrngKey, UnknownLeaf
from ._placements import Placement, placement, replicas, shards_of
from ._sharded import ShardedArray

(
    NUMPY_ARRAY,
    NUMPY_SCALAR,
    JAX_ARRAY,
    PRNG_KEY,
    SCALAR,
    STR,
    BYTES,
    PLACEHOLDER,
    UNKNOWN,
    NUMPY_OTHER,
    NUMPY_OTHER_SCALAR,
) = (
    _native.LEAF_KINDS.index(name)
    for name in (
        "numpy_array",
        "numpy_scalar",
        "jax_array",
        "prng_key",
        "scalar",
        "str",
        "bytes",
        "placeholder",
        "unknown",
        "numpy_other",
        "numpy_other_scalar",
    )
)


class LeafColumns(NamedTuple):
    """Leaves in the form of the engine, as columns."""

    kinds: bytes
    values: list[Any]
    notes: dict[int, str]
    """PRNG implementations and dtypes that are NumPy's alone, by the number of the leaf."""
    shardings: dict[int, str]
    """Orbax' JSON of shardings, by the number of the leaf."""


def to_native(flat: Flat, replica_parallel: bool = False) -> LeafColumns:
    """Converts leaves to the engine's columns. With `replica_parallel` each replica of a shard
    gives a slice of the shard.

    Raises:
        LeafTypeError: for a leaf that no checkpoint can hold, with its key path.
    """
    sharding_texts: dict[Any, str | None] = {}
    tensors = _tensors.Teller(replica_parallel)
    _begin_transfers(flat.leaves, replica_parallel)

    def known_sharding(sharding: Any) -> tuple[str | None, bool]:
        is_plain = len(sharding.device_set) == 1 and sharding.is_fully_addressable
        return _sharding_text(sharding, sharding_texts), is_plain

    def other(leaf: Any, at: int) -> ToldLeaf:
        return tell(leaf, flat, at, sharding_texts, replica_parallel, tensors)

    def known_placement(leaf: Any) -> Placement | None:
        return None if replica_parallel and replicas(leaf) > 1 else placement(leaf)

    found = _jax_hooks()
    jax_hooks = None if found is None else (*found, known_placement)
    hooks = (_KINDS, dtype_numbers(), other, _shows_memory, known_sharding, jax_hooks)
    return LeafColumns(*_native.leaf_columns(flat.leaves, hooks))


def _begin_transfers(leaves: list[Any], replica_parallel: bool) -> None:
    """Starts the transfers of all shards from accelerators, before regrow waits for the first
    transfer.
    """
    jax_array_type = _jax_array_type()
    if jax_array_type is None or sys.modules["jax"].default_backend() == "cpu":
        return
    for leaf in leaves:
        if isinstance(leaf, jax_array_type) and _shows_memory(type(leaf)) and not leaf.is_deleted():
            for shard in leaf.addressable_shards:
                if replica_parallel or shard.replica_id == 0:
                    shard.data.copy_to_host_async()


class ToldLeaf(NamedTuple):
    """The engine's form of one leaf."""

    kind: int
    value: Any
    note: str | None
    sharding: str | None


def tell(
    leaf: Any,
    flat: Flat,
    at: int,
    sharding_texts: dict[Any, str | None],
    replica_parallel: bool = False,
    tensors: _tensors.Teller | None = None,
) -> ToldLeaf:
    """The engine's form of any leaf, including leaves that the native half can convert itself.

    Raises:
        LeafTypeError: for a leaf that no checkpoint can hold, with its key path.
    """
    notes: dict[int, str] = {}
    sharding = None
    kind = _KINDS.get(type(leaf))
    jax_array_type = _jax_array_type()
    if kind is not None:
        value = leaf
    elif jax_array_type is not None and isinstance(leaf, jax_array_type):
        kind, value = _from_jax(leaf, flat, at, notes, replica_parallel)
        sharding = _sharding_text(leaf.sharding, sharding_texts)
    elif _tensors.is_tensor(leaf):
        kind = NUMPY_ARRAY
        value, sharding = _from_torch(leaf, flat, at, tensors or _tensors.Teller(replica_parallel))
    else:
        kind, value = _from_other(leaf, flat, at, notes)
    if isinstance(value, np.ndarray) and (kind == NUMPY_ARRAY or kind == NUMPY_SCALAR):
        if value.dtype in dtype_numbers():
            pass
        elif value.dtype.hasobject or is_numpys_alone(value.dtype):
            is_scalar = kind == NUMPY_SCALAR
            kind, value = _from_other_dtype(value, flat, at, notes)
            if is_scalar:
                kind = NUMPY_OTHER_SCALAR
        elif not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
    return ToldLeaf(kind, value, notes.get(at), sharding)


_KINDS: dict[type[Any], int] = {
    np.ndarray: NUMPY_ARRAY,
    bool: SCALAR,
    int: SCALAR,
    float: SCALAR,
    complex: SCALAR,
    str: STR,
    bytes: BYTES,
    type(...): PLACEHOLDER,
}


def _from_other(leaf: Any, flat: Flat, at: int, notes: dict[int, str]) -> tuple[int, Any]:
    if isinstance(leaf, np.generic):
        return NUMPY_SCALAR, np.asarray(leaf)
    if isinstance(leaf, np.memmap):
        return NUMPY_ARRAY, leaf.view(np.ndarray)
    if isinstance(leaf, PrngKey):
        if leaf.impl is not None:
            notes[at] = leaf.impl
        return PRNG_KEY, np.asarray(leaf.data)
    if isinstance(leaf, ShardedArray):
        return NUMPY_ARRAY, (leaf.dtype.name, leaf.shape, leaf.chunk_shape, False, leaf.shards)
    if is_plain_member(leaf):
        return _KINDS[type(plain(leaf))], plain(leaf)
    if isinstance(leaf, UnknownLeaf):
        _refuse(flat, at, "is a leaf of a type that regrow does not decode", "leave it out")
    if _is_jax_literal(leaf):
        return NUMPY_ARRAY, np.asarray(leaf)
    name = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
    if has(leaf, "dtype", "shape"):
        help = "convert it to an exact numpy.ndarray or jax.Array first"
        if "ShapeDtypeStruct" in name:
            help = "it has no data: save an array"
    elif callable(leaf):
        help = (
            "leave functions out of the tree: equinox.filter(tree, equinox.is_array) or equinox.partition; "
            "load(path, like=tree) then takes them from `like`"
        )
    elif isinstance(leaf, enum.Enum):
        help = "save its value: member.value"
    elif plain(leaf) is not leaf:
        help = f"convert it to an exact {type(plain(leaf)).__name__}"
    else:
        help = "leaves are arrays, numbers, str and bytes; register other classes with jax.tree_util as nodes"
    return _refuse(flat, at, f"is of type {name}, which regrow cannot store", help)


def _from_torch(leaf: Any, flat: Flat, at: int, tensors: _tensors.Teller) -> _tensors.Told:
    try:
        return tensors.tell(leaf)
    except _tensors.Refused as refused:
        return _refuse(flat, at, refused.what, refused.help)


_ML_OTHERS = frozenset(("int1", "uint1", "complex32", "bcomplex32"))
"""Names of dtypes of ml_dtypes that have no number in the engine. They are stored by name, because their npy
text names no dtype.
"""

_OTHER_CHARS = frozenset("USVMmgG")
"""Text, bytes, void and records, dates, durations, extended floats: dtypes that are NumPy's alone.
Some of ml_dtypes' have the same letters."""


def is_numpys_alone(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype are stored as bytes, with the name of the dtype beside the
    bytes.
    """
    if dtype in dtype_numbers() or dtype.hasobject:
        return False
    return dtype.char in _OTHER_CHARS or dtype.name in _ML_OTHERS


def _from_other_dtype(value: Any, flat: Flat, at: int, notes: dict[int, str]) -> tuple[int, Any]:
    """Converts an array of another dtype to bytes, with one more axis. The note has the dtype as in
    npy headers.
    """
    if value.dtype.hasobject:
        _refuse_dtype(value, flat, at, "convert it to an array of numbers or text")
    try:
        descr = value.dtype.name if value.dtype.name in _ML_OTHERS else np.lib.format.dtype_to_descr(value.dtype)
    except ValueError:
        _refuse_dtype(
            value, flat, at, "give its fields offsets that follow each other: numpy.lib.recfunctions.repack_fields"
        )
    notes[at] = descr if isinstance(descr, str) else repr(descr)
    value = np.ascontiguousarray(value) if value.ndim else value.copy()
    return NUMPY_OTHER, np.frombuffer(value.tobytes(), np.uint8).reshape(*value.shape, value.dtype.itemsize)


def _refuse_dtype(value: Any, flat: Flat, at: int, help: str) -> NoReturn:
    place = path_text(flat.structure, at)
    what = f"a leaf of dtype {value.dtype} cannot be stored"
    raise failure(UnsupportedError, what, leaf=place, help=help)


def _refuse(flat: Flat, at: int, what: str, help: str) -> NoReturn:
    place = path_text(flat.structure, at)
    raise failure(LeafTypeError, f"the leaf {what}", leaf=place, help=help)


# ---- JAX, if it is there --------------------------------------------------------------


def _jax_array_type() -> type[Any] | None:
    """`jax.Array` if the program has imported JAX; regrow never imports it by itself."""
    return getattr(sys.modules.get("jax"), "Array", None)


def _is_jax_literal(leaf: Any) -> bool:
    return type(leaf).__module__.partition(".")[0] == "jax" and type(leaf).__name__ == "TypedNdArray"


def _shows_memory(cls: type[Any]) -> bool:
    """Whether a class is JAX' own class of arrays. Such an array gives access to its memory on this
    machine, and refuses if it was deleted. Tracers and PRNG keys are of other classes.
    """
    jax_array_type = _jax_array_type()
    return (
        jax_array_type is not None
        and cls.__name__ == "ArrayImpl"
        and cls.__module__.partition(".")[0] in ("jax", "jaxlib")
        and issubclass(cls, jax_array_type)
    )


def _jax_hooks() -> tuple[type[Any], Callable[[Any], Any]] | None:
    """JAX' class of shardings on one device, and the export function of jaxlib. The public
    ``jax.Array.__dlpack__`` takes five times as long as this function. `None` before jaxlib 0.6:
    the function was in another place, and could delete arrays of the caller.
    """
    export = getattr(sys.modules.get("jaxlib._jax"), "buffer_to_dlpack_managed_tensor", None)
    sharding = getattr(sys.modules.get("jax"), "sharding", None)
    return None if export is None or sharding is None else (sharding.SingleDeviceSharding, export)


def is_prng_key(leaf: Any) -> bool:
    """Whether a JAX array, or the description of one, holds typed PRNG keys."""
    if isinstance(leaf.dtype, np.dtype):
        return False
    jax = sys.modules["jax"]
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _from_jax(leaf: Any, flat: Flat, at: int, notes: dict[int, str], replica_parallel: bool) -> tuple[int, Any]:
    jax = sys.modules["jax"]
    kind = JAX_ARRAY
    if isinstance(leaf, jax.core.Tracer):
        _refuse(flat, at, "is a tracer: it has no value yet", "save outside of jax.jit and other transformations")
    if leaf.is_deleted():
        place = path_text(flat.structure, at)
        help = "the array was donated: save it before that, or save the result"
        raise failure(InvalidArgumentError, "the JAX array was deleted", leaf=place, help=help)
    if is_prng_key(leaf):
        kind = PRNG_KEY
        notes[at] = str(jax.random.key_impl(leaf))
        leaf = jax.random.key_data(leaf)
    if len(leaf.sharding.device_set) > 1 and leaf.size > 0:
        return kind, shards_of(leaf, replica_parallel)
    return kind, np.asarray(leaf)


def _sharding_text(sharding: Any, texts: dict[Any, str | None]) -> str | None:
    """A sharding as Orbax' JSON; `None` if Orbax cannot write it either."""
    import json

    if sharding in texts:
        return texts[sharding]
    jax = sys.modules["jax"]
    text = None
    if isinstance(sharding, jax.sharding.NamedSharding):
        mesh = sharding.mesh
        text = json.dumps(
            {
                "sharding_type": "NamedSharding",
                "shape": list(mesh.devices.shape),
                "axis_names": list(mesh.axis_names),
                "axis_types": [f"AxisType.{kind.name}" for kind in mesh.axis_types],
                "partition_spec": [_axes(entry) for entry in sharding.spec],
                "device_mesh": {"mesh": _device_ids(mesh.devices)},
            }
        )
    elif isinstance(sharding, jax.sharding.SingleDeviceSharding):
        (device,) = sharding.device_set
        text = json.dumps({"sharding_type": "SingleDeviceSharding", "device_str": str(device)})
    texts[sharding] = text
    return text


def _axes(entry: Any) -> Any:
    if entry is None or isinstance(entry, str):
        return entry
    return list(entry) if isinstance(entry, tuple) else None


def _device_ids(devices: Any) -> Any:
    if devices.ndim == 1:
        return [{"id": device.id} for device in devices]
    return [_device_ids(row) for row in devices]


# ---- from the engine ------------------------------------------------------------------


class LoadedLeaves(NamedTuple):
    """Leaves in the form in which the engine returns them."""

    kinds: bytes
    values: list[Any]
    """Read-only arrays, `str` for text, `None` for leaves without data."""
    notes: dict[int, str]
    """PRNG implementations, unknown types and dtypes that are NumPy's alone, by the number of
    the leaf.
    """


def from_native(loaded: LoadedLeaves, path_of: Callable[[int], str]) -> list[Any]:
    """Converts the engine's leaves to NumPy's: read-only views, scalars of their own type, text,
    bytes.

    Raises:
        CorruptError, UnsupportedError: with the key path that `path_of` has of the leaf's number.
    """
    kinds, values, notes = loaded
    if kinds.strip(_AS_THEY_ARE):
        for at, kind in enumerate(kinds):
            finish = _FINISH.get(kind)
            if finish is not None:
                try:
                    values[at] = finish(values[at], notes.get(at))
                except RegrowError as error:
                    path = path_of(at)
                    raise type(error)(f"{error.message}\n  leaf {path}", leaf=path) from None
    return values


def as_array(shape: tuple[int, ...], dtype: np.dtype[Any], buffer: Any, path: str | None) -> np.ndarray[Any, Any]:
    """Bytes as an array.

    Raises:
        UnsupportedError: if NumPy has no arrays of this shape.
    """
    try:
        return np.ndarray(shape, dtype, buffer)
    except (ValueError, TypeError, OverflowError) as error:
        what = (
            f"NumPy cannot hold an array of this shape: {error}\n  expected a shape that NumPy has, found {list(shape)}"
        )
        place = "" if path is None else f"\n  leaf {path}"
        raise UnsupportedError(f"{what}{place}", leaf=path) from None


_AS_THEY_ARE = bytes((NUMPY_ARRAY, JAX_ARRAY, STR))
"""Kinds of leaves that the engine already returns in their final form."""


def _scalar(value: Any, _note: str | None) -> Any:
    return value.item()


def _numpy_scalar(value: Any, _note: str | None) -> Any:
    return value[()]


def _prng_key(value: Any, note: str | None) -> Any:
    return PrngKey(value, note)


def _bytes(value: Any, _note: str | None) -> Any:
    return value.tobytes()


def numpy_other(value: Any, note: str | None) -> Any:
    """Stored bytes as an array of a dtype that only NumPy has."""
    dtype = other_dtype(note or "")
    stored = value.shape[-1] if value.ndim else 0
    if not value.ndim or dtype.itemsize != stored:
        raise CorruptError(f"an element of dtype {note} takes {dtype.itemsize} bytes, {stored} are stored")
    return as_array(value.shape[:-1], dtype, value, None)


def _numpy_other_scalar(value: Any, note: str | None) -> Any:
    return numpy_other(value, note)[()]


def other_dtype(text: str) -> np.dtype[Any]:
    """The dtype for a text in an npy header: `<U8`, or the literal of a record."""
    try:
        dtype = dtype_of_descr(_native.literal(text) if text.startswith("[") else text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, RegrowError) as error:
        raise CorruptError(f"the dtype {text!r} cannot be read: {error}") from None
    if dtype.hasobject:
        raise CorruptError(f"the dtype {text!r} has Python objects")
    return dtype


_TYPE_STRING = re.compile(r"[<>|=]?[A-Za-z?][0-9]*(\[[0-9]*[A-Za-z\u03bc]+(/[0-9]+)?\])?", re.ASCII)
"""The text of one type. NumPy reads `i4,f4` as two types, and gives such a text to Python's
compiler.
"""


def dtype_of_descr(descr: Any) -> np.dtype[Any]:
    """The dtype of the value of `descr` in an npy header.

    Raises:
        ValueError, TypeError: if NumPy has none, or it is not a type string nor such strings in lists
            and tuples.
    """
    pending = [descr]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            import ml_dtypes

            is_type = _TYPE_STRING.fullmatch(part) or isinstance(getattr(ml_dtypes, part, None), type)
            if not (is_type or part in np.sctypeDict):
                raise ValueError(f"{part!r} is not a type string")
        elif isinstance(part, (list, tuple)):
            # A field has a name, a type and perhaps a shape. The type of an array is a pair with a
            # shape.
            types = (
                part
                if isinstance(part, list)
                else part[1:2]
                if len(part) == 3 or isinstance(part[-1], (str, list))
                else part[:1]
            )
            pending.extend(types)
        else:
            raise TypeError(f"{part!r} is not a type")
    return np.lib.format.descr_to_dtype(descr)


def _placeholder(_value: Any, _note: str | None) -> Any:
    return ...


def _unknown(_value: Any, note: str | None) -> Any:
    # The note `int N` is an integer beyond 64 bits in a JSON document.
    is_integer = note is not None and note.startswith("int ")
    return int(note.removeprefix("int ")) if note is not None and is_integer else UnknownLeaf(note or "")


_FINISH: dict[int, Callable[[Any, str | None], Any]] = {
    NUMPY_SCALAR: _numpy_scalar,
    PRNG_KEY: _prng_key,
    SCALAR: _scalar,
    BYTES: _bytes,
    PLACEHOLDER: _placeholder,
    UNKNOWN: _unknown,
    NUMPY_OTHER: numpy_other,
    NUMPY_OTHER_SCALAR: _numpy_other_scalar,
}


# The first call initialises the native half. Make this call now, before there are threads: if the
# process forked during the initialisation, locks would stay locked in the child.
_native.leaf_columns([np.zeros(1), np.float32(1), 1, 1.0, "", b""], (_KINDS, dtype_numbers(), None, None, None, None))

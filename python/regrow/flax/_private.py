"""The private names of `flax.serialization` that other packages import: streaming writers, patched
encoders.

They do what the originals do, on regrow's engine. `regrow.flax` exports them all; no other module
of regrow uses them. `dynamic` makes the values that change while the program runs (the registry,
the path of the error context), at each access.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from .. import _native
from .. import flax as serialization
from .._errors import InvalidArgumentError
from .._msgpack import ExtType
from . import _bytes, _state_dict
from ._upstream import is_jax_array, loaded


def dynamic(name: str) -> Any:
    """The value of a private name that can be another object at each access.

    Raises:
        AttributeError: if there is no such name.
    """
    if name == "_STATE_DICT_REGISTRY":
        return _state_dict.registry()
    if name == "_error_context":
        return _state_dict.error_context()
    raise AttributeError(f"module 'regrow.flax' has no attribute {name!r}")


@contextmanager
def _record_path(name: str) -> Iterator[None]:
    names = _state_dict.error_context().path
    names.append(name)
    try:
        yield
    finally:
        names.pop()


class _NamedTuple:
    """Represents all named tuples in Flax' registry."""


def _is_namedtuple(x: Any) -> bool:
    return isinstance(x, tuple) and hasattr(x, "_fields")


# ---- state dicts of Python's containers -----------------------------------------------


def _list_state_dict(xs: list[Any]) -> dict[str, Any]:
    return _state_dict.sequence_to(xs)


def _restore_list(xs: list[Any], state_dict: dict[str, Any]) -> list[Any]:
    return _state_dict.list_back(xs, state_dict)


def _dict_state_dict(xs: dict[str, Any]) -> dict[str, Any]:
    return _state_dict.dict_to(xs)


def _restore_dict(xs: Any, states: dict[str, Any]) -> Any:
    return _state_dict.dict_back(xs, states)


def _namedtuple_state_dict(nt: Any) -> dict[str, Any]:
    return _state_dict.named_tuple_to(nt)


def _restore_namedtuple(xs: Any, state_dict: dict[str, Any]) -> Any:
    return _state_dict.named_tuple_back(xs, state_dict)


# ---- leaves to extensions and back ----------------------------------------------------


class _MsgpackExtType(enum.IntEnum):
    """Codes of Flax' msgpack extensions."""

    ndarray = 1
    native_complex = 2
    npscalar = 3


def _ndarray_to_bytes(arr: Any) -> bytes:
    array = np.asarray(arr)
    if array.dtype.hasobject or array.dtype.isalignedstruct:
        raise InvalidArgumentError("Object and structured dtypes not supported for serialization of ndarrays.")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return _native.msgpack_pack([list(array.shape), array.dtype.name, array.tobytes("C")], sys.maxsize)


def _dtype_from_name(name: str | bytes) -> np.dtype[Any]:
    text = name.decode() if isinstance(name, bytes) else name
    return np.dtype(getattr(ml_dtypes, text, None) or text)


def _ndarray_from_bytes(data: bytes) -> np.ndarray[Any, Any]:
    shape, dtype_name, buffer = _bytes.unpack(data)
    return np.frombuffer(buffer, _dtype_from_name(dtype_name)).reshape(shape)


def _msgpack_ext_pack(x: Any) -> Any:
    """The function for ``msgpack.packb(..., default=_msgpack_ext_pack)``."""
    if isinstance(x, np.ndarray) or is_jax_array(x):
        return _ext_type()(_MsgpackExtType.ndarray, _ndarray_to_bytes(x))
    if isinstance(x, np.generic):
        return _ext_type()(_MsgpackExtType.npscalar, _ndarray_to_bytes(x))
    if isinstance(x, complex):
        return _ext_type()(_MsgpackExtType.native_complex, _native.msgpack_pack([x.real, x.imag], sys.maxsize))
    return x


def _msgpack_ext_unpack(code: int, data: bytes) -> Any:
    """The function for ``msgpack.unpackb(..., ext_hook=_msgpack_ext_unpack)``."""
    if code == _MsgpackExtType.ndarray:
        return _ndarray_from_bytes(data)
    if code == _MsgpackExtType.native_complex:
        real, imag = _bytes.unpack(data)
        return complex(real, imag)
    if code == _MsgpackExtType.npscalar:
        return _ndarray_from_bytes(data)[()]
    return _ext_type()(code, data)


def _ext_type() -> Any:
    """msgpack's own class, if the program has imported msgpack: its packer accepts no other."""
    return getattr(loaded("msgpack"), "ExtType", ExtType)


# ---- arrays in pieces -----------------------------------------------------------------


def _np_convert_in_place(d: Any) -> Any:
    return _bytes.np_convert_in_place(d)


def _tuple_to_dict(tpl: Any) -> dict[str, Any]:
    return {str(at): item for at, item in enumerate(tpl)}


def _dict_to_tuple(dct: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(dct[str(at)] for at in range(len(dct)))


def _chunk(arr: Any) -> dict[str, Any]:
    return _bytes.in_pieces(arr, serialization.MAX_CHUNK_SIZE)


def _unchunk(data: dict[str, Any]) -> Any:
    if _bytes.CHUNKED not in data:
        raise AssertionError(f"a dict without the key {_bytes.CHUNKED!r} is not an array in pieces")
    return np.concatenate(_dict_to_tuple(data["chunks"])).reshape(_dict_to_tuple(data["shape"]))


def _chunk_array_leaves_in_place(d: Any) -> Any:
    return _bytes.chunk_in_place(d, serialization.MAX_CHUNK_SIZE)


def _unchunk_array_leaves_in_place(d: Any) -> Any:
    if not isinstance(d, dict):
        return d
    if _bytes.CHUNKED in d:
        return _unchunk(d)
    for key, value in d.items():
        if isinstance(value, dict):
            d[key] = _unchunk_array_leaves_in_place(value)
    return d

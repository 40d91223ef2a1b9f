"""The encoding layer: changes nested values before the packing, and converts errors of unpacking.

The engine packs and unpacks. Flax changes the caller's containers before the packing, and this
module makes the same changes.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _native
from .._errors import InvalidArgumentError
from .._msgpack import ExtType, MsgpackError, Timestamp
from . import _extras
from ._upstream import as_original, is_jax_array, loaded

CHUNKED = "__msgpack_chunked_array__"


class ExtraData(MsgpackError):
    """There are bytes after the object. If the program has imported msgpack, this is also msgpack's
    error of this name.
    """


def pack(value: Any, max_chunk_size: float) -> bytes:
    """Packs nested dicts, lists and leaves into msgpack. Arrays with more bytes than
    `max_chunk_size` are written in pieces.

    Raises:
        InvalidArgumentError: (a `ValueError` too) if `max_chunk_size` is negative or no number.
    """
    if not max_chunk_size >= 0:
        raise InvalidArgumentError(f"MAX_CHUNK_SIZE is {max_chunk_size}: this is not a number of bytes")
    return _native.msgpack_pack(value, int(min(max_chunk_size, sys.maxsize)))


def unpack(data: Any, file: str | None = None) -> Any:
    """The state in `data`, the content of `file`. Arrays are read-only views of `data`.

    Raises:
        MsgpackError: (a `CorruptError` and a `ValueError`) if it is damaged.
    """
    try:
        return _with_originals(_native.msgpack_unpack(data))
    except MsgpackError as error:
        cls = as_original(ExtraData, "msgpack.exceptions") if _LEFT_OVER in error.message else MsgpackError
        message = error.message if file is None else f"{error.message}\n  in {file}"
        raise cls(message, file=file, leaf=error.leaf, offset_bytes=error.offset_bytes, help=error.help) from None


_LEFT_OVER = "left over after the msgpack object"


def _with_originals(value: Any) -> Any:
    """Replaces extensions and timestamps by msgpack's own classes, in the same containers, if the
    program has imported msgpack.
    """
    msgpack = loaded("msgpack")
    ext_type, timestamp = getattr(msgpack, "ExtType", None), getattr(msgpack, "Timestamp", None)
    if ext_type is None or timestamp is None:
        return value

    def original(value: Any) -> Any:
        cls = type(value)
        if cls is Timestamp:
            return timestamp(value.seconds, value.nanoseconds)
        return ext_type(value.code, value.data)

    waiting = [[value]]
    top = waiting[0]
    while waiting:
        node = waiting.pop()
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            cls = type(child)
            if cls is dict or cls is list:
                waiting.append(child)
            elif cls is ExtType or cls is Timestamp:
                node[key] = original(child)
    return top[0]


def copied(value: Any, *, in_order: bool, extended: bool) -> Any:
    """New containers with the same leaves. Entries are sorted by key, unless `in_order` is set.

    With `extended`, tuples become lists, other dicts become dicts, and typed PRNG keys become key
    data.
    """
    cls = type(value)
    if cls is dict or (extended and cls in (collections.OrderedDict, collections.defaultdict)):
        keys = list(value) if in_order or cls is collections.OrderedDict else _sorted(value)
        return {key: copied(value[key], in_order=in_order, extended=extended) for key in keys}
    if cls is list or (extended and isinstance(value, tuple)):
        return [copied(item, in_order=in_order, extended=extended) for item in value]
    handlers = _extras.key_handlers(value) if extended else None
    return value if handlers is None else handlers[0](value)


def _sorted(node: dict[Any, Any]) -> list[Any]:
    try:
        return sorted(node)
    except TypeError as error:
        raise ValueError("Comparator raised exception while sorting pytree dictionary keys.") from error


def convert_in_place(node: Any, max_chunk_size: float) -> None:
    """Changes the caller's dicts as the original does: JAX arrays become NumPy arrays, and large
    arrays become maps of pieces.
    """
    chunk_in_place(np_convert_in_place(node), max_chunk_size)


def np_convert_in_place(node: Any) -> Any:
    """Replaces JAX arrays by NumPy arrays, in dicts of dicts."""
    return _changed_in_place(node, lambda leaf: np.array(leaf) if is_jax_array(leaf) else leaf)


def chunk_in_place(node: Any, max_chunk_size: float) -> Any:
    """Replaces large arrays by maps of pieces, in dicts of dicts."""

    def chunked(leaf: Any) -> Any:
        is_big = isinstance(leaf, np.ndarray) and leaf.size * leaf.dtype.itemsize > max_chunk_size
        return in_pieces(leaf, max_chunk_size) if is_big else leaf

    return _changed_in_place(node, chunked)


def _changed_in_place(node: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(node, dict):
        return change(node)
    for key, value in node.items():
        if isinstance(value, dict):
            _changed_in_place(value, change)
        else:
            node[key] = change(value)
    return node


def in_pieces(array: Any, max_chunk_size: float) -> dict[str, Any]:
    """The map of pieces for an array."""
    items = max(1, int(max_chunk_size / array.dtype.itemsize))
    flat = array.reshape(-1)
    pieces = (flat[start : start + items] for start in range(0, flat.size, items))
    return {
        CHUNKED: True,
        "shape": {str(axis): length for axis, length in enumerate(array.shape)},
        "chunks": {str(at): piece for at, piece in enumerate(pieces)},
    }

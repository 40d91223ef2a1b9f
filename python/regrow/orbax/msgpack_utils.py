"""Pytrees as msgpack: Flax' encoding, extended by tuples."""

from __future__ import annotations

from typing import Any

from .. import _native
from .._msgpack import ExtType

MAX_CHUNK_SIZE = 2**30
"""Larger arrays, in bytes, are stored in several parts."""

_TUPLE = 4
"""The code of the extension for a tuple."""


def msgpack_serialize(pytree: Any, in_place: bool = False) -> bytes:
    """Encodes a pytree of dicts, lists, tuples, arrays and numbers. `in_place` is ignored."""
    return _native.msgpack_pack(_without_tuples(pytree), MAX_CHUNK_SIZE)


def msgpack_restore(encoded_pytree: bytes) -> Any:
    return _with_tuples(_native.msgpack_unpack(encoded_pytree))


def _without_tuples(node: Any) -> Any:
    if isinstance(node, tuple):
        return ExtType(_TUPLE, _native.msgpack_pack([_without_tuples(item) for item in node], MAX_CHUNK_SIZE))
    if isinstance(node, list):
        return [_without_tuples(item) for item in node]
    if isinstance(node, dict):
        return {key: _without_tuples(item) for key, item in node.items()}
    return node


def _with_tuples(node: Any) -> Any:
    if isinstance(node, ExtType):
        return tuple(msgpack_restore(node.data)) if node.code == _TUPLE else node
    if isinstance(node, list):
        return [_with_tuples(item) for item in node]
    if isinstance(node, dict):
        return {key: _with_tuples(item) for key, item in node.items()}
    return node

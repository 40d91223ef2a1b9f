"""Encodes objects as msgpack for the other processes of a save. msgpack itself does not know
tuples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _native
from .._errors import CorruptError
from .._torch import _tensors
from .._tree._flatten import _type_name
from .._tree._nodes import named_tuple_class
from ._decode import DICTS
from ._encode import Encoded

CHUNK_LEN_MAX_BYTES = 1 << 30


def pack(objects: dict[str, Encoded]) -> bytes:
    """Converts objects, by name, to bytes."""
    told = [[name, _packed(each.tree), each.record] for name, each in objects.items()]
    return _native.msgpack_pack(told, CHUNK_LEN_MAX_BYTES)


def unpack(data: bytes) -> dict[str, Encoded]:
    """Restores the objects. Their tensors become NumPy arrays, which the record marks as tensors."""
    try:
        return {name: Encoded(_unpacked(tree), record) for name, tree, record in _native.msgpack_unpack(data)}
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(f"the message of another process cannot be read: {error}") from None


def _packed(node: Any) -> Any:
    cls = type(node)
    if isinstance(node, dict):
        return ["dict", cls.__name__, [[key, _packed(child)] for key, child in node.items()]]
    if isinstance(node, tuple) and hasattr(cls, "_fields"):
        return ["named", [_type_name(cls), *cls._fields], [_packed(child) for child in node]]
    if cls in (list, tuple):
        return [cls.__name__, None, [_packed(child) for child in node]]
    return ["leaf", None, [_tensors.memory(node) if _tensors.is_tensor(node) else node]]


def _unpacked(packed: Any) -> Any:
    kind, about, children = packed
    if kind == "dict":
        pairs = [(key, _unpacked(child)) for key, child in children]
        return DICTS[about](pairs)
    if kind == "leaf":
        (leaf,) = children
        return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf
    made = [_unpacked(child) for child in children]
    if kind == "named":
        cls = named_tuple_class(about[0], tuple(about[1:]))
        if cls is None:
            raise ValueError(f"the fields of {about[0]}")
        return cls._make(made)
    return made if kind == "list" else tuple(made)

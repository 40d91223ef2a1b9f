"""Restores the objects of `_encode` from the tree of a checkpoint, its record, and the values of
its leaves.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._errors import CorruptError, LimitError, UnsupportedError, failure
from .._torch import _tensors
from .._tree._flatten import _open_node
from .._tree._nodes import Node
from ._encode import FACTORIES
from ._library import torch
from ._pointers import Key, Keys, pointer, shown

RECORD = "regrow.torch"
"""The key of the record in the metadata of a checkpoint."""
VERSION = 1


def record_text(record: Mapping[str, Any]) -> str:
    """Returns the stored form of the record."""
    return json.dumps({"version": VERSION, "at": record})


def record_of(metadata: Any) -> dict[str, dict[str, Any]]:
    """Returns the record in the metadata of a checkpoint. It is empty if another program has saved
    the checkpoint.

    Raises:
        CorruptError: if the record is damaged.
        UnsupportedError: if the record has another version.
    """
    text = metadata.get(RECORD) if isinstance(metadata, dict) else None
    if text is None:
        return {}
    try:
        record = json.loads(text)
        version, entries = record["version"], record["at"]
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise CorruptError(f"the record {RECORD!r} in the metadata cannot be read: {error}") from None
    if version != VERSION:
        help = "load it with the version of regrow that saved it, or a later one"
        raise failure(
            UnsupportedError,
            f"the record {RECORD!r} has another version",
            f"expected {VERSION}, found {version!r}",
            help=help,
        )
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise CorruptError(f"the record {RECORD!r} in the metadata is not a dict of dicts")
    return entries


def misfit(error: Exception, place: str) -> CorruptError:
    """Returns the error for a record that does not fit the stored state at a place."""
    what = f"the record {RECORD!r} does not fit the stored state: {type(error).__name__}: {error}"
    return CorruptError(f"leaf {place} is damaged: {what}", leaf=place)


def children_of(node: Any) -> Iterator[tuple[Key, Any]]:
    """Yields the children of a container of the checkpoint, by key."""
    if isinstance(node, (dict, Node)):
        yield from node.items()
    elif isinstance(node, tuple) and hasattr(node, "_fields"):
        yield from zip(node._fields, node, strict=True)
    else:
        yield from enumerate(node)


def is_container(node: Any) -> bool:
    """Whether the node can have children."""
    return isinstance(node, (dict, list, tuple, Node))


def leaves_of(tree: Any) -> Iterator[tuple[Keys, int]]:
    """Yields the numbers of the leaves with their key paths, in order."""
    pending: list[tuple[Keys, Any]] = [((), tree)]
    while pending:
        keys, node = pending.pop()
        if is_container(node):
            pending.extend(reversed([((*keys, key), child) for key, child in children_of(node)]))
        elif node is not None and node is not ...:
            yield keys, node


class Decoder:
    """Builds objects from a tree of leaf numbers."""

    def __init__(
        self, entries: Mapping[str, Mapping[str, Any]], value_of: Callable[[int], Any], numbers: Mapping[str, int]
    ) -> None:
        """`entries` is the record. `value_of` returns the value of a leaf: a tensor on its device,
        or the value that `regrow.load` returns. `numbers` has the number of each leaf by pointer.
        """
        self._entries = entries
        self._value_of = value_of
        self._numbers = numbers
        self._made: dict[str, Any] = {}

    def decoded(self, node: Any, keys: Keys = ()) -> Any:
        """Returns the object for a part of the tree.

        Raises:
            CorruptError: if the record does not fit the tree.
        """
        if node is ...:
            return ...
        place = pointer(keys)
        entry = self._entries.get(place)
        if entry is None:
            return self._plain(node, keys)
        try:
            kind = entry.get("is")
            made = self._tensor(node, entry) if kind is None else _KINDS[kind](self._plain(node, keys), entry)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
            raise misfit(error, shown(keys)) from None
        self._made[place] = made
        return made

    def _plain(self, node: Any, keys: Keys) -> Any:
        if node is None:
            return None
        if not is_container(node):
            value = self._value_of(node)
            if _tensors.is_tensor(value):
                self._made[pointer(keys)] = value
            return value
        children = [self.decoded(child, (*keys, key)) for key, child in children_of(node)]
        if isinstance(node, collections.defaultdict):
            return collections.defaultdict(None, zip(node, children, strict=True))
        if isinstance(node, dict):
            return type(node)(zip(node, children, strict=True))
        if isinstance(node, Node):
            return _open_node(node, []).rebuild(children)
        return node._make(children) if hasattr(node, "_fields") else type(node)(children)

    def _tensor(self, node: Any, entry: Mapping[str, Any]) -> Any:
        if "same" in entry:
            return self._first(entry["same"])
        if "of" in entry:
            tensor = view_of(self._value_of(self._numbers[entry["of"]]), entry["view"])
        else:
            tensor = self._value_of(node)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"a tensor is expected, found {type(tensor).__qualname__}")
        if "stride" in entry:
            laid_out = torch.empty_strided(
                tuple(tensor.shape), entry["stride"], dtype=tensor.dtype, device=tensor.device
            )
            tensor = laid_out.copy_(tensor)
        if "parameter" in entry:
            return torch.nn.Parameter(tensor, requires_grad=entry["parameter"])
        return tensor.requires_grad_(entry.get("requires_grad", tensor.requires_grad))

    def _first(self, place: str) -> Any:
        """The tensor at another key path, even if that path is not loaded."""
        if place not in self._made:
            self._made[place] = self._tensor(self._numbers[place], self._entries.get(place, {}))
        return self._made[place]


def view_of(base: Any, view: Mapping[str, Any]) -> Any:
    """Returns a tensor in the memory of another tensor. Refuses a view outside this memory."""
    dtype = getattr(torch, view["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{view['dtype']!r} is not a dtype")
    shape, stride = tuple(view["shape"]), tuple(view["stride"])
    empty = torch.empty(0, dtype=dtype, device=base.device)
    offset, rest = divmod(int(view["offset"]), empty.element_size())
    end = offset + sum((length - 1) * step for length, step in zip(shape, stride, strict=True)) + 1
    storage = base.untyped_storage()
    first_bytes = base.storage_offset() * base.element_size()
    if rest or offset < 0 or min(stride, default=0) < 0:
        raise ValueError(f"a view at byte {view['offset']} with strides {list(stride)}")
    if 0 in shape:
        return torch.empty(shape, dtype=dtype, device=base.device)
    if first_bytes % empty.element_size() or first_bytes + end * empty.element_size() > storage.nbytes():
        raise ValueError(f"a view of {end} elements is outside the {storage.nbytes()} bytes of its base")
    made = empty.set_(storage, first_bytes // empty.element_size() + offset, shape, stride)
    made = torch.conj(made) if view.get("conj") else made
    return torch._neg_view(made) if view.get("neg") else made


def _named(home: type[Any]) -> Callable[[Any, Mapping[str, Any]], Any]:
    def make(value: Any, _entry: Mapping[str, Any]) -> Any:
        found = getattr(torch, str(value).removeprefix("torch."))
        if not isinstance(found, home):
            raise TypeError(f"{value!r} is not a {home.__qualname__}")
        return found

    return make


def _numbers(value: Any, entry: Mapping[str, Any]) -> Any:
    return {"list": list, "tuple": tuple}[entry["class"]](np.asarray(value).tolist())


def _dict(value: Any, entry: Mapping[str, Any]) -> Any:
    if "class" in entry:
        value = DICTS[entry["class"]](value)
    if "factory" in entry and entry["factory"] is not None:
        value.default_factory = FACTORIES[entry["factory"]]
    for name, told in entry.get("attributes", {}).items():
        if not name.isidentifier() or hasattr(type(value), name):
            raise ValueError(f"the attribute {name!r}")
        attribute = collections.OrderedDict(told["value"]) if told["ordered"] else told["value"]
        setattr(value, name, attribute)
    return value


DICTS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": lambda pairs: collections.defaultdict(None, pairs),
    "Counter": lambda pairs: collections.Counter(dict(pairs)),
}
"""Functions that build a dict from pairs, or from another dict."""


def _pairs(value: Sequence[Sequence[Any]], entry: Mapping[str, Any]) -> Any:
    return _dict([(key, child) for key, child in value], {"class": entry["class"], **entry})


def _copy(value: Any) -> Any:
    try:
        return np.array(value)
    except (MemoryError, ValueError) as error:
        raise failure(
            LimitError, f"a NumPy array cannot be copied: {error}", help="read the others with `only`"
        ) from error


_KINDS: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    # Loaded arrays are read-only views, but arrays of torch.load are writable.
    "numpy": lambda value, _: _copy(value),
    "int": lambda value, _: int(value, 0),
    "numbers": _numbers,
    "size": lambda value, _: torch.Size(value),
    "set": lambda value, _: set(value),
    "frozenset": lambda value, _: frozenset(value),
    "bytearray": lambda value, _: bytearray(value),
    "dtype": _named(torch.dtype),
    "layout": _named(torch.layout),
    "memory_format": _named(torch.memory_format),
    "device": lambda value, _: torch.device(value),
    "dict": _dict,
    "pairs": _pairs,
}

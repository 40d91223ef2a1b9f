"""Encodes a training script's objects as a pytree of the engine, and a record of the facts that the
pytree cannot hold.

    {"model": OrderedDict(w=tensor, tied=tensor), "optimizer": {"state": {0: {...}}, ...}, "rng": (3, (625 ints), None)}
      tree    the same containers; arrays, numbers, text. Sets, odd keys, long lists of numbers in the nearest form
      record  by key path: which arrays are NumPy's, parameters, ties, strides, devices, what was a set ...

The record is JSON. `regrow.load` ignores the record, and returns the tree with the same keys and
arrays. Nothing is pickled: a value of an unknown class is an error with its key path.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import json
import os
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .._core._duck import has, own_attribute
from .._core._enums import is_plain_member, plain
from .._errors import InvalidArgumentError, LeafTypeError, LimitError, failure
from .._torch import _tensors
from .._tree._flatten import INT64_MAX, INT64_MIN
from ._library import torch
from ._pointers import Key, Keys, pointer, shown
from ._ties import Seen, ties

DEPTH_MAX = 100
NUMBERS_LEN_MIN = 32
"""Shorter lists of numbers stay lists."""

FACTORIES: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple)
}
"""The allowed factories of a defaultdict."""


class Encoded(NamedTuple):
    """An object for the engine."""

    tree: Any
    record: dict[str, dict[str, Any]]
    """The entries of the record, by the pointer of the key path."""


def encode(obj: Any, keys: Keys = ()) -> Encoded:
    """Converts an object at a key path into the form for the engine.

    Raises:
        LeafTypeError: for a value that cannot be written without pickle, with its key path.
    """
    walk = Walk()
    tree = walk.encoded(obj, keys)
    for at, entry in ties(walk.tensors).items():
        walk.tie(at, entry)
    return Encoded(tree, walk.record)


class Walk:
    """A walk through an object. It numbers the tensors in the order in which it visits them."""

    def __init__(self) -> None:
        self.tensors: list[Seen] = []
        self.record: dict[str, dict[str, Any]] = {}
        self._trail: set[int] = set()

    def encoded(self, value: Any, keys: Keys) -> Any:
        """Returns the node that represents a value."""
        cls = type(value)
        if cls in _PLAIN:
            return value
        if cls is int:
            return value if INT64_MIN <= value <= INT64_MAX else self._as(hex(value), keys, {"is": "int"})
        if _tensors.is_tensor(value):
            return self._tensor(value, keys)
        if cls is np.ndarray or cls is np.memmap:
            return self._as(value, keys, {"is": "numpy"})
        if isinstance(value, np.generic):
            return value
        if is_plain_member(value):
            return self.encoded(plain(value), keys)
        encode_own = _OWN.get(cls)
        if encode_own is not None:
            kind, text = encode_own
            return self._as(text(value), keys, {"is": kind})
        if cls in _CONTAINERS or (isinstance(value, tuple) and hasattr(cls, "_fields")):
            return self._container(value, keys)
        return refuse(value, keys)

    def _as(self, value: Any, keys: Keys, entry: dict[str, Any]) -> Any:
        self.record[pointer(keys)] = entry
        return value

    def _tensor(self, tensor: Any, keys: Keys) -> Any:
        self.tensors.append(Seen(keys, tensor))
        entry = _tensor_entry(tensor, keys)
        if entry:
            self.record[pointer(keys)] = entry
        return tensor

    def tie(self, at: int, entry: dict[str, Any]) -> None:
        """Records the memory that the tensor with this number shares."""
        place = pointer(self.tensors[at].keys)
        if "same" not in entry:
            own = self.record.get(place, {})
            own.pop("stride", None)
            entry = own | entry
        self.record[place] = entry

    def _container(self, value: Any, keys: Keys) -> Any:
        if id(value) in self._trail:
            raise InvalidArgumentError(f"the object contains itself\n  leaf {shown(keys)}", leaf=shown(keys))
        if len(keys) > DEPTH_MAX:
            raise LimitError(f"the object is nested deeper than {DEPTH_MAX} levels\n  leaf {shown(keys[:20])}/...")
        self._trail.add(id(value))
        try:
            return self._dict(value, keys) if isinstance(value, dict) else self._sequence(value, keys)
        finally:
            self._trail.remove(id(value))

    def _sequence(self, value: Any, keys: Keys) -> Any:
        cls = type(value)
        if cls in (set, frozenset):
            # Sets have no order, so use one that is the same in all processes.
            ordered = sorted(value, key=lambda each: (type(each).__name__, repr(each)))
            return self._as(self._children(ordered, keys), keys, {"is": cls.__name__})
        if cls is torch.Size:
            return self._as(tuple(value), keys, {"is": "size"})
        numbers = _numbers(value) if cls in (list, tuple) else None
        if numbers is not None:
            return self._as(numbers, keys, {"is": "numbers", "class": cls.__name__})
        if cls is list:
            return self._children(value, keys)
        if cls is tuple:
            return tuple(self._children(value, keys))
        # The keys of a named tuple are its fields.
        children = (self.encoded(child, (*keys, name)) for name, child in zip(cls._fields, value, strict=True))
        return cls._make(children)

    def _children(self, values: Iterable[Any], keys: Keys) -> list[Any]:
        return [self.encoded(child, (*keys, at)) for at, child in enumerate(values)]

    def _dict(self, value: dict[Any, Any], keys: Keys) -> Any:
        cls = type(value)
        entry: dict[str, Any] = {}
        if isinstance(value, collections.defaultdict):
            entry["factory"] = _factory(value, keys)
        if cls is collections.Counter:
            # The engine stores a Counter as a dict.
            entry["class"], cls = cls.__name__, dict
        attributes = getattr(value, "__dict__", None)
        if attributes:
            entry["attributes"] = _attributes(attributes, keys)
        if all(_is_key(key) for key in value):
            if entry:
                self.record[pointer(keys)] = {"is": "dict", **entry}
            children = ((key, self.encoded(child, (*keys, key))) for key, child in value.items())
            return collections.defaultdict(None, children) if "factory" in entry else cls(children)
        for key in value:
            if _tensors.is_tensor(key):
                help = "an optimizer's state by parameter: save optimizer.state_dict(), which numbers them"
                _refuse("a dict has a tensor as its key", (*keys,), help)
        pairs = [
            [self.encoded(key, (*keys, at, 0)), self.encoded(child, (*keys, at, 1))]
            for at, (key, child) in enumerate(value.items())
        ]
        return self._as(pairs, keys, {"is": "pairs", "class": cls.__name__, **entry})


_PLAIN = frozenset((type(None), bool, float, complex, str, bytes))
_CONTAINERS = frozenset(
    (
        dict,
        collections.OrderedDict,
        collections.defaultdict,
        collections.Counter,
        list,
        tuple,
        set,
        frozenset,
        torch.Size,
    )
)
_OWN: dict[type[Any], tuple[str, Callable[[Any], Any]]] = {
    torch.dtype: ("dtype", str),
    torch.device: ("device", str),
    torch.layout: ("layout", str),
    torch.memory_format: ("memory_format", str),
    bytearray: ("bytearray", bytes),
}
"""Text or bytes, with a word for the kind."""


def _is_key(key: Any) -> bool:
    return type(key) is str or (type(key) is int and INT64_MIN <= key <= INT64_MAX)


def _numbers(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns a long sequence of only integers, or only floats, as an array; `None` for others."""
    if len(value) < NUMBERS_LEN_MIN:
        return None
    classes = set(map(type, value))
    if classes == {float}:
        return np.array(value, np.float64)
    if classes == {int} and min(value) >= INT64_MIN and max(value) <= INT64_MAX:
        return np.array(value, np.int64)
    return None


def _tensor_entry(tensor: Any, keys: Keys) -> dict[str, Any]:
    """The facts of a tensor beside its elements."""
    entry: dict[str, Any] = {}
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    is_distributed = _tensors.is_dtensor(tensor)
    cls = type(tensor)
    if not is_distributed and cls is not torch.Tensor and cls is not torch.nn.Parameter:
        help = "save a plain tensor, as tensor.as_subclass(torch.Tensor), and what else it has beside it"
        _refuse(f"a tensor is of the class {_name(cls)}, which cannot be written without pickle", keys, help)
    if is_parameter:
        entry["parameter"] = bool(tensor.requires_grad)
    elif tensor.requires_grad:
        entry["requires_grad"] = True
    if not is_distributed and tensor.layout == torch.strided:
        if tensor.device.type != "cpu":
            entry["device"] = str(tensor.device)
        if not tensor.is_contiguous() and _is_dense(tensor):
            entry["stride"] = list(tensor.stride())
    return entry


def _is_dense(tensor: Any) -> bool:
    """Whether the elements of a tensor fill a contiguous range of memory, in any order of axes."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1:
            if stride != expected:
                return False
            expected *= length
    return True


def _factory(value: Any, keys: Keys) -> str | None:
    factory = value.default_factory
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if FACTORIES.get(name) is factory:
        return str(name)
    return _refuse(f"a defaultdict makes {factory!r}, which regrow cannot store", keys, "save dict(...) of it")


def _attributes(attributes: dict[str, Any], keys: Keys) -> dict[str, Any]:
    """The attributes of an OrderedDict. The state of a module has one: ``_metadata``, with the
    versions of its modules.
    """
    told = {}
    for name, value in attributes.items():
        try:
            text = json.dumps(value)
            is_same = json.loads(text) == value
        except (TypeError, ValueError, RecursionError):
            is_same = False
        if not is_same:
            help = f"delete the attribute, or save OrderedDict(...) of it without {name}"
            _refuse(f"a dict has the attribute {name}, which is not JSON", keys, help)
        told[name] = {"value": value, "ordered": isinstance(value, collections.OrderedDict)}
    return told


def _name(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_HELPS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (lambda value: isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)), "leave it out"),
    (lambda value: callable(own_attribute(value, "__wrapped__")), "leave it out"),
    (lambda value: has(value, "state_dict"), "save its state_dict()"),
    (lambda value: isinstance(value, torch.Generator), "save generator.get_state()"),
    (lambda value: isinstance(value, argparse.Namespace), "save vars(...) of it"),
    (lambda value: dataclasses.is_dataclass(value), "save dataclasses.asdict(...) of it"),
    (lambda value: isinstance(value, os.PathLike), "save str(...) of it"),
    (lambda value: isinstance(value, enum.Enum), "save its value"),
    (lambda value: type(value).__module__.partition(".")[0] == "omegaconf", "save OmegaConf.to_container(...) of it"),
    (lambda value: isinstance(value, (range, collections.deque)), "save list(...) of it"),
    (lambda value: isinstance(value, dict), "save dict(...) of it"),
    (lambda value: isinstance(value, (list, tuple)), "save list(...) of it"),
)


def refuse(value: Any, keys: Keys) -> NoReturn:
    """Raises an error that names the value that cannot be saved, and an alternative."""
    general = "keep to tensors, NumPy arrays, numbers, text, None, and dicts, lists, tuples and sets of them"
    help = next((help for fits, help in _HELPS if fits(value)), general)
    what = "a class" if isinstance(value, type) else "a value"
    name = _name(value if isinstance(value, type) else type(value))
    _refuse(f"{what} of type {name} cannot be written without pickle", keys, help)


def _refuse(what: str, keys: tuple[Key, ...], help: str) -> NoReturn:
    place = shown(keys)
    raise failure(LeafTypeError, what, leaf=place, help=help)

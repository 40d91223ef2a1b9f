"""State dicts: any object as nested maps of leaves with text keys, and back onto a target.

    dict, FrozenDict      {str(key): child}            list, tuple      {"0": child, "1": child, ...}
    named tuple           {field: child}               Partial          {"args": ..., "keywords": ...}
    flax.struct class     {field: child}, without the static fields     anything else: a leaf, as it is

The registry is looked up with the exact class, not with its bases. If the program has imported
Flax, the registry is that of Flax: a type registered with one of the two is known to both. For the
kinds above the handlers below replace those of Flax, which would recurse into Flax, not into this
module.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import _extras
from ._upstream import Handlers, flax_error_context, flax_registry, frozen_dict_class, is_partial

ToStateDict = Callable[[Any], Any]
FromStateDict = Callable[[Any, Any], Any]

_UPSTREAM_MODULES = ("flax.serialization", "flax.core.frozen_dict", "flax.struct")

_registered: dict[type[Any], Handlers] = {}
"""Classes that were registered here while Flax was missing."""


def register(cls: type[Any], to: ToStateDict, back: FromStateDict, override: bool) -> None:
    """Registers a class, also with Flax."""
    if not override and _is_registered(cls):
        raise ValueError(f'a serialization handler for "{cls.__name__}" is already registered')
    shared = flax_registry()
    (_registered if shared is None else shared)[cls] = (to, back)


def is_serializable(cls: type[Any]) -> bool:
    """Whether there is a handler for exactly this class."""
    return _handlers_of_class(cls) is not None


def to_state_dict(target: Any) -> Any:
    """The state of `target`; `target` itself if it is a leaf."""
    handlers = _handlers_of(target)
    if handlers is None:
        return target
    state = handlers[0](target)
    if isinstance(state, dict) and not all(isinstance(key, str) for key in state):
        raise AssertionError("A state dict must only have string keys.")
    return state


def from_state_dict(target: Any, state: Any, name: str) -> Any:
    """`target` with another state. If `target` is a leaf, the state itself."""
    handlers = _handlers_of(target)
    if handlers is None:
        return state
    names = _path_names()
    names.append(name)
    try:
        return handlers[1](target, state)
    finally:
        names.pop()


def current_path() -> str:
    """The names from the root to the value that is being restored, in this thread."""
    return "/".join(map(str, _path_names()))


class _ErrorContext(threading.local):
    """For each thread, the keys on the path to the value that is being restored."""

    def __init__(self) -> None:
        self.path: list[str] = []


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.extended = False


_per_thread = _PerThread()
_own_error_context = _ErrorContext()


def error_context() -> Any:
    """Flax' context, if the program has imported Flax. Errors then name the whole path, even if
    handlers of Flax and of regrow call each other.
    """
    return flax_error_context() or _own_error_context


def _path_names() -> list[str]:
    names: list[str] = error_context().path
    return names


def registry() -> dict[Any, Handlers]:
    """Flax' registry, if the program has imported Flax; otherwise regrow's, whose types are
    registered with Flax after its import.
    """
    shared = flax_registry()
    if shared is None:
        return _registered
    if _registered:
        _hand_over(shared)
    return shared


@contextmanager
def extended(on: bool) -> Iterator[None]:
    """A context in which values that only regrow can restore are serialisable. Nested calls cannot
    turn it off.
    """
    before = _per_thread.extended
    _per_thread.extended = on or before
    try:
        yield
    finally:
        _per_thread.extended = before


# ---- which handlers -------------------------------------------------------------------


def _handlers_of(target: Any) -> Handlers | None:
    if isinstance(target, tuple) and hasattr(target, "_fields"):
        return _NAMED_TUPLE
    found = _handlers_of_class(type(target))
    if found is None and _per_thread.extended:
        return _extras.key_handlers(target)
    return found


def _handlers_of_class(cls: type[Any]) -> Handlers | None:
    shared = flax_registry()
    if shared is not None and _registered:
        _hand_over(shared)
    registered = (_registered if shared is None else shared).get(cls)
    if registered is None:
        if cls not in _unregistered:
            _unregistered[cls] = _own_handlers(cls)
        return _unregistered[cls] or (_EXTENDED.get(cls) if _per_thread.extended else None)
    if getattr(registered[0], "__module__", None) not in _UPSTREAM_MODULES:
        return registered
    return _BUILTIN.get(cls) or _instead_of_upstream(cls) or registered


_unregistered: dict[type[Any], Handlers | None] = {}
"""Classes without a handler, mostly of leaves. There are few such classes, and each occurs often.
"""


def _own_handlers(cls: type[Any]) -> Handlers | None:
    return _BUILTIN.get(cls) or (_PARTIAL if is_partial(cls) else None) or _extras.handlers(cls)


def _instead_of_upstream(cls: type[Any]) -> Handlers | None:
    if is_partial(cls):
        return _PARTIAL
    if cls is frozen_dict_class():
        return _FROZEN_DICT
    return _STRUCT if "_flax_dataclass" in cls.__dict__ and dataclasses.is_dataclass(cls) else None


def _is_registered(cls: type[Any]) -> bool:
    return cls in _BUILTIN or cls in _registered or cls in (flax_registry() or ()) or is_partial(cls)


def _hand_over(shared: dict[Any, Handlers]) -> None:
    """Registers types with Flax if the program imported Flax after it had registered them here."""
    while _registered:
        cls, handlers = _registered.popitem()
        if cls not in shared or cls in _BUILTIN:
            shared[cls] = handlers


# ---- the handlers ---------------------------------------------------------------------


def dict_to(node: Any) -> dict[str, Any]:
    names = {str(key) for key in node}
    if len(names) != len(node):
        raise ValueError(f"Dict keys do not have a unique string representation: {names} vs given: {node}")
    return {str(key): to_state_dict(child) for key, child in node.items()}


def _dict_items(node: Any, state: Any) -> Iterator[tuple[Any, Any]]:
    missing = {str(key) for key in node}.difference(state.keys())
    if missing:
        raise ValueError(
            "The target dict keys and state dict keys do not match, target dict contains keys"
            f" {missing} which are not present in state dict at path {current_path()}"
        )
    for key, child in node.items():
        name = str(key)
        yield key, from_state_dict(child, state[name], name)


def dict_back(node: Any, state: Any) -> Any:
    return dict(_dict_items(node, state))


def _frozen_dict_back(node: Any, state: Any) -> Any:
    return type(node)(dict(_dict_items(node, state)))


def _ordered_dict_back(node: Any, state: Any) -> Any:
    return collections.OrderedDict(_dict_items(node, state))


def _default_dict_back(node: Any, state: Any) -> Any:
    return collections.defaultdict(node.default_factory, _dict_items(node, state))


def sequence_to(node: Any) -> dict[str, Any]:
    return {str(at): to_state_dict(child) for at, child in enumerate(node)}


def list_back(node: Any, state: Any) -> list[Any]:
    if len(state) != len(node):
        raise ValueError(
            "The size of the list and the state dict do not match,"
            f" got {len(node)} and {len(state)} at path {current_path()}"
        )
    return [from_state_dict(child, state[str(at)], str(at)) for at, child in enumerate(node)]


def _tuple_back(node: Any, state: Any) -> tuple[Any, ...]:
    return tuple(list_back(node, state))


def named_tuple_to(node: Any) -> dict[str, Any]:
    return {field: to_state_dict(getattr(node, field)) for field in node._fields}


def named_tuple_back(node: Any, state: Any) -> Any:
    state = unfold_legacy_named_tuple(state)
    stored, fields = set(state.keys()), set(node._fields)
    if stored != fields:
        raise ValueError(
            "The field names of the state dict and the named tuple do not match,"
            f" got {stored} and {fields} at path {current_path()}"
        )
    children = {field: from_state_dict(getattr(node, field), child, field) for field, child in state.items()}
    return type(node)(**children)


def unfold_legacy_named_tuple(state: Any) -> Any:
    """The fields of a named tuple, as stored before mid-2021: maps of names and of values."""
    if set(state.keys()) != {"name", "fields", "values"}:
        return state
    fields, values = state["fields"], state["values"]
    return {fields[str(at)]: values[str(at)] for at in range(len(fields))}


def _partial_to(node: Any) -> dict[str, Any]:
    return {"args": to_state_dict(node.args), "keywords": to_state_dict(node.keywords)}


def _partial_back(node: Any, state: Any) -> Any:
    args = from_state_dict(node.args, state["args"], ".")
    keywords = from_state_dict(node.keywords, state["keywords"], ".")
    return type(node)(node.func, *args, **keywords)


def _struct_fields(node: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(node) if field.metadata.get("pytree_node", True)]


def _struct_to(node: Any) -> dict[str, Any]:
    return {name: to_state_dict(getattr(node, name)) for name in _struct_fields(node)}


def _struct_back(node: Any, state: Any) -> Any:
    unknown = state.copy()
    children = {}
    for name in _struct_fields(node):
        if name not in unknown:
            raise ValueError(
                f"Missing field {name} in state dict while restoring an instance of {type(node).__name__},"
                f" at path {current_path()}"
            )
        children[name] = from_state_dict(getattr(node, name), unknown.pop(name), name)
    if unknown:
        raise ValueError(
            f'Unknown field(s) "{",".join(unknown)}" in state dict while'
            f" restoring an instance of {type(node).__name__} at path {current_path()}"
        )
    return node.replace(**children)


_BUILTIN: dict[type[Any], Handlers] = {
    dict: (dict_to, dict_back),
    list: (sequence_to, list_back),
    tuple: (sequence_to, _tuple_back),
}
_EXTENDED: dict[type[Any], Handlers] = {
    collections.OrderedDict: (dict_to, _ordered_dict_back),
    collections.defaultdict: (dict_to, _default_dict_back),
}
_NAMED_TUPLE: Handlers = (named_tuple_to, named_tuple_back)
_PARTIAL: Handlers = (_partial_to, _partial_back)
_FROZEN_DICT: Handlers = (dict_to, _frozen_dict_back)
_STRUCT: Handlers = (_struct_to, _struct_back)

"""Flattens a user's pytree, and builds the pytree of a checkpoint.

The native half walks. It knows exact dicts, lists, tuples and `None`. For a container of any other
class it asks this module, which opens one level: an `Opened`. The native half keeps the structure
as a `Structure`: nodes in preorder, each with its kind (a position in `NODE_KINDS`), the number of
its children, and the key under which its parent has it (its kind is a position in `KEY_KINDS`).

Neither direction recurses: depth costs memory, not stack. Dicts keep the user's insertion order
(JAX would sort them). JAX opens the classes that are registered with JAX, one level at a time.
Other dataclasses are opened by their fields.
"""

from __future__ import annotations

import collections
import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .. import _native
from .._errors import InvalidArgumentError, LeafTypeError, LimitError, failure
from ._handlers import STATE_KEY, TYPE_KEY, LeafHandler, LeafRegistry, check_type_name
from ._nodes import Node, PrngKey, UnknownLeaf, named_tuple_class, type_name_of

LEAF, NONE, DICT, ORDERED_DICT, DEFAULT_DICT, LIST, TUPLE, NAMED_TUPLE, DATACLASS, CUSTOM = (
    _native.NODE_KINDS.index(name)
    for name in (
        "leaf",
        "none",
        "dict",
        "ordered_dict",
        "default_dict",
        "list",
        "tuple",
        "named_tuple",
        "dataclass",
        "custom",
    )
)
KEY_DICT, KEY_DICT_INT, KEY_INDEX, KEY_ATTR = (
    _native.KEY_KINDS.index(name) for name in ("dict", "dict_int", "index", "attr")
)

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Structure = _native.Structure
Flat = _native.Flat
Rebuild = Callable[[list[Any]], Any]


class Opened(NamedTuple):
    """One container, opened by one level."""

    node_kind: int
    key_kinds: bytes
    keys: Sequence[str | int]
    children: Sequence[Any]
    type_name: str | None
    rebuild: Rebuild
    """Makes the same container from other children."""


def flatten(tree: Any, handlers: LeafRegistry | None = None, *, layout: str | None = None) -> Flat:
    """Flattens `tree`. The containers are in the order in which they were built.

    A leaf with a handler in `handlers` becomes a dict with the name of its type and its state. Some
    values of `layout` need the children in another order than JAX' order.
    """
    return _native.flatten(tree, _FLAX_HOOKS if layout == "flax" else _HOOKS, handlers)


def unflatten(structure: Structure, leaves: Sequence[Any], handlers: LeafRegistry | None = None) -> Any:
    """Builds the pytree of a checkpoint: exact containers, a `Node` for other classes, named tuples
    of the same name. Handlers restore leaves of their own types.
    """
    leaves = leaves if type(leaves) is list else list(leaves)
    if handlers is None:
        return _native.unflatten(structure, leaves, _build_other, None)

    def restore(made: dict[str, Any], node: int) -> Any:
        type_name = made[TYPE_KEY]
        is_known = isinstance(type_name, str) and handlers.has(type_name)
        return handlers.restore(type_name, made[STATE_KEY], "" if is_known else _place_of(structure, node))

    return _native.unflatten(structure, leaves, _build_other, ((TYPE_KEY, STATE_KEY), restore))


def _build_other(kind: int, keys: list[str | int], key_kinds: bytes, type_name: str | None, children: list[Any]) -> Any:
    """Makes one container that is not a dict, list, tuple or `None`."""
    if kind == ORDERED_DICT:
        return collections.OrderedDict(zip(keys, children, strict=True))
    if kind == DEFAULT_DICT:
        return collections.defaultdict(None, zip(keys, children, strict=True))
    if kind == NAMED_TUPLE:
        cls = named_tuple_class(type_name or "", tuple(map(str, keys)))
        if cls is not None:
            return cls._make(children)
    return Node(type_name or "", dict(zip(keys, children, strict=True)), _native.NODE_KINDS[kind], key_kinds)


def path_text(structure: Structure, leaf: int) -> str:
    """The printed key path of a leaf, for messages."""
    return _native.paths(structure)[leaf]


def _place_of(structure: Structure, node: int) -> str:
    """The printed key path of a node's container, from the path of the first leaf at or below the
    node.
    """
    before = structure.node_kinds[:node].count(LEAF)
    paths = _native.paths(structure)
    return paths[before].rpartition("/")[0] if before < len(paths) else "."


# ---- taking one container apart -------------------------------------------------------


def _open_dict(node: dict[Any, Any], trail: list[str | int]) -> Opened:
    keys = list(node)
    return Opened(DICT, _dict_key_kinds(keys, trail), keys, list(node.values()), None, _rebuild_dict(keys))


def _rebuild_dict(keys: list[Any]) -> Rebuild:
    return lambda children: dict(zip(keys, children, strict=True))


def _open_ordered_dict(node: collections.OrderedDict[Any, Any], trail: list[str | int]) -> Opened:
    keys = list(node)
    rebuild: Rebuild = lambda children: collections.OrderedDict(zip(keys, children, strict=True))  # noqa: E731
    return Opened(ORDERED_DICT, _dict_key_kinds(keys, trail), keys, list(node.values()), None, rebuild)


def _open_default_dict(node: collections.defaultdict[Any, Any], trail: list[str | int]) -> Opened:
    keys = list(node)
    factory = node.default_factory

    def rebuild(children: list[Any]) -> Any:
        return collections.defaultdict(factory, zip(keys, children, strict=True))

    return Opened(DEFAULT_DICT, _dict_key_kinds(keys, trail), keys, list(node.values()), None, rebuild)


def _dict_key_kinds(keys: list[Any], trail: list[str | int]) -> bytes:
    kinds = bytearray()
    for key in keys:
        if type(key) is str:
            kinds.append(KEY_DICT)
        elif type(key) is int and INT64_MIN <= key <= INT64_MAX:
            kinds.append(KEY_DICT_INT)
        else:
            _refuse_key(key, trail)
    return bytes(kinds)


def _opener_of_handled(handler: LeafHandler) -> Callable[[Any, list[str | int]], Opened]:
    def rebuild(children: list[Any]) -> Any:
        type_name, state = children
        check_type_name(type_name, handler)
        return handler.restore(state)

    def opener(leaf: Any, _trail: list[str | int]) -> Opened:
        children = [handler.type_name, handler.save(leaf)]
        return Opened(DICT, bytes([KEY_DICT] * 2), [TYPE_KEY, STATE_KEY], children, None, rebuild)

    return opener


def _open_named_tuple(node: Any, _trail: list[str | int]) -> Opened:
    cls = type(node)
    key_kinds = bytes([KEY_ATTR]) * len(cls._fields)
    return Opened(NAMED_TUPLE, key_kinds, cls._fields, tuple(node), _type_name(cls), cls._make)


def _open_node(node: Node, _trail: list[str | int]) -> Opened:
    type_name, keys = type_name_of(node), list(node.keys())
    kind = str(object.__getattribute__(node, "_kind"))
    key_kinds: bytes = object.__getattribute__(node, "_key_kinds") or bytes([KEY_ATTR]) * len(keys)

    def rebuild(children: list[Any]) -> Node:
        return Node(type_name, dict(zip(keys, children, strict=True)), kind, key_kinds)

    return Opened(_native.NODE_KINDS.index(kind), key_kinds, keys, list(node.values()), type_name, rebuild)


def _open_dataclass(node: Any, _trail: list[str | int]) -> Opened:
    names = [field.name for field in sys.modules["dataclasses"].fields(node)]

    def rebuild(children: list[Any]) -> Any:
        # Copy the object without calling `__init__`: a field may have init=False, or
        # `__post_init__` may refuse the values.
        made = copy.copy(node)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(made, name, child)
        return made

    children = [getattr(node, name) for name in names]
    return Opened(DATACLASS, bytes([KEY_ATTR]) * len(names), names, children, _type_name(type(node)), rebuild)


def _open_registered(node: Any, trail: list[str | int]) -> Opened:
    """Opens an object of a class that is registered with JAX. JAX flattens the object by one
    level.
    """
    tree_util = sys.modules["jax"].tree_util
    at_root = True

    def is_child(_value: Any) -> bool:
        nonlocal at_root
        at_root, was_root = False, at_root
        return not was_root

    entries, definition = tree_util.tree_flatten_with_path(node, is_leaf=is_child)
    kinds, keys = _jax_keys([path[0] for path, _ in entries], trail)
    return Opened(
        DATACLASS if _is_dataclass(type(node)) else CUSTOM,
        bytes(kinds),
        keys,
        [child for _, child in entries],
        _type_name(type(node)),
        definition.unflatten,
    )


def _jax_keys(entries: list[Any], trail: list[str | int]) -> tuple[list[int], list[str | int]]:
    tree_util = sys.modules["jax"].tree_util
    kinds: list[int] = []
    keys: list[str | int] = []
    for entry in entries:
        if isinstance(entry, tree_util.GetAttrKey):
            kind, key = KEY_ATTR, entry.name
        elif isinstance(entry, tree_util.SequenceKey):
            kind, key = KEY_INDEX, entry.idx
        elif isinstance(entry, tree_util.FlattenedIndexKey):
            kind, key = KEY_INDEX, entry.key
        elif isinstance(entry, tree_util.DictKey):
            key = entry.key
            if type(key) is not str and not (type(key) is int and INT64_MIN <= key <= INT64_MAX):
                _refuse_key(key, trail)
            kind = KEY_DICT if type(key) is str else KEY_DICT_INT
        else:
            kind, key = KEY_ATTR, str(entry).strip(".[]'\"")
        kinds.append(kind)
        keys.append(key)
    if len(set(zip(kinds, keys, strict=True))) != len(keys):
        # The class gives two children the same name; their positions still tell them apart.
        return [KEY_INDEX] * len(keys), list(range(len(keys)))
    return kinds, keys


def _opener_for(node: Any) -> Callable[[Any, list[str | int]], Opened] | None:
    """The function that flattens a class that is not in the table; `None` for a leaf."""
    cls = type(node)
    if issubclass(cls, np.generic):
        _OPENERS[cls] = None
        return None
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _open_named_tuple
    jax = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "Array"):
        if isinstance(node, jax.Array):
            _OPENERS[cls] = None
            return None
        if jax.tree_util.default_registry.flatten_one_level(node) is not None:
            return _open_registered
    return _open_dataclass if _is_dataclass(cls) else None


def _is_dataclass(cls: type[Any]) -> bool:
    """Whether a class is a dataclass: then the program has imported their module."""
    return hasattr(cls, "__dataclass_fields__")


def _flax_opener_for(node: Any) -> Callable[[Any, list[str | int]], Opened] | None:
    """As `_opener_for`, but a `FrozenDict` keeps the order of its entries. Flax writes it in this
    order, and JAX sorts it.
    """
    cls = getattr(sys.modules.get("flax.core.frozen_dict"), "FrozenDict", None)
    return _open_frozen_dict if cls is not None and type(node) is cls else _opener_for(node)


def _open_frozen_dict(node: Any, trail: list[str | int]) -> Opened:
    keys, cls = list(node), type(node)

    def rebuild(children: list[Any]) -> Any:
        return cls(dict(zip(keys, children, strict=True)))

    return Opened(CUSTOM, _dict_key_kinds(keys, trail), keys, list(node.values()), _type_name(cls), rebuild)


_OPENERS: dict[type[Any], Callable[[Any, list[str | int]], Opened] | None] = {
    dict: _open_dict,
    collections.OrderedDict: _open_ordered_dict,
    collections.defaultdict: _open_default_dict,
    Node: _open_node,
    **dict.fromkeys((np.ndarray, bool, int, float, complex, str, bytes, PrngKey, UnknownLeaf), None),
}
"""The function that opens a class; `None` for leaves. A dict is in this table, although the native
half knows dicts, because its keys may be refused.
"""


def _type_name(cls: type[Any]) -> str:
    """The qualified name of a class. For a stand-in of a saved class, that of the saved class."""
    return getattr(cls, "__regrow_type__", None) or f"{cls.__module__}.{cls.__qualname__}"


def _refuse_key(key: object, trail: list[str | int]) -> NoReturn:
    place = "/".join(map(str, trail[1:])) or "."
    what = "an integer beyond 64 bits" if type(key) is int else f"of type {type(key).__qualname__}"
    help = "use str or int keys"
    raise failure(
        LeafTypeError, f"a dict has the key {key!r}, {what}, which regrow cannot store", leaf=place, help=help
    )


def _refuse_cycle(trail: list[str | int]) -> NoReturn:
    place = "/".join(map(str, trail[1:][:20])) or "."
    raise InvalidArgumentError(f"the tree contains itself\n  leaf {place}", leaf=place)


def _refuse_depth() -> NoReturn:
    raise LimitError(f"the tree is nested deeper than {_native.TREE_DEPTH_MAX} levels")


_HOOKS = (_OPENERS, _opener_for, _opener_of_handled, _refuse_cycle, _refuse_depth)
_FLAX_HOOKS = (_OPENERS, _flax_opener_for, _opener_of_handled, _refuse_cycle, _refuse_depth)

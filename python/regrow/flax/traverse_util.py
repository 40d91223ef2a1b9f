"""Nested dicts as flat ones, keyed by path: `flax.traverse_util` under its own names.

>>> flatten_dict({"dense": {"kernel": 1, "bias": 2}}, sep="/")
{'dense/kernel': 1, 'dense/bias': 2}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ._traversals import (
    Traversal,
    TraverseAttr,
    TraverseCompose,
    TraverseEach,
    TraverseFilter,
    TraverseId,
    TraverseItem,
    TraverseMerge,
    TraverseTree,
    _is_namedtuple,  # noqa: F401
    t_identity,
)
from ._upstream import frozen_dict_class, loaded, original

__all__ = [
    "ModelParamTraversal",
    "Traversal",
    "TraverseAttr",
    "TraverseCompose",
    "TraverseEach",
    "TraverseFilter",
    "TraverseId",
    "TraverseItem",
    "TraverseMerge",
    "TraverseTree",
    "empty_node",
    "flatten_dict",
    "path_aware_map",
    "t_identity",
    "unflatten_dict",
]

empty_node: Any
"""The value that `keep_empty_nodes` puts in place of an empty dict. `__getattr__` makes it."""


class _EmptyNode:
    """Represents an empty dict in a flat dict."""

    def __repr__(self) -> str:
        return "_EmptyNode()"


_OWN_EMPTY_NODE = _EmptyNode()
_jax_knows_it = False


def flatten_dict(
    xs: Any, keep_empty_nodes: bool = False, is_leaf: Callable[[Any, Any], bool] | None = None, sep: str | None = None
) -> dict[Any, Any]:
    """Flattens a nested dict (or `FrozenDict`) into a dict keyed by path, in the order of the
    entries.

    Args:
        xs: The nested dict.
        keep_empty_nodes: Keep dicts without entries, as `empty_node`; otherwise they vanish.
        is_leaf: For a path and the dict at this path, whether the dict stays whole.
        sep: Join the keys of a path with this; without it paths are tuples.

    Raises:
        AssertionError: if `xs` is no dict.
    """
    if not _is_dict(xs):
        raise AssertionError(f"expected (frozen)dict; got {type(xs)}")
    return _flatten(xs, (), keep_empty_nodes, is_leaf, sep)


def _flatten(
    xs: Any,
    prefix: tuple[Any, ...],
    keep_empty_nodes: bool,
    is_leaf: Callable[[Any, Any], bool] | None,
    sep: str | None,
) -> dict[Any, Any]:
    empty = _empty_node() if keep_empty_nodes else None
    flat: dict[Any, Any] = {}

    def walk(value: Any, path: tuple[Any, ...]) -> None:
        if not _is_dict(value) or (is_leaf is not None and is_leaf(path, value)):
            flat[path if sep is None else sep.join(path)] = value
            return
        is_empty = True
        for key, child in value.items():
            is_empty = False
            walk(child, (*path, key))
        if is_empty and keep_empty_nodes and path:
            flat[path if sep is None else sep.join(path)] = empty

    walk(xs, prefix)
    return flat


def unflatten_dict(xs: dict[Any, Any], sep: str | None = None) -> dict[Any, Any]:
    """Makes a nested dict from a dict keyed by path: the inverse of `flatten_dict`.

    Args:
        xs: The flat dict.
        sep: The text between the keys of a path, if paths are text.

    Raises:
        AssertionError: if `xs` is no dict.
    """
    if not isinstance(xs, dict):
        raise AssertionError(f"input is not a dict; it is a {type(xs)}")
    nested: dict[Any, Any] = {}
    for path, value in xs.items():
        keys = path if sep is None else path.split(sep)
        at = nested
        for key in keys[:-1]:
            if key not in at:
                at[key] = {}
            at = at[key]
        at[keys[-1]] = {} if _is_empty_node(value) else value
    return nested


def path_aware_map(f: Callable[[tuple[Any, ...], Any], Any], nested_dict: Any) -> dict[Any, Any]:
    """Maps ``f(path, leaf)`` over a nested dict. Empty dicts stay unchanged.

    Args:
        f: Gets the path, a tuple of keys, and the leaf.
        nested_dict: The nested dict.
    """
    flat = flatten_dict(nested_dict, keep_empty_nodes=True)
    return unflatten_dict({path: leaf if _is_empty_node(leaf) else f(path, leaf) for path, leaf in flat.items()})


class ModelParamTraversal(Traversal):
    """Selects the parameters for which a filter of the path (such as ``/dense/kernel``) and the
    value returns true.
    """

    def __init__(self, filter_fn: Callable[[str, Any], bool]) -> None:
        self._filter_fn = filter_fn

    def iterate(self, inputs: Any) -> Iterator[Any]:
        """The selected parameters, by path."""
        for path, value in _sorted_items(flatten_dict(_get_params_dict(inputs))):
            if self._filter_fn("/" + "/".join(path), value):
                yield value

    def update(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """The same parameters, with `fn` applied to the selected ones; a `FrozenDict` if `inputs`
        is a `FrozenDict`.
        """
        changed = {}
        for path, value in _sorted_items(flatten_dict(_get_params_dict(inputs), keep_empty_nodes=True)):
            is_selected = not _is_empty_node(value) and self._filter_fn("/" + "/".join(path), value)
            changed[path] = fn(value) if is_selected else value
        params = unflatten_dict(changed)
        return params if isinstance(inputs, dict) else frozen_dict_class()(params)


def _get_params_dict(inputs: Any) -> dict[Any, Any]:
    if not _is_dict(inputs):
        raise ValueError(f"Can only traverse a flax Model instance or a nested dict, not {type(inputs)}")
    return {key: _get_params_dict(value) if _is_dict(value) else value for key, value in inputs.items()}


def _sorted_items(x: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(x.items(), key=lambda item: item[0])


def __getattr__(name: str) -> Any:
    if name == "empty_node":
        return _empty_node()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _empty_node() -> Any:
    """The object for an empty dict: that of Flax if the program has imported Flax. So Flax and
    regrow can unflatten each other's flat dicts.
    """
    theirs = getattr(original("flax.traverse_util"), "empty_node", None)
    if theirs is not None:
        return theirs
    _register_with_jax()
    return _OWN_EMPTY_NODE


def _register_with_jax() -> None:
    """Registers the object as a container without leaves, like that of Flax. So `jax.tree.map` over
    a flat dict ignores it.
    """
    global _jax_knows_it
    register = getattr(loaded("jax.tree_util"), "register_pytree_node", None)
    if register is not None and not _jax_knows_it:
        _jax_knows_it = True
        register(_EmptyNode, lambda _node: ((), None), lambda _none, _children: _OWN_EMPTY_NODE)


def _is_empty_node(value: Any) -> bool:
    return value is _OWN_EMPTY_NODE or value is getattr(original("flax.traverse_util"), "empty_node", _OWN_EMPTY_NODE)


def _is_dict(value: Any) -> bool:
    return isinstance(value, (dict, frozen_dict_class()))

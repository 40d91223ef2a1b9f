"""Parts of a checkpoint, chosen by globs over the key paths of what is loaded.

    marked    the tree with ``...`` for leaves that are not selected: they are not read, and positions stay
    dropped   the objects, without dict entries that hold no selected leaf

A set, and a dict with keys of any kind, is selected as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _native
from .._core._duck import has
from .._errors import NotFoundError, failure
from .._tree._flatten import _open_node
from .._tree._nodes import Node
from ._decode import children_of, is_container
from ._pointers import Keys, pointer, shown

_WHOLE = frozenset(("set", "frozenset", "size", "pairs"))
"""Containers of the record that are selected as a whole."""

Entries = Mapping[str, Mapping[str, Any]]


def marked(tree: Any, entries: Entries, globs: Sequence[str], path_of: Callable[[Keys], Keys]) -> Any:
    """Returns the tree with ``...`` for each part that no glob matches. ``path_of`` returns the key
    path that a user sees.

    Raises:
        NotFoundError: for a glob that matches nothing.
    """
    ends = [keys for keys, _ in _ends(tree, ())]
    paths = [shown(path_of(keys)) for keys in ends]
    idle = _native.idle_patterns(globs, paths)
    if idle:
        named = ", ".join(f'"{glob}"' for glob in idle)
        help = f"key paths are such as {', '.join(paths[:5])}"
        raise failure(NotFoundError, f"only: no leaf matches {named}", help=help)
    wanted = {keys for keys, match in zip(ends, _native.match_paths(globs, paths), strict=True) if match >= 0}
    return _marked(tree, (), entries, wanted)


def _ends(node: Any, keys: Keys) -> list[tuple[Keys, Any]]:
    """Returns the nodes without children: leaves, `None`, empty containers."""
    if not is_container(node) or not node:
        return [(keys, node)]
    return [end for key, child in children_of(node) for end in _ends(child, (*keys, key))]


def _marked(node: Any, keys: Keys, entries: Entries, wanted: set[Keys]) -> Any:
    if not is_container(node) or not node:
        return node if keys in wanted else ...
    if entries.get(pointer(keys), {}).get("is") in _WHOLE:
        return node if any(end in wanted for end, _ in _ends(node, keys)) else ...
    children = {key: _marked(child, (*keys, key), entries, wanted) for key, child in children_of(node)}
    if all(child is ... for child in children.values()):
        return ...
    if isinstance(node, Node):
        return _open_node(node, []).rebuild(list(children.values()))
    if isinstance(node, dict):
        made = node.copy()
        made.update(children)
        return made
    return node._make(children.values()) if has(node, "_fields") else type(node)(children.values())


def dropped(obj: Any) -> Any:
    """Returns the object without its ``...`` entries. Lists and tuples keep them, because the
    positions must not change.
    """
    left = _dropped(obj)
    return {} if left is ... else left


def _dropped(obj: Any) -> Any:
    if isinstance(obj, dict) and obj:
        for key, child in list(obj.items()):
            left = _dropped(child)
            if left is ...:
                del obj[key]
            else:
                obj[key] = left
        return obj or ...
    if type(obj) in (list, tuple) or has(obj, "_fields"):
        children = [_dropped(child) for child in obj]
        if children and all(child is ... for child in children):
            return ...
        if type(obj) is list:
            obj[:] = children
            return obj
        return obj._make(children) if has(obj, "_fields") else tuple(children)
    return obj

"""Pytrees in JAX' order: dicts by sorted keys; `None` is a node without leaves.

If the program has imported JAX, JAX flattens the pytree. If it has not, no class can be registered
with JAX either, and only Python's containers are nodes: this module flattens them in the same way,
with keys that print as JAX' do.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

IsLeaf = Callable[[Any], bool] | None
Path = tuple[Any, ...]


class Flattened(NamedTuple):
    """A pytree taken apart."""

    paths: list[Path]
    leaves: list[Any]
    treedef: Any
    """Has `unflatten` and `flatten_up_to`, as JAX' own."""


def imported(name: str) -> Any:
    """The module, if the program has completely imported it; otherwise `None`."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def flatten_with_path(tree: Any, is_leaf: IsLeaf = None) -> Flattened:
    """Leaves in JAX' order, each with its path."""
    jax = imported("jax")
    if jax is not None:
        entries, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf)
        return Flattened([path for path, _ in entries], [leaf for _, leaf in entries], treedef)
    paths: list[Path] = []
    leaves: list[Any] = []
    return Flattened(paths, leaves, _take_apart(tree, is_leaf, (), paths, leaves))


def keystr(path: Path) -> str:
    """The path as one text: `['layers'][0].weight`."""
    jax = imported("jax")
    return str(jax.tree_util.keystr(path)) if jax is not None else "".join(map(str, path))


# ---- without JAX ----------------------------------------------------------------------


@dataclass(frozen=True)
class DictKey:
    """The key of a dict."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True)
class SequenceKey:
    """The position in a list or tuple."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx}]"


@dataclass(frozen=True)
class GetAttrKey:
    """The field of a named tuple."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


class _Node(NamedTuple):
    """One flattened container. A leaf is represented by `None` instead."""

    kind: type[Any]
    keys: Sequence[Any]
    children: Sequence[Any]
    rebuild: Callable[[Sequence[Any]], Any]


class _Treedef:
    """The structure of a pytree of Python's own containers."""

    def __init__(self, node: _Node | None, children: Sequence[_Treedef]) -> None:
        self._node = node
        self._children = children

    def unflatten(self, leaves: Any) -> Any:
        """The same containers around other leaves."""
        return self._build(iter(leaves))

    def _build(self, leaves: Any) -> Any:
        if self._node is None:
            return next(leaves)
        return self._node.rebuild([child._build(leaves) for child in self._children])

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """The values of `tree` at the positions of the leaves."""
        if self._node is None:
            return [tree]
        found = _open(tree)
        if found is None or found.kind is not self._node.kind:
            raise ValueError(f"Expected {self._node.kind.__name__}, got {tree!r}.")
        if list(found.keys) != list(self._node.keys):
            name = "Dict key" if issubclass(found.kind, dict) else "Arity"
            expected, present = ([getattr(key, "key", key) for key in node.keys] for node in (self._node, found))
            raise ValueError(f"{name} mismatch; expected keys: {expected}; present keys: {present}.")
        pairs = zip(self._children, found.children, strict=True)
        return [leaf for definition, child in pairs for leaf in definition.flatten_up_to(child)]


def _take_apart(tree: Any, is_leaf: IsLeaf, path: Path, paths: list[Path], leaves: list[Any]) -> _Treedef:
    node = None if is_leaf is not None and is_leaf(tree) else _open(tree)
    if node is None:
        paths.append(path)
        leaves.append(tree)
        return _Treedef(None, ())
    pairs = zip(node.keys, node.children, strict=True)
    return _Treedef(node, [_take_apart(child, is_leaf, (*path, key), paths, leaves) for key, child in pairs])


def _open(node: Any) -> _Node | None:
    kind: Any = type(node)
    if node is None:
        return _Node(kind, (), (), lambda _children: None)
    if kind in (list, tuple):
        return _Node(kind, [SequenceKey(at) for at in range(len(node))], node, kind)
    if kind in (dict, collections.OrderedDict, collections.defaultdict):
        keys = list(node) if kind is collections.OrderedDict else sorted(node)

        def rebuild(children: Sequence[Any]) -> Any:
            made: Any = zip(keys, children, strict=True)
            if kind is collections.defaultdict:
                return collections.defaultdict(node.default_factory, made)
            return kind(made)

        return _Node(kind, [DictKey(key) for key in keys], [node[key] for key in keys], rebuild)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Node(kind, [GetAttrKey(name) for name in kind._fields], node, kind._make)
    return None

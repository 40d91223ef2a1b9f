"""Walks nested data lazily where possible, and never recurses.

A *revtuple path* is a linked list of keys from the leaf up: ``(last, (..., (first, ())))``; ``()``
is the root. Paths of siblings share all steps above them.

A *node handler* is a function of such a path and a node. It gives `None` for a leaf. For any other
node it gives a pair: `rebuild`, which makes the node from a list of new children, and an iterator
of ``(key, child)``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from typing import Any

RevTuplePath = tuple[Any, ...]
"""``()``, or a pair of the last key and the path above it."""

NodeHandler = Callable[[RevTuplePath, Any], tuple[Callable[[list[Any]], Any], Iterator[tuple[Any, Any]]] | None]


class InvalidTreeNodeError(ValueError):
    """A node is of a type that the tree must not hold."""


class NotAMLModelTreeNodeError(InvalidTreeNodeError):
    """A node of a model is neither a dict nor an array."""


def linearize_revtuple_path(revtuple_path: RevTuplePath, present_as: Callable[[list[Any]], Any] = tuple) -> Any:
    """Returns the keys of a revtuple path from the root down. `present_as` converts the list of
    keys.
    """
    keys = []
    while revtuple_path:
        key, revtuple_path = revtuple_path
        keys.append(key)
    keys.reverse()
    return present_as(keys)


def everything_is_a_leaf_node_handler(revtuple_path: RevTuplePath, node: Any) -> None:
    """Treats every node as a leaf."""
    return None


def pytree_leaf_iter(
    tree: Any,
    leaf_transform: Callable[[RevTuplePath, Any], Any],
    node_handler: NodeHandler = everything_is_a_leaf_node_handler,
) -> Iterator[Any]:
    """Yields the result of `leaf_transform` for the path and the value of each leaf. It computes
    each result on request.
    """
    opened = node_handler((), tree)
    if opened is None:
        yield leaf_transform((), tree)
        return
    open_nodes: list[tuple[RevTuplePath, Iterator[tuple[Any, Any]]]] = [((), iter(opened[1]))]
    while open_nodes:
        above, children = open_nodes[-1]
        for key, child in children:
            path = (key, above)
            opened = node_handler(path, child)
            if opened is not None:
                open_nodes.append((path, iter(opened[1])))
                break
            yield leaf_transform(path, child)
        else:
            open_nodes.pop()


def pytree_map(
    tree: Any,
    leaf_transform: Callable[[RevTuplePath, Any], Any],
    node_handler: NodeHandler = everything_is_a_leaf_node_handler,
) -> Any:
    """Returns the same tree with other leaves. Each node is built again by its `rebuild`."""
    opened = node_handler((), tree)
    if opened is None:
        return leaf_transform((), tree)
    # For each open node: its path, the function that rebuilds it, its remaining children, and its
    # finished children.
    open_nodes = [((), opened[0], iter(opened[1]), list[Any]())]
    while True:
        above, rebuild, children, done = open_nodes[-1]
        for key, child in children:
            path = (key, above)
            opened = node_handler(path, child)
            if opened is not None:
                open_nodes.append((path, opened[0], iter(opened[1]), []))  # type: ignore[arg-type]
                break
            done.append(leaf_transform(path, child))
        else:
            made = rebuild(done)
            open_nodes.pop()
            if not open_nodes:
                return made
            open_nodes[-1][3].append(made)


def type_name(value: Any) -> str:
    """Returns the module and the qualified name of the value's class."""
    cls = type(value)
    return f"{cls.__module__}.{cls.__qualname__}"


_LEAF_REPR_LEN_MAX = 40


def leaf_summary(path: RevTuplePath, x: Any) -> str:
    """Returns ``module.Type(repr)``. The repr is cut after 40 characters."""
    text = repr(x)
    if len(text) > _LEAF_REPR_LEN_MAX:
        text = f"{text[:_LEAF_REPR_LEN_MAX]} ..."
    return f"{type_name(x)}({text})"


class immutabledict(Mapping[Any, Any]):
    """A mapping that cannot be changed. It can be a dict key if its values can."""

    __slots__ = ("_hash", "_items")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._items = dict(*args, **kwargs)
        self._hash: int | None = None

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._items.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"immutabledict({self._items!r})"


def _is_mapping(node: Any) -> bool:
    return isinstance(node, Mapping)


def _is_set(node: Any) -> bool:
    return isinstance(node, Set)


def _is_sequence(node: Any) -> bool:
    return isinstance(node, (list, tuple))


def _same(leaf: Any) -> Any:
    return leaf


def deep_freeze(
    tree: Any,
    *,
    is_mapping: Callable[[Any], bool] = _is_mapping,
    is_set: Callable[[Any], bool] = _is_set,
    is_sequence: Callable[[Any], bool] = _is_sequence,
    leaf_fn: Callable[[Any], Any] = _same,
) -> Any:
    """Returns the tree with only immutable containers: mappings become `immutabledict`, sets
    `frozenset`, lists and tuples `tuple`. `leaf_fn` converts each leaf.
    """

    def handler(_path: RevTuplePath, node: Any) -> Any:
        if is_mapping(node):
            keys = list(node)
            return lambda values: immutabledict(zip(keys, values, strict=True)), ((key, node[key]) for key in keys)
        if is_set(node):
            return frozenset, ((item, item) for item in node)
        return (tuple, enumerate(node)) if is_sequence(node) else None

    return pytree_map(tree, lambda _path, leaf: leaf_fn(leaf), handler)


def revtuple_autovifify_from_linear(keys_and_vals: Iterable[tuple[tuple[Hashable, ...], Any]]) -> Any:
    """Builds nested dicts from pairs of path and value. Returns the value itself for a single pair
    with the path ``()``.

    Raises:
        ValueError: if there are other values besides a root value, a path occurs twice, or the path
            of one value continues the path of another.
    """
    root: dict[Any, Any] = {}
    # The dicts made here. All other values are leaves, even if they are dicts.
    branches = {id(root)}
    root_values: list[Any] = []
    for path, value in keys_and_vals:
        if root_values or (not path and root):
            raise ValueError("Root-value seen alongside other values.")
        if not path:
            root_values.append(value)
            continue
        *above, last = path
        at = root
        for depth, key in enumerate(above):
            if key not in at:
                at[key] = {}
                branches.add(id(at[key]))
            at = at[key]
            if id(at) not in branches:
                raise ValueError(f"The value at {path!r} lies below another, at {tuple(path[: depth + 1])!r}.")
        if last in at:
            is_branch = id(at[last]) in branches
            why = "stands where others lie below" if is_branch else "stands there twice"
            raise ValueError(f"The value at {path!r} {why}.")
        at[last] = value
    return root_values[0] if root_values else root

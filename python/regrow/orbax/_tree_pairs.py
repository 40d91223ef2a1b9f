"""Compares and merges trees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._errors import failure
from ._jax import jax

IsLeaf = Callable[[Any], bool]


class Diff(NamedTuple):
    """The values of two trees at one key path; `None` if a tree lacks the key."""

    lhs: Any
    rhs: Any


def tree_difference(
    a: Any, b: Any, *, is_leaf: IsLeaf | None = None, leaves_equal: Callable[[Any, Any], bool] | None = None
) -> Any:
    """A tree of `Diff`, with `None` where two trees agree; `None` for equal trees."""
    ends = is_leaf or _is_leaf
    equal = leaves_equal or (lambda one, other: type(one) is type(other))
    if ends(a) and ends(b):
        return None if equal(a, b) else Diff(a, b)
    if type(a) is not type(b):
        return Diff(type(a), type(b))
    if isinstance(a, (list, tuple)) and len(a) != len(b):
        return Diff((type(a), len(a)), (type(b), len(b)))
    left, right = children_by_key(a), children_by_key(b)
    found: dict[Any, Any] = {}
    for key in {**left, **right}:
        if key in left and key in right:
            found[key] = tree_difference(left[key], right[key], is_leaf=is_leaf, leaves_equal=leaves_equal)
        else:
            found[key] = Diff(left.get(key), right.get(key))
    if all(diff is None for diff in found.values()):
        return None
    if isinstance(a, Mapping):
        return {key: diff for key, diff in found.items() if diff is not None}
    return _like(a, [found[key] for key in left])


def merge_trees(*trees: Any, overwrite: bool = False, is_leaf: IsLeaf | None = None) -> Any:
    ends: IsLeaf = lambda node: node is None or _is_leaf(node) or (is_leaf is not None and is_leaf(node))  # noqa: E731
    if not overwrite:
        seen: set[Any] = set()
        for tree in trees:
            paths = {path for path, _ in jax.tree_util.tree_flatten_with_path(tree, is_leaf=ends)[0] if path}
            if common := seen & paths:
                told = sorted(jax.tree_util.keystr(path) for path in common)
                raise failure(ValueError, f"Found common key paths: {told[:10]}", help="give overwrite=True")
            seen |= paths
    return functools.reduce(functools.partial(_merged, overwrite=overwrite, ends=ends, path=()), trees) if trees else {}


def _merged(earlier: Any, later: Any, *, overwrite: bool, ends: IsLeaf, path: tuple[str, ...]) -> Any:
    at = "/".join(path) or "the root"
    if ends(earlier) or ends(later):
        if overwrite:
            return later
        if ends(earlier) and ends(later):
            raise failure(ValueError, f"Found common key paths: {at}", help="give overwrite=True")
        raise ValueError(f"Types do not match at {at}: {type(earlier)} and {type(later)}")
    if type(earlier) is not type(later):
        raise ValueError(f"Types do not match at {at}: {type(earlier)} and {type(later)}")
    if isinstance(earlier, (list, tuple)) and len(earlier) != len(later):
        raise ValueError(f"Sequence lengths do not match at {at}: {len(earlier)} and {len(later)}")
    is_mapping = isinstance(earlier, Mapping)
    left, right = children_by_key(earlier), children_by_key(later)
    out = dict(left)
    for key, child in right.items():
        if key not in left or (left[key] is None and not is_mapping):
            out[key] = child
        elif child is not None or is_mapping:
            out[key] = _merged(left[key], child, overwrite=overwrite, ends=ends, path=(*path, str(key)))
    return out if type(earlier) is dict else _like(earlier, out if is_mapping else list(out.values()))


def _is_leaf(node: Any) -> bool:
    return bool(jax.tree_util.all_leaves([node]))


def _one_level(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
    found: tuple[list[tuple[Any, Any]], Any] = jax.tree_util.tree_flatten_with_path(
        node, is_leaf=lambda child: child is not node
    )
    return found


def children_by_key(node: Any) -> dict[Any, Any]:
    """The children of a node: of a mapping by its keys, of other nodes by JAX' keys as text."""
    if isinstance(node, Mapping):
        return dict(node)
    return {jax.tree_util.keystr(path): child for path, child in _one_level(node)[0]}


def _like(node: Any, children: Any) -> Any:
    """A node of the same kind with these children."""
    if isinstance(node, Mapping):
        make: Any = type(node)
        return make(children)
    return jax.tree_util.tree_unflatten(_one_level(node)[1], children)

"""Transformations of a restore: where a leaf of the target comes from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ._errors import not_covered
from .tree import KeyPath, from_flat_dict, is_empty_node, merge_trees, to_flat_dict

__all__ = ["RestoreTransform", "Transform", "intersect_trees", "merge_trees"]


@dataclasses.dataclass
class Transform:
    """Where a leaf of the target comes from.

    Attributes:
        original_key: The key path in the checkpoint, with ``/``; groups of the pattern as ``\\1``.
        use_fallback: Keep what the target has.
        value_fn: What becomes of the value.
        multi_value_fn: Not covered.
    """

    original_key: Any = None
    use_fallback: bool = False
    value_fn: Callable[[Any], Any] | None = None
    multi_value_fn: Any = None


@dataclasses.dataclass
class RestoreTransform(Transform):
    """As `Transform`; not covered beyond that."""


Sources = dict[KeyPath, KeyPath]


def plan(
    transforms: Mapping[str, Any], order: list[KeyPath], stored: Collection[KeyPath]
) -> tuple[Sources, dict[KeyPath, Callable[[Any], Any]], set[KeyPath]]:
    """Where each leaf comes from, what becomes of its value, and which stay as in the target.

    Raises:
        KeyError: for an `original_key` that the checkpoint does not have.
        NotCoveredError: for `multi_value_fn`.
    """
    flat = {
        "/".join(path): rule
        for path, rule in to_flat_dict(transforms, keep_empty_nodes=False, is_leaf=_is_transform).items()
    }
    sources: Sources = {}
    functions: dict[KeyPath, Callable[[Any], Any]] = {}
    fallbacks: set[KeyPath] = set()
    for path in order:
        name = "/".join(path)
        found = next((match for pattern in flat if (match := re.fullmatch(pattern, name))), None)
        if found is None:
            continue
        rule = flat[found.re.pattern]
        if getattr(rule, "multi_value_fn", None) is not None:
            raise not_covered("Transform(multi_value_fn=)", "restore the leaves and compute the value from them")
        if rule.use_fallback:
            fallbacks.add(path)
            continue
        if rule.original_key is not None:
            key = rule.original_key if isinstance(rule.original_key, str) else "/".join(rule.original_key)
            source = tuple(found.expand(key).split("/"))
            if source not in stored:
                raise KeyError(f'Transformation key "{"/".join(source)}" not found in origin tree (for {name})')
            sources[path] = source
        if rule.value_fn is not None:
            functions[path] = rule.value_fn
    return sources, functions, fallbacks


def _is_transform(node: Any) -> bool:
    return hasattr(node, "use_fallback") or is_empty_node(node)


def intersect_trees(*trees: Any, target: Any = None) -> Any:
    """Nested dicts with the leaves whose key path all of the trees have, of the last of them."""
    flats = [to_flat_dict(tree, keep_empty_nodes=True) for tree in trees]
    common = {path: leaf for path, leaf in flats[-1].items() if all(path in flat for flat in flats)}
    return from_flat_dict(common, target)


def apply_transformations(*_: Any, **__: Any) -> Any:
    """Not covered."""
    raise not_covered("apply_transformations", "restore with `transforms=`")

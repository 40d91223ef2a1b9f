"""Transformations: the source of each leaf of the target, in a tree or in a checkpoint."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from .._core._duck import is_a
from ._leaf_args import RestoreArgs as RestoreArgs
from .tree import KeyPath, from_flat_dict, is_empty_node, to_flat_dict

ValueFn = Callable[[Any], Any]
MultiValueFn = Callable[..., Any]


@dataclasses.dataclass
class Transform:
    """The source of a leaf of the target: key paths have ``/``, and are patterns."""

    original_key: Any = None
    use_fallback: bool = False
    value_fn: Callable[..., Any] | None = None
    multi_value_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        exclusive = ("original_key", "use_fallback", "value_fn", "multi_value_fn")
        given = [name for name in exclusive if getattr(self, name) not in (None, False)]
        if len(given) > 1 and set(given) != {"original_key", "value_fn"}:
            raise AssertionError(f"{type(self).__name__}: expected one of the arguments, found {' and '.join(given)}")


@dataclasses.dataclass
class RestoreTransform(Transform):
    """As `Transform`, for restores. `multi_value_fn` also gets the restore args of the leaf."""

    multi_value_fn_input_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.multi_value_fn_input_args is not None and self.multi_value_fn is None:
            raise AssertionError("RestoreTransform: multi_value_fn_input_args without multi_value_fn")


def apply_transformations(
    original_tree: Any, transformations: Any, new_tree: Any, default_to_original: bool | None = True
) -> Any:
    """A tree with the structure of `new_tree`, and leaves of another tree."""
    if is_empty_node(new_tree):
        return {}
    original, result = to_flat_dict(original_tree), to_flat_dict(new_tree)
    found = plan(transformations, list(result), original, default_to_original=bool(default_to_original))
    for path in result:
        if path in found.computed:
            result[path] = found.computed[path]("/".join(path), original_tree)
        elif path not in found.kept and (source := found.sources.get(path, path)) in original:
            convert = found.functions.get(path, lambda value: value)
            result[path] = convert(original[source])
    return from_flat_dict(result, target=new_tree)


def _flat_rules(transformations: Any) -> dict[str, Any]:
    flat = to_flat_dict(transformations, is_leaf=lambda node: is_a(node, "Transform"))
    return {"/".join(path): rule for path, rule in flat.items()}


def _rule_of(rules: Mapping[str, Any], name: str) -> tuple[Any, re.Match[str]] | None:
    """The last rule whose pattern matches a key path: later rules override earlier ones."""
    found = None
    for pattern, rule in rules.items():
        match = re.fullmatch(pattern, name)
        if match is not None:
            found = rule, match
    return found


def _source(rule: Any, match: re.Match[str], name: str) -> str:
    if rule.original_key is None:
        return name
    key = rule.original_key if isinstance(rule.original_key, str) else "/".join(rule.original_key)
    return match.expand(key)


class Plan(NamedTuple):
    """The leaves that a tree with transformations is made of, and how they are converted."""

    sources: dict[KeyPath, KeyPath]
    """The stored leaf of a target leaf, if its key path differs."""
    functions: dict[KeyPath, Callable[[Any], Any]]
    """The conversion of a value."""
    kept: set[KeyPath]
    """Leaves that stay as in the target."""
    computed: dict[KeyPath, Callable[..., Any]]
    """Leaves that are computed from the tree."""


def plan(
    transformations: Any, order: list[KeyPath], stored: Collection[KeyPath], *, default_to_original: bool = True
) -> Plan:
    """The source of each leaf of a target."""
    rules = _flat_rules(transformations)
    by_name = {"/".join(path): path for path in stored}
    found = Plan({}, {}, set(), {})
    for path in order:
        name = "/".join(path)
        matched = _rule_of(rules, name)
        if matched is None:
            if not default_to_original:
                found.kept.add(path)
            continue
        rule, match = matched
        if rule.use_fallback:
            if default_to_original:
                found.kept.add(path)
            elif path not in stored:
                raise ValueError(f"{name} not found in origin tree (`use_fallback` requested).")
        elif rule.multi_value_fn is not None:
            found.computed[path] = rule.multi_value_fn
        else:
            source = _source(rule, match, name)
            if source not in by_name:
                raise ValueError(f'Transformation key "{source}" not found in origin tree (for {name}).')
            found.sources[path] = by_name[source]
            if rule.value_fn is not None:
                found.functions[path] = rule.value_fn
    return found


def inputs_of(transformations: Any, stored: Collection[KeyPath]) -> dict[KeyPath, Any]:
    """Stored leaves that are inputs of computed leaves, with restore args."""
    inputs: dict[KeyPath, Any] = {}
    for rule in _flat_rules(transformations).values():
        if rule.multi_value_fn is not None:
            inputs |= _inputs(rule, stored)
    return inputs


def _inputs(rule: Any, stored: Collection[KeyPath]) -> dict[KeyPath, Any]:
    if not is_a(rule, "RestoreTransform"):
        raise ValueError("Must use RestoreTransform in order to use multi_value_fn during restore.")
    if rule.multi_value_fn_input_args is None:
        raise ValueError(
            "`multi_value_fn` was specified, but `multi_value_fn_input_args` were not."
            " `multi_value_fn_input_args` names the inputs of the function."
        )
    patterns = rule.multi_value_fn_input_args.items()
    return {path: args for path in stored for pattern, args in patterns if re.fullmatch(pattern, "/".join(path))}


def merge_trees(*trees: Any, target: Any = None) -> Any:
    """The leaves of all trees, from the last that has each; as nested dicts or like `target`."""
    merged: dict[KeyPath, Any] = {}
    for tree in trees:
        merged |= to_flat_dict(tree)
    return from_flat_dict(merged, target)


def intersect_trees(*trees: Any, target: Any = None) -> Any:
    """The leaves that all trees have, from the last; as nested dicts or like `target`."""
    flats = [to_flat_dict(tree) for tree in trees]
    common = {path: leaf for path, leaf in flats[-1].items() if all(path in flat for flat in flats)}
    return from_flat_dict(common, target)

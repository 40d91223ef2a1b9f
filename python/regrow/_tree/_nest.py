"""Converts names such as ``a/b/c`` to dicts of dicts, and back.

Files of NumPy and safetensors have flat names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._core._arguments import wrong
from .._errors import InvalidArgumentError, NameCollisionError, failure

SEPARATORS = "/."
"""The separators that programs use between the keys in a name."""


def checked(nest: Any) -> str | None:
    """The separator that an argument names."""
    if nest is not None and (not isinstance(nest, str) or not nest):
        raise wrong("nest", nest, "the separator of the keys in a name, such as '/'")
    return nest


def nested(loaded: Any, separator: str) -> Any:
    """Converts a flat dict to dicts of dicts.

    Raises:
        NameCollisionError: if one name is both a leaf and a dict.
    """
    if not isinstance(loaded, dict):
        return loaded
    tree: dict[Any, Any] = {}
    leaves: set[tuple[Any, ...]] = set()
    dicts: set[tuple[Any, ...]] = set()
    for name, value in loaded.items():
        keys = tuple(name.split(separator)) if isinstance(name, str) else (name,)
        above = {keys[:count] for count in range(1, len(keys))}
        if keys in dicts or keys in leaves or not leaves.isdisjoint(above):
            raise failure(
                NameCollisionError,
                f"the name {name!r} cannot be nested: the same name or a part of it names an array",
                help="load it without Options(nest=...)",
            )
        leaves.add(keys)
        dicts |= above
        inside = tree
        for key in keys[:-1]:
            inside = inside.setdefault(key, {})
        inside[keys[-1]] = value
    return tree


def flat(like: Any, separator: str) -> dict[Any, Any]:
    """Converts a template of dicts of dicts to one dict, by the names of its leaves in the file."""
    found: dict[Any, Any] = {}
    pending: list[tuple[tuple[str, ...], Any]] = [((), like)]
    while pending:
        path, value = pending.pop()
        if not isinstance(value, Mapping):
            found[separator.join(path)] = value
            continue
        for key, child in reversed(list(value.items())):
            if not isinstance(key, str):
                raise InvalidArgumentError(
                    f"Options(nest=...) needs a `like` of dicts with str keys, and found {key!r}"
                )
            pending.append(((*path, key), child))
    return found


def separator_of(names: Iterable[str], like: Any) -> str | None:
    """The separator between keys in the names of a file, if `like` has the file's arrays in dicts
    of dicts.
    """
    try:
        there = set(names)
        return next((separator for separator in SEPARATORS if there == set(flat(like, separator))), None)
    except InvalidArgumentError:
        return None

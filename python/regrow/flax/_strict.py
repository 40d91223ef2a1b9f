"""Comparing a state with the target that it is to be restored onto: every difference, in one error.

Both are state dicts here, so classes do not matter, and the place of a difference is its path in
the file. The comparison covers the keys, and the kind (array, NumPy scalar, bool, int, ...), dtype
and shape of each leaf. It skips leaves of the target that no file can hold (a function, a class).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._core._duck import own_attribute
from .._errors import MismatchError, failure
from .._text import counted
from .._tree._nodes import PrngKey
from ._state_dict import to_state_dict, unfold_legacy_named_tuple

_LEGACY = {"name", "fields", "values"}


class _Leaf(NamedTuple):
    kind: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


def check(target: Any, state: Any) -> None:
    """Compares `state` with the state of `target`. Without a target every state is accepted.

    Raises:
        MismatchError: with every difference.
    """
    if target is None:
        return
    found = list(_differences(to_state_dict(target), state))
    if found:
        lines = "".join(f"\n    {kind:<9} {path}: {text}" for kind, path, text in found)
        help = "change the target, or leave out strict=True"
        places = counted(len(found), "place", "places")
        raise failure(
            MismatchError,
            f"the target does not fit the stored state in {places}{lines}",
            first_leaf=found[0][1],
            help=help,
        )


_Difference = tuple[str, str, str]


def _differences(target: Any, state: Any) -> list[_Difference]:
    found: list[_Difference] = []
    # Without recursion, because a file may be nested deeper than Python's stack allows.
    waiting: list[tuple[tuple[str, ...], Any, Any]] = [((), target, state)]
    while waiting:
        path, expected, stored = waiting.pop()
        children = _children(expected, stored)
        if children is None:
            found += [(kind, _text(path), text) for kind, text in _leaf_differences(expected, stored)]
            continue
        expected, stored = children
        for key in expected:
            if key not in stored:
                found.append(("missing", _text((*path, key)), "in the target, not in the stored state"))
        for key in stored:
            if key not in expected:
                found.append(("extra", _text((*path, str(key))), "in the stored state, not in the target"))
        waiting += [((*path, key), expected[key], stored[key]) for key in reversed(expected) if key in stored]
    return found


def _children(expected: Any, stored: Any) -> tuple[dict[str, Any], dict[Any, Any]] | None:
    """The children of both by key, if both are containers of the same kind; otherwise `None`."""
    if isinstance(expected, dict) and isinstance(stored, dict):
        if set(stored) == _LEGACY and set(expected) != _LEGACY:
            stored = unfold_legacy_named_tuple(stored)
        return expected, stored
    if isinstance(expected, list) and isinstance(stored, list):
        return _numbered(expected), _numbered(stored)
    return None


def _numbered(items: list[Any]) -> dict[str, Any]:
    return {str(at): item for at, item in enumerate(items)}


def _leaf_differences(expected: Any, stored: Any) -> list[tuple[str, str]]:
    wanted, found = _described(expected), _described(stored)
    if wanted is None:
        return []
    if found is None or wanted.kind != found.kind:
        kind = type(stored).__name__ if found is None else found.kind
        return [("kind", f"target {wanted.kind}, stored {kind}")]
    differences = []
    if wanted.shape != found.shape:
        differences.append(("shape", f"target {wanted.shape}, stored {found.shape}"))
    if wanted.dtype != found.dtype:
        differences.append(("dtype", f"target {wanted.dtype}, stored {found.dtype}"))
    return differences


def _described(leaf: Any) -> _Leaf | None:
    """The form of a leaf in a file; `None` for a leaf that a file cannot hold."""
    if isinstance(leaf, np.generic):
        return _Leaf("NumPy scalar", leaf.dtype.name, ())
    for cls, kind in _KINDS.items():
        if type(leaf) is cls:
            return _Leaf(kind)
    if type(leaf) is PrngKey:
        return _described(leaf.data)
    if isinstance(leaf, type):
        return None
    dtype, shape = own_attribute(leaf, "dtype"), own_attribute(leaf, "shape")
    if dtype is None or not isinstance(shape, tuple):
        return None
    return _Leaf("array", getattr(dtype, "name", str(dtype)), shape)


_KINDS: dict[type[Any], str] = {
    dict: "map",
    list: "list",
    type(None): "None",
    bool: "bool",
    int: "int",
    float: "float",
    complex: "complex",
    str: "str",
    bytes: "bytes",
}


def _text(path: tuple[str, ...]) -> str:
    return "/".join(path) or "."

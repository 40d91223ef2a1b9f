"""Restores the nested state from a checkpoint of `StorageWriter`: DCP has saved a flat dict."""

from __future__ import annotations

import itertools
import json
from typing import Any

from .._errors import CorruptError
from ._pointers import Keys

PATHS = "regrow.dcp"
"""The key of DCP's paths in the metadata. They have, for each name of the flat dict, the keys from
which it was built.
"""


def paths_text(paths: dict[str, Keys] | None) -> str:
    """Returns the stored form of the paths. It has no paths for a state that DCP did not flatten."""
    return json.dumps({"version": 1, "paths": paths})


def paths_of(metadata: Any) -> dict[str, Keys] | None:
    """Returns the paths in the metadata of a checkpoint; `None` if no `StorageWriter` wrote it.

    Raises:
        CorruptError: if the paths are damaged.
    """
    text = metadata.get(PATHS) if isinstance(metadata, dict) else None
    if text is None:
        return None
    try:
        given = json.loads(text)["paths"] or {}
        paths = {name: tuple(keys) for name, keys in given.items()}
        is_sound = all(keys and all(type(key) in (str, int) for key in keys) for keys in paths.values())
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        raise CorruptError(f"{PATHS!r} in the metadata cannot be read")
    return paths


def _with_numbers(paths: dict[str, Keys]) -> dict[str, Keys]:
    """Converts the keys of optimizers' states back to numbers: DCP makes them text, and
    `load_state_dict` does not accept text.
    """
    optimizers = {keys[: keys.index("param_groups")] for keys in paths.values() if "param_groups" in keys}

    def numbered(keys: Keys) -> Keys:
        for at, (key, following) in enumerate(itertools.pairwise(keys)):
            if key == "state" and keys[:at] in optimizers and isinstance(following, str) and following.isdecimal():
                return (*keys[: at + 1], int(following), *keys[at + 2 :])
        return keys

    return {name: numbered(keys) for name, keys in paths.items()}


def path_within(paths: dict[str, Keys], keys: Keys) -> Keys:
    """Returns the key path in dicts and lists for a key path in the flat dict."""
    first = paths.get(keys[0]) if keys and isinstance(keys[0], str) else None
    return keys if first is None else (*first, *keys[1:])


def nested(flat: Any, metadata: Any) -> Any:
    """Converts the state of a `StorageWriter` back to nested dicts and lists. Returns any other
    state unchanged.
    """
    paths = paths_of(metadata)
    if not paths or not isinstance(flat, dict):
        return flat
    root: dict[Any, Any] = {}
    lists: list[tuple[dict[Any, Any], Any]] = []
    numbered = _with_numbers(paths)
    for name, value in flat.items():
        keys = numbered.get(name, (name,))
        stored = paths.get(name, (name,))
        node = root
        for key, following in zip(keys, (*stored[1:], None), strict=True):
            if following is None:
                node[key] = value
            elif key not in node:
                node[key] = {}
                if isinstance(following, int):
                    lists.append((node, key))
            node = node[key]
            if following is not None and not isinstance(node, dict):
                raise CorruptError(f"{PATHS!r} in the metadata names {name!r} below a value without keys")
    for parent, key in reversed(lists):
        # Innermost lists first: a list is a dict of positions until all its items exist.
        parent[key] = [child for _, child in sorted(parent[key].items())]
    return root

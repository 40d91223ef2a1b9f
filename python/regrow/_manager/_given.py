"""Converts the arguments of a `Manager` to the forms that the native half takes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from .._core import _arguments
from .._core._location import Location, StrPath, local_path, place
from .._errors import InvalidArgumentError, failure
from ._restore import ITEM

RECORD = "regrow_step"
"""The key of the step's record in the metadata."""


def everything(state: Any, items: Mapping[str, Any] | None) -> dict[str, Any]:
    """All items of a step."""
    if items is not None and not isinstance(items, Mapping):
        raise _arguments.wrong("items", items, "a dict of items by name, or None")
    everything = dict(items or {})
    if state is not None:
        if ITEM in everything:
            raise InvalidArgumentError(f"the state is the item {ITEM!r}: pass it as `state`, or in `items`, not both")
        everything = {ITEM: state, **everything}
    if not everything:
        raise InvalidArgumentError("no state to save: pass a state, or `items`")
    return everything


def metrics(metrics: Any) -> dict[str, Any] | None:
    """Metrics with Python's own numbers in place of numbers of NumPy and JAX."""
    if metrics is None:
        return None
    if not isinstance(metrics, Mapping):
        raise _arguments.wrong("metrics", metrics, "a dict of numbers by name; it can be nested")

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): plain(inner) for name, inner in value.items()}
        if isinstance(value, (bool, int, float, str)) or value is None:
            return value
        try:
            return value.item()
        except (AttributeError, TypeError, ValueError):
            raise _arguments.wrong("metrics", metrics, "a dict of numbers by name; it can be nested") from None

    return {str(name): plain(value) for name, value in metrics.items()}


def metadata(metadata: Any, record: str) -> dict[str, Any]:
    """The caller's metadata, together with the record of the step."""
    given = metadata if metadata is not None else {}
    if not isinstance(given, Mapping):
        raise _arguments.wrong("metadata", metadata, "a dict that JSON can hold")
    if RECORD in given:
        help = "rename your member"
        raise failure(InvalidArgumentError, f"the manager writes {RECORD!r} into the metadata", help=help)
    return {**given, RECORD: json.loads(record)}


def root(directory: StrPath, storage_options: Any) -> Location:
    """The folder of steps, as an absolute path: the program may change its working directory later."""
    if isinstance(directory, Location) and not storage_options:
        return directory
    # This checks both arguments, and that they match.
    found = local_path(place("directory", directory, storage_options))
    if found is not None:
        return Location(os.path.abspath(found))
    return Location(directory, **dict(storage_options or {}))


def file(name: str, path: StrPath) -> str:
    """A local file, as an absolute path: the program may change its working directory later."""
    found = local_path(place(name, path))
    if found is None:
        raise _arguments.wrong(name, path, "a file on a local disk")
    return os.path.abspath(found)

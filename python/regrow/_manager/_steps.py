"""A step of a `Manager`."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .._core import _arguments


class Step(NamedTuple):
    """A step that the storage has committed."""

    number: int
    name: str
    """The name in the folder."""
    path: str
    """The path or URL."""
    time: float | None
    """The time of the commit, in seconds since 1970; `None` if unknown."""
    metrics: dict[str, Any]
    """The metrics that were saved with the step."""
    metadata: dict[str, Any]
    """Your own metadata."""


def step_of(found: Any) -> Step:
    """A step from the native half's columns."""
    number, name, location, seconds, metrics, metadata = found
    return Step(number, name, location.__fspath__(), seconds, json.loads(metrics), json.loads(metadata))


def number_of(step: Any) -> int:
    """A step's number, from any kind of integer."""
    number = _arguments.count("step", step)
    if number is None:
        raise _arguments.wrong("step", step, "the number of a step")
    return number

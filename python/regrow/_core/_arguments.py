"""Checks of arguments.

An error names the argument, the given value and the valid values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .._errors import InvalidArgumentError, failure
from .._tree._handlers import LeafRegistry


def wrong(name: str, value: object, expected: str) -> InvalidArgumentError:
    """The error for an argument with a value that is not valid."""
    shown = repr(value)
    if len(shown) > 200:
        shown = f"{shown[:200]}..."
    return InvalidArgumentError(f"{name}={shown} is not valid: expected {expected}")


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise wrong(name, value, "True or False")


BUDGET_MIN_BYTES = 2**20
"""The least memory budget of a call. A smaller number was probably meant in another unit."""


def count(name: str, value: Any, minimum: int = 0) -> int | None:
    """A number of bytes or a step, up to 63 bits, or `None`."""
    if value is None:
        return None
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not minimum <= number < 2**63:
        raise wrong(name, value, f"an integer between {minimum} and 2**63 - 1, or None")
    return number


def budget(value: Any) -> int | None:
    """An extra memory in bytes, or `None`."""
    return count("budget_bytes", value, BUDGET_MIN_BYTES)


WAIT_DEFAULT = 60.0
"""How many seconds an operation waits for another process that changes the same checkpoint."""


def seconds(name: str, value: Any) -> float:
    """A time in seconds, not negative."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= SECONDS_MAX:
        return float(value)
    raise wrong(name, value, "seconds, from 0 on")


SECONDS_MAX = 1e9


def text(name: str, value: Any) -> str | None:
    """Text, or `None`."""
    if value is None or isinstance(value, str):
        return value
    raise wrong(name, value, "a str, or None")


def choice(name: str, value: Any, among: Iterable[str]) -> str:
    """One of a few words."""
    words = list(among)
    if isinstance(value, str) and value in words:
        return value
    raise wrong(name, value, f"one of {', '.join(map(repr, words))}")


def function(name: str, value: Any) -> Callable[..., Any] | None:
    """A function, or `None`."""
    if value is None:
        return None
    if not callable(value):
        raise wrong(name, value, "a function, or None")
    called: Callable[..., Any] = value
    return called


def handlers(value: Any) -> LeafRegistry | None:
    """A registry, or `None`."""
    if value is None or isinstance(value, LeafRegistry):
        return value
    raise wrong("handlers", value, "a regrow.handlers.LeafRegistry, or None")


def patterns(only: Any) -> list[str]:
    """A list of globs. `None` gives an empty list, which selects all leaves."""
    if only is None:
        return []
    globs = [only] if isinstance(only, str) else list(only) if isinstance(only, Iterable) else None
    if globs is None or not all(isinstance(glob, str) for glob in globs) or isinstance(only, (bytes, np.ndarray)):
        raise wrong("only", only, "a glob over key paths, or several: str, or an iterable of str")
    if not globs:
        raise failure(
            InvalidArgumentError,
            f"only={only!r} selects nothing",
            help="leave out `only` to select all leaves, or give at least one glob",
        )
    return globs

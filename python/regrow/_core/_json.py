"""Converts values to JSON.

NaN, infinities and integers of any length are allowed. NumPy's numbers become Python's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._errors import InvalidArgumentError


def text(name: str, value: Any) -> str:
    """A value in JSON; `name` is what an error calls it.

    Raises:
        InvalidArgumentError: for a value that JSON cannot express, with its key.
    """
    import json

    try:
        return json.dumps(value, default=_number)
    except (TypeError, ValueError, RecursionError) as error:
        where = "" if isinstance(error, RecursionError) else _first_refused(value)
        raise InvalidArgumentError(f"{name}{where} cannot be stored as JSON: {error}") from None


def _number(value: Any) -> Any:
    """A number or an array without axes, of NumPy or JAX, as a Python number."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        number = value.item()
        if isinstance(number, (bool, int, float)):
            return number
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is not a JSON type")


def _first_refused(value: Any) -> str:
    """The keys of the first value that JSON cannot represent: ``["a"][0]``."""
    import json

    children: Any = ()
    if isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        children = enumerate(value)
    for key, child in children:
        try:
            json.dumps({key: child}, default=_number)
        except (TypeError, ValueError):
            return f"[{key!r}]{_first_refused(child)}"
    return ""

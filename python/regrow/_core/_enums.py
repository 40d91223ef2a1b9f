"""Members of enums as leaves: a save stores their plain number or text."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

_PLAIN: tuple[tuple[type[Any], Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (complex, complex.__complex__),
    # `str(member)` can be the member's name, so use `str.__str__`.
    (str, str.__str__),
    (bytes, bytes.__bytes__),
)


def plain(value: Any) -> Any:
    """Converts an instance of a subclass of `int`, `float`, `complex`, `str` or `bytes` to that
    class. Returns any other value unchanged.
    """
    return next((convert(value) for cls, convert in _PLAIN if isinstance(value, cls)), value)


def is_plain_member(value: Any) -> bool:
    """Whether a value is a member of `IntEnum`, `StrEnum` or another enum of numbers or text."""
    return isinstance(value, enum.Enum) and isinstance(value, tuple(cls for cls, _ in _PLAIN))

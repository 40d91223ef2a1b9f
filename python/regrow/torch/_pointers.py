"""Key paths as distinct texts for all leaves of a tree: ``/model/0/a~1b``. The root is empty.

As JSON pointers (RFC 6901), with ``~2`` before text that would read as an integer: the keys ``0``
and ``"0"`` of a dict are different.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Key = str | int
Keys = tuple[Key, ...]

_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)


def is_integer(text: str) -> bool:
    """Whether a part of a pointer is an integer key, or a position."""
    return _INTEGER.fullmatch(text) is not None


def pointer(keys: Sequence[Key]) -> str:
    """Returns the text of a key path."""
    return "".join(f"/{_text(key)}" for key in keys)


def shown(keys: Sequence[Key]) -> str:
    """Returns a key path for messages, as the rest of regrow prints it."""
    return "/".join(map(str, keys)) or "."


def _text(key: Key) -> str:
    if isinstance(key, int):
        return str(key)
    escaped = key.replace("~", "~0").replace("/", "~1")
    return f"~2{escaped}" if _INTEGER.fullmatch(escaped) else escaped

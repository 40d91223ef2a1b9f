"""Text for people: names from files without control characters, and numbers with nouns."""

from __future__ import annotations

_ESCAPES = {"\t": "\\t", "\r": "\\r", "\n": "\\n"}


def printable(text: str) -> str:
    """The text with what `str.isprintable` refuses as an escape: ``\\u{202e}``, as the native half
    prints names.

    Line feeds and spaces of any width stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() or _is_space(c) else _escaped(c) for c in text)


def counted(count: int, one: str, many: str) -> str:
    """A number with a noun: ``1 leaf``, ``2 leaves``."""
    return f"{count} {one if count == 1 else many}"


def _is_space(c: str) -> bool:
    # White space above ASCII consists of spaces and of line ends. The line ends are U+0085, U+2028
    # and U+2029.
    return c >= "\xa0" and c.isspace() and c not in "\u2028\u2029"


def _escaped(c: str) -> str:
    return _ESCAPES.get(c) or f"\\u{{{ord(c):x}}}"


LINES_MAX = 40
LINE_LEN_MAX = 200


def shortened(text: str) -> str:
    """A text that fits on a screen: the first and the last lines."""
    lines = [line if len(line) <= LINE_LEN_MAX else f"{line[: LINE_LEN_MAX - 1]}…" for line in text.splitlines()]
    if len(lines) <= LINES_MAX:
        return "\n".join(lines)
    head, tail = LINES_MAX - 11, 10
    return "\n".join([*lines[:head], f"... {len(lines) - head - tail} more lines ...", *lines[-tail:]])

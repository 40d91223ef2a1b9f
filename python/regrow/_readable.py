"""How reports show themselves: as text on a terminal, in a notebook, and as a truth value.

repr      the text, shortened to a screen; `_asdict` has the fields
bool      whether what was asked holds: sound, equal, whole; true of reports that answer no question
"""

from __future__ import annotations

from typing import Any, TypeVar

from ._text import shortened

Kind = TypeVar("Kind", bound=type[Any])


def readable(kind: Kind) -> Kind:
    """A class of reports whose `repr` is its text, in notebooks too."""
    setattr(kind, "__repr__", _repr)  # noqa: B010
    if not hasattr(kind, "_repr_html_"):
        kind._repr_html_ = _repr_html
    if not hasattr(kind, "__bool__"):
        kind.__bool__ = _is_true
    return kind


def _repr(report: Any) -> str:
    return shortened(str(report))


def _repr_html(report: Any) -> str:
    from . import _html

    return _html.of_text(_repr(report))


def _is_true(report: Any) -> bool:
    return True

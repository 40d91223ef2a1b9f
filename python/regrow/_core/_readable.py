"""Text, HTML and truth value of reports.

repr      the text, shortened to a screen; `_asdict` has the fields
bool      the answer to the question of the call: sound, equal, whole. Other reports are true.
"""

from __future__ import annotations

from typing import Any, TypeVar

from .._text import shortened

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

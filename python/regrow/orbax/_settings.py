"""The switches: in which layout this front saves, and whether managers read a new step again."""

from __future__ import annotations

from typing import Any, Literal

Layout = Literal["orbax", "regrow"]

_layout: Layout = "orbax"
_is_checked = False


def use_layout(layout: Layout) -> None:
    """Saves from now on as Orbax does, or in regrow's own layout: Orbax checkpoint and safetensors
    files in one.

    Orbax restores both. Raises:
        ValueError: for any other layout.
    """
    global _layout
    if layout not in ("orbax", "regrow"):
        raise ValueError(f"layout: expected 'orbax' or 'regrow', found {layout!r}")
    _layout = layout


def layout() -> Any:
    """The layout of saves."""
    return _layout


def check_saves(is_checked: bool = True) -> None:
    """From now on managers read each new step again, all of it, before they delete others.

    A step that is not what was saved is told as a `CorruptError` by `wait_until_finished` or the
    next call, and nothing is deleted for it. Files in Orbax' layout have checksums of some of what
    they hold, those of regrow's of all.
    """
    global _is_checked
    _is_checked = bool(is_checked)


def checks_saves() -> bool:
    """Whether they do."""
    return _is_checked

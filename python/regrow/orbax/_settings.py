"""Switches: the layout of saves, and whether managers read each new step again."""

from __future__ import annotations

from typing import Any, Literal

Layout = Literal["orbax", "regrow"]

_layout: Layout = "orbax"
_is_checked = False


def use_layout(layout: Layout) -> None:
    """Sets the layout of saves: Orbax', or regrow's own, which is an Orbax checkpoint and a set of
    safetensors files in one.

    Orbax restores both.

    Raises:
        ValueError: for any other layout.
    """
    global _layout
    if layout not in ("orbax", "regrow"):
        raise ValueError(f"layout: expected 'orbax' or 'regrow', found {layout!r}")
    _layout = layout


def layout() -> Any:
    return _layout


def check_saves(is_checked: bool = True) -> None:
    """Makes managers read each new step again, completely, before they delete other steps.

    If a step is damaged, `wait_until_finished` or the next call raises `CorruptError`, and no step
    is deleted. Orbax' layout has checksums for a part of the data, regrow's for all of it.
    """
    global _is_checked
    _is_checked = bool(is_checked)


def checks_saves() -> bool:
    """Whether managers read each new step again."""
    return _is_checked

"""The one switch: in which layout this front saves."""

from __future__ import annotations

from typing import Any, Literal

Layout = Literal["orbax", "regrow"]

_layout: Layout = "orbax"


def use_layout(layout: Layout) -> None:
    """Saves from now on as Orbax does, or in regrow's own layout: Orbax checkpoint and safetensors files in one.

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

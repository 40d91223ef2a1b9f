"""Handlers for leaves of your own types."""

from __future__ import annotations

from ._tree._handlers import LeafHandler, LeafRegistry, StandardHandler

__all__ = [
    "LeafHandler",
    "LeafRegistry",
    "StandardHandler",
]

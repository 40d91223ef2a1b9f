"""Orbax' experimental names: v1, under its first name."""

from __future__ import annotations

from . import v1
from ._errors import not_covered

__all__ = ["v1"]

_NOT_COVERED = {
    "emergency": "use regrow.save_async, or the original for emergency checkpoints",
    "model_surgery": "load the pytree, and change it",
    "tiering_service": "use the original",
}


def __getattr__(name: str) -> object:
    if name in _NOT_COVERED:
        raise not_covered(f"experimental.{name}", _NOT_COVERED[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

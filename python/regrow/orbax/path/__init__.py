"""Names of steps, and how checkpoints appear at once."""

from __future__ import annotations

from . import atomicity, step

__all__ = ["atomicity", "step"]

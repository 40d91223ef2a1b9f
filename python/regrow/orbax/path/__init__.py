"""Names of steps, and atomic publication of checkpoints."""

from __future__ import annotations

from .._errors import refusing
from . import atomicity, format_utils, step

__all__ = ["atomicity", "format_utils", "step"]

__getattr__ = refusing(__name__, {"deleter": "managers delete steps: `max_to_keep`, `delete`"})

"""Exceptions of v1."""

from __future__ import annotations

from ..._errors import NotACheckpointError
from .._errors import StepAlreadyExistsError

__all__ = ["InvalidLayoutError", "StepAlreadyExistsError"]


class InvalidLayoutError(NotACheckpointError, ValueError, FileNotFoundError):
    """There is no checkpoint."""

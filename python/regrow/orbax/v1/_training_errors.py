"""Exceptions of `training`."""

from __future__ import annotations

from .. import _errors

__all__ = ["StepAlreadyExistsError", "StepNotFoundError"]


class StepAlreadyExistsError(_errors.StepAlreadyExistsError, FileExistsError):
    """There is a checkpoint of this step already."""


class StepNotFoundError(FileNotFoundError):
    """There is no checkpoint of this step."""

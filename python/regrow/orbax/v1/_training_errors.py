"""Exceptions of `training`."""

from .. import _errors


class StepAlreadyExistsError(_errors.StepAlreadyExistsError, FileExistsError):
    """A checkpoint of this step exists."""


class StepNotFoundError(FileNotFoundError):
    """No checkpoint of this step exists."""

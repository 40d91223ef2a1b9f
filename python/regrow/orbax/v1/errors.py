"""Exceptions of v1."""

from __future__ import annotations

from ..._errors import NotACheckpointError

__all__ = ["DeletionInProgressError", "DeletionRecoveryError", "InvalidLayoutError"]


class InvalidLayoutError(NotACheckpointError, ValueError, FileNotFoundError):
    """There is no checkpoint, or not what was asked for."""


class DeletionInProgressError(RuntimeError):
    """A checkpointable is asked for, or replaced, whose deletion was begun and has not ended."""


class DeletionRecoveryError(RuntimeError):
    """The record of a deletion that was begun does not fit the checkpoint, or another deletion
    was asked for.
    """

"""Exceptions of v1."""

from ..._errors import NotACheckpointError


class InvalidLayoutError(NotACheckpointError, ValueError, FileNotFoundError):
    """The path has no checkpoint, or not the requested content."""


class DeletionInProgressError(RuntimeError):
    """The call loads or replaces a checkpointable whose deletion was started and has not ended."""


class DeletionRecoveryError(RuntimeError):
    """The record of an unfinished deletion does not fit the checkpoint, or the name."""

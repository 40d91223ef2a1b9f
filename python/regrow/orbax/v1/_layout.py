"""File names of every checkpoint of v1, and the error for a path that lacks them."""

from __future__ import annotations

from typing import Any

from ..._errors import failure
from .errors import InvalidLayoutError as InvalidLayoutError

STATE_CHECKPOINTABLE_KEY = "state"
EMPTY_CHECKPOINTABLE_KEY = ""
AUTO_CHECKPOINTABLE_KEY = "AUTO"
METRICS_CHECKPOINTABLE_KEY = "metrics"
CHECKPOINT_DELETION_KEY = "_CHECKPOINT_DELETION"
PYTREE_METADATA_FILE = "_METADATA"
CHECKPOINT_METADATA_FILENAME = "_CHECKPOINT_METADATA"
ORBAX_CHECKPOINT_INDICATOR_FILE = "orbax.checkpoint"
RESERVED_CHECKPOINTABLE_KEYS = frozenset({METRICS_CHECKPOINTABLE_KEY, AUTO_CHECKPOINTABLE_KEY, CHECKPOINT_DELETION_KEY})
"""Names that a checkpointable of a caller cannot have."""


def invalid(path: Any, what: str, help: str | None = None) -> InvalidLayoutError:
    """The error for a path without the requested content."""
    return failure(InvalidLayoutError, what, file=str(path), help=help)

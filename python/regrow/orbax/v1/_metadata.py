"""What a checkpoint says of itself, in v1's form."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class CheckpointMetadata:
    """What is known of a checkpoint: ``.metadata`` is a tree of shapes and dtypes, or a dict of such by name."""

    metadata: Any = None
    step: int | None = None
    path: Any = None
    metrics: Any = None
    custom_metadata: Any = None
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None

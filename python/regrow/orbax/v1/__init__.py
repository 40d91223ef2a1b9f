"""Orbax' v1: functions that save and load pytrees and checkpointables, and a checkpointer of steps for training.

from regrow.orbax import v1 as ocp

ocp.save(path, state)
state = ocp.load(path, state)
"""

from __future__ import annotations

from .. import multihost, tree
from .._leaf_args import PLACEHOLDER
from . import errors, training
from ._checkpointables import StatefulCheckpointable
from ._context import CheckpointLayout, Context
from ._functions import (
    AsyncResponse,
    checkpointables_metadata,
    is_orbax_checkpoint,
    load,
    load_async,
    load_checkpointables,
    load_pytree,
    metadata,
    pytree_metadata,
    save,
    save_async,
    save_checkpointables,
    save_checkpointables_async,
    save_pytree,
    save_pytree_async,
)
from ._metadata import CheckpointMetadata

__all__ = [
    "PLACEHOLDER",
    "AsyncResponse",
    "CheckpointLayout",
    "CheckpointMetadata",
    "Context",
    "StatefulCheckpointable",
    "checkpointables_metadata",
    "errors",
    "is_orbax_checkpoint",
    "load",
    "load_async",
    "load_checkpointables",
    "load_pytree",
    "metadata",
    "multihost",
    "pytree_metadata",
    "save",
    "save_async",
    "save_checkpointables",
    "save_checkpointables_async",
    "save_pytree",
    "save_pytree_async",
    "training",
    "tree",
]

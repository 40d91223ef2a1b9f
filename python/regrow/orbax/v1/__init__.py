"""Orbax' v1: functions that save and load pytrees and checkpointables, and a checkpointer for the
steps of a training run.

from regrow.orbax import v1 as ocp

ocp.save(path, state)
state = ocp.load(path, state)
"""

from .._interfaces import AsyncResponse
from .._leaf_args import PLACEHOLDER
from . import arrays, errors, handlers, multihost, options, partial, path, training, tree
from ._context import Context
from ._deletion import delete, delete_async
from ._functions import (
    checkpointables_metadata,
    is_orbax_checkpoint,
    load,
    load_async,
    load_checkpointables,
    load_checkpointables_async,
    load_pytree,
    load_pytree_async,
    metadata,
    pytree_metadata,
    save,
    save_async,
    save_checkpointables,
    save_checkpointables_async,
    save_pytree,
    save_pytree_async,
)
from ._metadata import CheckpointMetadata, PyTreeMetadata
from ._registration import AbstractCheckpointable, Checkpointable, CheckpointableHandler, StatefulCheckpointable
from .options import CheckpointLayout

__all__ = [
    "PLACEHOLDER",
    "AbstractCheckpointable",
    "AsyncResponse",
    "CheckpointLayout",
    "CheckpointMetadata",
    "Checkpointable",
    "CheckpointableHandler",
    "Context",
    "PyTreeMetadata",
    "StatefulCheckpointable",
    "arrays",
    "checkpointables_metadata",
    "delete",
    "delete_async",
    "errors",
    "handlers",
    "is_orbax_checkpoint",
    "load",
    "load_async",
    "load_checkpointables",
    "load_checkpointables_async",
    "load_pytree",
    "load_pytree_async",
    "metadata",
    "multihost",
    "options",
    "partial",
    "path",
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

"""Orbax' interfaces over regrow's engine.

    import regrow.orbax as ocp                    # instead of: import orbax.checkpoint as ocp

Checkpoints are written as Orbax writes them, so that both can take turns in one folder; `use_layout("regrow")` writes
regrow's own layout, which Orbax restores too. Orbax itself need not be installed. `install()` puts this package in the
original's place, for libraries that import that themselves.
"""

from __future__ import annotations

import sys as _sys

from . import (
    args,
    checkpoint_args,
    checkpoint_manager,
    checkpoint_managers,
    checkpoint_utils,
    checkpointers,
    experimental,
    future,
    handlers,
    logging,
    metadata,
    multihost,
    options,
    path,
    test_utils,
    transform_utils,
    tree,
    type_handlers,
    utils,
    v1,
)
from ._composite import CompositeOptions
from ._errors import NotCoveredError, not_covered
from ._install import alias as _alias
from ._install import install
from ._interfaces import AsyncCheckpointHandler, CheckpointHandler, Future
from ._leaf_args import PLACEHOLDER, ArrayRestoreArgs, RestoreArgs, SaveArgs, SingleReplicaArrayRestoreArgs
from ._settings import check_saves, use_layout
from .checkpoint_manager import AsyncOptions, CheckpointManager, CheckpointManagerOptions
from .checkpointers import (
    AbstractCheckpointer,
    AsyncCheckpointer,
    Checkpointer,
    PyTreeCheckpointer,
    StandardCheckpointer,
)
from .handlers import (
    ArrayCheckpointHandler,
    CheckpointHandlerRegistry,
    CompositeCheckpointHandler,
    DefaultCheckpointHandlerRegistry,
    JsonCheckpointHandler,
    PyTreeCheckpointHandler,
    StandardCheckpointHandler,
)
from .path import step
from .transform_utils import RestoreTransform, Transform, apply_transformations, merge_trees

__all__ = [
    "PLACEHOLDER",
    "AbstractCheckpointer",
    "ArrayCheckpointHandler",
    "ArrayRestoreArgs",
    "AsyncCheckpointHandler",
    "AsyncCheckpointer",
    "AsyncOptions",
    "CheckpointHandler",
    "CheckpointHandlerRegistry",
    "CheckpointManager",
    "CheckpointManagerOptions",
    "Checkpointer",
    "CompositeCheckpointHandler",
    "CompositeOptions",
    "DefaultCheckpointHandlerRegistry",
    "Future",
    "JsonCheckpointHandler",
    "NotCoveredError",
    "PyTreeCheckpointHandler",
    "PyTreeCheckpointer",
    "RestoreArgs",
    "RestoreTransform",
    "SaveArgs",
    "SingleReplicaArrayRestoreArgs",
    "StandardCheckpointHandler",
    "StandardCheckpointer",
    "Transform",
    "apply_transformations",
    "args",
    "check_saves",
    "checkpoint_args",
    "checkpoint_manager",
    "checkpoint_managers",
    "checkpoint_utils",
    "checkpointers",
    "experimental",
    "future",
    "handlers",
    "install",
    "logging",
    "merge_trees",
    "metadata",
    "multihost",
    "options",
    "path",
    "step",
    "test_utils",
    "transform_utils",
    "tree",
    "type_handlers",
    "use_layout",
    "utils",
    "v1",
]

__version__ = "0.12.8"
"""The version of Orbax whose interfaces these are."""

checkpoint = _sys.modules[__name__]
"""This package itself: for ``import regrow.orbax`` with ``orbax.checkpoint`` after it."""

_alias(__name__, f"{__name__}.checkpoint")

_NOT_COVERED = {
    "ProtoCheckpointHandler": "save the text of the message with JsonCheckpointHandler",
    "JaxRandomKeyCheckpointHandler": "save keys as leaves of a pytree",
    "NumpyRandomKeyCheckpointHandler": "save the state of the generator as a pytree or as JSON",
    "BasePyTreeCheckpointHandler": "use PyTreeCheckpointHandler",
    "AbstractCheckpointManager": "use CheckpointManager",
    "aggregate_handlers": "they are for layouts of 2022, which regrow reads by itself",
    "msgpack_utils": "they are for layouts of 2022, which regrow reads by itself",
    "arrays": "use jax",
    "pathways": "use the original with Pathways",
    "serialization": "use regrow.save and regrow.load",
}


def __getattr__(name: str) -> object:
    if name in _NOT_COVERED:
        raise not_covered(name, _NOT_COVERED[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The interfaces of Orbax, on regrow's engine.

    import regrow.orbax as ocp  # not: import orbax.checkpoint as ocp

Saves write the layout of Orbax, so regrow and Orbax can both use one folder. `use_layout("regrow")`
makes saves write regrow's own layout, which Orbax restores too. Orbax itself need not be installed.
`install()` makes ``import orbax.checkpoint`` import this package, for libraries that import Orbax
themselves. Orbax' documentation has the arguments, and docs/guide/orbax.md the differences.
"""

import sys as _sys

from . import (
    abstract_checkpoint_manager,
    aggregate_handlers,
    args,
    arrays,
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
    msgpack_utils,
    multihost,
    options,
    path,
    pathways,
    serialization,
    test_utils,
    transform_utils,
    tree,
    type_handlers,
    utils,
    v1,
    version,
)
from ._composite import CompositeOptions
from ._errors import NotCoveredError
from ._install import add_imported_names as _add_imported_names
from ._install import alias as _alias
from ._install import install
from ._interfaces import AsyncCheckpointHandler, CheckpointHandler, Future
from ._leaf_args import PLACEHOLDER, ArrayRestoreArgs, RestoreArgs, SaveArgs, SingleReplicaArrayRestoreArgs
from ._settings import check_saves, use_layout
from .abstract_checkpoint_manager import AbstractCheckpointManager
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
    BasePyTreeCheckpointHandler,
    CheckpointHandlerRegistry,
    CompositeCheckpointHandler,
    DefaultCheckpointHandlerRegistry,
    JaxRandomKeyCheckpointHandler,
    JsonCheckpointHandler,
    NumpyRandomKeyCheckpointHandler,
    ProtoCheckpointHandler,
    PyTreeCheckpointHandler,
    StandardCheckpointHandler,
)
from .path import step
from .transform_utils import RestoreTransform, Transform, apply_transformations, merge_trees

__all__ = [
    "PLACEHOLDER",
    "AbstractCheckpointManager",
    "AbstractCheckpointer",
    "ArrayCheckpointHandler",
    "ArrayRestoreArgs",
    "AsyncCheckpointHandler",
    "AsyncCheckpointer",
    "AsyncOptions",
    "BasePyTreeCheckpointHandler",
    "CheckpointHandler",
    "CheckpointHandlerRegistry",
    "CheckpointManager",
    "CheckpointManagerOptions",
    "Checkpointer",
    "CompositeCheckpointHandler",
    "CompositeOptions",
    "DefaultCheckpointHandlerRegistry",
    "Future",
    "JaxRandomKeyCheckpointHandler",
    "JsonCheckpointHandler",
    "NotCoveredError",
    "NumpyRandomKeyCheckpointHandler",
    "ProtoCheckpointHandler",
    "PyTreeCheckpointHandler",
    "PyTreeCheckpointer",
    "RestoreArgs",
    "RestoreTransform",
    "SaveArgs",
    "SingleReplicaArrayRestoreArgs",
    "StandardCheckpointHandler",
    "StandardCheckpointer",
    "Transform",
    "abstract_checkpoint_manager",
    "aggregate_handlers",
    "apply_transformations",
    "args",
    "arrays",
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
    "msgpack_utils",
    "multihost",
    "options",
    "path",
    "pathways",
    "serialization",
    "step",
    "test_utils",
    "transform_utils",
    "tree",
    "type_handlers",
    "use_layout",
    "utils",
    "v1",
    "version",
]

__version__ = version.__version__
"""The version of Orbax whose interfaces this package has."""

checkpoint = _sys.modules[__name__]
"""This package itself, so that ``orbax.checkpoint`` works after ``import regrow.orbax``."""

_alias(__name__, f"{__name__}.checkpoint")
_add_imported_names(__name__)

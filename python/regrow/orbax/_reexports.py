"""Names that modules of the original have only because they import them. Programs use these names,
too.

Each name is the module or class of that name here. A private module without a counterpart here
exists without names: using one of its names raises the error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ._composite import CompositeArgs
from ._install import without_names
from ._interfaces import CheckpointHandler
from .checkpointers import AbstractCheckpointer
from .metadata import deserialize_root_metadata, serialize_root_metadata
from .tree import PyTree


def is_async_checkpointer(checkpointer: Any) -> bool:
    return hasattr(checkpointer, "wait_until_finished")


def determine_default_item_mode_from_args(args: Any) -> bool:
    return not isinstance(args, CompositeArgs)


_VALUES: dict[str, dict[str, Any]] = {
    "checkpoint_manager": {
        "CheckpointDirs": tuple[str, str],
        "CheckpointHandlersDict": Mapping[str, CheckpointHandler],
        "CheckpointersDict": Mapping[str, AbstractCheckpointer],
        "ItemMetadata": Any,
        "RESERVED_ITEM_NAMES": [],
        "RestoreParams": Mapping[str, Any],
        "SaveParams": Mapping[str, Any],
        "deserialize_root_metadata": deserialize_root_metadata,
        "determine_default_item_mode_from_args": determine_default_item_mode_from_args,
        "is_async_checkpointer": is_async_checkpointer,
        "serialize_root_metadata": serialize_root_metadata,
    }
} | {
    module: {"PyTree": PyTree}
    for module in (
        "abstract_checkpoint_manager aggregate_handlers checkpoint_utils test_utils transform_utils utils".split()
    )
}

_NAMES = {
    "checkpoint_manager": {
        "abstract_checkpoint_manager": "AbstractCheckpointManager",
        "checkpointers": "AbstractCheckpointer AsyncCheckpointer Checkpointer",
        "checkpoint_args": "CheckpointArgs",
        "handlers": (
            "CheckpointHandler CheckpointHandlerRegistry CompositeCheckpointHandler "
            "JsonCheckpointHandler ProtoCheckpointHandler"
        ),
        "options": "FileOptions MultiprocessingOptions",
        "tree": "PyTree",
        "metadata": "StepMetadata",
    },
    "checkpoint_managers": {
        "abstract_checkpoint_manager": "AbstractCheckpointManager",
        "checkpoint_manager": "CheckpointManager CheckpointManagerOptions",
    },
}
"""Names of classes, by the module that has them and by their home here."""

_TARGETS = {
    "args_lib": "args",
    "arrays_sharding_lib": "_src.arrays.sharding",
    "checkpoint_metadata": "_src.metadata.checkpoint",
    "checkpointer_lib": "_src.checkpointers.checkpointer",
    "options_lib": "options",
    "orbax_future": "future",
    "path_utils": "_src.path.utils",
    "preservation_policy_lib": "_src.checkpoint_managers.preservation_policy",
    "save_decision_policy_lib": "_src.checkpoint_managers.save_decision_policy",
    "snapshot_lib": "_src.path.snapshot.snapshot",
    "step_lib": "_src.path.step",
    "threading_lib": "_src.threading",
    "tree_metadata": "_src.metadata.tree",
    "tree_utils": "_src.tree.utils",
    "ts_utils": "_src.serialization.tensorstore_utils",
    "value_metadata": "_src.metadata.value",
}
"""The modules that others have by these names. All other names are the last parts of their own."""

_MODULES = {
    "abstract_checkpoint_manager": "args_lib checkpoint",
    "aggregate_handlers": "msgpack_utils orbax_future tree_metadata utils",
    "checkpoint_args": "checkpoint_handler handler_type_registry",
    "checkpoint_manager": (
        "abstract_checkpoint_manager abstract_checkpointer abstract_logger args_lib async_checkpointer "
        "atomicity_types checkpoint checkpoint_args checkpoint_handler checkpoint_info checkpointer_lib "
        "composite_checkpoint_handler deleter future handler_registration json_checkpoint_handler "
        "multihost options_lib path_utils policy_checkpoint_info preservation_policy_lib "
        "proto_checkpoint_handler root_metadata_serialization save_decision_policy_lib standard_logger "
        "step_lib step_metadata_serialization step_statistics synchronization temporary_paths "
        "threading_lib utils"
    ),
    "checkpoint_managers": "preservation_policy save_decision_policy",
    "checkpoint_utils": (
        "arrays_sharding_lib asyncio_utils multihost snapshot_lib step_lib tree_metadata type_handlers "
        "utils value_metadata"
    ),
    "handlers": "handler_registration",
    "options": "multihost",
    "test_utils": (
        "args_lib async_checkpoint_handler asyncio_utils atomicity checkpoint_args checkpoint_metadata "
        "gcs_utils limits multihost multislice pytree_checkpoint_handler replica_slices step_lib "
        "step_metadata_serialization tree_utils ts_utils type_handler_registry type_handlers"
    ),
    "transform_utils": "tree_utils type_handlers",
    "utils": "atomicity gcs_utils multihost step_lib tree_utils",
}
"""Names of modules, by the module that has them."""


def put(package: str) -> None:
    """Adds these names to the modules of the package that lack them."""
    for module, values in _VALUES.items():
        for name, value in values.items():
            vars(sys.modules[f"{package}.{module}"]).setdefault(name, value)
    for module, homes in _NAMES.items():
        for home, names in homes.items():
            for name in names.split():
                found = getattr(sys.modules[f"{package}.{home}"], name)
                vars(sys.modules[f"{package}.{module}"]).setdefault(name, found)
    for module, names in _MODULES.items():
        for name in names.split():
            target = _TARGETS.get(name) or _target(f"{package}.checkpoint", name)
            found = sys.modules.get(f"{package}.checkpoint.{target}") or without_names(f"{package}.{target}")
            vars(sys.modules[f"{package}.{module}"]).setdefault(name, found)


def _target(package: str, name: str) -> str:
    """The public module of a name, or else the private one."""
    if f"{package}.{name}" in sys.modules:
        return name
    inside = f"{package}._src."
    found = (module for module in sys.modules if module.startswith(inside) and module.endswith(f".{name}"))
    return f"_src.{next(found, inside + name).removeprefix(inside)}"

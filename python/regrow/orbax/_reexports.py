"""Names that modules of the original have only because they import them. Programs use these names,
too.

Each name is the module or class of that name here. A private module without a counterpart here
exists without names: using one of its names raises the error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from . import _private
from ._composite import CompositeArgs
from ._interfaces import CheckpointHandler
from .checkpointers import AbstractCheckpointer
from .metadata import RootMetadata
from .tree import PyTree


def is_async_checkpointer(checkpointer: Any) -> bool:
    """Whether a checkpointer saves in the background."""
    return hasattr(checkpointer, "wait_until_finished")


def determine_default_item_mode_from_args(args: Any) -> bool:
    """Whether arguments are those of one item, not of several by name."""
    return not isinstance(args, CompositeArgs)


def serialize_root_metadata(metadata: Any) -> dict[str, Any]:
    """The metadata of a folder of steps, as JSON values."""
    return {
        "internal_metadata": dict(metadata.internal_metadata or {}),
        "custom_metadata": dict(metadata.custom_metadata or {}),
    }


def deserialize_root_metadata(metadata_dict: Mapping[str, Any]) -> RootMetadata:
    """Root metadata from JSON values; keys that Orbax does not know are the caller's own."""
    known = {"internal_metadata", "custom_metadata"}
    others = {key: value for key, value in metadata_dict.items() if key not in known}
    internal, custom = (metadata_dict.get(key) or {} for key in ("internal_metadata", "custom_metadata"))
    return RootMetadata(dict(internal), dict(custom) | others)


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
    },
} | {
    module: {"PyTree": PyTree}
    for module in (
        "abstract_checkpoint_manager",
        "aggregate_handlers",
        "checkpoint_utils",
        "test_utils",
        "transform_utils",
        "utils",
    )
}

_NAMES: dict[str, dict[str, str]] = {
    "checkpoint_manager": {
        "AbstractCheckpointManager": "abstract_checkpoint_manager",
        "AbstractCheckpointer": "checkpointers",
        "AsyncCheckpointer": "checkpointers",
        "CheckpointArgs": "checkpoint_args",
        "CheckpointHandler": "handlers",
        "CheckpointHandlerRegistry": "handlers",
        "Checkpointer": "checkpointers",
        "CompositeCheckpointHandler": "handlers",
        "FileOptions": "options",
        "JsonCheckpointHandler": "handlers",
        "MultiprocessingOptions": "options",
        "ProtoCheckpointHandler": "handlers",
        "PyTree": "tree",
        "StepMetadata": "metadata",
    },
    "checkpoint_managers": {
        "AbstractCheckpointManager": "abstract_checkpoint_manager",
        "CheckpointManager": "checkpoint_manager",
        "CheckpointManagerOptions": "checkpoint_manager",
    },
}

_MODULES: dict[str, dict[str, str]] = {
    "abstract_checkpoint_manager": {"args_lib": "args", "checkpoint": "_src.metadata.checkpoint"},
    "aggregate_handlers": {
        "msgpack_utils": "msgpack_utils",
        "orbax_future": "future",
        "tree_metadata": "_src.metadata.tree",
        "utils": "utils",
    },
    "checkpoint_args": {
        "checkpoint_handler": "_src.handlers.checkpoint_handler",
        "handler_type_registry": "_src.handlers.handler_type_registry",
    },
    "checkpoint_manager": {
        "abstract_checkpoint_manager": "abstract_checkpoint_manager",
        "abstract_checkpointer": "_src.checkpointers.abstract_checkpointer",
        "abstract_logger": "_src.logging.abstract_logger",
        "args_lib": "args",
        "async_checkpointer": "_src.checkpointers.async_checkpointer",
        "atomicity_types": "_src.path.atomicity_types",
        "checkpoint": "_src.metadata.checkpoint",
        "checkpoint_args": "checkpoint_args",
        "checkpoint_handler": "_src.handlers.checkpoint_handler",
        "checkpoint_info": "_src.metadata.checkpoint_info",
        "checkpointer_lib": "_src.checkpointers.checkpointer",
        "composite_checkpoint_handler": "_src.handlers.composite_checkpoint_handler",
        "deleter": "_src.path.deleter",
        "future": "_src.futures.future",
        "handler_registration": "_src.handlers.handler_registration",
        "json_checkpoint_handler": "_src.handlers.json_checkpoint_handler",
        "multihost": "_src.multihost.multihost",
        "options_lib": "options",
        "path_utils": "_src.path.utils",
        "policy_checkpoint_info": "_src.checkpoint_managers.policy_checkpoint_info",
        "preservation_policy_lib": "_src.checkpoint_managers.preservation_policy",
        "proto_checkpoint_handler": "_src.handlers.proto_checkpoint_handler",
        "root_metadata_serialization": "_src.metadata.root_metadata_serialization",
        "save_decision_policy_lib": "_src.checkpoint_managers.save_decision_policy",
        "standard_logger": "_src.logging.standard_logger",
        "step_lib": "_src.path.step",
        "step_metadata_serialization": "_src.metadata.step_metadata_serialization",
        "step_statistics": "_src.logging.step_statistics",
        "synchronization": "_src.futures.synchronization",
        "temporary_paths": "_src.path.temporary_paths",
        "threading_lib": "_src.threading",
        "utils": "utils",
    },
    "checkpoint_managers": {
        "preservation_policy": "_src.checkpoint_managers.preservation_policy",
        "save_decision_policy": "_src.checkpoint_managers.save_decision_policy",
    },
    "checkpoint_utils": {
        "arrays_sharding_lib": "_src.arrays.sharding",
        "asyncio_utils": "_src.asyncio_utils",
        "multihost": "_src.multihost.multihost",
        "snapshot_lib": "_src.path.snapshot.snapshot",
        "step_lib": "_src.path.step",
        "tree_metadata": "_src.metadata.tree",
        "type_handlers": "_src.serialization.type_handlers",
        "utils": "utils",
        "value_metadata": "_src.metadata.value",
    },
    "handlers": {"handler_registration": "_src.handlers.handler_registration"},
    "options": {"multihost": "_src.multihost.multihost"},
    "test_utils": {
        "args_lib": "args",
        "async_checkpoint_handler": "_src.handlers.async_checkpoint_handler",
        "asyncio_utils": "_src.asyncio_utils",
        "atomicity": "_src.path.atomicity",
        "checkpoint_args": "checkpoint_args",
        "checkpoint_metadata": "_src.metadata.checkpoint",
        "gcs_utils": "_src.path.gcs_utils",
        "limits": "_src.serialization.limits",
        "multihost": "_src.multihost.multihost",
        "multislice": "_src.multihost.multislice",
        "pytree_checkpoint_handler": "_src.handlers.pytree_checkpoint_handler",
        "replica_slices": "_src.serialization.replica_slices",
        "step_lib": "_src.path.step",
        "step_metadata_serialization": "_src.metadata.step_metadata_serialization",
        "tree_utils": "_src.tree.utils",
        "ts_utils": "_src.serialization.tensorstore_utils",
        "type_handler_registry": "_src.serialization.type_handler_registry",
        "type_handlers": "_src.serialization.type_handlers",
    },
    "transform_utils": {
        "tree_utils": "_src.tree.utils",
        "type_handlers": "_src.serialization.type_handlers",
    },
    "utils": {
        "atomicity": "_src.path.atomicity",
        "gcs_utils": "_src.path.gcs_utils",
        "multihost": "_src.multihost.multihost",
        "step_lib": "_src.path.step",
        "tree_utils": "_src.tree.utils",
    },
}


def put(package: str) -> None:
    """Adds these names to the modules of the package that lack them."""
    for module, values in _VALUES.items():
        for name, value in values.items():
            vars(sys.modules[f"{package}.{module}"]).setdefault(name, value)
    for module, names in _NAMES.items():
        for name, home in names.items():
            vars(sys.modules[f"{package}.{module}"]).setdefault(name, getattr(sys.modules[f"{package}.{home}"], name))
    for module, names in _MODULES.items():
        for name, target in names.items():
            found = sys.modules.get(f"{package}.checkpoint.{target}") or _private.without_names(f"{package}.{target}")
            vars(sys.modules[f"{package}.{module}"]).setdefault(name, found)

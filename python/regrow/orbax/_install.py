"""Makes ``orbax.checkpoint`` this package, with private modules that programs import.

Some programs import from ``orbax.checkpoint._src``. Checkpoints hold the names of handlers there,
which `pydoc.locate` looks up. A private module without a counterpart here raises an `ImportError`
that says so.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from .._errors import failure
from ._composite import CompositeArgs
from ._interfaces import CheckpointHandler
from .checkpointers import AbstractCheckpointer
from .metadata import deserialize_root_metadata, serialize_root_metadata
from .tree import PyTree

_PUBLIC = (
    "abstract_checkpoint_manager aggregate_handlers args arrays checkpoint_args checkpoint_manager "
    "checkpoint_managers checkpoint_utils checkpointers experimental future handlers logging metadata "
    "msgpack_utils multihost options path path.atomicity path.format_utils path.step pathways "
    "serialization test_utils transform_utils tree type_handlers utils version"
).split()
_PUBLIC_V1 = "arrays errors handlers multihost options partial path path.step training tree".split()

_WITHIN = {
    "logging": "logging.step_statistics",
    "metadata": "metadata.tree metadata.value",
    "path.atomicity": "path.atomicity_defaults path.atomicity_types",
}
"""Public sub-modules of the original, by the module here that has their names."""

_PRIVATE = {
    "arrays": "arrays.abstract_arrays arrays.sharding arrays.types",
    "checkpoint_managers": (
        "checkpoint_managers.policy_checkpoint_info checkpoint_managers.preservation_policy "
        "checkpoint_managers.save_decision_policy"
    ),
    "checkpointers": (
        "checkpointers.abstract_checkpointer checkpointers.async_checkpointer checkpointers.checkpointer "
        "checkpointers.pytree_checkpointer checkpointers.standard_checkpointer"
    ),
    "future": "futures.future",
    "handlers type_handlers tree path.format_utils options": (
        "handlers.array_checkpoint_handler handlers.json_checkpoint_handler "
        "handlers.proto_checkpoint_handler handlers.random_key_checkpoint_handler"
    ),
    "handlers": "handlers.async_checkpoint_handler handlers.checkpoint_handler",
    "type_handlers handlers tree path.format_utils options": (
        "handlers.base_pytree_checkpoint_handler handlers.standard_checkpoint_handler"
    ),
    "_composite handlers type_handlers tree path.format_utils options": (
        "handlers.composite_checkpoint_handler handlers.handler_registration"
    ),
    "type_handlers transform_utils handlers tree path.format_utils options": "handlers.pytree_checkpoint_handler",
    "logging": "logging.abstract_logger logging.composite_logger logging.standard_logger logging.step_statistics",
    "metadata": "metadata.checkpoint metadata.pytree_metadata_options metadata.sharding metadata.value",
    "metadata tree": "metadata.tree",
    "multihost": "multihost.multihost",
    "path.atomicity": "path.atomicity path.atomicity_defaults path.atomicity_types",
    "path.format_utils": "path.format_utils",
    "path.step": "path.step path.temporary_paths",
    "type_handlers": (
        "serialization.jax_array_handlers serialization.jax_array_restore_args "
        "serialization.type_handler_registry serialization.type_handlers serialization.types"
    ),
    "tree": "tree.structure_utils tree.types",
    "tree arrays": "tree.utils",
}
"""The original's private modules, by the modules here that have their names; the first wins."""

_PRIVATE_V1 = {
    "_interfaces": "synchronization.types",
    "checkpoint_managers": "training.preservation_policies training.save_decision_policies",
    "v1._context": "context.context",
    "v1._deletion": "deletion.deletion",
    "v1._functions": "saving.saving loading.loading metadata.loading layout.registry",
    "v1._handlers": (
        "handlers.global_registration handlers.json_handler handlers.proto_handler "
        "handlers.pytree_handler handlers.stateful_checkpointable_handler"
    ),
    "v1._layout": "layout.checkpoint_layout layout.orbax_layout",
    "v1._metadata": "metadata.types",
    "v1._registration": "handlers.registration handlers.types",
    "v1._training_errors": "training.errors",
    "v1.arrays": (
        "arrays.abstract_arrays arrays.types serialization.array_leaf_handler serialization.numpy_leaf_handler"
    ),
    "v1.errors": "deletion.errors",
    "v1.multihost": "synchronization.multihost",
    "v1.options": "context.options",
    "v1.partial": "partial.path partial.saving",
    "v1.path": "path.types",
    "v1.path.step": "path.step",
    "v1.training": "training.checkpointer training.metadata.types",
    "v1.tree": "tree.structure_utils tree.types",
}


class _Alias(types.ModuleType):
    """A private module whose names are in several modules here. The first with a name counts."""

    def __init__(self, name: str, found_in: list[types.ModuleType]) -> None:
        super().__init__(name)
        self.__dict__["_found_in"] = found_in

    def __getattr__(self, name: str) -> object:
        for module in self.__dict__["_found_in"]:
            if name in vars(module):
                return vars(module)[name]
        raise AttributeError(f"regrow.orbax does not have {self.__name__}.{name}, which is private to Orbax")


class _Refusing(importlib.abc.MetaPathFinder):
    """Raises an error for private modules that regrow does not have."""

    def __init__(self, package: str) -> None:
        self.inside = f"{package}._src."

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.startswith(self.inside):
            raise failure(
                ModuleNotFoundError,
                f"regrow.orbax does not have {name}, which is a private module of Orbax",
                name=name,
                help="use the public modules, or let the program import Orbax itself",
            )
        return None


def alias(package: str, name: str) -> None:
    """Registers a package, its sub-modules and its private modules under another name."""
    sys.modules[name] = sys.modules[package]
    for sub in _PUBLIC:
        _put(f"{name}.{sub}", sys.modules[f"{package}.{sub}"])
    for there in (f"{name}.experimental.v1", f"{name}.v1"):
        for sub in ("", *(f".{sub}" for sub in _PUBLIC_V1)):
            sys.modules[f"{there}{sub}"] = sys.modules[f"{package}.v1{sub}"]
        _put_all(package, f"{there}._src", _PRIVATE_V1)
    _put_all(package, name, _WITHIN)
    _put_all(package, f"{name}._src", _PRIVATE)
    if not any(isinstance(finder, _Refusing) and finder.inside.startswith(f"{name}.") for finder in sys.meta_path):
        sys.meta_path.append(_Refusing(name))


def _put_all(package: str, below: str, places: dict[str, str]) -> None:
    for within, names in places.items():
        found_in = [sys.modules[f"{package}.{sub}"] for sub in within.split()]
        for name in names.split():
            full = f"{below}.{name}"
            _put(full, found_in[0] if len(found_in) == 1 else _Alias(full, found_in))


def _put(name: str, module: types.ModuleType) -> None:
    """Registers a module under a name, and makes its parent packages."""
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent not in sys.modules:
        folder = types.ModuleType(parent)
        folder.__path__ = []
        _put(parent, folder)
    setattr(sys.modules[parent], own, module)


def install() -> None:
    """Registers this package as ``orbax.checkpoint``, for all imports from now on.

    Raises:
        RuntimeError: if the program has already imported the original: those imports would keep it.
    """
    package = __name__.rpartition(".")[0]
    present = sys.modules.get("orbax.checkpoint")
    if present is sys.modules[package]:
        return
    if present is not None:
        help = "call regrow.orbax.install() before anything imports it"
        raise failure(RuntimeError, "orbax.checkpoint has been imported already", help=help)
    namespace = sys.modules.get("orbax")
    if namespace is None:
        namespace = sys.modules["orbax"] = types.ModuleType("orbax")
        namespace.__path__ = []
    namespace.checkpoint = sys.modules[package]  # type: ignore[attr-defined]
    alias(package, "orbax.checkpoint")


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
    "arrays_sharding_lib": "_src.arrays.sharding",
    "checkpoint_metadata": "_src.metadata.checkpoint",
    "orbax_future": "future",
    "path_utils": "_src.path.utils",
    "tree_metadata": "_src.metadata.tree",
    "tree_utils": "_src.tree.utils",
    "ts_utils": "_src.serialization.tensorstore_utils",
    "value_metadata": "_src.metadata.value",
}
"""The modules that others have by these names. Other names are the last parts of their own."""

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


def add_imported_names(package: str) -> None:
    """Adds the names that modules of the original have because they import them.

    A private module without a counterpart here has no names: each of them raises an error.
    """
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
            target = _TARGETS.get(name) or _target(f"{package}.checkpoint", name.removesuffix("_lib"))
            found = sys.modules.get(f"{package}.checkpoint.{target}") or _Alias(f"{package}.{target}", [])
            vars(sys.modules[f"{package}.{module}"]).setdefault(name, found)


def _target(package: str, name: str) -> str:
    """The public module of a name, or else the private one."""
    if f"{package}.{name}" in sys.modules:
        return name
    inside = f"{package}._src."
    found = (module for module in sys.modules if module.startswith(inside) and module.endswith(f".{name}"))
    return f"_src.{next(found, inside + name).removeprefix(inside)}"

"""Makes ``orbax.checkpoint`` this package, with private modules that programs import.

Some programs import from ``orbax.checkpoint._src``. Checkpoints hold the names of handlers there,
which `pydoc.locate` looks up. A private module without a counterpart here raises an `ImportError`
that says so.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence

from .._errors import failure
from ._errors import refusing

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
    "_composite handlers type_handlers tree path.format_utils options": (
        "handlers.array_checkpoint_handler handlers.composite_checkpoint_handler handlers.handler_registration "
        "handlers.json_checkpoint_handler handlers.proto_checkpoint_handler handlers.random_key_checkpoint_handler"
    ),
    "handlers": "handlers.async_checkpoint_handler handlers.checkpoint_handler",
    "type_handlers transform_utils handlers tree path.format_utils options": (
        "handlers.base_pytree_checkpoint_handler handlers.pytree_checkpoint_handler "
        "handlers.standard_checkpoint_handler"
    ),
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


_IMPORTING = (
    "abstract_checkpoint_manager aggregate_handlers checkpoint_args checkpoint_manager checkpoint_managers "
    "checkpoint_utils handlers options transform_utils utils"
).split()
"""Public modules that programs take names from that the original's modules only import."""

_OTHER_NAMES = {
    "arrays_sharding_lib": "_src.arrays.sharding",
    "checkpoint_metadata": "_src.metadata.checkpoint",
    "orbax_future": "future",
    "tree_metadata": "_src.metadata.tree",
    "tree_utils": "_src.tree.utils",
    "value_metadata": "_src.metadata.value",
}
"""Modules that the original imports under other names. A name may also end in ``_lib``."""

_LACKING = frozenset(
    "asyncio_utils checkpoint_info deleter gcs_utils handler_type_registry limits multislice path_utils "
    "replica_slices root_metadata_serialization snapshot_lib step_metadata_serialization synchronization "
    "threading_lib ts_utils".split()
)
"""Private modules that the original imports, and that have no counterpart here."""


def add_imported_names(package: str) -> None:
    """Gives modules the names that the original's modules have because they import them."""
    for name in _IMPORTING:
        module = sys.modules[f"{package}.{name}"]
        own = vars(module).get("__getattr__", refusing(module.__name__))
        vars(module)["__getattr__"] = functools.partial(_imported, package, own)


def _imported(package: str, own: Callable[[str], object], name: str) -> object:
    """A name that a module has, or would import from another one."""
    try:
        return own(name)
    except AttributeError:
        if (module := _module(f"{package}.checkpoint", name)) is not None:
            return module
        for home in ("", ".args", ".options", ".tree", ".metadata"):
            names = vars(sys.modules[package + home])
            if name[0].isupper() and name in names:
                return names[name]
        raise


def _module(package: str, name: str) -> types.ModuleType | None:
    """The public module of a name, or else the private one. A lacking one has no names."""
    if name in _LACKING:
        return _Alias(f"{package}._src.{name}", [])
    target = _OTHER_NAMES.get(name, name.removesuffix("_lib"))
    if f"{package}.{target}" in sys.modules:
        return sys.modules[f"{package}.{target}"]
    private = (at for at in sys.modules if at.startswith(f"{package}._src.") and at.endswith(f".{target}"))
    return sys.modules.get(next(private, ""))

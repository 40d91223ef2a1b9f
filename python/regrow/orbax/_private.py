"""The original's private modules that programs import: each is the public module here that has its
names.

Some programs import from ``orbax.checkpoint._src``. Checkpoints hold the names of handlers there,
which `pydoc.locate` looks up. A private module without a counterpart here raises an `ImportError`
that says so.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

from .._errors import failure

PRIVATE = "_src"

_PLACES = {
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


class _Alias(types.ModuleType):
    """A private module whose names are in several modules here; the first one wins."""

    def __init__(self, name: str, found_in: list[types.ModuleType]) -> None:
        super().__init__(name)
        self.__dict__["_found_in"] = found_in

    def __getattr__(self, name: str) -> object:
        for module in self.__dict__["_found_in"]:
            if name in vars(module):
                return vars(module)[name]
        raise AttributeError(f"regrow.orbax does not have {self.__name__}.{name}, which is private to Orbax")


def without_names(name: str) -> types.ModuleType:
    """A private module without a counterpart here: each of its names raises an error."""
    return _Alias(name, [])


def modules(package: str, name: str) -> dict[str, types.ModuleType]:
    """The private modules and their packages, by name below `name`, with names from `package`."""
    found: dict[str, types.ModuleType] = {}
    places = {place: within.split() for within, places in _PLACES.items() for place in places.split()}
    for folder in [PRIVATE, *dict.fromkeys(f"{PRIVATE}.{place.rpartition('.')[0]}" for place in places)]:
        made = found[f"{name}.{folder}"] = types.ModuleType(f"{name}.{folder}")
        made.__path__ = []
    for place, within in places.items():
        full, public = f"{name}.{PRIVATE}.{place}", [sys.modules[f"{package}.{sub}"] for sub in within]
        found[full] = public[0] if len(public) == 1 else _Alias(full, public)
    return found


class _Refusing(importlib.abc.MetaPathFinder):
    """Raises an error for private modules that regrow does not have."""

    def __init__(self, package: str) -> None:
        self.inside = f"{package}.{PRIVATE}."

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


def refuse_others(package: str) -> None:
    """Makes imports of other private modules raise an error with their name."""
    if not any(isinstance(finder, _Refusing) and finder.inside.startswith(f"{package}.") for finder in sys.meta_path):
        sys.meta_path.append(_Refusing(package))

"""Makes ``orbax.checkpoint`` this package, for libraries that import Orbax themselves."""

from __future__ import annotations

import sys
import types

from .._errors import failure
from . import _private
from .v1 import _private as _private_v1

SUB_MODULES = (
    "abstract_checkpoint_manager aggregate_handlers args arrays checkpoint_args checkpoint_manager "
    "checkpoint_managers checkpoint_utils checkpointers future handlers logging metadata "
    "msgpack_utils multihost options path path.atomicity path.format_utils path.step pathways "
    "serialization test_utils transform_utils tree type_handlers utils version"
).split()

WITHIN = {
    "logging.step_statistics": "logging",
    "metadata.tree": "metadata",
    "metadata.value": "metadata",
    "path.atomicity_defaults": "path.atomicity",
    "path.atomicity_types": "path.atomicity",
}
"""Sub-modules of the original whose names are in one of the modules above."""


def alias(package: str, name: str) -> None:
    """Registers a package, its sub-modules and its private modules under another name."""
    sys.modules[name] = sys.modules[package]
    for sub in SUB_MODULES:
        sys.modules[f"{name}.{sub}"] = sys.modules[f"{package}.{sub}"]
    _private_v1.alias(package, name)
    others = {f"{name}.{other}": sys.modules[f"{package}.{sub}"] for other, sub in WITHIN.items()}
    others |= _private.modules(package, name)
    sys.modules.update(others)
    for other, module in others.items():
        parent, _, attribute = other.rpartition(".")
        setattr(sys.modules[parent], attribute, module)
    _private.refuse_others(name)


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
        raise failure(
            RuntimeError,
            "orbax.checkpoint has been imported already",
            help="call regrow.orbax.install() before anything imports it",
        )
    namespace = sys.modules.get("orbax")
    if namespace is None:
        namespace = sys.modules["orbax"] = types.ModuleType("orbax")
        namespace.__path__ = []
    namespace.checkpoint = sys.modules[package]  # type: ignore[attr-defined]
    alias(package, "orbax.checkpoint")

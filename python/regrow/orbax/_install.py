"""In the original's place: for libraries that import `orbax.checkpoint` themselves."""

from __future__ import annotations

import sys
import types

from .v1 import _private as _private_v1

SUB_MODULES = (
    "args",
    "checkpoint_args",
    "checkpoint_manager",
    "checkpoint_managers",
    "checkpoint_utils",
    "checkpointers",
    "future",
    "handlers",
    "logging",
    "metadata",
    "multihost",
    "options",
    "path",
    "path.atomicity",
    "path.step",
    "test_utils",
    "transform_utils",
    "tree",
    "type_handlers",
    "utils",
)


def alias(package: str, name: str) -> None:
    """Puts a package and its sub-modules at another name, too."""
    sys.modules[name] = sys.modules[package]
    for sub in SUB_MODULES:
        sys.modules[f"{name}.{sub}"] = sys.modules[f"{package}.{sub}"]
    _private_v1.alias(package, name)


def install() -> None:
    """Puts this package at ``orbax.checkpoint``, for what imports that from now on.

    Raises:
        RuntimeError: if the program has imported the original already: who has it would keep it.
    """
    package = __name__.rpartition(".")[0]
    present = sys.modules.get("orbax.checkpoint")
    if present is sys.modules[package]:
        return
    if present is not None:
        raise RuntimeError(
            "orbax.checkpoint has been imported already\n  help: call regrow.orbax.install() before anything imports it"
        )
    namespace = sys.modules.get("orbax")
    if namespace is None:
        namespace = sys.modules["orbax"] = types.ModuleType("orbax")
        namespace.__path__ = []
    namespace.checkpoint = sys.modules[package]  # type: ignore[attr-defined]
    alias(package, "orbax.checkpoint")

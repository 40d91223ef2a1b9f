"""v1 under all names of the original: ``v1``, ``experimental.v1``, and the private modules that
have a counterpart here.
"""

from __future__ import annotations

import sys
import types

PUBLIC = (
    "arrays",
    "errors",
    "handlers",
    "multihost",
    "options",
    "partial",
    "path",
    "path.step",
    "training",
    "tree",
)
PLACES = {
    "_context": ("context.context",),
    "_deletion": ("deletion.deletion",),
    "_functions": ("saving.saving", "loading.loading", "metadata.loading", "layout.registry"),
    "_handler_types": ("handlers.types",),
    "_handlers": (
        "handlers.global_registration",
        "handlers.json_handler",
        "handlers.proto_handler",
        "handlers.pytree_handler",
        "handlers.stateful_checkpointable_handler",
    ),
    "_layout": ("layout.checkpoint_layout", "layout.orbax_layout"),
    "_metadata": ("metadata.types",),
    "_preservation_policies": ("training.preservation_policies",),
    "_registration": ("handlers.registration",),
    "_responses": ("synchronization.types",),
    "_save_decision_policies": ("training.save_decision_policies",),
    "_training_errors": ("training.errors",),
    "arrays": (
        "arrays.abstract_arrays",
        "arrays.types",
        "serialization.array_leaf_handler",
        "serialization.numpy_leaf_handler",
    ),
    "errors": ("deletion.errors",),
    "multihost": ("synchronization.multihost",),
    "options": ("context.options",),
    "partial": ("partial.path", "partial.saving"),
    "path": ("path.types",),
    "path.step": ("path.step",),
    "training": ("training.checkpointer", "training.metadata.types"),
    "tree": ("tree.structure_utils", "tree.types"),
}
"""The private modules of the original, by the module here that has their names."""


def alias(package: str, name: str) -> None:
    """Registers v1 of the package under the original's names."""
    ours = f"{package}.v1"
    for there in (f"{name}.v1", f"{name}.experimental.v1"):
        sys.modules[there] = sys.modules[ours]
        for sub in PUBLIC:
            sys.modules[f"{there}.{sub}"] = sys.modules[f"{ours}.{sub}"]
        for place, privates in PLACES.items():
            for private in privates:
                _put(f"{there}._src.{private}", sys.modules[f"{ours}.{place}"])
    sys.modules[f"{name}.experimental"] = sys.modules[f"{package}.experimental"]


def _put(name: str, module: types.ModuleType) -> None:
    """Registers a module under a name, and makes its parent packages."""
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent not in sys.modules:
        folder = types.ModuleType(parent)
        folder.__path__ = []
        _put(parent, folder)
    if parent.rpartition(".")[2] != "v1":
        setattr(sys.modules[parent], own, module)

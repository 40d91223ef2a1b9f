"""v1 under all names of the original: ``v1``, ``experimental.v1``, and the private modules that
have a counterpart here.
"""

from __future__ import annotations

import sys
import types

PUBLIC = "arrays errors handlers multihost options partial path path.step training tree".split()
PLACES = {
    "checkpoint_managers": "training.preservation_policies training.save_decision_policies",
    "v1._context": "context.context",
    "v1._deletion": "deletion.deletion",
    "v1._functions": "saving.saving loading.loading metadata.loading layout.registry",
    "v1._handler_types": "handlers.types",
    "v1._handlers": (
        "handlers.global_registration handlers.json_handler handlers.proto_handler "
        "handlers.pytree_handler handlers.stateful_checkpointable_handler"
    ),
    "v1._layout": "layout.checkpoint_layout layout.orbax_layout",
    "v1._metadata": "metadata.types",
    "v1._registration": "handlers.registration",
    "v1._responses": "synchronization.types",
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
"""The private modules of the original, by the module here that has their names."""


def alias(package: str, name: str) -> None:
    """Registers v1 of the package under the original's names."""
    ours = f"{package}.v1"
    for there in (f"{name}.v1", f"{name}.experimental.v1"):
        sys.modules[there] = sys.modules[ours]
        for sub in PUBLIC:
            sys.modules[f"{there}.{sub}"] = sys.modules[f"{ours}.{sub}"]
        for place, privates in PLACES.items():
            for private in privates.split():
                _put(f"{there}._src.{private}", sys.modules[f"{package}.{place}"])
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

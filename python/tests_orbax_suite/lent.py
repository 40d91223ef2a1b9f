"""Private names of Orbax that the helpers of its tests use, in modules that have a place in `regrow.orbax`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType

LENT = {
    "orbax.checkpoint._src.multihost.multihost": (
        "_unique_barrier_key",
        "coordination_timeout",
        "is_pathways_backend",
        "unique_barrier_key",
    ),
    "orbax.checkpoint._src.path.atomicity": (
        "DeferredWritableTemporaryPath",
        "_get_final_directory",
        "_get_tmp_directory",
    ),
    "orbax.checkpoint._src.handlers.pytree_checkpoint_handler": ("ParamInfo",),
    "orbax.checkpoint._src.metadata.tree": (
        "InternalTreeMetadata",
        "_TreeMetadataImpl",
        "KeyMetadataEntry",
        "KeyPathMetadata",
        "KeyType",
        "NestedKeyMetadataEntry",
        "TreeMetadataEntry",
        "ValueMetadataEntry",
        "serialize_tree",
    ),
    "orbax.checkpoint._src.tree.utils": (
        "isinstance_of_namedtuple",
        "select_by_pytree_path",
        "select_by_tree_path",
    ),
    "orbax.checkpoint._src.serialization.type_handler_registry": ("_DEFAULT_TYPE_HANDLERS",),
}
"""By module."""


def lend(original: Mapping[str, ModuleType]) -> None:
    """Puts these names of the original where the helpers look for them, unless there are such names."""
    for name, lent in LENT.items():
        for attribute in lent:
            if attribute not in vars(sys.modules[name]) and hasattr(original[name], attribute):
                setattr(sys.modules[name], attribute, getattr(original[name], attribute))

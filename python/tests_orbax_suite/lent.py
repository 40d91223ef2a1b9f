"""Private names of Orbax that its tests and their helpers use, in modules that have a place in
`regrow.orbax`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType

PRIVATE = "orbax.checkpoint._src."

SAME = {"orbax.checkpoint._src.metadata.tree": {"_TreeMetadataImpl": "TreeMetadata"}}
"""Private names that are those of public ones here, by module."""


def lend(original: Mapping[str, ModuleType]) -> None:
    """Puts names of the original where its tests look for them, unless `regrow.orbax` has such a
    name.

    The public names are compared elsewhere, one by one: what is missing here is private.
    """
    for place, names in SAME.items():
        for private, public in names.items():
            setattr(sys.modules[place], private, getattr(sys.modules[place], public))
    for name, module in original.items():
        ours = sys.modules.get(name)
        if ours is None or not name.startswith(PRIVATE):
            continue
        for attribute, value in list(vars(module).items()):
            if not attribute.startswith("__") and not _has(ours, attribute):
                same = sys.modules.get(value.__name__) if isinstance(value, ModuleType) else None
                setattr(ours, attribute, same or value)


def _has(module: ModuleType, attribute: str) -> bool:
    """Whether a module has a name; those that it only refuses, it does not have."""
    try:
        getattr(module, attribute)
    except (AttributeError, NotImplementedError):
        return False
    return True

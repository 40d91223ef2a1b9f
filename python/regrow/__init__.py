"""Fast, verified, atomic pytree checkpoints.

    import regrow

    regrow.save(path, tree)  # an Orbax checkpoint and safetensors in one
    regrow.save_async(path, tree)  # saves in the background
    tree = regrow.load(path)  # NumPy arrays, the same containers
    state = regrow.load(path, like=state)  # compares shapes and dtypes
    ckpt = regrow.open(path)  # any layout; reads metadata only
    ckpt["params/dense/kernel"][0:16]  # reads only these rows
    regrow.verify(path).ok
    regrow.diff(path, other).equal  # any two layouts, or a pytree
    regrow.report(path, out="report.html")  # sizes, statistics, damage
    regrow.copy(path, "s3://bucket/run")  # copies, and reads back

Needs numpy and ml_dtypes; JAX, Flax, Equinox and optax are used when the program has imported them.
Loading never runs code from a file and never imports a class that a file names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _native
from . import errors as errors
from ._errors import RegrowError

if TYPE_CHECKING:
    from . import errors as errors
    from . import handlers as handlers
    from . import jobs as jobs
    from . import layouts as layouts
    from . import protect as protect
    from . import reports as reports
    from ._async import save_async
    from ._cache import Cache
    from ._checkpoint import Checkpoint
    from ._convert import convert
    from ._copy import copy
    from ._diff import diff
    from ._item_kinds import Files, Json
    from ._items import load_items, save_items, save_items_async
    from ._list import list_checkpoints
    from ._location import Location
    from ._manager import Manager
    from ._manager_policies import Keep, SaveOptions, SaveWhen, StepName
    from ._nodes import Node, PrngKey
    from ._open import load, load_into, open, overview, verify
    from ._options import Options, options
    from ._page import report
    from ._remove import remove
    from ._save import save

__version__: str = _native.__version__

__all__ = [
    "Cache",
    "Checkpoint",
    "Files",
    "Json",
    "Keep",
    "Location",
    "Manager",
    "Node",
    "Options",
    "PrngKey",
    "RegrowError",
    "SaveOptions",
    "SaveWhen",
    "StepName",
    "convert",
    "copy",
    "diff",
    "list_checkpoints",
    "load",
    "load_into",
    "load_items",
    "open",
    "options",
    "overview",
    "remove",
    "report",
    "save",
    "save_async",
    "save_items",
    "save_items_async",
    "verify",
]

# What needs NumPy, the functions too, is imported when it is first asked for: NumPy alone takes ten
# times as long as all that is above. There the names that their annotations use are real, for
# `typing.get_type_hints`.
_HOMES = {
    "_async": ("save_async",),
    "_cache": ("Cache",),
    "_checkpoint": ("Checkpoint",),
    "_convert": ("convert",),
    "_copy": ("copy",),
    "_diff": ("diff",),
    "_item_kinds": ("Files", "Json"),
    "_items": ("load_items", "save_items", "save_items_async"),
    "_list": ("list_checkpoints",),
    "_location": ("Location",),
    "_manager": ("Manager",),
    "_manager_policies": ("Keep", "SaveOptions", "SaveWhen", "StepName"),
    "_nodes": ("Node", "PrngKey"),
    "_open": ("load", "load_into", "open", "overview", "verify"),
    "_options": ("Options", "options"),
    "_page": ("report",),
    "_remove": ("remove",),
    "_save": ("save",),
}

_MODULES = ("errors", "handlers", "jobs", "layouts", "protect", "reports")
"""Modules that are imported when they are first named."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(importlib.import_module(f".{home}", __name__), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

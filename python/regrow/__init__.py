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

from . import _native

# As `typing.TYPE_CHECKING`, but importing `typing` takes longer than all of this module.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from . import errors as errors
    from . import handlers as handlers
    from . import jobs as jobs
    from . import layouts as layouts
    from . import protect as protect
    from . import reports as reports
    from ._core._cache import Cache
    from ._core._location import Location
    from ._core._options import Options, options
    from ._errors import RegrowError
    from ._load._checkpoint import Checkpoint
    from ._load._open import load, load_into, open, overview, verify
    from ._manager._manager import Manager
    from ._manager._policies import Keep, SaveOptions, SaveWhen, StepName
    from ._operations._convert import convert
    from ._operations._copy import copy
    from ._operations._diff import diff
    from ._operations._list import list_checkpoints
    from ._operations._page import report
    from ._operations._remove import remove
    from ._save._async import save_async
    from ._save._item_kinds import Files, Json
    from ._save._items import load_items, save_items, save_items_async
    from ._save._save import save
    from ._tree._nodes import Node, PrngKey

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

# All names are imported at their first use: importing NumPy takes ten times as long as this module,
# and the command needs none of them. The modules they come from import the types in their
# annotations, so `typing.get_type_hints` works.
_HOMES = {
    "_core._cache": ("Cache",),
    "_core._location": ("Location",),
    "_core._options": ("Options", "options"),
    "_errors": ("RegrowError",),
    "_load._checkpoint": ("Checkpoint",),
    "_load._open": ("load", "load_into", "open", "overview", "verify"),
    "_manager._manager": ("Manager",),
    "_manager._policies": ("Keep", "SaveOptions", "SaveWhen", "StepName"),
    "_operations._convert": ("convert",),
    "_operations._copy": ("copy",),
    "_operations._diff": ("diff",),
    "_operations._list": ("list_checkpoints",),
    "_operations._page": ("report",),
    "_operations._remove": ("remove",),
    "_save._async": ("save_async",),
    "_save._item_kinds": ("Files", "Json"),
    "_save._items": ("load_items", "save_items", "save_items_async"),
    "_save._save": ("save",),
    "_tree._nodes": ("Node", "PrngKey"),
}

_MODULES = ("errors", "handlers", "jobs", "layouts", "protect", "reports")
"""Modules that are imported when they are first named."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        import importlib

        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # An `except regrow.errors.IoError` must not need a file handle that the system refuses.
        importlib.import_module(".errors", __name__)
        globals()[name] = found = getattr(importlib.import_module(f".{home}", __name__), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

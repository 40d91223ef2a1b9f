"""Fast, verified, atomic pytree checkpoints.

    import regrow

    regrow.save(path, tree)                       # an Orbax checkpoint and safetensors files in one
    regrow.save_async(path, tree)                 # returns at once; saves while the program goes on
    tree = regrow.load(path)                      # numpy views, exact containers; no template, no class needed
    state = regrow.load(path, like=state)         # strict: same structure, shapes and dtypes; jax as in `like`
    ckpt = regrow.open(path)                      # any layout: a mapping of key paths to lazy leaves
    ckpt["params/dense/kernel"][0:16]             # reads just those bytes
    regrow.verify(path).ok
    regrow.diff(path, other).equal                # any two layouts, or a pytree in memory; with tolerances, by leaf
    regrow.report(path, out="report.html")        # a page to look at: sizes, statistics, damage; of a notebook, too
    regrow.copy(path, "s3://bucket/run")          # byte for byte, read back; also `remove`, `list_checkpoints`

Needs numpy and ml_dtypes; JAX, Flax, Equinox and optax are used when the program has imported them. Loading never
runs code from a file and never imports a class that a file names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import (
    AlreadyExistsError,
    CancelledError,
    CorruptError,
    IncompleteCheckpointWarning,
    InternalError,
    InvalidArgumentError,
    IoError,
    LeafNotFoundError,
    LeafTypeError,
    LimitError,
    MismatchError,
    NameCollisionError,
    NotACheckpointError,
    NotDurableError,
    NotFoundError,
    PermissionDeniedError,
    RegrowError,
    ReplacedError,
    SalvageWarning,
    SourceChangedError,
    StorageFullError,
    TimedOutError,
    UncommittedError,
    UnsupportedError,
    UntrustedError,
)

if TYPE_CHECKING:
    from ._async import AsyncSave, AsyncSaver, Blocked, save_async
    from ._cache import Cache, CacheReport
    from ._checkpoint import Checkpoint, Finding, Item, Leaf, VerifyReport
    from ._convert import ConvertPlan, ConvertReport, LeafForm, PlannedLeaf, convert
    from ._coordination import Coordinator, Folder, coordinator
    from ._copy import CopyReport, copy
    from ._diff import ContainerDiff, DiffFinding, DiffReport, Distance, LeafDiff, diff
    from ._executors import Executor as Executor
    from ._executors import ray_executor
    from ._handlers import LeafHandler, LeafRegistry, StandardHandler
    from ._item_kinds import Files, Json
    from ._items import load_items, save_items, save_items_async
    from ._job import Job
    from ._keywords import ConvertOptions, LoadOptions, SaveOptions
    from ._list import Listed, list_checkpoints
    from ._location import Location
    from ._location import StrPath as StrPath
    from ._manager import Manager
    from ._manager_policies import StepName
    from ._manager_restore import PassedOver
    from ._manager_steps import Step
    from ._nodes import Node, PrngKey, UnknownLeaf
    from ._open import load, open, overview, verify
    from ._options import OrbaxOptions
    from ._page import ReportPage, report
    from ._progress import Progress as Progress
    from ._remove import RemoveReport, remove
    from ._repair import HealedFile, ParityReport, RecoveredFile, RepairReport, add_parity, repair
    from ._report import LoadReport, Loss, SaveReport, StageReport
    from ._salvage import SalvageReport
    from ._save import save
    from ._seal import SealReport, seal
    from ._sharded import ShardedArray
    from ._sign import SignReport, sign
    from ._single_replica import SingleReplica

__version__: str = _native.__version__

__all__ = [
    "AlreadyExistsError",
    "AsyncSave",
    "AsyncSaver",
    "Blocked",
    "Cache",
    "CacheReport",
    "CancelledError",
    "Checkpoint",
    "ContainerDiff",
    "ConvertOptions",
    "ConvertPlan",
    "ConvertReport",
    "Coordinator",
    "CopyReport",
    "CorruptError",
    "DiffFinding",
    "DiffReport",
    "Distance",
    "Files",
    "Finding",
    "Folder",
    "HealedFile",
    "IncompleteCheckpointWarning",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "Item",
    "Job",
    "Json",
    "Leaf",
    "LeafDiff",
    "LeafForm",
    "LeafHandler",
    "LeafNotFoundError",
    "LeafRegistry",
    "LeafTypeError",
    "LimitError",
    "Listed",
    "LoadOptions",
    "LoadReport",
    "Location",
    "Loss",
    "Manager",
    "MismatchError",
    "NameCollisionError",
    "Node",
    "NotACheckpointError",
    "NotDurableError",
    "NotFoundError",
    "OrbaxOptions",
    "ParityReport",
    "PassedOver",
    "PermissionDeniedError",
    "PlannedLeaf",
    "PrngKey",
    "RecoveredFile",
    "RegrowError",
    "RemoveReport",
    "RepairReport",
    "ReplacedError",
    "ReportPage",
    "SalvageReport",
    "SalvageWarning",
    "SaveOptions",
    "SaveReport",
    "SealReport",
    "ShardedArray",
    "SignReport",
    "SingleReplica",
    "SourceChangedError",
    "StageReport",
    "StandardHandler",
    "Step",
    "StepName",
    "StorageFullError",
    "TimedOutError",
    "UncommittedError",
    "UnknownLeaf",
    "UnsupportedError",
    "UntrustedError",
    "VerifyReport",
    "add_parity",
    "convert",
    "coordinator",
    "copy",
    "diff",
    "list_checkpoints",
    "load",
    "load_items",
    "open",
    "overview",
    "ray_executor",
    "remove",
    "repair",
    "report",
    "save",
    "save_async",
    "save_items",
    "save_items_async",
    "seal",
    "sign",
    "verify",
]

# What needs NumPy, the functions too, is imported when it is first asked for: NumPy alone takes ten times as long as
# all that is above. There the names that their annotations use are real, for `typing.get_type_hints`.
_HOMES = {
    "_async": ("AsyncSave", "AsyncSaver", "Blocked", "save_async"),
    "_cache": ("Cache", "CacheReport"),
    "_checkpoint": ("Checkpoint", "Finding", "Item", "Leaf", "VerifyReport"),
    "_convert": ("ConvertPlan", "ConvertReport", "LeafForm", "PlannedLeaf", "convert"),
    "_coordination": ("Coordinator", "Folder", "coordinator"),
    "_item_kinds": ("Files", "Json"),
    "_items": ("load_items", "save_items", "save_items_async"),
    "_job": ("Job",),
    "_copy": ("CopyReport", "copy"),
    "_diff": ("ContainerDiff", "DiffFinding", "DiffReport", "Distance", "LeafDiff", "diff"),
    "_executors": ("Executor", "ray_executor"),
    "_handlers": ("LeafHandler", "LeafRegistry", "StandardHandler"),
    "_keywords": ("ConvertOptions", "LoadOptions", "SaveOptions"),
    "_list": ("Listed", "list_checkpoints"),
    "_location": ("Location", "StrPath"),
    "_manager": ("Manager",),
    "_manager_policies": ("StepName",),
    "_manager_restore": ("PassedOver",),
    "_manager_steps": ("Step",),
    "_nodes": ("Node", "PrngKey", "UnknownLeaf"),
    "_open": ("load", "open", "overview", "verify"),
    "_options": ("OrbaxOptions",),
    "_page": ("ReportPage", "report"),
    "_progress": ("Progress",),
    "_remove": ("RemoveReport", "remove"),
    "_repair": ("HealedFile", "ParityReport", "RecoveredFile", "RepairReport", "add_parity", "repair"),
    "_report": ("LoadReport", "Loss", "SaveReport", "StageReport"),
    "_salvage": ("SalvageReport",),
    "_save": ("save",),
    "_seal": ("SealReport", "seal"),
    "_sign": ("SignReport", "sign"),
    "_sharded": ("ShardedArray",),
    "_single_replica": ("SingleReplica",),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(importlib.import_module(f".{home}", __name__), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

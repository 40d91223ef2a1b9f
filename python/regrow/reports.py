"""The results of regrow's functions: reports, findings, and the parts of a checkpoint."""

from __future__ import annotations

from ._core._cache import CacheReport
from ._core._report import Finding, LoadReport, Loss, SaveReport, StageReport
from ._load._checkpoint import Item, Leaf, Overview, VerifyReport
from ._load._salvage import SalvageReport
from ._manager._restore import PassedOver
from ._manager._steps import Step
from ._operations._convert import ConvertPlan, ConvertReport, LeafForm, PlannedLeaf
from ._operations._copy import CopyReport
from ._operations._diff import ContainerDiff, DiffFinding, DiffReport, Distance, LeafDiff
from ._operations._list import Listed
from ._operations._page import ReportPage
from ._operations._remove import RemoveReport
from ._operations._repair import HealedFile, ParityReport, RecoveredFile, RepairReport
from ._operations._seal import SealReport
from ._operations._sign import SignReport
from ._save._async import Blocked, SaveHandle
from ._tree._nodes import UnknownLeaf

__all__ = [
    "Blocked",
    "CacheReport",
    "ContainerDiff",
    "ConvertPlan",
    "ConvertReport",
    "CopyReport",
    "DiffFinding",
    "DiffReport",
    "Distance",
    "Finding",
    "HealedFile",
    "Item",
    "Leaf",
    "LeafDiff",
    "LeafForm",
    "Listed",
    "LoadReport",
    "Loss",
    "Overview",
    "ParityReport",
    "PassedOver",
    "PlannedLeaf",
    "RecoveredFile",
    "RemoveReport",
    "RepairReport",
    "ReportPage",
    "SalvageReport",
    "SaveHandle",
    "SaveReport",
    "SealReport",
    "SignReport",
    "StageReport",
    "Step",
    "UnknownLeaf",
    "VerifyReport",
]

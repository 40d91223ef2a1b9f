"""What functions of regrow give back: reports, findings, and the parts of a checkpoint."""

from __future__ import annotations

from ._async import Blocked, SaveHandle
from ._cache import CacheReport
from ._checkpoint import Item, Leaf, Overview, VerifyReport
from ._convert import ConvertPlan, ConvertReport, LeafForm, PlannedLeaf
from ._copy import CopyReport
from ._diff import ContainerDiff, DiffFinding, DiffReport, Distance, LeafDiff
from ._list import Listed
from ._manager_restore import PassedOver
from ._manager_steps import Step
from ._nodes import UnknownLeaf
from ._page import ReportPage
from ._remove import RemoveReport
from ._repair import HealedFile, ParityReport, RecoveredFile, RepairReport
from ._report import Finding, LoadReport, Loss, SaveReport, StageReport
from ._salvage import SalvageReport
from ._seal import SealReport
from ._sign import SignReport

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

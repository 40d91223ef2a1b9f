"""Loads the intact leaves of a damaged checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _native
from .._core import _arguments
from .._core._location import Place
from .._core._progress import Progress, Watch
from .._core._readable import readable
from .._core._report import Finding
from .._core._warnings import warn
from .._errors import CorruptError, IoError, LimitError, NotFoundError, SalvageWarning, UnsupportedError
from .._text import counted
from ._opening import Opening

DAMAGE = (CorruptError, LimitError, UnsupportedError, NotFoundError, IoError)
"""Errors of damage. Opening the intact leaves raises other errors again."""

_SHOWN = 20
"""The most findings in the text of a report."""


@readable
class SalvageReport(NamedTuple):
    """The lost leaves of a checkpoint, and its other damage."""

    path: str
    """The checkpoint."""
    lost: list[Finding]
    """Each lost leaf: the reason, its key path, and file and offset if they are known."""
    damage: list[Finding]
    """Other damage: errors of opening, and damage of files that hold no leaf."""
    is_bare: bool
    """Whether the pytree is lost. The result then has the arrays by their names; containers and
    kinds of leaves may differ."""

    @property
    def lost_paths(self) -> list[str]:
        """The key paths of the lost leaves."""
        return [finding.leaf for finding in self.lost if finding.leaf is not None]

    def __bool__(self) -> bool:
        return not (self.lost or self.damage)

    def __str__(self) -> str:
        and_more = "; the pytree is lost too: the arrays load by their names" if self.is_bare else ""
        lines = [f"{self.path}: {counted(len(self.lost), 'leaf is lost', 'leaves are lost')}{and_more}"]
        found = [*self.lost, *self.damage]
        lines += [finding.message for finding in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"and {len(found) - _SHOWN} more")
        return "\n".join(lines)


Salvage = bool | Callable[[SalvageReport], object]
"""Whether to load the intact leaves, or a function that gets the report."""


def chosen(salvage: Any) -> Salvage:
    """The argument ``salvage=``, checked."""
    if isinstance(salvage, bool):
        return salvage
    if callable(salvage):
        told: Callable[[SalvageReport], object] = salvage
        return told
    raise _arguments.wrong("salvage", salvage, "True, False, or a function of the report")


def opened(at: Place, opening: Opening, progress: Progress) -> tuple[_native.Checkpoint, SalvageReport]:
    """An opened and verified checkpoint with placeholders for its lost leaves."""
    with Watch(progress, "verifying") as watch:
        native, lost, damage, is_bare = _native.open_intact(at, opening, watch)
    found = [Finding(*each) for each in lost], [Finding(*each) for each in damage]
    return native, SalvageReport(native.path, *found, is_bare)


def tell(salvage: Salvage, report: SalvageReport) -> None:
    """Gives the report to the caller's function, or warns at the caller's line."""
    if callable(salvage):
        salvage(report)
    else:
        warn(SalvageWarning(str(report), report))

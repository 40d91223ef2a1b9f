"""Requests to the engine. The binding reads their fields by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ._record import Record

if TYPE_CHECKING:
    from .. import _native
    from .._jobs._job import NativeJob
    from ._location import Place

Renames = Sequence[tuple[str, str]]
Moves = Sequence[tuple[str, Sequence[int]]]
"""Globs over key paths, each with axes or a shape."""


class Casts(NamedTuple):
    """The casts of arrays."""

    rules: list[tuple[str, str]]
    """Globs over key paths, and names of dtypes."""
    casting: str
    """What a cast may do to values: ``"checked"``, ``"lossy"`` or ``"as_numpy"``."""


class SaveRequest(Record):
    """A save."""

    overwrite: bool | str
    """Whether a checkpoint may be replaced; ``"any file"`` also replaces other files."""
    durable: bool
    keep_cached: bool
    casts: Casts
    compression: int | str | None
    """A level of zstd, or ``"none"``; the layout's default if `None`."""
    metadata: str | None
    """JSON."""
    seal: bool
    parity: str | None
    trust_base: bool
    budget_bytes: int | None
    wait: float
    layout: str
    layout_options: str
    """JSON."""
    base: Place | None
    job: NativeJob | None


class BackgroundRequest(Record):
    """The options of a save in the background."""

    when_busy: str = "wait"
    copy: str
    check_source: bool
    seconds: float
    """Time since the caller began."""
    waited_seconds: float = 0.0
    """The part of `seconds` for which the caller waited for an earlier save."""


class ItemsRequest(Record):
    """A save of several items."""

    overwrite: bool
    keeps_others: bool
    durable: bool
    keep_cached: bool
    v1: bool
    """Whether the checkpoint has the form of Orbax' v1 API."""
    of_step: bool
    metadata: str | None
    """A JSON object."""
    base: Place | None
    job: NativeJob | None
    mode: int | None
    """The mode of the folders."""
    wait: float
    """Seconds to wait for another process that changes the checkpoint."""


class LoadRequest(Record):
    """A load of an opened checkpoint."""

    casts: Casts
    only: Sequence[str] = ()
    template: tuple[_native.Structure, _native.TemplateLeaves, bytes] | None = None
    partial: bool = False
    """Whether leaves that the template lacks are left out."""
    verify: bool = True
    mmap: bool = False
    budget_bytes: int | None = None
    unread: Sequence[int] = ()
    """Leaves that another call reads. The result has no data for these leaves."""


class RegionsRequest(Record):
    """How regions of leaves are loaded."""

    casting: str
    verify: bool
    budget_bytes: int | None


class ConvertRequest(Record):
    """The source of a conversion, and the rules for its leaves."""

    step: int | None
    item: str | None
    lost_is_error: bool
    arrays_only: bool
    only: Sequence[str]
    rename: Renames
    transpose: Moves
    reshape: Moves
    nest: str | None
    lossy: bool
    salvage: bool


class CopyRequest(Record):
    """A copy."""

    overwrite: bool
    durable: bool
    verify: bool
    wait: float
    budget_bytes: int | None


class DiffRequest(Record):
    """A comparison of two checkpoints."""

    only: list[str]
    atol: float | None
    rtol: float | None
    max_ulp: int | None
    ignore_dtype: bool
    check_types: bool
    equality_only: bool
    list_equal: bool
    budget_bytes: int | None


class ReportRequest(Record):
    """A page about checkpoints."""

    title: str | None
    command: str
    """The call, for the foot of the page."""
    only: list[str]
    sample_bytes: int | None
    statistics: bool
    step: int | None
    item: str | None
    budget_bytes: int | None

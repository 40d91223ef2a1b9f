"""The reports of saves and loads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from .._text import counted, printable
from ._progress import format_bytes, format_seconds, format_speed
from ._readable import readable

BESIDE = {"write": "  (while the other stages run)", "read": "  (part of copy)"}
READ_TO_COMPARE = "  (part of compare and copy)"


class Finding(NamedTuple):
    """One fault of a checkpoint."""

    kind: str
    """The kind of the error: ``corrupt``, ``not_found``, ..."""
    message: str
    """What, where, expected and found, what to do."""
    file: str | None
    leaf: str | None
    offset_bytes: int | None


FINDINGS_SHOWN = 20
"""The most findings that a report shows as text. The report's fields have all findings."""


def messages_of(findings: Sequence[Finding]) -> list[str]:
    """The first findings as text, and the number of the remaining findings."""
    texts = [finding.message for finding in findings[:FINDINGS_SHOWN]]
    more = len(findings) - len(texts)
    return [*texts, f"and {counted(more, 'more finding', 'more findings')}"] if more else texts


class Loss(NamedTuple):
    """A part of the pytree that the target layout cannot return unchanged."""

    kind: str
    """How bad it is: ``"note"``, ``"structure"``, ``"kind"`` or ``"value"``."""
    key_path: str
    """The leaf or container."""
    what: str
    """The loss, in words."""


class StageReport(NamedTuple):
    """The time of one stage of a save or a load."""

    stage: str
    """``prepare``, ``compare``, ``read``, ``copy``, ``wait_for_disk``, ``write``, ``sync`` or
    ``commit``; of a background save also ``wait_for_save`` and ``snapshot``. Of a load
    ``wait_for_turn``, ``read``, ``wait_for_readers`` or ``receive``."""
    seconds: float
    """The time of the stage. If several threads worked in the stage, the sum over the threads."""
    bytes: int
    """The bytes of the stage; 0 for a stage without bytes."""
    gb_per_s: float
    """10^9 bytes a second; 0 for a stage without bytes."""


def _line(stage: StageReport, width: int) -> str:
    speed = format_speed(stage.bytes, stage.gb_per_s)
    return f"\n  {stage.stage:{width}} {format_seconds(stage.seconds):>9}" + (f"  {speed:>10}" if speed else "")


@readable
class SaveReport(NamedTuple):
    """The report of a save. As text: a line, and a line for each stage."""

    path: str
    """The path of the checkpoint."""
    stored_bytes: int
    """Bytes of all files."""
    leaf_count: int
    """Leaves written."""
    data_bytes: int = 0
    """Bytes of array data, after casts, before compression."""
    seconds: float = 0.0
    """The time of the whole save, without flattening the pytree."""
    stages: tuple[StageReport, ...] = ()
    """Where the time went. Those of the calling thread (all but ``read``, a part of others, and
    ``write``) add up to `seconds`, unless the layout writes with several threads."""
    io_path: str = ""
    """How large files were written: ``direct``, ``page cache`` with ``keep_cached=True``, or
    ``buffered`` and the reason.
    """
    reused_bytes: int = 0
    """Bytes that the save linked from ``base=`` and did not write. `stored_bytes` includes these
    bytes, although they take no extra space.
    """
    notes: Sequence[str] = ()
    """Other findings, such as damage in the base."""
    losses: Sequence[Loss] = ()
    """Values that the tool of the layout reads back changed, the worst first: a tuple that
    becomes a list; with `lossy` also leaves."""

    @property
    def gb_per_s(self) -> float:
        """Array data saved, in 10^9 bytes a second."""
        return self.data_bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        leaves = counted(self.leaf_count, "leaf", "leaves")
        text = (
            f"{printable(self.path)}: {leaves}, {format_bytes(self.data_bytes)} of data,"
            f" {format_bytes(self.stored_bytes)} on disk, in {format_seconds(self.seconds)}"
        )
        speed = format_speed(self.data_bytes, self.gb_per_s)
        if speed:
            text += f" ({speed})"
        if self.io_path.startswith("buffered"):
            text += f"; {self.io_path}"
        if self.reused_bytes:
            text += f"; {format_bytes(self.reused_bytes)} reused"
        for note in self.notes:
            text += f"\n  {printable(note)}"
        for loss in self.losses:
            text += f"\n  {loss.kind}: {printable(loss.key_path)}: {printable(loss.what)}"
        compares = any(stage.stage == "compare" for stage in self.stages)
        for stage in self.stages:
            text += _line(stage, 13)
            text += READ_TO_COMPARE if stage.stage == "read" and compares else BESIDE.get(stage.stage, "")
        return text

    def _repr_html_(self) -> str:
        from . import _html

        return _html.of_save(self)

    @classmethod
    def from_native(cls, report: tuple[Any, ...]) -> SaveReport:
        """From the native half's columns."""
        path, stored_bytes, leaf_count, data_bytes, seconds, stages, io_path, reused_bytes, notes, losses = report
        stages, told = tuple(StageReport(*stage) for stage in stages), tuple(Loss(*loss) for loss in losses)
        return cls(path, stored_bytes, leaf_count, data_bytes, seconds, stages, io_path, reused_bytes, notes, told)


@readable
class LoadReport(NamedTuple):
    """The report of a load in this process. As text: a line, and a line for each stage."""

    path: str
    """The checkpoint."""
    read_bytes: int
    """Bytes of leaves that this process has read, decoded."""
    received_bytes: int
    """Bytes of arrays that this process has received from processes of another replica."""
    seconds: float
    """The time of the whole load."""
    stages: tuple[StageReport, ...]
    """Where the time went: ``wait_for_turn`` with `in_turns`, ``read``, and with `single_replica`
    ``wait_for_readers`` and ``receive``. What is read while arrays are on their way counts as
    ``read`` alone."""

    def __str__(self) -> str:
        received = f", received {format_bytes(self.received_bytes)}" if self.received_bytes else ""
        text = (
            f"{printable(self.path)}: read {format_bytes(self.read_bytes)}{received}, in {format_seconds(self.seconds)}"
        )
        for stage in self.stages:
            text += _line(stage, 16)
        return text


class Stages:
    """A clock for the stages of a load."""

    def __init__(self, is_asked_for: bool = False) -> None:
        self.is_asked_for = is_asked_for
        """Whether the report is wanted."""
        self._began = time.monotonic()
        self._stages: dict[str, tuple[float, int]] = {}

    @contextmanager
    def stage(self, name: str, len_bytes: int = 0) -> Iterator[None]:
        """Counts the time of the block, and bytes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - began, len_bytes)

    def add(self, name: str, seconds: float = 0.0, len_bytes: int = 0) -> None:
        """Adds to a stage."""
        before, bytes_before = self._stages.get(name, (0.0, 0))
        self._stages[name] = before + seconds, bytes_before + len_bytes

    def report(self, path: str) -> LoadReport:
        """The report of the load."""
        stages = tuple(
            StageReport(name, seconds, len_bytes, len_bytes / seconds / 1e9 if seconds > 0 else 0.0)
            for name, (seconds, len_bytes) in self._stages.items()
        )
        bytes_of = {stage.stage: stage.bytes for stage in stages}
        seconds = time.monotonic() - self._began
        return LoadReport(path, bytes_of.get("read", 0), bytes_of.get("receive", 0), seconds, stages)

"""Parity beside a checkpoint, and repair: what is damaged, cut or lost comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from . import _arguments, _native
from ._location import StrPath, place
from ._progress import Progress, Watch, format_bytes
from ._readable import readable
from ._report import Finding
from ._text import counted, printable


@readable
class ParityReport(NamedTuple):
    """What parity covers."""

    path: str
    """The index of the parity."""
    file_count: int
    """Files that can be healed; 0 if the parity was taken away."""
    bytes: int
    """Their bytes."""
    parity_bytes: int
    """Bytes of the parity."""
    has_changed: bool
    """Whether parity was made or taken away."""

    def __str__(self) -> str:
        covered = f"{counted(self.file_count, 'file', 'files')}, {format_bytes(self.bytes)}"
        return f"{printable(self.path)}: {format_bytes(self.parity_bytes)} of parity for {covered}"


def add_parity(
    path: StrPath,
    ratio: str = "1/16",
    *,
    step: int | None = None,
    remove: bool = False,
    progress: Progress = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ParityReport:
    """Puts parity beside a checkpoint of any layout: `repair` makes damaged and lost files whole by it.

    Reed-Solomon blocks in two files, ``regrow.parity.json`` and ``regrow.parity.blocks`` in the folder, or
    ``regrow.parity.NAME.json`` and ``.blocks`` beside a file. The checkpoint is verified first, and not touched; its
    own tools read it as before. All files are read twice. Parity that is there is replaced.

    Args:
        path: A checkpoint, or a folder of steps.
        ratio: How much, from ``"1/1024"`` to ``"1/1"``: ``"1/16"`` takes a sixteenth of the checkpoint's size, and
            heals as much.
        step: The step of a folder of steps; the newest if `None`.
        remove: Take the parity away instead.
        progress: As for `save`.
        storage_options: How to reach the storage of a URL, as for `save`.

    Raises:
        CorruptError: if the checkpoint is damaged already.
        InvalidArgumentError: for another ratio; for a file that is one of several that are the checkpoint.
        ReplacedError: if somebody writes to it meanwhile.
        UnsupportedError: in an archive, on a web server.
        PermissionDeniedError: if nothing can be written there.
    """
    at = place("path", path, storage_options)
    chosen = _arguments.count("step", step)
    is_removed = _arguments.flag("remove", remove)
    if not isinstance(ratio, str):
        raise _arguments.wrong("ratio", ratio, 'a text such as "1/16"')
    with Watch(progress, "making parity") as watch:
        return ParityReport(*_native.add_parity(at, ratio, chosen, is_removed, watch))


class HealedFile(NamedTuple):
    """A file that is whole again."""

    path: str
    """The file."""
    bytes: int
    """Bytes of it that were restored."""


class RecoveredFile(NamedTuple):
    """A file that was lost or damaged, and was made anew of the others."""

    path: str
    """The file."""
    bytes: int
    """Its length."""
    how: str
    """What it was made of, and what is not sure about it."""
    is_guess: bool
    """Whether nothing proves that it says what was there before. What was there is kept beside it."""


@readable
class RepairReport(NamedTuple):
    """What a repair did. As a bool: whether the checkpoint is known to be whole."""

    path: str
    """The checkpoint."""
    bytes: int
    """Bytes that were looked at."""
    healed: list[HealedFile]
    """Files that are whole again; of a check, those that would be."""
    recovered: list[RecoveredFile]
    """Files that were made anew of the others, without parity; of a check, those that would be."""
    lost: list[Finding]
    """What could not be healed."""
    findings: list[Finding]
    """What opening and verifying the checkpoint find afterwards, leaf by leaf; a check verifies, and before, only where
    there is no parity."""
    notes: list[str]
    """What else was done: saves that never ended, finished or removed."""
    is_parity_damaged: bool
    """Whether the parity was damaged, too; it was made anew unless something is lost."""
    is_check: bool
    """Whether this was a check, and nothing was written."""
    text: str
    """All of it in a line."""
    verdict: str
    """``"whole"`` only if something says of each file that it is what was written; ``"not known"`` if nothing wrong is
    found, and nothing says so; ``"damaged"`` otherwise."""
    proved_by: str | None
    """What says that the checkpoint is whole: its checksums, its parity, a seal, a copy that is the same."""

    @property
    def is_whole(self) -> bool:
        """Whether the checkpoint is known to be whole."""
        return self.verdict == "whole"

    @property
    def is_sound(self) -> bool:
        """Whether nothing is lost, and verification finds nothing."""
        return not self.lost and not self.findings

    def __bool__(self) -> bool:
        return self.is_whole

    def __str__(self) -> str:
        return "\n".join([self.text, *(finding.message for finding in [*self.lost, *self.findings])])


def repair(
    path: StrPath,
    *,
    from_: StrPath | None = None,
    step: int | None = None,
    check: bool = False,
    progress: Progress = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RepairReport:
    """Makes a damaged checkpoint whole, by what there is.

    - **Parity** beside it (`add_parity`, ``parity=`` of `save`) heals damaged blocks, files that are cut or gone, and
      itself. The files become what they were when the parity was made: if one was changed on purpose since, this
      changes it back. What was sealed or signed since stays, and the parity is made anew of it.
    - **Another checkpoint** (`from_`), a replica or another step, gives blocks that are damaged here, as long as
      something proves them: parity, a seal, the checksums of the layout regrow. Of another step that layout gives the
      leaves that are the same.
    - **Its own other files** bring back those that say nothing new: a lost ``regrow.json``, ``_METADATA``, database or
      index. The guide lists them.
    - What saves that never ended have left beside it is finished or removed.

    Each file is written anew beside the damaged one and takes its place in one step, and the checkpoint is verified at
    the end. Killed at any moment it leaves each file as it was or whole, and can be run again. What cannot be brought
    back is listed, leaf by leaf.

    Args:
        path: A checkpoint, or a folder of steps. One that cannot be opened is named by its own folder.
        from_: Another checkpoint, damaged or not: a copy, or another step of the same run.
        step: The step of a folder of steps; the newest if `None`.
        check: Say what would be done, and write nothing.
        progress: As for `save`.
        storage_options: How to reach the storage of a URL, as for `save`.

    Raises:
        NotACheckpointError: if there is nothing that could be one.
        UncommittedError: in a bucket, where a save, a copy or a removal has not ended.
        UnsupportedError: in an archive, on a web server.
        CorruptError: if the index of the parity is lost in both of its copies.
        PermissionDeniedError: if nothing can be written there. That something cannot be healed is no error: the report
            says it.
    """
    at = place("path", path, storage_options)
    other = None if from_ is None else place("from_", from_, storage_options)
    chosen = _arguments.count("step", step)
    is_check = _arguments.flag("check", check)
    with Watch(progress, "repairing") as watch:
        where, size, healed, recovered, lost, findings, notes, was_damaged, checked, text, verdict, by = _native.repair(
            at, other, chosen, is_check, watch
        )
        return RepairReport(
            where,
            size,
            [HealedFile(*file) for file in healed],
            [RecoveredFile(*file) for file in recovered],
            [Finding(*finding) for finding in lost],
            [Finding(*finding) for finding in findings],
            notes,
            was_damaged,
            checked,
            text,
            verdict,
            by,
        )

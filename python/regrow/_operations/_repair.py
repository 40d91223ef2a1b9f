"""Writes parity beside a checkpoint, and repairs damaged, cut and lost files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _native
from .._core import _arguments
from .._core._location import StrPath, place
from .._core._progress import Progress, Watch, format_bytes
from .._core._readable import readable
from .._core._report import Finding, messages_of
from .._text import counted, printable


@readable
class ParityReport(NamedTuple):
    """The report of parity."""

    path: str
    """The index of the parity."""
    file_count: int
    """The number of files that the parity can heal; 0 if the parity was removed."""
    bytes: int
    """The bytes of these files."""
    parity_bytes: int
    """Bytes of the parity."""
    has_changed: bool
    """Whether parity was written or removed."""

    def __str__(self) -> str:
        covered = f"{counted(self.file_count, 'file', 'files')}, {format_bytes(self.bytes)}"
        return f"{printable(self.path)}: {format_bytes(self.parity_bytes)} of parity for {covered}"


def add_parity(
    path: StrPath,
    ratio: str = "1/16",
    *,
    step: int | None = None,
    remove: bool = False,
    wait: float = _arguments.WAIT_DEFAULT,
    progress: Progress = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ParityReport:
    """Puts parity beside a checkpoint of any layout, with which `repair` restores damaged and lost
    files.

    Reed-Solomon blocks in two files, ``regrow.parity.json`` and ``regrow.parity.blocks`` in the
    folder, or ``regrow.parity.NAME.json`` and ``.blocks`` beside a file. The checkpoint is verified
    first, and does not change; other tools read it as before. All files are read twice. Existing
    parity is replaced.

    Args:
        path: A checkpoint, or a folder of steps.
        ratio: The amount of parity, from ``"1/1024"`` to ``"1/1"``: ``"1/16"`` needs a sixteenth of
            the checkpoint's size, and can restore the same amount.
        step: The step of a folder of steps; the newest if `None`.
        remove: Remove the parity instead.
        wait: The seconds to wait for another process that changes the checkpoint.
        progress: As for `save`.
        storage_options: Options for the storage of a URL, as for `save`.

    Raises:
        CorruptError: if the checkpoint is already damaged.
        InvalidArgumentError: for another ratio; for one file of a checkpoint of several.
        BusyError: if another process still changes it after `wait` seconds.
        ReplacedError: if another program writes to it in between.
        UnsupportedError: in an archive, on a web server.
        PermissionDeniedError: if the folder is not writable.
    """
    at = place("path", path, storage_options)
    chosen = _arguments.count("step", step)
    is_removed = _arguments.flag("remove", remove)
    if not isinstance(ratio, str):
        raise _arguments.wrong("ratio", ratio, 'a text such as "1/16"')
    patience = _arguments.seconds("wait", wait)
    with Watch(progress, "making parity") as watch:
        return ParityReport(*_native.add_parity(at, ratio, chosen, is_removed, patience, watch))


class HealedFile(NamedTuple):
    """A file that was restored."""

    path: str
    """The file."""
    bytes: int
    """The restored bytes of the file."""


class RecoveredFile(NamedTuple):
    """A file that was lost or damaged, and was written again from the other files."""

    path: str
    """The file."""
    bytes: int
    """The length of the file."""
    how: str
    """The source of the file's content, and what is uncertain about the content."""
    is_guess: bool
    """Whether nothing proves that the file has its old content. The damaged file is kept beside the
    new file.
    """


@readable
class RepairReport(NamedTuple):
    """The result of a repair. As a bool: whether the checkpoint is known to be whole."""

    path: str
    """The checkpoint."""
    bytes: int
    """The bytes that were read."""
    healed: list[HealedFile]
    """The files that were restored; with `check`, those that would be."""
    recovered: list[RecoveredFile]
    """The files that were written again from others, without parity; with `check`, those that
    would be.
    """
    lost: list[Finding]
    """The damage that could not be repaired."""
    findings: list[Finding]
    """The findings of a verification after the repair, leaf by leaf. With `check` the verification
    runs only if there is no parity.
    """
    notes: list[str]
    """Other actions: saves that did not end were finished or removed."""
    is_parity_damaged: bool
    """Whether the parity was damaged too. It was written again, unless something is lost."""
    is_check: bool
    """Whether `check` was given, and nothing was written."""
    text: str
    """A summary in one line."""
    verdict: str
    """``"whole"`` if checksums prove each file; ``"not known"`` if no damage is found, but some
    files have no checksum; ``"damaged"`` otherwise."""
    proved_by: str | None
    """The proof that the checkpoint is whole: its checksums, its parity, a seal, an equal
    copy.
    """

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
        return "\n".join([self.text, *messages_of([*self.lost, *self.findings])])


def repair(
    path: StrPath,
    *,
    from_: StrPath | None = None,
    step: int | None = None,
    check: bool = False,
    wait: float = _arguments.WAIT_DEFAULT,
    progress: Progress = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RepairReport:
    """Repairs a damaged checkpoint from parity, from a copy, and from its own other files.

    - **Parity** beside it (`add_parity`, ``parity=`` of `save`) restores damaged blocks, files that
      are cut or missing, and itself. Files get the contents that they had when the parity was made,
      also files that you changed on purpose since, unless they were sealed or signed after the
      change.
    - **Another checkpoint** (`from_`), a copy or another step, gives blocks that are damaged here
      and that parity, a seal or the checksums of the layout regrow can check. Another step in that
      layout gives the leaves that are equal.
    - **Its own other files** give a lost ``regrow.json``, ``_METADATA``, database or index.
    - Files of saves that did not end are finished or removed.

    Each file is replaced in one step, and the checkpoint is verified at the end. After a kill each
    file is either unchanged or repaired, and you can run the repair again. The report lists the
    lost leaves.

    Args:
        path: A checkpoint, or a folder of steps. Give the folder of a step that cannot be opened.
        from_: Another checkpoint, damaged or not: a copy, or another step of the same run.
        step: The step of a folder of steps; the newest if `None`.
        check: Report the repairs, but write nothing.
        wait: The seconds to wait for another process that changes the checkpoint.
        progress: As for `save`.
        storage_options: Options for the storage of a URL, as for `save`.

    Raises:
        NotACheckpointError: if `path` holds no checkpoint.
        UncommittedError: in a bucket, if a save, a copy or a removal has not ended.
        UnsupportedError: in an archive, on a web server.
        CorruptError: if the index of the parity is lost in both of its copies.
        PermissionDeniedError: if the folder is not writable.

    Damage that cannot be repaired is no error: the report lists it.
    """
    at = place("path", path, storage_options)
    other = None if from_ is None else place("from_", from_, storage_options)
    chosen = _arguments.count("step", step)
    is_check = _arguments.flag("check", check)
    patience = _arguments.seconds("wait", wait)
    with Watch(progress, "repairing") as watch:
        where, size, healed, recovered, lost, findings, notes, was_damaged, checked, text, verdict, by = _native.repair(
            at, other, chosen, is_check, patience, watch
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

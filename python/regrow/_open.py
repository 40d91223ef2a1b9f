"""Opening a checkpoint, and what is done with an opened one in a single call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from . import _arguments, _native
from ._attempts import attempts
from ._checkpoint import Checkpoint, StrPath, VerifyReport
from ._errors import IncompleteCheckpointWarning, RegrowError, ReplacedError
from ._handlers import LeafRegistry
from ._progress import Progress, Watch

T = TypeVar("T")


def load(
    path: StrPath,
    like: Any = None,
    *,
    only: str | Iterable[str] | None = None,
    cast: Any = None,
    partial: bool = False,
    out: Any = None,
    verify: bool = True,
    mmap: bool = False,
    step: int | None = None,
    item: str | None = None,
    strict: bool = False,
    bare: bool = False,
    shardings: Any = None,
    budget: int | None = None,
    handlers: LeafRegistry | None = None,
    progress: Progress = None,
) -> Any:
    """Loads a checkpoint of any layout, every block checked.

    Without a template arrays come back as read-only NumPy arrays, containers as what they were, classes as named
    tuples of the same name or as `Node`, PRNG keys as `PrngKey`. Arrays of the layouts regrow and orbax, whose files
    nobody writes into, are views of the files where they are stored raw and the page cache has them, or where they
    are more than half of the memory available. All others are read into memory.

    Args:
        path: A checkpoint, or a folder of steps.
        like: A template. Key paths, shapes and dtypes must be the same; leaves become what it holds: `jax.Array`
            with its sharding, NumPy arrays, numbers, text. What no checkpoint can hold stays as it is in `like`.
        only: Globs over key paths: ``"params/**"``. Others vanish from dicts and become ``...`` in sequences; with
            `like` they stay as they are there. A glob that matches nothing is an error.
        cast: A dtype for all arrays, or a dict of globs over key paths, each of which has to match a leaf.
        partial: With `like`: leave out what it lacks, instead of an error.
        out: A pytree of writable NumPy arrays to be filled; it is also what is returned. Contiguous arrays are read
            into as they are and checked on the way: after an error their contents are unspecified.
        verify: Check data against checksums before handing it out.
        mmap: Make views of the file of all that is stored raw, also where the page cache does not have it yet: slower
            to begin with, and memory that the system can take back. Also of files that other programs write in place
            (npy, npz, safetensors, eqx, msgpack, data): when one of them does, views change with the file, and where
            it has become shorter, reading them ends the program with SIGBUS.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint of several; all of them if `None`.
        strict: As for `open`.
        bare: The arrays alone, without what is kept beside them: of an archive or a folder of npy files the arrays by
            their names, of an Equinox file the records in their order. For those whose pytree is damaged.
        shardings: Make JAX arrays: one sharding for all, or a dict of globs (or a tree) of them.
        budget: Extra memory beyond the result, in bytes; 64 MiB if `None`.
        handlers: Who restores leaves of your own types; without, they come back as what they are made of.
        progress: As for `save`.

    Raises:
        MismatchError: if the template differs, with every difference.
        CorruptError: with file, leaf and offset.
        NotFoundError, NotACheckpointError, UncommittedError: if there is nothing to load.
        NotFoundError: also for globs that match no leaf, all of them named.
    """
    options = {
        "only": only,
        "cast": cast,
        "partial": partial,
        "out": out,
        "verify": verify,
        "mmap": mmap,
        "shardings": shardings,
        "budget": budget,
        "handlers": handlers,
        "progress": progress,
    }
    warned: list[str] = []

    def read() -> Any:
        opened = _open(path, step, item, strict=strict, bare=bare)
        warned[:] = opened.warnings
        return Checkpoint(opened).load(like, **options)

    try:
        return _until_unreplaced(path, read)
    finally:
        # Once, however often it was opened, and of the one that was read.
        _warn(path, warned)


def _until_unreplaced(path: StrPath, read: Callable[[], T]) -> T:
    """What ``read`` gives; asked again if the checkpoint was replaced meanwhile: the new one is as good an answer."""
    for is_last in attempts():
        before = _identity(_arguments.path("path", path))
        try:
            return read()
        except RegrowError as error:
            is_replaced = isinstance(error, ReplacedError) or _identity(path) != before
            if is_last or not is_replaced:
                raise
    raise AssertionError("the last attempt returns or raises")


def _identity(path: StrPath) -> tuple[int, int, int] | None:
    """Which folder it is; the time tells apart two that were given the same inode one after the other."""
    try:
        status = os.stat(path)
    except OSError:
        try:
            # A pytree's data and manifest go by a name that neither of them has.
            status = os.stat(os.fsdecode(path) + ".manifest")
        except OSError:
            return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def open(
    path: StrPath,
    *,
    step: int | None = None,
    item: str | None = None,
    strict: bool = False,
    bare: bool = False,
    mmap: bool = False,
) -> Checkpoint:
    """Opens a checkpoint of any layout: metadata only.

    Args:
        path: A checkpoint, or a folder of steps.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint of several; all of them if `None`.
        strict: Raise `CorruptError` for a checkpoint that has lost files, also if it can still be read without them;
            otherwise that is an `IncompleteCheckpointWarning`.
        bare: As for `load`.
        mmap: Give views of the file for all that is stored raw, whenever leaves are read, as for `load`.

    Raises:
        NotFoundError, NotACheckpointError, UncommittedError, CorruptError, UnsupportedError.
    """
    opened = _open(path, step, item, strict=strict, bare=bare, mmap=mmap)
    _warn(path, opened.warnings)
    return Checkpoint(opened)


def verify(
    path: StrPath,
    *,
    step: int | None = None,
    item: str | None = None,
    bare: bool = False,
    progress: Progress = None,
) -> VerifyReport:
    """Reads and checks the whole checkpoint; damage to one leaf does not hide damage to the next.

    Args:
        path: A checkpoint, or a folder of steps.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint of several; all of them if `None`.
        bare: As for `load`. Without it, damage to what is kept beside the arrays is a finding.
        progress: As for `save`.

    Raises:
        RegrowError: only if the checkpoint cannot be opened at all.
    """
    with Watch(progress, "verifying") as watch:
        return VerifyReport.from_native(
            _native.verify(
                _arguments.path("path", path),
                _arguments.count("step", step),
                _arguments.text("item", item),
                _arguments.flag("bare", bare),
                watch,
            )
        )


def overview(
    path: StrPath, *, step: int | None = None, item: str | None = None, strict: bool = False, bare: bool = False
) -> str:
    """The leaves as a table: key path, dtype, shape, bytes; then the totals.

    Args:
        path: A checkpoint, or a folder of steps.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint of several; all of them if `None`.
        strict: As for `open`.
        bare: As for `load`.
    """
    opened = _open(path, step, item, strict=strict, bare=bare)
    _warn(path, opened.warnings)
    return opened.overview()


def _open(
    path: StrPath,
    step: int | None = None,
    item: str | None = None,
    *,
    strict: bool = False,
    bare: bool = False,
    mmap: bool = False,
) -> _native.Checkpoint:
    """Opens without a word: who calls it passes the warnings on."""
    return _native.open(
        _arguments.path("path", path),
        _arguments.count("step", step),
        _arguments.text("item", item),
        _arguments.flag("strict", strict),
        _arguments.flag("bare", bare),
        _arguments.flag("mmap", mmap),
    )


def _warn(path: StrPath, told: Iterable[str]) -> None:
    """Warns at the line that called the function of this module that calls this."""
    for warning in told:
        warnings.warn(f"{os.fsdecode(path)}: {warning}", IncompleteCheckpointWarning, stacklevel=3)

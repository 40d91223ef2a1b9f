"""Opening a checkpoint, and what is done with an opened one in a single call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, Unpack, overload

from . import _arguments, _executors, _load, _native, _nest, _salvage, _shares
from ._attempts import attempts
from ._cache import Cache, through
from ._checkpoint import Checkpoint, Finding, VerifyReport
from ._errors import IncompleteCheckpointWarning, InvalidArgumentError, MismatchError, RegrowError, ReplacedError
from ._executors import Executor
from ._keywords import LOAD, LoadOptions
from ._location import Place, StrPath, local_path, place, portables, shown
from ._opening import Opening, TrustedKeys, keys_of
from ._progress import Progress, Watch
from ._report import Stages
from ._together import Together, posts_errors

T = TypeVar("T")

_FLAT = ("npy", "safetensors")
"""Layouts whose files have flat names."""


@LOAD.documented
def load(
    path: StrPath,
    like: Any = None,
    *,
    step: int | None = None,
    item: str | None = None,
    strict: bool = False,
    bare: bool = False,
    ignore_seal: bool = False,
    trusted_keys: TrustedKeys = None,
    salvage: _salvage.Salvage = False,
    nest: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: StrPath | Cache | None = None,
    **options: Unpack[LoadOptions],
) -> Any:
    """Loads a checkpoint of any layout, every block checked.

    Without a template arrays come back as read-only NumPy arrays, containers as what they were, classes as named
    tuples of the same name or as `Node`, PRNG keys as `PrngKey`. Arrays of the layouts regrow and orbax, whose files
    nobody writes into, are views of the files where they are stored raw and the page cache has them, or where they
    are more than half of the memory available. All others are read into memory.

    Args:
        path: A checkpoint, or a folder of steps.
        like: A template. Key paths, shapes and dtypes must be the same; leaves become what it holds: `jax.Array`
            with its sharding, tensors with their mesh and placements, NumPy arrays, numbers, text. What no checkpoint
            can hold stays as it is in `like`. Where a checkpoint has lost its tree (an Orbax folder without
            `_METADATA`), the arrays are found by the names that the template gives them.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint of several; all of them if `None`.
        strict: As for `open`.
        bare: The arrays alone, without what is kept beside them: of an archive or a folder of npy files the arrays by
            their names, of an Equinox file the records in their order. For those whose pytree is damaged.
        ignore_seal: Read what is sealed as if it were not: for a checkpoint that was changed on purpose after it was
            sealed (`regrow.seal`).
        trusted_keys: Public Ed25519 keys, each as text (PEM, a line of OpenSSH, 64 hex digits) or as the path of a
            file: refuse what none of their owners has signed (`regrow.sign`), and prove every block that is read.
        salvage: Where something is damaged, load the leaves that are intact: those that can be read and pass every
            checksum that is over them. Lost leaves are ``...``; with `like` they stay as they are there. A
            `SalvageWarning` lists them, or a function that is given here gets the `SalvageReport` instead:
            ``salvage=print``. What is damaged is read twice.
        nest: Cut the names of a file with flat names, such as an ``.npz``, into dicts of dicts where this stands:
            ``"/"`` makes ``{"a": {"b": ...}}`` of ``a/b``. With `like`, that is of dicts with text as keys.
        storage_options: How to reach the storage of a URL, as for `save`.
        cache: A folder of a local disk, or a `Cache` with a bound of its own, that keeps what is read from a bucket or
            a web server: the next load fetches what has changed. Not used for local paths.
        **options: The keywords of `LoadOptions`.

    Raises:
        MismatchError: if the template differs, with every difference.
        CorruptError: with file, leaf and offset; with `salvage` only if nothing is intact.
        UntrustedError: if no trusted key has signed it.
        NotFoundError, NotACheckpointError, UncommittedError: if there is nothing to load.
        NotFoundError: also for globs that match no leaf, all of them named.
    """
    named = [
        "like",
        "step",
        "item",
        "strict",
        "bare",
        "ignore_seal",
        "trusted_keys",
        "salvage",
        "nest",
        "storage_options",
        "cache",
    ]
    with posts_errors(options, path):
        given = LOAD.chosen("load", options, named)
        at = through(cache, place("path", path, storage_options))
        trusted = keys_of(trusted_keys)
        salvages = _salvage.chosen(salvage)
        if salvages and not (given["verify"] and given["out"] is None and given["single_replica"] is None):
            raise InvalidArgumentError(
                "`salvage` reads and verifies: give no `verify=False`, no `out`, no `single_replica`"
            )
        separator = _nest.checked(nest)
        if separator is not None and like is not None:
            like = _nest.flat(like, separator)
        report = _arguments.function("report", given["report"])
        opening = _opening(step, item, strict=strict, bare=bare, ignore_seal=ignore_seal, trusted_keys=trusted)
        opening = opening._replace(by_names=like is not None)
    stages = Stages(report is not None)
    warned: list[str] = []
    salvaged: list[_salvage.SalvageReport] = []

    def read_whole() -> Any:
        opened = _native.open(at, opening)
        warned[:] = opened.warnings
        wishes = _load.Wishes.of(given, together, stages)
        try:
            return _load.load(opened, like, wishes._replace(salvages=bool(salvages)))
        except MismatchError as error:
            found = None if separator is not None else _nest.separator_of(opened.paths(), like)
            # Some trees print as the names do, and are no flat dict.
            if found is not None and opened.layout in _FLAT:
                error.message += f"\n  help: its names are flat: nest={found!r} makes dicts of them"
            raise

    def read() -> Any:
        try:
            return read_whole()
        except _salvage.DAMAGE:
            if not salvages:
                raise
        opened, found = _salvage.opened(at, opening, given["progress"])
        warned[:], salvaged[:] = opened.warnings, [found]
        wishes = _load.Wishes.of(given, together, stages)
        return _load.load(opened, like, wishes._replace(salvages=True, lost=frozenset(found.lost_paths)))

    try:
        with Together(path, given, stages) as together:
            # Who reads for others cannot begin anew by itself.
            alone = together.single_replica is None
            loaded = together.in_turn(lambda: _until_unreplaced(at, read) if alone else read())
    finally:
        # Once, however often it was opened, and of the one that was read.
        _warn(path, warned)
    for found in salvaged:
        _salvage.tell(salvages, found, stacklevel=2)
    if report is not None:
        report(stages.report(shown(path)))
    return loaded if separator is None else _nest.nested(loaded, separator)


def _until_unreplaced(at: Place, read: Callable[[], T]) -> T:
    """What ``read`` gives; asked again if the checkpoint was replaced meanwhile: the new one is as good an answer."""
    for is_last in attempts():
        before = _identity(at)
        try:
            return read()
        except RegrowError as error:
            is_replaced = isinstance(error, ReplacedError) or _identity(at) != before
            if is_last or not is_replaced:
                raise
    raise AssertionError("the last attempt returns or raises")


def _identity(at: Place) -> tuple[int, int, int] | None:
    """Which folder it is; the time tells apart two that were given the same inode one after the other.

    Of another storage than the local file system the engine alone says that something was replaced.
    """
    path = local_path(at)
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        try:
            # A pytree's data and manifest go by a name that neither of them has.
            status = os.stat(f"{path}.manifest")
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
    ignore_seal: bool = False,
    trusted_keys: TrustedKeys = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: StrPath | Cache | None = None,
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
        ignore_seal: As for `load`.
        trusted_keys: As for `load`; also for leaves that are read later.
        storage_options: As for `load`.
        cache: As for `load`; also for leaves that are read later.

    Raises:
        NotFoundError, NotACheckpointError, UncommittedError: if there is nothing to open.
        CorruptError, UnsupportedError: if what is there cannot be read.
        UntrustedError: if no trusted key has signed it.
    """
    at = through(cache, place("path", path, storage_options))
    trusted = keys_of(trusted_keys)
    opened = _open(at, step, item, strict=strict, bare=bare, mmap=mmap, ignore_seal=ignore_seal, trusted_keys=trusted)
    _warn(path, opened.warnings)
    return Checkpoint(opened)


def open_by_names(path: StrPath) -> Checkpoint:
    """The same for a template: an Orbax folder that has lost its tree is one of dicts of its arrays, by their names."""
    opened = _native.open(place("path", path, None), Opening(by_names=True))
    _warn(path, opened.warnings)
    return Checkpoint(opened)


@overload
def verify(
    path: StrPath,
    *,
    item: str | None = ...,
    bare: bool = ...,
    ignore_seal: bool = ...,
    trusted_keys: TrustedKeys = ...,
    progress: Progress = ...,
    storage_options: Mapping[str, Any] | None = ...,
    all_steps: Literal[True],
) -> dict[int, VerifyReport]: ...


@overload
def verify(
    path: StrPath,
    *,
    step: int | None = ...,
    item: str | None = ...,
    bare: bool = ...,
    ignore_seal: bool = ...,
    trusted_keys: TrustedKeys = ...,
    progress: Progress = ...,
    storage_options: Mapping[str, Any] | None = ...,
    executor: Executor | None = ...,
    workers: int | None = ...,
    all_steps: Literal[False] = ...,
) -> VerifyReport: ...


def verify(
    path: StrPath,
    *,
    step: int | None = None,
    item: str | None = None,
    bare: bool = False,
    ignore_seal: bool = False,
    trusted_keys: TrustedKeys = None,
    progress: Progress = None,
    storage_options: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    all_steps: bool = False,
) -> VerifyReport | dict[int, VerifyReport]:
    """Reads and checks the whole checkpoint; damage to one leaf does not hide damage to the next.

    Args:
        path: A checkpoint, or a folder of steps.
        step: The step of a folder of steps; the newest if `None`. The report says which it was.
        all_steps: Verify each committed step of a folder, and give a dict of reports by step. That a step cannot be
            opened is a finding.
        item: The item of a checkpoint of several; all of them if `None`.
        bare: As for `load`. Without it, damage to what is kept beside the arrays is a finding.
        ignore_seal: As for `load`. Without it, whatever is not as it was sealed is a finding.
        trusted_keys: As for `load`. Whatever is not as it was signed is a finding; `signer` says whose signature it is.
        progress: As for `save`.
        storage_options: As for `load`.
        executor: Who does the work, as for `convert`: each call reads some of the leaves. The findings are the same.
        workers: As for `convert`.

    Raises:
        RegrowError: only if the checkpoint cannot be opened at all, or workers died three times over one share.
    """
    at = place("path", path, storage_options)
    opening = Opening(
        _arguments.count("step", step),
        _arguments.text("item", item),
        bare=_arguments.flag("bare", bare),
        ignore_seal=_arguments.flag("ignore_seal", ignore_seal),
        trusted_keys=keys_of(trusted_keys),
    )
    shared = _executors.chosen(executor, workers)
    if _arguments.flag("all_steps", all_steps):
        if shared is not None:
            raise InvalidArgumentError("an executor verifies one checkpoint: leave out all_steps, or the executor")
        with Watch(progress, "verifying") as watch:
            return {
                number: VerifyReport([Finding(*error)], 0, 0, False, step=number)
                if error
                else VerifyReport.from_native(found or ())
                for number, found, error in _native.verify_steps(at, opening, watch)
            }
    if shared is not None:
        return _shares.verify(shared, portables(storage_options, path=path)["path"], opening, progress)
    with Watch(progress, "verifying") as watch:
        return VerifyReport.from_native(_native.verify(at, opening, watch))


def overview(
    path: StrPath,
    *,
    step: int | None = None,
    item: str | None = None,
    strict: bool = False,
    bare: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """The leaves as a table: key path, dtype, shape, bytes; then the totals.

    Args:
        path: A checkpoint, or a folder of steps.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint of several; all of them if `None`.
        strict: As for `open`.
        bare: As for `load`.
        storage_options: As for `load`.
    """
    opened = _open(place("path", path, storage_options), step, item, strict=strict, bare=bare)
    _warn(path, opened.warnings)
    return opened.overview()


def _open(
    at: Place,
    step: int | None = None,
    item: str | None = None,
    *,
    strict: bool = False,
    bare: bool = False,
    mmap: bool = False,
    ignore_seal: bool = False,
    trusted_keys: tuple[str, ...] = (),
) -> _native.Checkpoint:
    """Opens without a word: who calls it passes the warnings on."""
    opening = _opening(
        step, item, strict=strict, bare=bare, mmap=mmap, ignore_seal=ignore_seal, trusted_keys=trusted_keys
    )
    return _native.open(at, opening)


def _opening(
    step: int | None,
    item: str | None,
    *,
    strict: bool,
    bare: bool,
    ignore_seal: bool,
    trusted_keys: tuple[str, ...],
    mmap: bool = False,
) -> Opening:
    """How to open, checked."""
    return Opening(
        _arguments.count("step", step),
        _arguments.text("item", item),
        _arguments.flag("strict", strict),
        _arguments.flag("bare", bare),
        _arguments.flag("mmap", mmap),
        _arguments.flag("ignore_seal", ignore_seal),
        trusted_keys,
    )


def _warn(path: StrPath, told: Iterable[str]) -> None:
    """Warns at the line that called the function of this module that calls this."""
    for warning in told:
        warnings.warn(f"{shown(path)}: {warning}", IncompleteCheckpointWarning, stacklevel=3)

"""Opening, loading and verifying a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, overload

from .. import _native
from .._core import _arguments, _options
from .._core._cache import through
from .._core._keywords import keywords
from .._core._location import Place, StrPath, place, portables, shown
from .._core._options import Options
from .._core._progress import Progress, Watch
from .._core._report import Finding, Stages
from .._core._warnings import warn
from .._errors import IncompleteCheckpointWarning, InvalidArgumentError, MismatchError, advise
from .._jobs._together import Together, posts_errors
from .._operations import _executors
from .._operations._executors import Executor
from .._tree import _nest
from . import _load, _salvage
from ._checkpoint import Checkpoint, Overview, VerifyReport, files_of, part_of
from ._load import Extra, Loading, Missing, holds_files
from ._opening import Opening, opening_of

_FLAT = ("npy", "safetensors")
"""Layouts whose files have flat names."""


@keywords
def load(
    path: StrPath,
    like: Any = None,
    *,
    at: str | None = None,
    only: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    rules: StrPath | None = None,
    cast: Any = None,
    lossy: bool = False,
    missing: Missing = "error",
    extra: Extra = "error",
    classes: Literal["dict"] | None = None,
    shardings: Any = None,
    step: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    options: Options | None = None,
) -> Any:
    """Loads a checkpoint of any layout, and checks every block.

    Without a template arrays come back as read-only NumPy arrays, containers as they were saved,
    classes as named tuples of the same name or as `Node`, PRNG keys as `PrngKey`. Arrays of the
    layouts regrow and orbax that are stored raw are views of the files, if the page cache has them
    or if they are more than half of the available memory. All others are read into memory.

    Args:
        path: A checkpoint, or a folder of steps.
        like: A template. Key paths, shapes and dtypes must be the same; leaves become what it
            holds: `jax.Array` with its sharding, tensors with their mesh and placements, NumPy
            arrays, numbers, text. Leaves that no checkpoint can hold stay as they are in `like`.
            Where a checkpoint has lost its tree (an Orbax folder without ``_METADATA``), the
            template names the arrays.
        at: The key path of a subtree, or of an item: ``"params"``, ``"state/params"``. Key paths in
            the other arguments begin there.
        only: Globs over key paths: ``"params/**"``. Other leaves are left out of dicts and nodes,
            and are ``...`` in sequences; with `like` they stay as they are there. A glob that
            matches nothing is an error.
        rename: Regular expressions over whole key paths, and the key paths of the result, with
            ``$1`` for a group; the first that matches a leaf decides. ``{"params/(.*)/kernel":
            "$1/weight"}``. Globs and `like` go by the new key paths.
        rules: A TOML file of rules, as for `convert`: `rename`, `transpose`, `reshape`, `cast` and
            `only`.
        cast: A dtype, or a dict of globs over key paths, as for `save`. A value that would change
            beyond rounding is an error.
        lossy: Let casts change values beyond rounding, as for `save`.
        missing: With ``"keep"``, leaves of `like` that are not in the checkpoint stay as they are.
            Otherwise they are an error.
        extra: With ``"drop"``, leaves of the checkpoint that are not in `like` are not read.
            Otherwise they are an error.
        classes: With ``"dict"``, nodes and named tuples become dicts.
        shardings: Make JAX arrays: one sharding for all, a dict of globs over key paths, or a tree
            of them. The first glob that matches a leaf decides, and each has to match one; with
            `like` it replaces the sharding there. Each process of a job reads what its own devices
            hold. Without `like` the other leaves are NumPy arrays.
        step: The step of a folder of steps; the newest if `None`.
        storage_options: Options for the storage of a URL, as for `save`.
        progress: As for `save`.
        options: Rare settings.

    Raises:
        MismatchError: if the template differs, with the first 100 differences.
        CorruptError: with file, leaf and offset; with ``Options(salvage=True)`` only if nothing is
            intact.
        UntrustedError: if no trusted key has signed it.
        LeafNotFoundError: if `at` names no subtree, with the subtrees that exist.
        NotFoundError, NotACheckpointError, UncommittedError: if there is no checkpoint to load.
        NotFoundError: also for globs that match no leaf, with all of them.
    """
    asked = Loading(
        at=at, only=only, rename=rename, rules=rules, cast=cast, lossy=lossy, missing=missing, extra=extra,
        classes=classes, shardings=shardings, progress=progress,
    )  # fmt: skip
    return load_as(path, like, asked, step=step, storage_options=storage_options, options=options)


@keywords
def load_into(
    path: StrPath,
    out: Any,
    *,
    at: str | None = None,
    only: str | Iterable[str] | None = None,
    cast: Any = None,
    lossy: bool = False,
    extra: Extra = "error",
    step: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    options: Options | None = None,
) -> Any:
    """Loads a checkpoint into the caller's own arrays, without another copy.

    Args:
        path: As for `load`.
        out: A pytree of writable NumPy arrays, or of tensors of PyTorch. Contiguous ones are read
            into directly and checked on the way: after an error their contents are unspecified.
            Beside tensors there may be numbers and text.
        at: As for `load`.
        only: As for `load`.
        cast: As for `load`.
        lossy: As for `load`.
        extra: As for `load`.
        step: As for `load`.
        storage_options: As for `save`.
        progress: As for `save`.
        options: Rare settings.

    Returns:
        `out`. If it contains numbers or text, another tree with the same tensors.

    Raises:
        RegrowError: as `load`.
    """
    asked = Loading(at=at, only=only, cast=cast, lossy=lossy, extra=extra, progress=progress, out=out)
    return load_as(path, None, asked, step=step, storage_options=storage_options, options=options)


def load_as(
    path: StrPath,
    like: Any,
    asked: Loading,
    *,
    step: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> Any:
    """Loads with the keywords in `asked`."""
    with posts_errors(options, path):
        rare = _options.chosen(options, "load")
        place_of = through(rare.cache, place("path", path, storage_options))
        salvages = _salvage.chosen(rare.salvage)
        if salvages and not (rare.checksums and asked.out is None and rare.single_replica is None):
            raise InvalidArgumentError(
                "Options(salvage=True) cannot be used with checksums=False, single_replica or load_into"
            )
        separator = _nest.checked(rare.nest)
        if separator is not None and like is not None:
            like = _nest.flat(like, separator)
        report = _arguments.function("on_report", rare.on_report)
        opening = opening_of(rare, step, by_names=like is not None)
        asked = asked.with_rules()
    stages = Stages(report is not None)
    warned: list[str] = []
    salvaged: list[_salvage.SalvageReport] = []

    def read_whole(attempt: _native.Attempt) -> Any:
        whole = attempt.watch(_native.open(place_of, opening))
        if asked.at is not None and holds_files(whole, asked.at):
            if like is not None or asked.replaced(at=None, progress=None) != Loading():
                raise InvalidArgumentError(f"the item {asked.at!r} holds files: leave out all keywords but `at`")
            warned[:] = whole.warnings
            return files_of(whole, asked.at)
        opened = asked.view(whole, place_of, opening, attempt)
        warned[:] = opened.warnings
        wishes = asked.wishes(rare, together, stages)
        try:
            return _load.load(opened, like, wishes._replace(salvages=bool(salvages)))
        except MismatchError as error:
            part = None
            if like is not None:
                from ._into import part_like

                part = part_like(opened, like, wishes)
            if part is not None:
                at = part if asked.at is None else f"{asked.at}/{part}"
                advise(error, f"the template fits the part {part!r}: pass at={at!r}")
            found = None if separator is not None else _nest.separator_of(opened.paths(), like)
            # In other layouts, the key paths of nested dicts look like such names.
            if found is not None and opened.layout in _FLAT:
                advise(error, f"its names are flat: options=regrow.Options(nest={found!r}) makes dicts of them")
            raise

    def read(attempt: _native.Attempt) -> Any:
        try:
            return read_whole(attempt)
        except _salvage.DAMAGE:
            if not salvages:
                raise
        opened, found = _salvage.opened(place_of, opening, asked.progress)
        attempt.watch(opened)
        warned[:], salvaged[:] = opened.warnings, [found]
        wishes = asked.wishes(rare, together, stages)
        view = asked.view_of(opened)
        return _load.load(
            view, like, wishes._replace(salvages=True, lost=frozenset(asked.seen_from_view(found.lost_paths)))
        )

    try:
        with Together(path, rare, stages) as together:
            # A process that reads for others cannot restart alone.
            again = together.single_replica is None
            loaded = together.in_turn(lambda: _native.read_unreplaced(read) if again else read(_native.Attempt()))
    finally:
        # Warn once, about the checkpoint that was finally read, even after several opens.
        _warn(path, warned)
    for found in salvaged:
        _salvage.tell(salvages, found)
    if report is not None:
        report(stages.report(shown(path)))
    return loaded if separator is None else _nest.nested(loaded, separator)


@keywords
def open(
    path: StrPath,
    *,
    at: str | None = None,
    step: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> Checkpoint:
    """Opens a checkpoint of any layout. Reads only metadata.

    Args:
        path: A checkpoint, or a folder of steps.
        at: The key path of a subtree, or of an item, as for `load`.
        step: The step of a folder of steps; the newest if `None`.
        storage_options: Options for the storage of a URL, as for `save`.
        options: Rare settings; those of a signature, a cache and `mmap` also hold for leaves that
            are read later.

    Raises:
        NotFoundError, NotACheckpointError, UncommittedError: if there is no checkpoint to open.
        CorruptError, UnsupportedError: if the checkpoint cannot be read.
        UntrustedError: if no trusted key has signed it.
    """
    rare = _options.chosen(options, "open")
    place_of = through(rare.cache, place("path", path, storage_options))
    opening = opening_of(rare, step)
    asked = Loading(at=at)
    asked.check()
    opened = asked.view(_native.open(place_of, opening), place_of, opening, _native.Attempt())
    _warn(path, opened.warnings)
    return Checkpoint(opened) if at is None else part_of(opened)


def open_by_names(path: StrPath) -> Checkpoint:
    """Opens a checkpoint for a template. An Orbax folder that has lost its tree opens as dicts of
    its arrays, by their names.
    """
    opened = _native.open(place("path", path, None), Opening(by_names=True))
    _warn(path, opened.warnings)
    return Checkpoint(opened)


@overload
def verify(
    path: StrPath,
    *,
    all_steps: Literal[True],
    step: None = None,
    item: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    executor: Executor | None = None,
    workers: int | None = None,
    options: Options | None = None,
) -> dict[int, VerifyReport]: ...


@overload
def verify(
    path: StrPath,
    *,
    all_steps: Literal[False] = False,
    step: int | None = None,
    item: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    executor: Executor | None = None,
    workers: int | None = None,
    options: Options | None = None,
) -> VerifyReport: ...


@keywords
def verify(
    path: StrPath,
    *,
    all_steps: bool = False,
    step: int | None = None,
    item: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    executor: Executor | None = None,
    workers: int | None = None,
    options: Options | None = None,
) -> VerifyReport | dict[int, VerifyReport]:
    """Reads and checks the whole checkpoint; damage to one leaf does not hide damage to the next.

    Args:
        path: A checkpoint, or a folder of steps.
        all_steps: Verify each committed step of a folder, and return a dict of reports by step. A
            step that cannot be opened is a finding.
        step: The step of a folder of steps; the newest if `None`. The report names it.
        item: The item of a checkpoint with several items; all items if `None`.
        storage_options: As for `load`.
        progress: As for `save`.
        executor: Runs the work, as for `convert`: each call reads some of the leaves. The findings
            are the same.
        workers: As for `convert`.
        options: Rare settings. Damage to the pytree beside the arrays is a finding, unless
            `arrays_only`. A difference from the seal is one, unless `ignore_seal`. With
            `trusted_keys` a difference from the signed bytes is one, and `signer` names the key.

    Raises:
        RegrowError: only if the checkpoint cannot be opened at all, or workers died three times
            over one share.
    """
    at = place("path", path, storage_options)
    opening = opening_of(_options.chosen(options, "verify"), step, item)
    shared = _executors.chosen(executor, workers)
    if _arguments.flag("all_steps", all_steps):
        if shared is not None:
            raise InvalidArgumentError("an executor verifies one checkpoint: leave out `all_steps` or `executor`")
        with Watch(progress, "verifying") as watch:
            return {
                number: VerifyReport([Finding(*error)], 0, 0, False, step=number)
                if error
                else VerifyReport.from_native(found or ())
                for number, found, error in _native.verify_steps(at, opening, watch)
            }
    if shared is not None:
        from .._operations import _shares  # imports `concurrent.futures`

        return _shares.verify(shared, portables(storage_options, path=path)["path"], opening, progress)
    with Watch(progress, "verifying") as watch:
        return VerifyReport.from_native(_native.verify(at, opening, watch))


@keywords
def overview(
    path: StrPath,
    *,
    at: str | None = None,
    step: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> Overview:
    """The checkpoint on one page: layout, step, metadata, sizes, shardings, the largest leaves.

    `regrow info` prints the same text.

    Args:
        path: A checkpoint, or a folder of steps.
        at: The key path of a subtree, or of an item, as for `load`.
        step: The step of a folder of steps; the newest if `None`.
        storage_options: As for `load`.
        options: Rare settings.
    """
    return open(path, at=at, step=step, storage_options=storage_options, options=options).overview()


def _open(
    at: Place,
    step: int | None = None,
    item: str | None = None,
    *,
    strict: bool = False,
    mmap: bool = False,
) -> _native.Checkpoint:
    """Opens without printing warnings: the caller passes them on."""
    return _native.open(at, Opening(_arguments.count("step", step), item, strict, mmap=mmap))


def _warn(path: StrPath, told: Iterable[str]) -> None:
    for warning in told:
        warn(f"{shown(path)}: {warning}", IncompleteCheckpointWarning)

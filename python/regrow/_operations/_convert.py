"""Converts a checkpoint from one layout to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, overload

from .. import _native
from .._core import _arguments, _options
from .._core._keywords import keywords
from .._core._location import StrPath, places, portables
from .._core._options import Options
from .._core._progress import Progress, Watch
from .._core._readable import readable
from .._core._report import Finding, Loss, SaveReport
from .._core._requests import ConvertRequest
from .._errors import InvalidArgumentError
from .._save._writing import Writing
from .._text import counted, printable
from .._tree import _nest
from ..layouts import Layout
from . import _executors, _shares
from ._executors import Executor
from ._rules import numbers_of, renames_of, with_kept

T = TypeVar("T")


class LeafForm(NamedTuple):
    """A leaf before or after the conversion."""

    kind: str
    dtype: str
    shape: tuple[int, ...]


class PlannedLeaf(NamedTuple):
    """The conversion of one leaf."""

    source_path: str
    target_path: str | None
    """The key path in the target; `None` if the leaf is left out."""
    source: LeafForm
    target: LeafForm


@readable
class ConvertPlan(NamedTuple):
    """The plan of a conversion."""

    leaves: list[PlannedLeaf]
    losses: list[Loss]
    damage: Sequence[Finding] = ()
    """With `salvage`: the lost leaves of the source with their reasons, and its other damage."""

    @property
    def lossless(self) -> bool:
        """Whether the target can return the whole pytree unchanged."""
        return all(loss.kind == "note" for loss in self.losses)

    def __str__(self) -> str:
        lines = [f"{counted(len(self.leaves), 'leaf', 'leaves')} to convert"]
        for leaf in self.leaves:
            to = "left out" if leaf.target_path is None else leaf.target_path
            lines.append(
                f"  {printable(leaf.source_path)}  {_text(leaf.source)} -> {printable(to)}  {_text(leaf.target)}"
            )
        return "\n".join([*lines, *_losses(self.losses)])


@readable
class ConvertReport(NamedTuple):
    """The report of a conversion."""

    path: str
    """The path of the new checkpoint."""
    stored_bytes: int
    """Bytes of all files of the new checkpoint."""
    leaf_count: int
    """Leaves written."""
    losses: list[Loss]
    """The losses: values that the target cannot hold."""
    save: SaveReport
    """The report of the save, with the time of each stage."""
    damage: Sequence[Finding] = ()
    """With `salvage`: the lost leaves of the source with their reasons, and its other damage."""

    @property
    def reused_bytes(self) -> int:
        """Bytes that the conversion linked from ``base=`` and did not write. `stored_bytes`
        includes these bytes.
        """
        return self.save.reused_bytes

    def __str__(self) -> str:
        return "\n".join([str(self.save), *_losses(self.losses), *(each.message for each in self.damage)])


def _text(form: LeafForm) -> str:
    return f"{form.dtype}{list(form.shape)}"


def _losses(losses: Sequence[Loss]) -> list[str]:
    return [f"  {loss.kind}: {printable(loss.key_path)}: {loss.what}" for loss in losses]


@overload
def convert(
    source: StrPath,
    target: StrPath,
    *,
    all_steps: Literal[True],
    dry_run: bool = False,
    layout: str | Layout | None = None,
    overwrite: bool = False,
    only: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    transpose: Mapping[str, Sequence[int]] | None = None,
    reshape: Mapping[str, Sequence[int]] | None = None,
    cast: Any = None,
    rules: StrPath | None = None,
    lossy: bool = False,
    compression: Any = None,
    metadata: Any = None,
    base: StrPath | None = None,
    durable: bool = True,
    parity: str | None = None,
    seal: bool = False,
    step: int | None = None,
    item: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    executor: Executor | None = None,
    workers: int | None = None,
    options: Options | None = None,
) -> dict[int, Any]: ...


@overload
def convert(
    source: StrPath,
    target: StrPath,
    *,
    dry_run: Literal[True],
    all_steps: Literal[False] = False,
    layout: str | Layout | None = None,
    overwrite: bool = False,
    only: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    transpose: Mapping[str, Sequence[int]] | None = None,
    reshape: Mapping[str, Sequence[int]] | None = None,
    cast: Any = None,
    rules: StrPath | None = None,
    lossy: bool = False,
    compression: Any = None,
    metadata: Any = None,
    base: StrPath | None = None,
    durable: bool = True,
    parity: str | None = None,
    seal: bool = False,
    step: int | None = None,
    item: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    executor: Executor | None = None,
    workers: int | None = None,
    options: Options | None = None,
) -> ConvertPlan: ...


@overload
def convert(
    source: StrPath,
    target: StrPath,
    *,
    dry_run: Literal[False] = False,
    all_steps: Literal[False] = False,
    layout: str | Layout | None = None,
    overwrite: bool = False,
    only: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    transpose: Mapping[str, Sequence[int]] | None = None,
    reshape: Mapping[str, Sequence[int]] | None = None,
    cast: Any = None,
    rules: StrPath | None = None,
    lossy: bool = False,
    compression: Any = None,
    metadata: Any = None,
    base: StrPath | None = None,
    durable: bool = True,
    parity: str | None = None,
    seal: bool = False,
    step: int | None = None,
    item: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    executor: Executor | None = None,
    workers: int | None = None,
    options: Options | None = None,
) -> ConvertReport: ...


@keywords
def convert(
    source: StrPath,
    target: StrPath,
    *,
    dry_run: bool = False,
    all_steps: bool = False,
    layout: str | Layout | None = None,
    overwrite: bool = False,
    only: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    transpose: Mapping[str, Sequence[int]] | None = None,
    reshape: Mapping[str, Sequence[int]] | None = None,
    cast: Any = None,
    rules: StrPath | None = None,
    lossy: bool = False,
    compression: Any = None,
    metadata: Any = None,
    base: StrPath | None = None,
    durable: bool = True,
    parity: str | None = None,
    seal: bool = False,
    step: int | None = None,
    item: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    executor: Executor | None = None,
    workers: int | None = None,
    options: Options | None = None,
) -> ConvertReport | ConvertPlan | dict[int, Any]:
    """Converts the checkpoint at `source`, of any layout, into one at `target`.

    It needs memory for a part of one leaf. Like a save it writes the whole target or nothing.

    Args:
        source: The checkpoint to read.
        target: The path of the new checkpoint.
        dry_run: Write nothing, and return the result for each leaf. Errors of the target that
            `lossy` does not allow (names that it cannot hold, an existing target) are raised.
        all_steps: Convert each committed step of a folder of steps into a step of the folder
            `target`. Nothing is written before every step can be converted. Each step is committed
            by itself.
        layout: As for `save`.
        overwrite: As for `save`.
        only: A glob or globs over the key paths of the source; others are left out, `None` and
            empty containers too.
        rename: Regular expressions over whole key paths, and the new key paths, with ``$1`` for a
            group (``${1}`` where letters follow); the first that matches a leaf decides.
            ``{"params/(.*)/kernel": "$1/weight"}``.
        transpose: Globs, and the new order of axes: ``{"**/kernel": (1, 0)}``.
        reshape: Globs, and the new shape, after the transpose; one extent may be -1.
        cast: As for `save`, by the key paths of the source.
        rules: A TOML file of rules: ``layout``, ``options`` of it, ``only``, ``lossy``, and tables
            ``[[rename]]``, ``[[cast]]``, ``[[transpose]]``, ``[[reshape]]``. Keywords come before
            it.
        lossy: Also convert leaves that the target cannot hold as they are, and values that a cast
            changes beyond rounding; the report lists both.
        compression: As for `save`.
        metadata: The new checkpoint's own metadata; the source's, if the layout has a place for it,
            if `None`.
        base: An earlier checkpoint, as for `save`. The leaves are read twice, unless their files
            are linked.
        durable: As for `save`.
        parity: As for `save`.
        seal: As for `save`.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint with several items.
        storage_options: As for `save`.
        progress: As for `save`.
        executor: Runs the work in its own processes: an executor of `concurrent.futures`, a Dask
            client, or `regrow.jobs.ray_executor()`. Each call opens the source and writes some of
            the leaves. All processes must see the same paths. Only for the layout regrow, without
            compression.
        workers: The number of shares for an executor, of about equal bytes; the number of its
            workers if `None`.
        options: Rare settings. With `salvage` the intact leaves of a damaged source are converted;
            lost leaves become placeholders, or are left out if the target has no placeholders, and
            the report's `damage` lists them.

    Returns:
        A `ConvertReport`; with `dry_run` a `ConvertPlan`; with `all_steps` a dict of these by step.

    Raises:
        UnsupportedError: if the target cannot hold all leaves as they are, with their names, unless
            `lossy` was given.
        NotFoundError: for globs that match no leaf, with all of them; if `base` does not exist.
        InvalidArgumentError: for rules that do not fit, or change nothing.
        IoError: if the workers of an executor died three times over one share.
        NameCollisionError: if two leaves would get one key path; `None` and an empty container also
            take one.
    """
    if rules is not None:
        given = {
            "layout": layout,
            "only": only,
            "rename": rename,
            "transpose": transpose,
            "reshape": reshape,
            "cast": cast,
        }
        kept = with_kept({name: value for name, value in given.items() if value is not None}, rules)
        layout, only, rename = kept.get("layout"), kept.get("only"), kept.get("rename")
        transpose, reshape, cast = kept.get("transpose"), kept.get("reshape"), kept.get("cast") or None
        lossy = lossy or bool(kept.get("lossy"))
    rare = _options.chosen(options, "convert")
    at = places(storage_options, source=source, target=target, base=base)
    writing = Writing(
        layout=layout, overwrite=overwrite, cast=cast, lossy=lossy, compression=compression, metadata=metadata,
        base=base, durable=durable, parity=parity, seal=seal, storage_options=storage_options,
        options=Options(keep_cached=rare.keep_cached, trust_base=rare.trust_base, wait=rare.wait),
    ).laid_out(at["target"])  # fmt: skip
    save = writing.request(at.get("base"), alone=True)
    how = ConvertRequest(
        step=_arguments.count("step", step),
        item=_arguments.text("item", item),
        lost_is_error=_arguments.choice("lost_files", rare.lost_files, ("warn", "error")) == "error",
        arrays_only=_arguments.flag("arrays_only", rare.arrays_only),
        only=_arguments.patterns(only),
        rename=renames_of(rename),
        transpose=numbers_of("transpose", transpose, minimum=0),
        reshape=numbers_of("reshape", reshape, minimum=-1),
        nest=_nest.checked(rare.nest),
        lossy=_arguments.flag("lossy", lossy),
        salvage=_arguments.flag("salvage", rare.salvage),
    )
    shared = _executors.chosen(executor, workers)
    of_all = _arguments.flag("all_steps", all_steps)
    if shared is not None and of_all:
        raise InvalidArgumentError("an executor converts one checkpoint: leave out `all_steps` or `executor`")
    if _arguments.flag("dry_run", dry_run):
        planned = _native.plan_convert(at["source"], at["target"], save, how, of_all)
        plans = {step: _plan(*plan) for step, plan in planned}
        return _by_step(plans) if of_all else plans[None]
    if shared is not None:
        shares = portables(storage_options, source=source, target=target, base=base)
        return _report(*_shares.convert(shared, shares, save.replaced(base=None), how, progress), [])
    with Watch(progress, "converting") as watch:
        converted = _native.convert(at["source"], at["target"], save, how, of_all, watch)
    reports = {step: _report(*report) for step, report in converted}
    return _by_step(reports) if of_all else reports[None]


def _by_step(each: dict[int | None, T]) -> dict[int, T]:
    return {step: one for step, one in each.items() if step is not None}


def _plan(leaves: Any, losses: Any, damage: Any) -> ConvertPlan:
    return ConvertPlan(
        [PlannedLeaf(a, b, _form(before), _form(after)) for a, b, before, after in leaves],
        [Loss(*loss) for loss in losses],
        [Finding(*each) for each in damage],
    )


def _report(columns: Any, losses: Any, damage: Any) -> ConvertReport:
    report, lost = SaveReport.from_native(columns), [Finding(*each) for each in damage]
    told = [Loss(*loss) for loss in losses]
    return ConvertReport(report.path, report.stored_bytes, report.leaf_count, told, report, lost)


def _form(form: tuple[str, str, list[int]]) -> LeafForm:
    kind, dtype, shape = form
    return LeafForm(kind, dtype, tuple(shape))

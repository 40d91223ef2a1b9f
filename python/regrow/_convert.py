"""Converting a checkpoint from one layout to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

from . import _arguments, _native, _options
from ._checkpoint import StrPath
from ._errors import InvalidArgumentError
from ._options import OrbaxOptions
from ._progress import Progress, Watch
from ._report import SaveReport


class Loss(NamedTuple):
    """Something that the target layout cannot give back as it was."""

    kind: str
    """How bad it is: ``"note"``, ``"structure"``, ``"kind"`` or ``"value"``."""
    key_path: str
    """The leaf or container."""
    what: str
    """What becomes of it."""


class LeafForm(NamedTuple):
    """What a leaf is, before or after."""

    kind: str
    dtype: str
    shape: tuple[int, ...]


class PlannedLeaf(NamedTuple):
    """What becomes of one leaf."""

    source_path: str
    target_path: str | None
    """`None` if it stays behind."""
    source: LeafForm
    target: LeafForm


class ConvertPlan(NamedTuple):
    """What a conversion would do."""

    leaves: list[PlannedLeaf]
    losses: list[Loss]

    @property
    def lossless(self) -> bool:
        """Whether the target can give everything back as it is."""
        return all(loss.kind == "note" for loss in self.losses)


class ConvertReport(NamedTuple):
    """What a conversion did."""

    path: str
    """Where the new checkpoint is."""
    stored_bytes: int
    """Bytes of all its files."""
    leaf_count: int
    """Leaves written."""
    losses: list[Loss]
    """What the target could not hold."""
    save: SaveReport
    """How fast it went, and where the time went."""

    @property
    def reused_bytes(self) -> int:
        """Bytes that were not written because ``base=`` has them; they are part of `stored_bytes`."""
        return self.save.reused_bytes


@overload
def convert(
    source: StrPath,
    target: StrPath,
    *,
    dry_run: Literal[True],
    layout: str = ...,
    only: str | Iterable[str] | None = ...,
    rename: Mapping[str, str] | None = ...,
    cast: Any = ...,
    transpose: Mapping[str, Sequence[int]] | None = ...,
    reshape: Mapping[str, Sequence[int]] | None = ...,
    lossy: bool = ...,
    overwrite: bool = ...,
    durable: bool = ...,
    compression: Any = ...,
    metadata: Any = ...,
    base: StrPath | None = ...,
    step: int | None = ...,
    item: str | None = ...,
    strict: bool = ...,
    bare: bool = ...,
    progress: Progress = ...,
    orbax: OrbaxOptions | None = ...,
    **options: Any,
) -> ConvertPlan: ...


@overload
def convert(
    source: StrPath,
    target: StrPath,
    *,
    dry_run: Literal[False] = ...,
    layout: str = ...,
    only: str | Iterable[str] | None = ...,
    rename: Mapping[str, str] | None = ...,
    cast: Any = ...,
    transpose: Mapping[str, Sequence[int]] | None = ...,
    reshape: Mapping[str, Sequence[int]] | None = ...,
    lossy: bool = ...,
    overwrite: bool = ...,
    durable: bool = ...,
    compression: Any = ...,
    metadata: Any = ...,
    base: StrPath | None = ...,
    step: int | None = ...,
    item: str | None = ...,
    strict: bool = ...,
    bare: bool = ...,
    progress: Progress = ...,
    orbax: OrbaxOptions | None = ...,
    **options: Any,
) -> ConvertReport: ...


def convert(
    source: StrPath,
    target: StrPath,
    *,
    dry_run: bool = False,
    layout: str = "regrow",
    only: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    cast: Any = None,
    transpose: Mapping[str, Sequence[int]] | None = None,
    reshape: Mapping[str, Sequence[int]] | None = None,
    lossy: bool = False,
    overwrite: bool = False,
    durable: bool = True,
    compression: Any = None,
    metadata: Any = None,
    base: StrPath | None = None,
    step: int | None = None,
    item: str | None = None,
    strict: bool = False,
    bare: bool = False,
    progress: Progress = None,
    orbax: OrbaxOptions | None = None,
    **options: Any,
) -> ConvertReport | ConvertPlan:
    """Converts the checkpoint at `source`, of any layout, into one at `target`.

    A leaf at a time: memory is a band of one leaf, whatever the size of the checkpoint. All or nothing, like a save.

    Args:
        source: What to read.
        target: What to make.
        dry_run: Write nothing, and give what would become of each leaf. What `target` would refuse even with `lossy`
            (names that it cannot hold, a target that is there already) is raised as it would be.
        layout: The layout to write; see `save`. Further keywords are its options.
        only: A glob or globs over the key paths of the source; others are left out, `None` and empty containers too.
        rename: Regular expressions over whole key paths, and what takes their place (``$1`` is what the first group
            has matched); the first that matches a leaf decides. ``{"params/(.*)/kernel": "$1/weight"}``.
        cast: A dtype for all arrays, or a dict of globs.
        transpose: Globs, and the new order of axes: ``{"**/kernel": (1, 0)}``.
        reshape: Globs, and the new shape, after the transpose; one extent may be -1.
        lossy: Convert also what the target cannot hold as it is; the report lists it.
        overwrite: Replace a checkpoint that is there.
        durable: Sync to disk before returning.
        compression: As for `save`.
        metadata: The new checkpoint's own metadata; the source's, if the layout has a place for it, if `None`.
        base: An earlier checkpoint, as for `save`: data files in which nothing changed since are hard-linked instead of
            written. What is compared is read twice, unless its file is linked.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint of several.
        strict: Refuse a source that has lost files, also if it can still be read; otherwise `losses` has a note of it.
        bare: Convert the arrays of `source` alone, as `load` gives them.
        progress: As for `save`.
        orbax: Options of ``layout="orbax"``.
        **options: Options of the layout.

    Returns:
        A `ConvertReport`; with `dry_run` a `ConvertPlan`.

    Raises:
        UnsupportedError: if the target cannot hold everything as it is and `lossy` was not given; it names what.
        NotFoundError: for globs that match nothing, all of them named; if there is no `base`.
        InvalidArgumentError: for rules that cannot be followed, or change nothing.
        NameCollisionError: if two leaves would come to one place; `None` and an empty container are no free places.
    """
    save = _options.save_options(
        layout=layout,
        overwrite=overwrite,
        durable=durable,
        cast=cast,
        compression=compression,
        metadata=metadata,
        base=base,
        orbax=orbax,
        options=options,
    )
    rules = (
        _arguments.count("step", step),
        _arguments.text("item", item),
        _arguments.flag("strict", strict),
        _arguments.flag("bare", bare),
        _arguments.patterns(only),
        _renames(rename),
        _numbers("transpose", transpose, minimum=0),
        _numbers("reshape", reshape, minimum=-1),
        _arguments.flag("lossy", lossy),
    )
    source, target = _arguments.path("source", source), _arguments.path("target", target)
    if _arguments.flag("dry_run", dry_run):
        leaves, losses = _native.plan_convert(source, target, save, rules)
        return ConvertPlan(
            [PlannedLeaf(a, b, _form(before), _form(after)) for a, b, before, after in leaves],
            [Loss(*loss) for loss in losses],
        )
    with Watch(progress, "converting") as watch:
        columns, losses = _native.convert(source, target, save, rules, watch)
    report = SaveReport.from_native(columns)
    return ConvertReport(report.path, report.stored_bytes, report.leaf_count, [Loss(*loss) for loss in losses], report)


def _form(form: tuple[str, str, list[int]]) -> LeafForm:
    kind, dtype, shape = form
    return LeafForm(kind, dtype, tuple(shape))


def _renames(rename: Any) -> list[tuple[str, str]]:
    rules = {} if rename is None else rename
    if not isinstance(rules, Mapping) or not all(isinstance(text, str) for rule in rules.items() for text in rule):
        raise _arguments.wrong("rename", rename, "a dict of regular expressions, and what takes their place")
    return list(rules.items())


def _numbers(name: str, rules: Any, minimum: int) -> list[tuple[str, list[int]]]:
    rules = {} if rules is None else rules
    if not isinstance(rules, Mapping) or not all(isinstance(pattern, str) for pattern in rules):
        raise _arguments.wrong(name, rules, "a dict of globs, with a sequence of integers for each")
    out = []
    for pattern, numbers in rules.items():
        try:
            row = [int(number) for number in numbers]
        except (TypeError, ValueError):
            raise InvalidArgumentError(f"{name}[{pattern!r}]={numbers!r} is no sequence of integers") from None
        if any(not minimum <= number < 2**63 for number in row):
            raise InvalidArgumentError(f"{name}[{pattern!r}]={numbers!r} holds a number that makes no sense")
        out.append((pattern, row))
    return out

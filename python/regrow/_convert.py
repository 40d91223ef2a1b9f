"""Converting a checkpoint from one layout to another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, Unpack, overload

from . import _arguments, _executors, _native, _options, _shares
from ._checkpoint import Finding
from ._errors import InvalidArgumentError
from ._keywords import CONVERT, ConvertOptions
from ._location import StrPath, places, portables
from ._progress import Watch
from ._report import Loss, SaveReport

T = TypeVar("T")


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
    damage: Sequence[Finding] = ()
    """With `salvage`: why each lost leaf of the source is lost, and what else is wrong with it."""

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
    damage: Sequence[Finding] = ()
    """With `salvage`: why each lost leaf of the source is lost, and what else is wrong with it."""

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
    all_steps: Literal[True],
    **options: Unpack[ConvertOptions],
) -> dict[int, ConvertPlan]: ...


@overload
def convert(
    source: StrPath,
    target: StrPath,
    *,
    dry_run: Literal[False] = ...,
    all_steps: Literal[True],
    **options: Unpack[ConvertOptions],
) -> dict[int, ConvertReport]: ...


@overload
def convert(
    source: StrPath,
    target: StrPath,
    *,
    dry_run: Literal[True],
    all_steps: Literal[False] = ...,
    **options: Unpack[ConvertOptions],
) -> ConvertPlan: ...


@overload
def convert(
    source: StrPath,
    target: StrPath,
    *,
    dry_run: Literal[False] = ...,
    all_steps: Literal[False] = ...,
    **options: Unpack[ConvertOptions],
) -> ConvertReport: ...


@CONVERT.documented
def convert(
    source: StrPath,
    target: StrPath,
    *,
    dry_run: bool = False,
    all_steps: bool = False,
    **options: Unpack[ConvertOptions],
) -> ConvertReport | ConvertPlan | dict[int, ConvertReport] | dict[int, ConvertPlan]:
    """Converts the checkpoint at `source`, of any layout, into one at `target`.

    A leaf at a time: memory is a band of one leaf, whatever the size of the checkpoint. All or nothing, like a save.

    Args:
        source: What to read.
        target: What to make.
        dry_run: Write nothing, and give what would become of each leaf. What `target` would refuse even with `lossy`
            (names that it cannot hold, a target that is there already) is raised as it would be.
        all_steps: Convert each committed step of a folder of steps into a step of the folder `target`. Nothing is
            written before every step can be converted. Each step is committed by itself.
        **options: The keywords of `ConvertOptions`.

    Returns:
        A `ConvertReport`; with `dry_run` a `ConvertPlan`; with `all_steps` a dict of these by step.

    Raises:
        UnsupportedError: if the target cannot hold everything as it is and `lossy` was not given; it names what.
        NotFoundError: for globs that match nothing, all of them named; if there is no `base`.
        InvalidArgumentError: for rules that cannot be followed, or change nothing.
        IoError: if the workers of an executor died three times over one share.
        NameCollisionError: if two leaves would come to one place; `None` and an empty container are no free places.
    """
    given = CONVERT.chosen("convert", options, ["dry_run", "all_steps"])
    if given["rules"] is not None:
        given = CONVERT.chosen("convert", _with_kept(dict(options)), ["dry_run", "all_steps"])
    at = places(given["storage_options"], source=source, target=target, base=given["base"])
    given = _options.with_layout(given, at["target"])
    save = _options.of_write(given, at.get("base"))
    rules = (
        _arguments.count("step", given["step"]),
        _arguments.text("item", given["item"]),
        _arguments.flag("strict", given["strict"]),
        _arguments.flag("bare", given["bare"]),
        _arguments.patterns(given["only"]),
        _renames(given["rename"]),
        _numbers("transpose", given["transpose"], minimum=0),
        _numbers("reshape", given["reshape"], minimum=-1),
        _arguments.flag("lossy", given["lossy"]),
        _arguments.flag("salvage", given["salvage"]),
    )
    shared = _executors.chosen(given["executor"], given["workers"])
    of_all = _arguments.flag("all_steps", all_steps)
    if shared is not None and of_all:
        raise InvalidArgumentError("an executor converts one checkpoint: leave out all_steps, or the executor")
    if _arguments.flag("dry_run", dry_run):
        planned = _native.plan_convert(at["source"], at["target"], save, rules, of_all)
        plans = {step: _plan(*plan) for step, plan in planned}
        return _by_step(plans) if of_all else plans[None]
    if shared is not None:
        shares = portables(given["storage_options"], source=source, target=target, base=given["base"])
        told = _shares.convert(shared, shares, _options.with_base(save, None), rules, given["progress"])
        return _report(*told, [])
    with Watch(given["progress"], "converting") as watch:
        converted = _native.convert(at["source"], at["target"], save, rules, of_all, watch)
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


def _with_kept(options: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a call, and behind them the rules of the file that it names."""
    place = places(None, rules=options["rules"])
    layout, of_layout, only, rename, cast, transpose, reshape, lossy = _native.convert_rules(place["rules"])
    kept: dict[str, Any] = {"only": only or None, "lossy": lossy, "layout": layout}
    said = {name: value for name, value in options.items() if value is not None}
    if layout is None or said.get("layout", layout) == layout:
        kept |= json.loads(of_layout)
        if "per_leaf" in kept:
            kept["per_leaf"] = dict(kept["per_leaf"])
    for name, rules in (("rename", rename), ("cast", cast), ("transpose", transpose), ("reshape", reshape)):
        first = said.get(name, {})
        if isinstance(first, Mapping):
            # The first that matches decides: the call's before the file's, and of two alike the first.
            said[name] = dict(first)
            for pattern, rule in rules:
                said[name].setdefault(pattern, rule)
    return kept | said


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

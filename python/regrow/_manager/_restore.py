"""Restores a step, or the newest good step, in one process or in all of a job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from .. import _native
from .._core._location import Location, place
from .._core._options import Options
from .._errors import CorruptError, InvalidArgumentError, NotFoundError, RegrowError, failure
from .._load._load import Loading
from .._load._open import load_as
from .._load._open import open as open_checkpoint
from .._load._opening import Opening
from .._save import _items
from ._steps import Steps

ITEM = "default"
"""The item that a state is saved as: Orbax' manager has the same."""


LISTS_MAX = 20
"""So often newer steps are looked for: a count and no time, so that all processes of a job end
together.
"""


class PassedOver(NamedTuple):
    """A newer step that could not be restored, and why."""

    step: int
    error: RegrowError


class Restored(NamedTuple):
    """What was restored."""

    step: int
    path: str
    value: Any
    passed_over: list[PassedOver]


class Loads(NamedTuple):
    """How the contents of a step are loaded."""

    one: Callable[[Location, Any, Loading, Options | None], Any]
    """One item, which `Loading.at` names; called with the step's folder, the template, and the
    settings.
    """
    several: Callable[[Location, Any, Loading, Options | None], dict[str, Any]]
    """Several items; called with the items in the place of a template."""


def _one_pytree(at: Location, like: Any, asked: Loading, options: Options | None) -> Any:
    return load_as(at, like, asked, options=options)


PYTREES = Loads(_one_pytree, _items.load_items_as)


def restore(
    steps: Steps,
    step: int | None,
    like: Any,
    items: Mapping[str, Any] | Iterable[str] | None,
    asked: Loading,
    options: Options | None,
    loads: Loads,
    history: _native.History | None,
    note: Callable[[int, RegrowError | None, bool], None],
) -> Restored:
    """What a step holds; with `None` the newest of the history that is good. `note` is told of each
    step that was read.

    A writer may have deleted all of them before a slow reader came to them. It does so when there
    are newer ones, so these are looked for.
    """
    if items is not None and (asked.at is not None or like is not None):
        raise InvalidArgumentError("`items` names the items to restore: leave out `at` and `like`")
    passed_over: list[PassedOver] = []
    for number in _candidates(steps, step, passed_over, history):
        failure: RegrowError | None = None
        value: Any = None
        path = ""
        try:
            at = steps.at(steps.native.step(number)[1])
            path = at.url
            if step is None:
                _refuse_lost_items(at)
            value = _one(loads, at, number, like, items, asked, options)
        except RegrowError as error:
            failure = error
        is_fault = failure is not None and step is None and steps.native.is_at_fault(number, failure.kind)
        note(number, failure, is_fault)
        failure = _agreed(steps, number, failure, is_fault)
        if failure is None:
            return Restored(number, path, value, [passed for passed in passed_over if passed.step > number])
        passed_over.append(PassedOver(number, failure))
        del value
    _refuse(steps, passed_over)


def _candidates(
    steps: Steps, step: int | None, passed_over: list[PassedOver], history: _native.History | None
) -> Iterator[int]:
    """The step, or with `None` all steps, the newest first; after all are skipped, those that were
    added in between.
    """
    if step is not None:
        yield step
        return
    for _ in range(LISTS_MAX):
        seen = {passed.step for passed in passed_over}
        found = [number for number in steps.current(history) if number not in seen]
        if not found:
            return
        yield from reversed(found)


def _agreed(steps: Steps, number: int, failure: RegrowError | None, is_fault: bool) -> RegrowError | None:
    """The step's own failure in any of the processes, by which all of them pass it over; raises any
    other.

    In a job all take the same way: what one of them cannot restore, none does.
    """
    if failure is not None and not is_fault:
        # Others are told, and end with it.
        with contextlib.suppress(RegrowError):
            steps.tell(number, failure, False)
        raise failure
    told = steps.tell(number, failure, is_fault)
    return failure if failure is not None else told


def _one(
    loads: Loads, at: Location, number: int, like: Any, items: Any, asked: Loading, options: Options | None
) -> Any:
    if items is not None:
        return loads.several(at, items, asked, options)
    kinds = {found.name: found.kind for found in open_checkpoint(at).items_info}
    return loads.one(at, like, replace(asked, at=_chosen(kinds, asked.at, number)), options)


def _refuse_lost_items(at: Location) -> None:
    """A step that has lost an item is not good, whichever items are asked for."""
    lost = _native.open(place("path", at), Opening()).lost_items
    if lost:
        help = "pass the number of this step to restore its other items"
        raise failure(CorruptError, lost[0][1], f"in {at.url}", help=help)


def _chosen(kinds: Mapping[str, str], at: str | None, number: int) -> str | None:
    """The key path in a step: from an item's name on, or within the usual item, or the only
    tree.
    """
    if not kinds or (at is not None and at.partition("/")[0] in kinds):
        return at
    trees = [ITEM] if ITEM in kinds else [name for name, kind in kinds.items() if kind == "pytree"]
    if len(trees) == 1:
        return trees[0] if at is None else f"{trees[0]}/{at}"
    help = f"pass at= for one of them, or items= for several: {', '.join(kinds)}"
    raise failure(InvalidArgumentError, f"step {number} has several items, and none is called {ITEM!r}", help=help)


def _refuse(steps: Steps, passed_over: list[PassedOver]) -> NoReturn:
    where = steps.root.url
    if not passed_over:
        unfinished = steps.native.list()[1]
        help = f"saves that never ended: {', '.join(unfinished)}" if unfinished else "there are no steps"
        raise failure(NotFoundError, f"there is no step to restore in {where}", help=help)
    help = "; ".join(f"step {passed.step}: {str(passed.error).splitlines()[0]}" for passed in passed_over)
    others = [number for number in steps.native.abandoned() if all(number != passed.step for passed in passed_over)]
    if others:
        help += f"; steps of an abandoned history, which restore(step) loads: {', '.join(map(str, others))}"
    raise failure(CorruptError, f"no step in {where} is good", help=help) from passed_over[0].error

"""When a `Manager` saves and which steps it keeps, as JSON for the native half."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._core import _arguments
from .._core._options import Options
from .._errors import InvalidArgumentError, failure
from ..layouts import Layout
from ._steps import Step


class StepName(NamedTuple):
    """A form of step names, as in Orbax.

    | form | name of step 5 |
    |---|---|
    | ``StepName()`` | ``5`` |
    | ``StepName("step")`` | ``step_5`` |
    | ``StepName(width=6)`` | ``000005`` |
    | ``StepName("step", 6)`` | ``step_000005`` |
    """

    prefix: str | None = None
    """The text before an underscore and the number."""
    width: int | None = None
    """The least number of digits, with leading zeros."""


@dataclass(frozen=True, kw_only=True)
class Keep:
    """The steps that a `Manager` keeps: all steps that at least one field keeps. The newest good
    step always stays.

        Keep(last=3, best=3, by="eval/loss:min", every=1000)

    The others are deleted in the background after a newer step is committed. Damaged steps, those
    of other programs and those of an abandoned history are neither counted nor deleted.
    """

    last: int | None = None
    """This many of the newest steps."""
    best: int | None = None
    """This many of the best steps, by the metric in `by`."""
    by: str | tuple[str, str] | None = None
    """A metric and which of its values is best: ``"eval/loss:min"``. With other fields the best
    step is kept too. Each save has to give the metric; a step whose metric is NaN has no rank, and
    stays."""
    every: int | None = None
    """Steps whose number is a multiple of this."""
    closest: int | None = None
    """The step nearest to each multiple of this."""
    seconds: float | None = None
    """A step that was saved at least this many seconds after the last step that this field kept."""
    steps: Iterable[int] = ()
    """These steps."""
    where: Callable[[Step], bool] | None = None
    """The steps for which this function is true."""
    adopt: bool = False
    """Also count and delete steps that other programs saved into the folder, such as Orbax."""
    verify_first: bool = False
    """Read the whole new step again before other steps are deleted."""
    trash: str | None = None
    """Do not delete steps, but move them into this folder, below the folder of steps."""


@dataclass(frozen=True, kw_only=True)
class SaveWhen:
    """The steps that a `Manager` saves: all steps that at least one field names."""

    every: int | None = 1
    """Steps whose number is a multiple of this; `None`: only steps that other fields name."""
    seconds: float | None = None
    """With `every`: only if this many seconds have passed since the last save."""
    steps: Iterable[int] = ()
    """Also these steps."""
    first: bool = False
    """Also a step in a folder without steps."""
    where: Callable[[int], bool] | None = None
    """Also the steps for whose numbers this function is true."""


@dataclass(frozen=True, kw_only=True)
class SaveOptions:
    """How a `Manager` saves each step. The fields have the meaning of the keywords of `save`."""

    layout: str | Layout | None = None
    cast: Any = None
    lossy: bool = False
    compression: Any = None
    durable: bool = True
    parity: str | None = None
    seal: bool = False
    link_unchanged: bool = False
    """Hard-link data files that have not changed since the previous step, as ``base=`` does."""
    options: Options | None = None
    """Rare settings."""


def chosen_keep(keep: Any) -> Keep:
    """The steps to keep, from a number of newest steps, a `Keep`, or `None` for all steps."""
    if keep is None:
        return Keep()
    if isinstance(keep, Keep):
        return keep
    if isinstance(keep, (int, np.integer)) and not isinstance(keep, bool):
        return Keep(last=_positive("keep", keep))
    raise _arguments.wrong("keep", keep, "a number of newest steps, a regrow.Keep, or None for all")


def chosen_when(save_every: Any) -> SaveWhen:
    """When a step is saved, from an interval or a `SaveWhen`."""
    if isinstance(save_every, SaveWhen):
        return save_every
    if isinstance(save_every, (int, np.integer)) and not isinstance(save_every, bool):
        return SaveWhen(every=_positive("save_every", save_every))
    raise _arguments.wrong("save_every", save_every, "a number of steps, or a regrow.SaveWhen")


class Metric(NamedTuple):
    """A metric, and whether its lowest or highest value is best."""

    name: str
    is_max: bool


def forms(names: Any) -> list[tuple[str | None, int | None]] | None:
    """The forms of names, the form for new steps first; `None` for the forms of the existing names."""
    if names is None:
        return None
    several = [names] if isinstance(names, StepName) else names
    takes = "a regrow.StepName, or several"
    if isinstance(several, (str, bytes)) or not isinstance(several, Iterable):
        raise _arguments.wrong("names", names, takes)
    chosen = list(several)
    if not chosen or not all(isinstance(name, StepName) for name in chosen):
        raise _arguments.wrong("names", names, takes)
    return [(_arguments.text("prefix", name.prefix), _arguments.count("width", name.width)) for name in chosen]


def metric(by: Any) -> Metric | None:
    """Parses a metric: ``"eval/loss:min"``, or ``("eval/loss", "min")``."""
    if by is None:
        return None
    name, mode = "", ""
    if isinstance(by, str):
        name, _, mode = by.rpartition(":")
    elif isinstance(by, (tuple, list)) and len(by) == 2 and all(isinstance(part, str) for part in by):
        name, mode = by
    if not name or mode not in ("min", "max"):
        raise _arguments.wrong("by", by, 'the name of a metric with its mode: "eval/loss:min", "accuracy:max"')
    return Metric(name, mode == "max")


def when(wanted: SaveWhen) -> str:
    """The condition for saves."""
    interval = _positive("every", wanted.every)
    conditions: list[Any] = []
    if interval is not None:
        conditions.append({"every": interval})
    apart = _seconds("seconds", wanted.seconds)
    if apart is not None:
        conditions.append({"after_seconds": apart})
    # Without conditions and without a list of steps, every step is due.
    regular: Any = {"all": conditions}
    any_of = [regular] if conditions or not _has_steps(wanted.steps) else []
    if _has_steps(wanted.steps):
        any_of.append({"steps": _steps("steps", wanted.steps)})
    if _arguments.flag("first", wanted.first):
        any_of.append("first")
    return json.dumps({"any": any_of})


def policy(keep: Keep, best: Metric | None) -> str:
    """The policy: all steps that one of the fields keeps; all steps if there is no field.

    Raises:
        InvalidArgumentError: for fields that contradict each other.
    """
    any_of: list[Any] = []
    latest = _positive("last", keep.last)
    if latest is not None:
        any_of.append({"latest": latest})
    count = _positive("best", keep.best)
    if count is not None and best is None:
        raise failure(
            InvalidArgumentError,
            f"Keep(best={keep.best!r}) needs a metric",
            help='name it with its mode: by="eval/loss:min"',
        )
    interval = _positive("every", keep.every)
    if interval is not None:
        any_of.append({"every_steps": interval})
    around = _positive("closest", keep.closest)
    if around is not None:
        any_of.append({"closest_steps": around})
    apart = _seconds("seconds", keep.seconds)
    if apart is not None:
        any_of.append({"every_seconds": apart})
    if _has_steps(keep.steps):
        any_of.append({"steps": _steps("steps", keep.steps)})
    if best is not None and (any_of or count is not None or keep.where is not None):
        mode = "max" if best.is_max else "min"
        own = {"metric": best.name, "mode": mode, "count": count or 1}
        any_of.append({"best": own})
    return json.dumps({"any": any_of} if any_of or keep.where is not None else "all")


def seconds(name: str, value: Any) -> float:
    """A time that is to be given."""
    found = _seconds(name, value)
    if found is None:
        raise _arguments.wrong(name, value, "seconds, 0 or more")
    return found


def _has_steps(steps: Any) -> bool:
    return not (isinstance(steps, tuple) and not steps)


def _steps(name: str, steps: Any) -> list[int]:
    if isinstance(steps, (str, bytes)) or not isinstance(steps, Iterable):
        raise _arguments.wrong(name, steps, "numbers of steps")
    numbers = [_arguments.count(name, step) for step in steps]
    if None in numbers:
        raise _arguments.wrong(name, steps, "numbers of steps")
    return sorted({number for number in numbers if number is not None})


def _positive(name: str, value: Any) -> int | None:
    return _arguments.count(name, value, minimum=1)


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    raise _arguments.wrong(name, value, "seconds, 0 or more, or None")

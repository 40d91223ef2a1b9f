"""What a `Manager` is told of when to save and what to keep, as the native half takes it: JSON documents."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from . import _arguments
from ._errors import InvalidArgumentError


class StepName(NamedTuple):
    """A form of the names of steps, as Orbax has them.

    | form | name of step 5 |
    |---|---|
    | ``StepName()`` | ``5`` |
    | ``StepName("step")`` | ``step_5`` |
    | ``StepName(width=6)`` | ``000005`` |
    | ``StepName("step", 6)`` | ``step_000005`` |
    """

    prefix: str | None = None
    """What stands before the number and an underscore."""
    width: int | None = None
    """How many digits there are at least, with zeros before the number."""


class Metric(NamedTuple):
    """A metric, and which of its values is best."""

    name: str
    is_max: bool


def forms(names: Any) -> list[tuple[str | None, int | None]] | None:
    """The forms of names, the one that is written first; `None` for those that the folder has."""
    if names is None:
        return None
    several = [names] if isinstance(names, StepName) else names
    takes = "a regrow.StepName, or several of which the first is written"
    if isinstance(several, (str, bytes)) or not isinstance(several, Iterable):
        raise _arguments.wrong("names", names, takes)
    chosen = list(several)
    if not chosen or not all(isinstance(name, StepName) for name in chosen):
        raise _arguments.wrong("names", names, takes)
    return [(_arguments.text("prefix", name.prefix), _arguments.count("width", name.width)) for name in chosen]


def metric(best: Any) -> Metric | None:
    """Of ``"eval/loss:min"``."""
    if best is None:
        return None
    name, _, mode = best.rpartition(":") if isinstance(best, str) else ("", "", "")
    if not name or mode not in ("min", "max"):
        raise _arguments.wrong("best", best, 'the name of a metric with its mode: "eval/loss:min", "accuracy:max"')
    return Metric(name, mode == "max")


def when(*, every: Any, save_steps: Any, min_seconds: Any, save_first: Any) -> tuple[str, bool]:
    """The condition for saves, and whether all processes of a job come to the same answer by themselves."""
    interval = _positive("every", every)
    conditions: list[Any] = []
    if interval is not None:
        conditions.append({"every": interval})
    apart = _seconds("min_seconds", min_seconds)
    if apart is not None:
        conditions.append({"after_seconds": apart})
    # Without steps to choose from, each is one.
    regular: Any = {"all": conditions}
    any_of = [regular] if conditions or not _has_steps(save_steps) else []
    if _has_steps(save_steps):
        any_of.append({"steps": _steps("save_steps", save_steps)})
    if _arguments.flag("save_first", save_first):
        any_of.append("first")
    any_of.append("preempted")
    return json.dumps({"any": any_of}), apart is None


def keep(
    *,
    keep: Any,
    best: Metric | None,
    keep_best: Any,
    keep_every: Any,
    keep_closest: Any,
    keep_seconds: Any,
    keep_steps: Any,
    has_keep_if: bool,
) -> list[Any]:
    """The policies, of which each keeps steps; none of them keeps all.

    Raises:
        InvalidArgumentError: for options that contradict each other.
    """
    any_of: list[Any] = []
    latest = _positive("keep", keep)
    if latest is not None:
        any_of.append({"latest": latest})
    count = _positive("keep_best", keep_best)
    if count is not None and best is None:
        raise InvalidArgumentError(
            f'keep_best={keep_best!r} needs a metric\n  help: name it with its mode: best="eval/loss:min"',
            help='name it with its mode: best="eval/loss:min"',
        )
    interval = _positive("keep_every", keep_every)
    if interval is not None:
        any_of.append({"every_steps": interval})
    around = _positive("keep_closest", keep_closest)
    if around is not None:
        any_of.append({"closest_steps": around})
    apart = _seconds("keep_seconds", keep_seconds)
    if apart is not None:
        any_of.append({"every_seconds": apart})
    if _has_steps(keep_steps):
        any_of.append({"steps": _steps("keep_steps", keep_steps)})
    if best is not None and (any_of or count is not None or has_keep_if):
        mode = "max" if best.is_max else "min"
        own = {"metric": best.name, "mode": mode, "count": count or 1}
        any_of.append({"best": own})
    return any_of


def kept(policies: list[Any], chosen: Iterable[int] | None) -> str:
    """The policy as a document; `chosen` are the steps that the caller's function keeps."""
    if chosen is not None:
        return json.dumps({"any": [*policies, {"steps": sorted(chosen)}]})
    return json.dumps({"any": policies} if policies else "all")


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
    number = _arguments.count(name, value)
    if number == 0:
        raise _arguments.wrong(name, value, "a number of at least 1, or None")
    return number


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    raise _arguments.wrong(name, value, "seconds, 0 or more, or None")

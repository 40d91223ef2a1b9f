"""The reading half of a `Manager`: lists steps, restores them, waits for new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from .. import _native
from .._core import _arguments
from .._core._keywords import keywords
from .._core._location import Location, StrPath
from .._core._options import Options
from .._core._progress import Progress
from .._errors import InvalidArgumentError, failure
from .._load._load import Extra, Loading, Missing
from ._policies import Metric
from ._restore import PYTREES, Loads, PassedOver, load_step
from ._steps import Step, number_of, step_of


class Reading:
    """The methods that only read. The list of steps has the committed steps of the storage."""

    def __init__(self, root: Location, run: _native.Run, metric: Metric | None) -> None:
        self._root = root
        self._run = run
        self._metric = metric
        self.restored: int | None = None
        """The step of the last `restore`."""
        self.passed_over: list[PassedOver] = []
        """Newer steps that the last `restore` skipped, newest first."""

    # ---- the steps --------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The folder, or its URL."""
        return self._root.url

    @property
    def steps(self) -> list[int]:
        """The numbers of the committed steps, of any history. In a job all processes call this."""
        return self._run.numbers()

    @property
    def latest(self) -> int | None:
        """The newest committed step of the current history; `None` if there is none. In a job all
        processes call this.

        The current history is the history of the last save. After the `restore` of an older step it
        is the history of that step.
        """
        return self._run.latest()

    @property
    def abandoned(self) -> list[int]:
        """Committed steps of histories that the run has left. In a job all processes call this."""
        return self._run.abandoned()

    @property
    def next(self) -> int:
        """The number after the newest step; 0 if there is none. In a job all processes call this."""
        latest = self.latest
        return 0 if latest is None else latest + 1

    @property
    def best(self) -> int | None:
        """The best committed step of the current history, by the metric of the manager's `Keep`;
        `None` if no step has the metric.

        In a job every process calls it.
        """
        if self._metric is None:
            help = 'make the manager with keep=regrow.Keep(by="eval/loss:min")'
            raise failure(InvalidArgumentError, "the manager has no metric, so no step is the best", help=help)
        return self._run.best(self._metric.name, self._metric.is_max)

    def list(self) -> list[Step]:
        """The committed steps, by number, with their metrics and metadata."""
        return [step_of(found) for found in self._run.steps.list()[0]]

    def step(self, step: int) -> Step:
        """A committed step.

        Raises:
            NotFoundError: if the step does not exist, with the steps that exist.
            UncommittedError: if the step is being written, or its writer was killed.
        """
        return step_of(self._run.steps.step(number_of(step)))

    def metrics(self, step: int) -> dict[str, Any]:
        """The metrics that were saved with a step."""
        return self.step(step).metrics

    # ---- restoring --------------------------------------------------------------------

    @keywords
    def restore(
        self,
        step: int | None = None,
        like: Any = None,
        *,
        at: str | None = None,
        items: Mapping[str, Any] | Iterable[str] | None = None,
        only: str | Iterable[str] | None = None,
        rename: Mapping[str, str] | None = None,
        rules: StrPath | None = None,
        cast: Any = None,
        lossy: bool = False,
        missing: Missing = "error",
        extra: Extra = "error",
        classes: Literal["dict"] | None = None,
        shardings: Any = None,
        progress: Progress = None,
        options: Options | None = None,
    ) -> Any:
        """Loads a step; the newest good step if `step` is `None`. `restored` then has the number of
        the step.

        A newer step that is damaged, or deleted in between, is skipped with a warning in the log,
        and listed in `passed_over`. A template that does not fit is an error, also if another step
        would fit. In a job all processes restore the same step.

        The restore of an older step abandons the newer ones: the next save begins another history,
        which goes on from the step that was restored. Only `delete_abandoned` and `roll_back`
        delete abandoned steps; a save of the same number replaces one. To look at a step, call
        `regrow.load`.

        Args:
            step: The number of the step.
            like: As for `load`.
            at: An item, a subtree of it (``"ema/params"``), or a subtree of the state
                (``"params"``).
            items: Several items, as for `load_items`. The result is then a dict.
            only: As for `load`.
            rename: As for `load`.
            rules: As for `load`.
            cast: As for `load`.
            lossy: As for `load`.
            missing: As for `load`.
            extra: As for `load`.
            classes: As for `load`.
            shardings: As for `load`.
            progress: As for `save`.
            options: Rare settings.

        Raises:
            NotFoundError: if the step does not exist, or the folder has no steps.
            CorruptError: if the step is damaged; without `step`, if no step is good, with all
                reasons.
            MismatchError: if the template differs.
        """
        asked = Loading(
            at=at, only=only, rename=rename, rules=rules, cast=cast, lossy=lossy, missing=missing, extra=extra,
            classes=classes, shardings=shardings, progress=progress,
        )  # fmt: skip
        return self._restore(PYTREES, step, like, items, asked, options)

    def _restore(
        self, loads: Loads, step: int | None, like: Any, items: Any, asked: Loading, options: Options | None
    ) -> Any:
        if items is not None and (asked.at is not None or like is not None):
            raise InvalidArgumentError("`items` names the items to restore: leave out `at` and `like`")
        wanted = None if step is None else number_of(step)

        def load(number: int, name: str) -> Any:
            return load_step(loads, self._root / name, number, like, items, asked, options)

        self.restored, value, passed_over = self._run.restore(wanted, load)
        self.passed_over = [PassedOver(number, error) for number, error in passed_over]
        return value

    def wait_for_new(self, after: int | None = None, *, timeout: float | None = None, every: float = 1.0) -> int | None:
        """Waits for a step newer than `after`, and returns the newest; `None` after `timeout`
        seconds.

        A step is newer if its number is higher, or if the run went back to an older step since.

            step = None
            while (step := steps.wait_for_new(step, timeout=3600)) is not None:
                evaluate(steps.restore(step, like=params))

        The manager of the run does not delete the step before the next call or `close`. In a folder
        that cannot be written it may be deleted; the log has a warning.

        Args:
            after: The last step that you handled.
            timeout: Seconds to wait at most.
            every: Seconds between two checks.
        """
        return self._run.wait_for_new(_arguments.count("after", after), timeout, every)

"""A manager of steps: saves a training loop's state at intervals, deletes old steps, restores the
newest.

    save ── the policy ── snapshot ── [background: write, commit ── verify, point, delete] ── record
                                       the engine's saver             the manager's thread

The engine's manager (`regrow::manager::TrainingRun`) lists the steps, decides, follows saves, deletes and
keeps the records. This module has what needs Python: arguments, values, functions and signals.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from .. import _native
from .._core import _arguments
from .._core._keywords import keywords
from .._core._location import StrPath, place
from .._core._progress import Progress, Watch
from .._core._report import SaveReport
from .._errors import RegrowError
from .._jobs import _job, _preemption
from .._jobs._job import Job
from .._save import _items
from .._save._async import SaveHandle, end_with_program, ended
from .._save._writing import Writing
from . import _given, _policies, _records
from ._follow import Following, StepHandle
from ._policies import Keep, SaveOptions, SaveWhen, StepName
from ._reading import Reading
from ._steps import number_of, step_of


class RunOptions(NamedTuple):
    """Options and hooks of a manager. The engine reads the fields by their names."""

    names: list[tuple[str | None, int | None]] | None
    save_when: str
    keep: str
    metric: str | None
    verify_first: bool
    adopt: bool
    trash: str | None
    link_unchanged: bool
    read_only: bool
    log: str | None
    preemption: _native.Preemption
    grace_seconds: float
    job: _job.NativeJob | None
    also_saves: Callable[[int], object] | None
    also_keeps: Callable[[Sequence[Any]], set[int]] | None
    on_saved: Callable[[int, Any], object] | None
    on_record: Callable[[str, bool], None] = _records.tell


class Manager(Reading):
    """Numbered steps in one folder: saves the steps that are due, keeps some, restores the newest
    good one.

        keep = regrow.Keep(last=3, by="eval/loss:min")
        with regrow.Manager("run", save_every=1000, keep=keep) as steps:
            if steps.latest is not None:
                state = steps.restore(like=state)
            for step in range(steps.next, 100_000):
                state = train(state)
                metrics = {"eval": {"loss": loss}}
                # Saves every 1000th step, in the background.
                saved = steps.save(step, state, metrics=metrics)
                if saved and steps.preempted:
                    break

    The list of steps has the committed steps. The next call raises a failure in the background.
    Orbax' `CheckpointManager` can continue in the same folder, and this manager in a folder of
    Orbax.
    """

    @keywords
    def __init__(
        self,
        path: StrPath,
        *,
        save_every: int | SaveWhen = 1,
        keep: int | Keep | None = None,
        names: StepName | Iterable[StepName] | None = None,
        background: bool = True,
        preemption_timeout: float | None = None,
        read_only: bool = False,
        log: StrPath | None = None,
        on_saved: Callable[[int, SaveReport], object] | None = None,
        progress: Progress = False,
        storage_options: Mapping[str, Any] | None = None,
        job: Job | None = None,
        options: SaveOptions | None = None,
    ) -> None:
        """Opens a folder of steps, which is made when the first step is saved.

        Args:
            path: The folder of steps, or its URL.
            save_every: Save steps that this divides; or a `SaveWhen`.
            keep: The number of newest steps to keep, or a `Keep`; all steps if `None`.
            names: The form of the names of steps: a `StepName`, or several: all are read, and the
                first is written. If `None`, the form of the steps in the folder.
            background: Return from `save` when the snapshot is taken. If `False`, when the step is
                committed.
            preemption_timeout: Treat SIGTERM as a request to end soon: `preempted` becomes true,
                and the next `save` saves any step and returns when it is committed. It raises
                `TimeoutError` when this many seconds have passed since the signal. A second SIGTERM
                ends the program.
            read_only: Only read: the manager takes no lock, deletes nothing, and refuses `save`.
            log: A local file to which each save, restore and deletion adds a line of JSON.
            on_saved: A function of the number and the report of each committed step, called on the
                manager's thread. The next call of the manager raises its exception.
            progress: Of each save, as for `save_async`.
            storage_options: Options for the storage of a URL, as for `save`.
            job: The processes that save together, as for `save`.
            options: How each step is saved.

        Raises:
            AlreadyExistsError: if another program writes to the folder.
            InvalidArgumentError: for a path that is a file, or a checkpoint by itself; for options
                that contradict each other.
        """
        if options is not None and not isinstance(options, SaveOptions):
            raise _arguments.wrong("options", options, "a regrow.SaveOptions, or None")
        wanted, kept_steps = _policies.chosen_when(save_every), _policies.chosen_keep(keep)
        asked = SaveOptions() if options is None else options
        self._writing = Writing(
            layout=asked.layout, cast=asked.cast, lossy=asked.lossy, compression=asked.compression,
            durable=asked.durable, parity=asked.parity, seal=asked.seal, job=job, options=asked.options,
        )  # fmt: skip
        self._background = _arguments.flag("background", background)
        self._progress = progress
        Watch(progress, "saving")
        metric = _policies.metric(kept_steps.by)
        takes_sigterm = preemption_timeout is not None
        self._flag = _preemption.Flag(takes_sigterm)
        run_options = RunOptions(
            names=_policies.forms(names),
            save_when=_policies.when(wanted),
            keep=_policies.policy(kept_steps, metric),
            metric=None if metric is None else metric.name,
            verify_first=_arguments.flag("verify_first", kept_steps.verify_first),
            adopt=_arguments.flag("adopt", kept_steps.adopt),
            trash=_arguments.text("trash", kept_steps.trash),
            link_unchanged=_arguments.flag("link_unchanged", asked.link_unchanged),
            read_only=_arguments.flag("read_only", read_only),
            log=None if log is None else _given.file("log", log),
            preemption=self._flag.native,
            grace_seconds=_policies.seconds("preemption_timeout", preemption_timeout if takes_sigterm else 30.0),
            job=self._writing.native_job(),
            also_saves=_arguments.function("where", wanted.where),
            also_keeps=_keeps(_arguments.function("where", kept_steps.where)),
            on_saved=_tells(_arguments.function("on_saved", on_saved)),
        )
        if run_options.job is None:
            # Check the options now. In a job the first save checks them, so that an error reaches
            # all processes.
            self._writing.request(None)
        root = _given.root(path, storage_options)
        super().__init__(root, _native.Run(place("directory", root), run_options), metric)
        self._following = Following(self._run)
        self._is_closed = False
        if takes_sigterm:
            self._flag.watch()

    # ---- saving -----------------------------------------------------------------------

    def should_save(self, step: int) -> bool:
        """Whether `save` would save this step.

        In a job every process calls it with the same steps. With `SaveWhen(seconds=...)`,
        `SaveWhen(where=...)` or `preemption_timeout` rank 0 decides, and the others wait for it.
        All learn of a signal at any process.
        """
        return self._run.should_save(self._asked_of_jax(step))

    def save(
        self,
        step: int,
        state: Any = None,
        *,
        items: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        item_options: Mapping[str, Mapping[str, Any]] | None = None,
        force: bool = False,
        overwrite: bool = False,
    ) -> SaveHandle | None:
        """Saves a step in the background if it is due; a handle of the save, or `None` if the step
        is not due.

        The call waits for an earlier save that still runs. A committed step is not saved again,
        unless it belongs to an abandoned history (see `restore`).

        Args:
            step: The number of the step.
            state: Any pytree.
            items: Items by name, with or without a state: pytrees, `Json` and `Files`, as for
                `save_items`.
            metrics: Numbers by name, or dicts of them. `Keep(by=...)` names one of them.
            metadata: Your own metadata, a dict.
            item_options: As for `save_items`.
            force: Save the step even if it is not due.
            overwrite: Replace the step if it exists.

        Raises:
            RegrowError: if an earlier save failed. This call then saves nothing; the next call
                does.
            AlreadyExistsError: with `force`, if the step exists and `overwrite` was not given.
            InvalidArgumentError: after `close`; with ``read_only=True``; without the metric that
                `Keep(by=...)` names, unless the program is asked to end. Nothing is written.
        """
        began = time.perf_counter()
        is_forced, replaces = _arguments.flag("force", force), _arguments.flag("overwrite", overwrite)
        number = self._asked_of_jax(step)
        plain: dict[str, Any] | None = None
        wrong: Exception | None = None
        try:
            plain = _given.metrics(metrics)
        except Exception as error:
            # All processes raise the error if the step is due.
            wrong = error
        due = self._run.begin(number, is_forced, replaces, json.dumps(plain or {}, default=str), wrong)
        if due is None:
            return None
        at = self._root / due.name
        with _job.posts_errors(self._writing.asked_job(), at):
            base = due.base()
            writing = self._writing.replaced(
                overwrite=due.may_replace(), metadata=_given.metadata(metadata, due.record),
                base=None if base is None else self._root / base,
            )  # fmt: skip
            everything, item_options = self._as_saved(_given.everything(state, items), item_options or {})
        begun = _items.save_items_later(at, everything, writing, metrics=plain, item_options=item_options)
        begun.follow(Watch(self._progress, "saving"))
        end_with_program(self._following)
        is_preempted = due.is_preempted
        followed = due.follow(begun, time.perf_counter() - began)
        if not self._background:
            self.wait()
        elif is_preempted:
            self._run.wait_for_grace(number)
        return StepHandle(begun, followed)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all saves and the deletions after them have ended.

        Raises:
            TimeoutError: if the saves have not ended after `timeout` seconds. They continue.
            RegrowError: if a save failed; call again for further failures.
        """
        if not self._run.wait(timeout):
            raise TimeoutError(f"the saves to {self.directory} have not ended after {timeout} s")
        if (failure := self._run.failure()) is not None:
            raise failure

    @property
    def pending(self) -> list[int]:
        """The steps whose saves have not ended, in the order of the saves."""
        return self._run.pending()

    @property
    def is_saving(self) -> bool:
        """Whether a save is running."""
        return bool(self.pending)

    # ---- deleting ---------------------------------------------------------------------

    def delete(self, step: int, *, force: bool = False) -> None:
        """Deletes a step, or moves it into the `trash` of its `Keep`.

        Args:
            step: The number of the step.
            force: Also delete a step that is being read, or the last step.

        Raises:
            NotFoundError: if the step does not exist.
            InvalidArgumentError: if the step is the last one or is being read, without `force`; if
                it contains other files. The step stays.
        """
        self._run.delete(number_of(step), _arguments.flag("force", force))

    def delete_abandoned(self) -> list[int]:
        """Deletes the steps of abandoned histories, or moves them into the `trash`; their numbers.

        Raises:
            RegrowError: if one of them cannot be deleted; the older ones are deleted.
        """
        return self._run.delete_abandoned()

    def roll_back(self, step: int) -> None:
        """Deletes all steps newer than this one. The next save begins another history.

        Raises:
            NotFoundError: if the step does not exist.
            RegrowError: if a newer step cannot be deleted; the steps newer than that one are
                deleted.
        """
        self._run.roll_back(number_of(step))

    # ---- the end ----------------------------------------------------------------------

    @property
    def preempted(self) -> bool:
        """Whether SIGTERM (with `preemption_timeout`) or JAX's preemption service asked the
        program to end.
        """
        return self._flag.is_set

    def reached_preemption(self, step: int) -> bool:
        """Whether JAX's preemption service asks all processes to save this step. False if the
        service is off.
        """
        return _preemption.jax_says(number_of(step))

    def close(self) -> None:
        """Waits for all saves, and releases the lock. A second call does nothing.

        Raises:
            RegrowError: if a save failed and no call has raised that yet.
        """
        if self._is_closed:
            return
        try:
            self.wait()
        finally:
            self._is_closed = True
            self._run.close()
            ended(self._following)
            self._flag.unwatch()

    def __enter__(self) -> Manager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except RegrowError as failure:
            if error is None:
                raise
            # The error of the block is raised. The failed save is a note of this error.
            error.add_note(f"and a save has failed: {failure}")

    def __repr__(self) -> str:
        return f"regrow.Manager({self.directory!r})"

    # ---- helpers ----------------------------------------------------------------------

    def _as_saved(
        self, items: dict[str, Any], options: Mapping[str, Mapping[str, Any]]
    ) -> tuple[dict[str, Any], Mapping[str, Mapping[str, Any]]]:
        """Items and their keywords in the form that `save_items` takes."""
        return items, options

    def _asked_of_jax(self, step: int) -> int:
        """The step number for JAX's preemption service, which may ask for a save."""
        number = number_of(step)
        if self.reached_preemption(number):
            self._flag.set()
        return number


def _keeps(where: Callable[[Any], object] | None) -> Callable[[Sequence[Any]], set[int]] | None:
    """A function that returns the steps of a list that the caller's function keeps."""
    if where is None:
        return None
    return lambda found: {step.number for step in map(step_of, found) if where(step)}


def _tells(on_saved: Callable[[int, SaveReport], object] | None) -> Callable[[int, Any], object] | None:
    """A function that calls the caller's function with the report of the native half."""
    if on_saved is None:
        return None
    return lambda step, report: on_saved(step, SaveReport.from_native(report))

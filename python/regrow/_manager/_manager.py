"""A manager of steps: saves a training loop's state at intervals, deletes old steps, restores the
newest.

    save ── the policy ── snapshot ── [background: write, commit ── verify, point, delete] ── record
                                       the engine's saver             the manager's thread

The list of steps comes from the storage; the native half computes the policies. In a job of several
processes rank 0 lists, decides and deletes, and tells the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from .. import _native
from .._core import _arguments
from .._core._keywords import keywords
from .._core._location import StrPath
from .._core._progress import Progress, Watch
from .._core._report import SaveReport
from .._errors import AlreadyExistsError, InvalidArgumentError, RegrowError, failure
from .._jobs import _job, _preemption
from .._jobs._job import Job
from .._save import _items
from .._save._async import SaveHandle
from .._save._writing import Writing
from . import _given, _policies
from ._follow import Follower, Saved, Tidying
from ._policies import Keep, SaveOptions, SaveWhen, StepName
from ._reading import Reading
from ._records import Records
from ._steps import Steps, number_of


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
            keep: Keep so many of the newest steps; or a `Keep`; all of them if `None`.
            names: The form of the names of steps: a `StepName`, or several: all are read, and the
                first is written. If `None`, the form of the steps in the folder.
            background: Return from `save` when the snapshot is taken. If `False`, when the step is
                committed.
            preemption_timeout: Take SIGTERM as a request to end soon: `preempted` says so, and the
                next `save` saves any step, returns when that is committed, and raises
                `TimeoutError` after so many seconds since the signal. A second SIGTERM ends the
                program.
            read_only: Only read: the manager takes no lock, deletes nothing, and refuses `save`.
            log: A local file to which each save, restore and deletion adds a line of JSON.
            on_saved: A function of the number and the report of each committed step, called on the
                manager's thread. The next call of the manager raises its exception.
            progress: Of each save, as for `save_async`.
            storage_options: How to reach the storage of a URL, as for `save`.
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
        self._metric = _policies.metric(kept_steps.by)
        keep_if = _arguments.function("where", kept_steps.where)
        self._save_if = _arguments.function("where", wanted.where)
        policies = _policies.policies(kept_steps, self._metric)
        self._when, is_regular = _policies.when(wanted)
        self._background = _arguments.flag("background", background)
        self._reuse = _arguments.flag("link_unchanged", asked.link_unchanged)
        self._todelete = _arguments.text("trash", kept_steps.trash)
        takes_sigterm = preemption_timeout is not None
        self._grace = _policies.seconds("preemption_timeout", preemption_timeout if takes_sigterm else 30.0)
        self._read_only = _arguments.flag("read_only", read_only)
        self._progress = progress
        Watch(progress, "saving")
        is_checked, adopts = (
            _arguments.flag("verify_first", kept_steps.verify_first),
            _arguments.flag("adopt", kept_steps.adopt),
        )
        on_saved = _arguments.function("on_saved", on_saved)
        tidying = Tidying(policies, keep_if, is_checked, self._todelete, adopts, on_saved)
        job_found = self._writing.native_job()
        if job_found is None:
            # In a job the first save says it to all processes.
            self._writing.columns(None)
        records = Records(None if log is None else _given.file("log", log))
        root = _given.root(path, storage_options)
        super().__init__(Steps(root, _policies.forms(names), job_found), self._metric, records)
        # Of no step: it is refused now, rather than when there is something to delete.
        self._steps.native.delete([], self._todelete, False)
        self._follower = Follower(self._steps, tidying, self._records)
        # What SIGTERM, a clock or a function says may differ between processes.
        self._must_ask = self._steps.is_shared and (not is_regular or takes_sigterm or self._save_if is not None)
        self._lock: _native.WriterLock | None = None
        self._is_closed = False
        self._flag = _preemption.Flag()
        self._has_saved_preempted = False
        self._last_save: float | None = None
        self._history = _native.History(self._steps.of_rank_0("begin", self._begin))
        """Which steps were there or have begun: so `should_save` need not look."""
        self._steps.share_forms()
        if takes_sigterm:
            self._flag.watch()

    def _begin(self) -> str:
        """Takes the folder, on rank 0; the history of the steps in it."""
        if not self._read_only:
            self._lock = self._follower.lock = self._steps.native.lock()
            self._steps.native.refresh()
        return self._steps.native.history()

    # ---- saving -----------------------------------------------------------------------

    def should_save(self, step: int) -> bool:
        """Whether `save` would save this step.

        In a job every process calls it with the same steps. With `SaveWhen(seconds=...)`,
        `SaveWhen(where=...)` or `preemption_timeout` rank 0 decides, and the others wait for it.
        All learn of a signal at any process.
        """
        number = number_of(step)
        return not self._read_only and not self._is_closed and self._wants(number)

    def _wants(self, number: int) -> bool:
        if not self._steps.is_shared:
            self._forget_failed()
        if self.reached_preemption(number):
            self._flag.set()

        def decide(preempted: list[bool]) -> list[bool]:
            is_preempted = any(preempted)
            if self._history.knows(number):
                return [False, is_preempted]
            since = None if self._last_save is None else time.monotonic() - self._last_save
            latest = self._history.latest()
            ends = is_preempted and not self._has_saved_preempted
            wants = _native.wants_step(self._when, number, latest, since, ends, self.is_saving)
            return [wants or (self._save_if is not None and bool(self._save_if(number))), is_preempted]

        own = self.preempted
        wants, is_preempted = self._steps.of_all("ask", own, decide) if self._must_ask else decide([own])
        if is_preempted:
            self._flag.set()
        return bool(wants)

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
            step: Its number.
            state: Any pytree.
            items: Items by name, with or without a state: pytrees, `Json` and `Files`, as for
                `save_items`.
            metrics: Numbers by name, or dicts of them. `Keep(by=...)` names one of them.
            metadata: Your own metadata, a dict.
            item_options: As for `save_items`.
            force: Save it whether it is due or not.
            overwrite: Replace the step if it exists.

        Raises:
            RegrowError: if an earlier save failed. This call then saves nothing; the next call
                does.
            AlreadyExistsError: with `force`, if the step exists and `overwrite` was not given.
            InvalidArgumentError: after `close`; with ``read_only=True``; without the metric that
                `Keep(by=...)` names, unless the program is asked to end. Nothing is written.
        """
        began = time.perf_counter()
        number = number_of(step)
        is_forced, replaces = _arguments.flag("force", force), _arguments.flag("overwrite", overwrite)
        self._check_may_write()
        if not self._steps.is_shared:
            self._raise_failure()
        wants = self._wants(number)
        if not (is_forced or (replaces and self._history.knows(number)) or wants):
            return None
        is_preempted = self.preempted
        try:
            plain = _given.metrics(metrics)
        except Exception as error:
            # The others come there next.
            self._steps.agree("settle", error)
            raise
        # The last save of a program that is to end is worth more than its rank.
        self._check_all_is_well(lambda: None if is_preempted else _given.check_metric(self._metric, plain))
        if self._history.knows(number) and not replaces:
            help = "pass overwrite=True to replace it"
            raise failure(AlreadyExistsError, f"step {number} already exists in {self.directory}", help=help)
        # What fails before the save has begun changes nothing.
        history = _native.History(self._history.text())
        at = self._steps.at(self._steps.native.name(number))
        with _job.posts_errors(self._writing.asked_job(), at):
            # An empty folder is no step.
            may_replace = history.is_taken(number) or self._steps.native.is_empty_folder(number)
            told = _given.metadata(metadata, history.begin(number))
            writing = replace(self._writing, overwrite=may_replace, metadata=told, base=self._base(number))
            everything, item_options = self._as_saved(_given.everything(state, items), item_options or {})
        begun = _items.save_items_later(at, everything, writing, metrics=plain, item_options=item_options)
        begun.follow(Watch(self._progress, "saving"))
        self._history = history
        self._follower.damaged.discard(number)
        self._last_save = time.monotonic()
        self._has_saved_preempted |= is_preempted
        handle = self._follower.add(Saved(number, begun, time.perf_counter() - began, plain or {}, is_preempted))
        if not self._background:
            self.wait()
        elif is_preempted:
            self._wait_for_grace(number)
        return handle

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all saves and the deletions after them have ended.

        Raises:
            TimeoutError: if they have not ended after `timeout` seconds. They go on.
            RegrowError: if a save failed; call again for further failures.
        """
        if not self._follower.wait(timeout):
            raise TimeoutError(f"the saves to {self.directory} have not ended after {timeout} s")
        self._raise_failure()

    @property
    def pending(self) -> list[int]:
        """The steps whose saves have not ended, in the order of the saves."""
        return self._follower.pending()

    @property
    def is_saving(self) -> bool:
        """Whether a save is running."""
        return self._follower.is_busy

    # ---- deleting ---------------------------------------------------------------------

    def delete(self, step: int, *, force: bool = False) -> None:
        """Deletes a step, or moves it into the `trash` of its `Keep`.

        Args:
            step: Its number.
            force: Also delete a step that is being read, or the last step.

        Raises:
            NotFoundError: if the step does not exist.
            InvalidArgumentError: if it is the last step, or is being read, without `force`; if it
                holds other files. The step stays.
        """
        number, is_forced = number_of(step), _arguments.flag("force", force)
        self._check_may_write()
        self._follower.wait()
        self._check_all_is_well()

        def delete() -> None:
            self._steps.native.step(number)
            if not is_forced and [step.number for step in self._steps.all()] == [number]:
                help = "pass force=True to delete it"
                raise failure(InvalidArgumentError, f"step {number} is the last one", help=help)
            self._steps.delete([number], self._todelete, force=is_forced, records=self._records)

        self._steps.of_rank_0("delete", delete)
        self._history.forget(number)

    def delete_abandoned(self) -> list[int]:
        """Deletes the steps of abandoned histories, or moves them into the `trash`; their numbers.

        Raises:
            RegrowError: if one of them cannot be deleted; the older ones are deleted.
        """
        self._check_may_write()
        self._follower.wait()
        self._check_all_is_well()

        def delete() -> list[int]:
            abandoned = self._steps.native.abandoned()
            for each in abandoned:
                self._steps.delete([each], self._todelete, force=False, records=self._records)
            return abandoned

        deleted = [int(number) for number in self._steps.of_rank_0("delete_abandoned", delete)]
        for number in deleted:
            self._history.forget(number)
        return deleted

    def roll_back(self, step: int) -> None:
        """Deletes all steps newer than this one. The next save begins another history.

        Raises:
            NotFoundError: if the step does not exist.
            RegrowError: if a newer step cannot be deleted; the steps newer than that one are
                deleted.
        """
        number = number_of(step)
        self._check_may_write()
        self._follower.wait()
        self._check_all_is_well()

        def delete() -> None:
            self._steps.native.step(number)
            newer = sorted((step.number for step in self._steps.all() if step.number > number), reverse=True)
            for each in newer:
                self._steps.delete([each], self._todelete, force=False, records=self._records)

        self._steps.of_rank_0("roll_back", delete)
        self._history.roll_back(number)

    # ---- the end ----------------------------------------------------------------------

    @property
    def preempted(self) -> bool:
        """Whether SIGTERM (with `preemption_timeout`) or JAX's preemption service asked the
        program to end.
        """
        return self._flag.since is not None

    def reached_preemption(self, step: int) -> bool:
        """Whether all processes save this step, by JAX's preemption service; False where that is
        off.
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
            self._follower.end()
            self._let_go()
            self._flag.unwatch()
            if self._lock is not None:
                self._lock.release()

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
            # What ends the block counts; this is told beside it.
            error.add_note(f"and a save has failed: {failure}")

    def __repr__(self) -> str:
        return f"regrow.Manager({self.directory!r})"

    # ---- helpers ----------------------------------------------------------------------

    def _as_saved(
        self, items: dict[str, Any], options: Mapping[str, Mapping[str, Any]]
    ) -> tuple[dict[str, Any], Mapping[str, Mapping[str, Any]]]:
        """Items, and the keywords of each, as `save_items` takes them."""
        return items, options

    def _forget_failed(self) -> None:
        """A save that has failed is no step."""
        for number in self._follower.failed():
            self._history.forget(number)

    def _current_history(self) -> _native.History | None:
        return None if self._read_only else self._history

    def _note(self, step: int, error: RegrowError | None, is_fault: bool) -> None:
        if error is None:
            self._follower.damaged.discard(step)
        elif error.kind in ("corrupt", "not_a_checkpoint") or (is_fault and error.kind == "not_found"):
            self._follower.damaged.add(step)

    def _turn_to(self, step: int) -> None:
        self._history.turn_to(step)

    def _settle(self) -> None:
        self._follower.wait()
        self._forget_failed()

    def _base(self, number: int) -> StrPath | None:
        """The step before, whose files are linked where they are the same."""
        earlier = self._history.latest(number) if self._reuse else None
        found = None if earlier is None else self._steps.native.find(earlier)
        return None if found is None else self._steps.at(found[1])

    def _check_may_write(self) -> None:
        if self._is_closed:
            raise InvalidArgumentError(f"the manager of {self.directory} is closed: make another one")
        if self._read_only:
            raise InvalidArgumentError(f"the manager of {self.directory} cannot write: it was made with read_only=True")
        if self._follower.is_forked:
            help = "save in the process that made it"
            raise failure(
                InvalidArgumentError,
                f"the manager of {self.directory} belongs to the process that this one was forked from",
                help=help,
            )

    def _check_all_is_well(self, check: Callable[[], None] = lambda: None) -> None:
        """Raises if an earlier save has failed, another writer has taken the folder over, or rank
        0's `check` raises.

        In a job all processes hear of it here, whichever of them has waited for the save longer.
        """
        if self._steps.is_shared:
            self._follower.wait()
        self._forget_failed()
        failure: BaseException | None = self._follower.failure()
        if failure is None and self._lock is not None:
            try:
                self._lock.check()
                check()
            except Exception as error:
                failure = error
        self._steps.agree("settle", failure)

    def _raise_failure(self) -> None:
        failure = self._follower.failure()
        if failure is not None:
            raise failure

    def _wait_for_grace(self, number: int) -> None:
        """Waits for the save of a program that is asked to end, for as long as that is given."""
        assert self._flag.since is not None
        left = self._flag.since + self._grace - time.monotonic()
        try:
            self.wait(max(left, 0.0))
        except TimeoutError:
            self._records.add("late", number, self.directory, is_bad=True, grace_seconds=self._grace)
            raise

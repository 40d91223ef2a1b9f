"""A manager of steps: saves a training loop's state every so often, keeps what is to be kept, restores the newest.

    save ── the policy ── snapshot ── [background: write, commit ── verify, point, delete] ── record
                                       the engine's saver             the manager's thread

What there is, is asked of the storage; what a policy says is the native half's to compute. In a job of several processes
rank 0 looks, decides and deletes, and tells the others.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Unpack

from . import _arguments, _async, _items, _job, _manager_policies, _native, _preemption
from ._errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, RegrowError
from ._keywords import LOAD, SAVE, LoadOptions, SaveOptions
from ._location import StrPath, local_path, place
from ._manager_follow import Follower, Saved, Tidying
from ._manager_policies import StepName
from ._manager_records import Records
from ._manager_restore import ITEM, PassedOver, restore
from ._manager_steps import Step, Steps, number_of, step_of

class Manager:
    """Numbered steps in one folder: when to save, what to keep, which is the newest that is good.

        with regrow.Manager("run", keep=3, every=1000, best="eval/loss:min") as steps:
            if steps.latest is not None:
                state = steps.restore(like=state)
            for step in range(steps.next, 100_000):
                state = train(state)
                steps.save(step, state, metrics={"eval": {"loss": loss}})   # returns at once; saves every 1000th
                if steps.preempted:
                    break

    The list of steps is what the storage has committed. A failure in the background is raised by the next call. Steps are
    items as Orbax' `CheckpointManager` has them: that one goes on in the same folder, and this one in its.
    """

    @SAVE.documented
    def __init__(
        self,
        directory: StrPath,
        *,
        keep: int | None = None,
        every: int | None = 1,
        best: str | None = None,
        keep_best: int | None = None,
        keep_every: int | None = None,
        keep_seconds: float | None = None,
        keep_steps: Iterable[int] = (),
        keep_if: Callable[[Step], bool] | None = None,
        save_steps: Iterable[int] = (),
        min_seconds: float | None = None,
        save_first: bool = False,
        save_if: Callable[[int], bool] | None = None,
        names: StepName | Iterable[StepName] | None = None,
        background: bool = True,
        check: bool = False,
        reuse: bool = False,
        todelete: str | None = None,
        sigterm: bool = False,
        grace: float = 30.0,
        read_only: bool = False,
        log: StrPath | None = None,
        **options: Unpack[SaveOptions],
    ) -> None:
        """Of a folder, which is made when the first step is saved.

        Args:
            directory: The folder of steps, or its URL.
            keep: Keep so many of the newest steps. What none of the `keep` options keeps is deleted, in the background,
                after a newer step is there; without any of them all steps are kept. The newest good step always is.
            every: Save steps that this divides.
            best: A metric and which of its values is best: ``"eval/loss:min"``. With other `keep` options the best step
                is kept too.
            keep_best: Keep so many of the best.
            keep_every: Keep steps that this divides.
            keep_seconds: Keep a step if so many seconds are between it and the last that is kept for this reason.
            keep_steps: Keep these.
            keep_if: Keep the steps of which this function says so.
            save_steps: Save these too; with ``every=None`` only these.
            min_seconds: Save at `every` only if so many seconds have gone by since the last save.
            save_first: Save a step where there is none yet.
            save_if: Also save the steps of whose numbers this function says so.
            names: How steps are named: a `StepName`, or several that are read, of which the first is written. As the steps
                in the folder are, if `None`.
            background: Return from `save` when the snapshot is taken. Without it, when the step is there.
            check: Read each new step again, all of it, before others are deleted.
            reuse: Hard-link data files that have not changed since the step before, as ``base=`` does.
            todelete: Move steps into this folder, below that of the steps, instead of deleting them.
            sigterm: Take SIGTERM as a word that the program is to end soon: `preempted` says so, and the next `save` is done
                whatever its step. A second SIGTERM ends the program.
            grace: How many seconds that save may take before it is reported as late.
            read_only: Only read: no lock is taken, nothing is deleted, `save` is refused.
            log: A local file to which each save and restore adds a line of JSON.
            **options: The keywords of `SaveOptions`, for every save; `overwrite`, `base` and `metadata` are `save`'s own.

        Raises:
            AlreadyExistsError: if another program writes to the folder.
            InvalidArgumentError: for a path that is a file, or a checkpoint by itself; for options that make no sense or
                contradict each other.
        """
        self._options = dict(options)
        given = SAVE.chosen("Manager", options, _OWN)
        for name in ("overwrite", "base", "metadata"):
            if name in options:
                raise InvalidArgumentError(f"{name} is not for the manager to say: give it to `save`")
        self._best = _manager_policies.metric(best)
        keep_if = _arguments.function("keep_if", keep_if)
        self._save_if = _arguments.function("save_if", save_if)
        policies = _manager_policies.keep(
            keep=keep, best=self._best, keep_best=keep_best, keep_every=keep_every, keep_seconds=keep_seconds,
            keep_steps=keep_steps, has_keep_if=keep_if is not None,
        )  # fmt: skip
        self._when, is_regular = _manager_policies.when(
            every=every, save_steps=save_steps, min_seconds=min_seconds, save_first=save_first
        )
        self._background = _arguments.flag("background", background)
        self._reuse = _arguments.flag("reuse", reuse)
        self._todelete = _arguments.text("todelete", todelete)
        self._grace = _manager_policies.seconds("grace", grace)
        self._read_only = _arguments.flag("read_only", read_only)
        takes_sigterm = _arguments.flag("sigterm", sigterm)
        tidying = Tidying(policies, keep_if, _arguments.flag("check", check), self._todelete)
        job = _job.chosen(given["job"])
        at = place("directory", directory, given["storage_options"])
        self._records = Records(None if log is None else _file("log", log))
        self._steps = Steps(at, _manager_policies.forms(names), job)
        self._follower = Follower(self._steps, tidying, self._records)
        # What SIGTERM, a clock or a function says may differ between processes.
        self._must_ask = self._steps.is_shared and (not is_regular or takes_sigterm or self._save_if is not None)
        self._lock: _native.WriterLock | None = None
        self._lease: _native.StepLease | None = None
        self._is_closed = False
        self._flag = _preemption.Flag()
        self._has_saved_preempted = False
        self._last_save: float | None = None
        self._of_another_history: int | None = None
        """After a restore of an older step: steps with greater numbers may be saved again."""
        self.restored: int | None = None
        """The step that the last `restore` has given."""
        self.passed_over: list[PassedOver] = []
        """Newer steps that the last `restore` has passed over, the newest first."""
        self._known = set(self._steps.of_rank_0("begin", self._begin))
        """Steps that are there or begun, as far as this manager knows: so `should_save` need not look."""
        self._steps.share_forms()
        if takes_sigterm:
            self._flag.watch()
        _async.end_with_program(self)

    def _begin(self) -> list[int]:
        """Takes the folder, on rank 0; the steps in it."""
        if not self._read_only:
            self._lock = self._steps.native.lock()
            self._steps.native.refresh()
        return [step.number for step in self._steps.list()]

    # ---- what there is ------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The folder, or its URL."""
        return self._steps.native.root.__fspath__()

    @property
    def steps(self) -> list[int]:
        """The numbers of the committed steps. In a job all processes ask."""
        return self._steps.numbers()

    @property
    def latest(self) -> int | None:
        """The newest committed step; `None` if there is none. In a job all processes ask."""
        return self._steps.latest()

    @property
    def next(self) -> int:
        """One more than the newest step; 0 if there is none. In a job all processes ask."""
        latest = self.latest
        return 0 if latest is None else latest + 1

    @property
    def best(self) -> int | None:
        """The best committed step by the metric of ``best=``; `None` if none has it. In a job all processes ask."""
        return self._steps.best(self._best)

    def list(self) -> list[Step]:
        """The committed steps, by number, with their metrics and metadata."""
        return self._steps.list()

    def step(self, step: int) -> Step:
        """A committed step.

        Raises:
            NotFoundError: if it is not there, with the steps that are.
            UncommittedError: if it is being written, or its writer was killed.
        """
        return step_of(self._steps.native.step(number_of(step)))

    def metrics(self, step: int) -> dict[str, Any]:
        """The metrics that were saved with a step."""
        return self.step(step).metrics

    # ---- saving -------------------------------------------------------------------------------------------------

    def should_save(self, step: int) -> bool:
        """Whether `save` would save this step: for those who would have to prepare something for it.

        In a job every process asks for the same steps. With `min_seconds`, `save_if` or `sigterm` rank 0 decides, and the
        others wait for its word.
        """
        number = number_of(step)
        if self._read_only or self._is_closed or self._is_taken(number):
            return False
        if self.reached_preemption(number):
            self._flag.set()

        def wants() -> bool:
            since = None if self._last_save is None else time.monotonic() - self._last_save
            latest = max(self._known, default=None)
            is_preempted = self.preempted and not self._has_saved_preempted
            if _native.wants_step(self._when, number, latest, since, is_preempted, self.is_saving):
                return True
            return self._save_if is not None and bool(self._save_if(number))

        return bool(self._steps.of_rank_0("should_save", wants)) if self._must_ask else wants()

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
    ) -> bool:
        """Saves a step if the policy says so, in the background; whether it does.

        An earlier save that still runs is waited for. A step that is there already is not saved again, but after a
        roll-back, which is a `restore` of an older step.

        Args:
            step: Its number.
            state: Any pytree.
            items: Several things instead, or beside the state: pytrees, `Json` and `Files` by name, as for `save_items`.
            metrics: Numbers by name, or dicts of them: what `best` goes by.
            metadata: Your own metadata, a dict.
            item_options: As for `save_items`.
            force: Save whatever the policy says.
            overwrite: Save it also if it is there already.

        Raises:
            RegrowError: why an earlier save has failed; then nothing is saved now, and the next call goes on.
            AlreadyExistsError: with `force`, if the step is there and `overwrite` was not given.
            InvalidArgumentError: after `close`; with ``read_only=True``.
        """
        began = time.perf_counter()
        number = number_of(step)
        self._check_may_write()
        self._raise_failure()
        is_forced, overwrite = _arguments.flag("force", force), _arguments.flag("overwrite", overwrite)
        is_there = number in self._known
        if not (is_forced or (overwrite and is_there) or self.should_save(number)):
            return False
        if self._is_taken(number) and not overwrite:
            help = "say overwrite=True to replace it"
            raise AlreadyExistsError(f"step {number} is there already, in {self.directory}\n  help: {help}", help=help)
        is_preempted = self.preempted
        base = None
        if self._reuse and (earlier := [known for known in self._known if known != number]):
            base = self._steps.native.find(max(earlier))
        handle = _items.save_items_async(
            self._steps.native.place(number),
            _everything(state, items),
            metrics=_plain(metrics),
            item_options=item_options,
            **{
                **self._options,
                "overwrite": is_there,
                "metadata": metadata,
                "base": None if base is None else base[2],
            },
        )
        self._known.add(number)
        self._last_save = time.monotonic()
        self._has_saved_preempted |= is_preempted
        self._follower.add(Saved(number, handle, time.perf_counter() - began, dict(_plain(metrics) or {}), is_preempted))
        if not self._background:
            self.wait()
        elif is_preempted:
            self._wait_for_grace(number)
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all saves are done, and what follows them.

        Raises:
            TimeoutError: if they are not, after `timeout` seconds. They go on.
            RegrowError: why one of them has failed; call again for more.
        """
        if not self._follower.wait(timeout):
            raise TimeoutError(f"the saves to {self.directory} have not ended after {timeout} s")
        self._raise_failure()

    @property
    def is_saving(self) -> bool:
        """Whether a save is running."""
        return self._follower.is_busy

    # ---- restoring ----------------------------------------------------------------------------------------------

    @LOAD.documented
    def restore(
        self,
        step: int | None = None,
        like: Any = None,
        *,
        item: str | None = None,
        items: Mapping[str, Any] | Iterable[str] | None = None,
        **options: Unpack[LoadOptions],
    ) -> Any:
        """Loads a step; of the newest that is good if `step` is `None`. `restored` says which it was.

        A newer step that is damaged, or that is deleted meanwhile, is passed over with a warning in the log, and is in
        `passed_over`. A template that does not fit is an error, whatever other steps hold. In a job all processes restore
        the same step.

        After the restore of a step that is not the newest, newer ones are of another history: saves replace them.

        Args:
            step: Its number.
            like: As for `load`.
            item: The item of a step of several.
            items: Several items, as for `load_items`: a dict is returned.
            **options: The keywords of `LoadOptions`.

        Raises:
            NotFoundError: if the step is not there, or there is none at all.
            CorruptError: if it is damaged; without `step`, if no step is good, with all reasons.
            MismatchError: if the template differs.
        """
        LOAD.chosen("restore", options, ["step", "like", "item", "items"])
        began = time.perf_counter()
        # What is being saved is newer than what is there.
        self._follower.wait()
        wanted = None if step is None else number_of(step)
        there = self.steps
        found = restore(self._steps, there if wanted is None else [wanted], wanted is None, like, item, items, options)
        self.restored, self.passed_over = found.step, found.passed_over
        if there and found.step < max(there):
            self._of_another_history = found.step
        self._records.add(
            "restore", found.step, found.path, is_bad=bool(found.passed_over), seconds=time.perf_counter() - began,
            passed_over={passed.step: str(passed.error).splitlines()[0] for passed in found.passed_over} or None,
        )  # fmt: skip
        return found.value

    def wait_for_new(
        self, after: int | None = None, *, timeout: float | None = None, every: float = 1.0
    ) -> int | None:
        """Waits until there is a step newer than `after`, and gives the newest; `None` if none has come in time.

            step = None
            while (step := steps.wait_for_new(step, timeout=3600)) is not None:
                evaluate(steps.restore(step, like=params))

        The step is not deleted before the next call, or `close`.

        Args:
            after: The step that was seen last.
            timeout: Seconds to wait at most.
            every: Seconds between two looks.
        """
        seen = _arguments.count("after", after)
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            self._let_go()
            found = self._steps.own_latest()
            if found is not None and (seen is None or found > seen):
                # Deleted between two looks: the next one finds another.
                with contextlib.suppress(NotFoundError):
                    self._lease = self._steps.native.lease(found)
                    return found
            left = every if ends is None else min(every, ends - time.monotonic())
            if left <= 0:
                return None
            time.sleep(left)

    # ---- deleting -----------------------------------------------------------------------------------------------

    def delete(self, step: int, *, force: bool = False) -> None:
        """Deletes a step, or moves it where `todelete` says.

        Args:
            step: Its number.
            force: Also if somebody reads it, or it is the last one.

        Raises:
            NotFoundError: if it is not there.
            InvalidArgumentError: if it is the last one, or somebody reads it, without `force`; if something lies in it that
                is no part of a checkpoint. It is there as before then.
        """
        number, is_forced = number_of(step), _arguments.flag("force", force)
        self._check_may_write()
        self.wait()

        def delete() -> None:
            self._steps.native.step(number)
            if not is_forced and [step.number for step in self._steps.list()] == [number]:
                help = "say force=True if it is to go"
                raise InvalidArgumentError(f"step {number} is the last one\n  help: {help}", help=help)
            self._steps.delete([number], self._todelete, force=is_forced)

        self._steps.of_rank_0("delete", delete)
        self._known.discard(number)

    def roll_back(self, step: int) -> None:
        """Deletes all steps that are newer than this one, which has to be there: another history follows.

        Raises:
            NotFoundError: if the step is not there.
            RegrowError: if a newer one could not be deleted; those that are newer than that are gone.
        """
        number = number_of(step)
        self._check_may_write()
        self.wait()

        def delete() -> None:
            self._steps.native.step(number)
            newer = sorted((step.number for step in self._steps.list() if step.number > number), reverse=True)
            for each in newer:
                self._steps.delete([each], self._todelete, force=False)

        self._steps.of_rank_0("roll_back", delete)
        self._known = {known for known in self._known if known <= number}

    # ---- the end ------------------------------------------------------------------------------------------------

    @property
    def preempted(self) -> bool:
        """Whether the program was asked to end: by SIGTERM, if the manager takes it, or by JAX's preemption service."""
        return self._flag.since is not None

    def reached_preemption(self, step: int) -> bool:
        """Whether JAX's preemption service has this step as the one at which all processes save; False where it is off."""
        return _preemption.jax_says(number_of(step))

    def close(self) -> None:
        """Waits for all saves, and lets others write. Does nothing the second time.

        Raises:
            RegrowError: why a save has failed, if nobody was told.
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

    # ---- helpers ------------------------------------------------------------------------------------------------

    def _is_taken(self, number: int) -> bool:
        """Whether a step of this history has the number."""
        for gone in self._follower.gone():
            self._known.discard(gone)
        is_of_another = self._of_another_history is not None and number > self._of_another_history
        return number in self._known and not is_of_another

    def _check_may_write(self) -> None:
        if self._is_closed:
            raise InvalidArgumentError(f"the manager of {self.directory} was closed: make another one")
        if self._read_only:
            raise InvalidArgumentError(f"the manager of {self.directory} only reads: read_only=True was given")

    def _raise_failure(self) -> None:
        failure = self._follower.failure()
        if failure is not None:
            raise failure

    def _let_go(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def _wait_for_grace(self, number: int) -> None:
        """Waits for the save of a program that is asked to end, for as long as that is given."""
        assert self._flag.since is not None
        left = self._flag.since + self._grace - time.monotonic()
        try:
            self.wait(max(left, 0.0))
        except TimeoutError:
            self._records.add("late", number, self.directory, is_bad=True, grace_seconds=self._grace)
            raise

    def _drain(self) -> list[BaseException]:
        """At the end of the program: waits for all saves; what went wrong and nobody knows."""
        if self._is_closed:
            return []
        failures: list[BaseException] = []
        self._follower.wait()
        while (failure := self._follower.failure()) is not None:
            failures.append(failure)
        with contextlib.suppress(Exception):
            self.close()
        return failures


_OWN = tuple(inspect.signature(Manager.__init__).parameters)


def _everything(state: Any, items: Mapping[str, Any] | None) -> dict[str, Any]:
    """All items of a step."""
    if items is not None and not isinstance(items, Mapping):
        raise _arguments.wrong("items", items, "a dict of items by name, or None")
    everything = dict(items or {})
    if state is not None:
        if ITEM in everything:
            raise InvalidArgumentError(f"the state is the item {ITEM!r}: give it as `state`, or among `items`")
        everything = {ITEM: state, **everything}
    if not everything:
        raise InvalidArgumentError("there is nothing to save: give a state, or items")
    return everything


def _plain(metrics: Any) -> dict[str, Any] | None:
    """Metrics with Python's own numbers in the place of those of NumPy and JAX."""
    if metrics is None:
        return None
    if not isinstance(metrics, Mapping):
        raise _arguments.wrong("metrics", metrics, "a dict of numbers by name, or of such dicts")

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): plain(inner) for name, inner in value.items()}
        if isinstance(value, (bool, int, float, str)) or value is None:
            return value
        try:
            return value.item()
        except (AttributeError, TypeError, ValueError):
            raise _arguments.wrong("metrics", metrics, "a dict of numbers by name, or of such dicts") from None

    return {str(name): plain(value) for name, value in metrics.items()}


def _file(name: str, path: StrPath) -> str:
    """A local file, whatever folder the program goes to later."""
    found = local_path(place(name, path))
    if found is None:
        raise _arguments.wrong(name, path, "a file on a local disk")
    return os.path.abspath(found)

"""The work after each save of a `Manager`, on a thread of its own.

It waits for the save, verifies, points, deletes and records. The next call of the manager raises a
failure. A failure that no call has raised goes to standard error when the program ends, with exit
status 1.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import _native
from .._core._report import SaveReport
from .._errors import CorruptError, RegrowError
from .._save._async import SaveHandle, end_with_program, ended
from ._policies import kept
from ._records import Records
from ._steps import Step, Steps


@dataclass(eq=False)
class Saved:
    """A save that has begun."""

    step: int
    handle: SaveHandle
    blocked_seconds: float
    metrics: dict[str, Any]
    is_preempted: bool
    has_ended: threading.Event = field(default_factory=threading.Event)
    """Whether the step is committed and all that follows is done, or the save has failed."""
    report: SaveReport | None = None
    failure: BaseException | None = None


class StepHandle(SaveHandle):
    """The save of a step: done when older steps that no policy keeps are deleted, too."""

    def __init__(self, follower: Follower, saved: Saved) -> None:
        super().__init__(saved.handle.path, saved.handle._handle)
        self._follower = follower
        self._saved = saved

    def done(self) -> bool:
        """Whether the save has ended, and what follows it."""
        return self._saved.has_ended.is_set()

    def result(self, timeout: float | None = None) -> SaveReport | None:
        """Waits until the save has ended, and what follows it; its report.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            TimeoutError: if it has not ended by then. It goes on.
            RegrowError: why the save has failed. No later call raises it again.
        """
        if not self._saved.has_ended.wait(timeout):
            raise TimeoutError(f"the save of {self.path} has not ended after {timeout} s")
        failure = self._saved.failure
        if failure is not None:
            self._follower.is_told(failure)
            raise failure
        return self._saved.report


class Tidying(NamedTuple):
    """What is done when a step is there."""

    policies: list[Any]
    keep_if: Callable[[Step], bool] | None
    check: bool
    todelete: str | None
    adopt: bool
    on_saved: Callable[[int, SaveReport], object] | None


class Follower:
    """Follows saves in their order."""

    def __init__(self, steps: Steps, tidying: Tidying, records: Records) -> None:
        self._steps = steps
        self._tidying = tidying
        self._records = records
        self._queue: queue.SimpleQueue[Saved | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._failures: list[BaseException] = []
        self._failed: set[int] = set()
        self._pending: list[Saved] = []
        self._thread: threading.Thread | None = None
        self.damaged: set[int] = set()
        """Steps that are known to be damaged: they do not count."""
        self.lock: _native.WriterLock | None = None
        """Of who writes."""
        self._pid = os.getpid()

    @property
    def is_busy(self) -> bool:
        """Whether there is something to follow."""
        return bool(self._pending)

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process whose it is: it has neither the thread nor the
        lock.
        """
        return self._pid != os.getpid()

    def pending(self) -> list[int]:
        """The steps whose saves have not ended."""
        with self._changed:
            return [saved.step for saved in self._pending]

    def is_told(self, failure: BaseException) -> None:
        """The caller has been told of a failure: no later call raises it."""
        with self._changed:
            self._failures = [other for other in self._failures if other is not failure]

    def add(self, saved: Saved) -> StepHandle:
        """Follows a save."""
        with self._changed:
            self._pending.append(saved)
            if self._thread is None:
                # It waits for work between saves, and must not keep the program from ending: `wait`
                # is called then.
                end_with_program(self)
                self._thread = threading.Thread(target=self._run, name="regrow-manager", daemon=True)
                self._thread.start()
        self._queue.put(saved)
        return StepHandle(self, saved)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all is done; whether it is."""
        if self.is_forked:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout)

    def failure(self) -> BaseException | None:
        """The first failure that no call has raised."""
        with self._changed:
            return self._failures.pop(0) if self._failures else None

    def failed(self) -> set[int]:
        """Steps that were begun and could not be saved, since the last call."""
        with self._changed:
            failed, self._failed = self._failed, set()
            return failed

    def end(self) -> None:
        """Ends the thread, which has nothing to do any more."""
        thread, self._thread = self._thread, None
        if thread is not None and not self.is_forked:
            self._queue.put(None)
            thread.join()
            ended(self)

    def drain(self) -> list[BaseException]:
        """At the end of the program: waits for all saves; the failures that no call has raised."""
        self.wait()
        failures: list[BaseException] = []
        while (failure := self.failure()) is not None:
            failures.append(failure)
        return failures

    def _run(self) -> None:
        while (saved := self._queue.get()) is not None:
            failure: BaseException | None = None
            try:
                self._follow(saved)
            except Exception as error:
                failure = error
            with self._changed:
                if failure is not None:
                    self._failures.append(failure)
                saved.failure = failure
                self._pending.remove(saved)
                self._changed.notify_all()
            saved.has_ended.set()
            # Neither it nor its snapshot lives on while this waits for the next.
            del saved, failure

    def _follow(self, saved: Saved) -> None:
        path = saved.handle.path
        preempted = True if saved.is_preempted else None
        try:
            report = saved.report = saved.handle.result()
        except RegrowError as error:
            with self._changed:
                self._failed.add(saved.step)
            self._records.add("save", saved.step, path, is_bad=True, error=str(error), preempted=preempted)
            raise
        since = time.perf_counter()
        done: Sequence[Any] = []
        failure: Exception | None = None
        try:
            done = self._tidy(saved) if self._steps.is_first else []
        except Exception as error:
            failure = error
            if isinstance(error, CorruptError):
                self.damaged.add(saved.step)
        deleted = [step for step, what, *_ in done if what in ("removed", "moved", "gone")]
        left = [f"step {step}: {finding[1]}" for step, what, _, _, finding in done if what == "failed" and finding]
        self._records.add(
            "save", saved.step, path, is_bad=bool(left) or failure is not None,
            seconds=report.seconds if report else None, blocked_seconds=saved.blocked_seconds,
            stored_bytes=report.stored_bytes if report else None, data_bytes=report.data_bytes if report else None,
            reused_bytes=(report.reused_bytes or None) if report else None, metrics=saved.metrics or None,
            tidy_seconds=time.perf_counter() - since, checked=self._tidying.check or None, deleted=deleted or None,
            left=left or None, preempted=preempted, error=None if failure is None else str(failure),
        )  # fmt: skip
        self._steps.record(done, self._records)
        if failure is not None:
            raise failure
        if self._tidying.on_saved is not None and report is not None:
            self._tidying.on_saved(saved.step, report)

    def _tidy(self, saved: Saved) -> Sequence[Any]:
        """What was done with steps that no policy keeps."""
        if self.lock is not None:
            self.lock.check()
        keep_if, chosen = self._tidying.keep_if, None
        if keep_if is not None:
            chosen = [step.number for step in self._steps.all() if keep_if(step)]
        policy = kept(self._tidying.policies, chosen)
        _, _, check, todelete, adopt, _ = self._tidying
        return self._steps.native.tidy(saved.step, policy, check, todelete, adopt, set(self.damaged))

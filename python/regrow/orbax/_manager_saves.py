"""Work that a manager has started: the save in progress, and the deletions after saves.

    save ── snapshot ── [background: write, commit] ── [own thread: choose, delete]

The next save waits for the write, and not for the deletions.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .checkpoint_managers import PolicyCheckpointInfo


class Tracked:
    """A save in progress. The thread that calls it finishes the save."""

    def __init__(self, info: PolicyCheckpointInfo, work: Callable[[], None], *, tells: bool) -> None:
        self.info = info
        self._tells = tells
        self._work = work
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._told: set[int] = set()

    def __call__(self) -> bool:
        """Finishes the save. Returns true, or raises its error."""
        try:
            self._work()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._done.set()
        return True

    def finish(self) -> None:
        """Finishes the save in its own thread; `wait` raises its error."""
        with contextlib.suppress(BaseException):
            self()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        """Waits for the save in any thread, and raises its error once in each thread."""
        self._done.wait()
        self.check()

    def check(self) -> None:
        """Raises the error of a save that has ended, once in each thread."""
        thread = threading.get_ident()
        if self._tells and self._error is not None and self.is_done and thread not in self._told:
            self._told.add(thread)
            raise self._error


class Followed:
    """Tasks after saves, in one thread and in order."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def add(self, task: Callable[..., None], *args: Any) -> None:
        """Runs a task after all earlier ones."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="regrow.orbax deletions")
        before = self._last

        def work() -> None:
            if before is not None and (error := before.exception()) is not None:
                # If no caller saw this error, the next error reports it.
                task(*args)
                raise error
            task(*args)

        try:
            self._last = self._executor.submit(work)
        except RuntimeError:
            # At exit the interpreter waits only for threads that it started itself: for the thread
            # of the save.
            task(*args)

    def wait(self) -> None:
        """Waits for all tasks, and raises their error once."""
        last = self._last
        if last is None:
            return
        try:
            last.result()
        except BaseException:
            self._last = None
            raise

    def close(self) -> None:
        """Waits for all tasks, and ends the thread."""
        try:
            self.wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None

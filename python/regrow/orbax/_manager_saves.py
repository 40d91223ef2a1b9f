"""What a manager has begun: the save that is on its way, and the deletions that follow saves.

    save ── snapshot ── [background: write, commit] ── [a thread of its own: choose, delete]

Whoever saves next waits for the write before, and not for the deletions.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .checkpoint_managers import PolicyCheckpointInfo


class Tracked:
    """A save that was begun, to be finished by whoever calls it."""

    def __init__(self, info: PolicyCheckpointInfo, work: Callable[[], None], *, tells: bool) -> None:
        self.info = info
        self._tells = tells
        self._work = work
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._told: set[int] = set()

    def __call__(self) -> bool:
        """Finishes it; true, or what went wrong."""
        try:
            self._work()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._done.set()
        return True

    def finish(self) -> None:
        """Finishes it in a thread of its own: `wait` says what went wrong."""
        with contextlib.suppress(BaseException):
            self()

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    def wait(self) -> None:
        """Waits for it, wherever it is being finished, and raises what went wrong, once in each
        thread.
        """
        self._done.wait()
        self.check()

    def check(self) -> None:
        """Raises what went wrong with it, if it has ended, once in each thread."""
        thread = threading.get_ident()
        if self._tells and self._error is not None and self.is_done and thread not in self._told:
            self._told.add(thread)
            raise self._error


class Followed:
    """What follows saves, one after the other in a thread."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def add(self, task: Callable[..., None], *args: Any) -> None:
        """Does this after all that was added before."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="regrow.orbax deletions")
        before = self._last

        def work() -> None:
            if before is not None and (error := before.exception()) is not None:
                # Of a failure that nobody was told of the next one tells.
                task(*args)
                raise error
            task(*args)

        try:
            self._last = self._executor.submit(work)
        except RuntimeError:
            # The program ends, and only waits for threads that it has begun: for the one of the
            # save.
            task(*args)

    def wait(self) -> None:
        """Waits for all of it, and raises what went wrong, once."""
        last = self._last
        if last is None:
            return
        try:
            last.result()
        except BaseException:
            self._last = None
            raise

    def close(self) -> None:
        """Waits for all of it, and ends the thread."""
        try:
            self.wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None

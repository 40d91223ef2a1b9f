"""Work in threads: of whoever begins it, and waits for it later."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Task(Generic[T]):
    """Work that is done in a thread of its own, with the options that were in force at its
    start.
    """

    def __init__(self, work: Callable[[], T], *, name: str | None = None) -> None:
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._callbacks: list[Callable[[Any], None]] = []
        self.was_raised = False
        """Whether somebody was told that it went wrong."""
        # Not a daemon: the program waits for it at its end.
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=(self._run,), name=name)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        with self._lock:
            self._ended = True
            callbacks, self._callbacks = self._callbacks, []
        if self._error is None:
            for callback in callbacks:
                callback(self._value)

    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended

    def result(self, timeout: float | None = None) -> Any:
        """Waits for it; what comes of it.

        Raises:
            TimeoutError: if it has not ended after `timeout` seconds.
            What went wrong.
        """
        self.join(timeout)
        if not self._ended:
            raise TimeoutError(f"it has not ended after {timeout} s")
        if self._error is not None:
            self.was_raised = True
            raise self._error
        return self._value

    def join(self, timeout: float | None = None) -> None:
        """Waits for it, whatever comes of it."""
        self._thread.join(timeout)

    def on_complete(self, callback: Callable[[Any], None]) -> None:
        """Calls back with what comes of it, on its thread, or here if it has ended; not if it
        goes wrong.
        """
        with self._lock:
            if not self._ended:
                self._callbacks.append(callback)
                return
        if self._error is None:
            callback(self._value)


class Background:
    """One task at a time, whose failure is told once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._task: Task[None] | None = None

    def run(self, work: Callable[[], Any], then: Callable[[], Any] | None = None) -> None:
        """Begins a task; the one before has been waited for."""

        def both() -> None:
            work()
            if then is not None:
                then()

        self._task = Task(both, name="regrow.orbax save")

    def is_busy(self) -> bool:
        """Whether it is running."""
        task = self._task
        return task is not None and not task.done()

    def wait(self) -> None:
        """Waits for it, and raises what went wrong, once."""
        task = self._task
        if task is not None:
            task.join()
        self.check()

    def check(self) -> None:
        """Raises what went wrong, once."""
        if self.is_busy():
            return
        with self._lock:
            task, self._task = self._task, None
        if task is not None:
            task.result()

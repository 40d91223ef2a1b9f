"""Work in threads, which its caller starts and waits for later."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AsyncResponse(Protocol[T_co]):
    """Work in the background, as callers of v1 see it."""

    def result(self, timeout: float | None = None) -> T_co: ...

    def on_complete(self, callback: Callable[[Any], None]) -> None: ...


class Task(Generic[T]):
    """Work in its own thread, with the options that were in force when it started."""

    def __init__(self, work: Callable[[], T], *, name: str | None = None, daemon: bool = False) -> None:
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._callbacks: list[Callable[[Any], None]] = []
        self.was_raised = False
        """Whether the error of the work was raised to a caller."""
        # The interpreter waits at exit for a thread that is no daemon.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), name=name, daemon=daemon)
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
        return self._ended

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the work and returns its result."""
        self.join(timeout)
        if not self._ended:
            raise TimeoutError(f"the work has not ended after {timeout} s")
        if self._error is not None:
            self.was_raised = True
            raise self._error
        return self._value

    def join(self, timeout: float | None = None) -> None:
        """Waits for the work, and ignores its error."""
        self._thread.join(timeout)

    def on_complete(self, callback: Callable[[Any], None]) -> None:
        """Calls back with the result, on any thread. After an error there is no call."""
        with self._lock:
            if not self._ended:
                self._callbacks.append(callback)
                return
        if self._error is None:
            callback(self._value)

"""What goes on in the background, as callers see it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class AsyncResponse(Protocol[T_co]):
    """Something that goes on in the background."""

    def result(self, timeout: float | None = None) -> T_co:
        """Waits for it; what comes of it, or an exception with what went wrong."""
        ...

    def on_complete(self, callback: Callable[[Any], None]) -> None:
        """Calls back with what comes of it, on some thread; not if it goes wrong."""
        ...


class Response(Generic[T]):
    """Work that is done in a thread of its own, with the options that were in force at its start."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._callbacks: list[Callable[[Any], None]] = []
        self.was_raised = False
        """Whether somebody was told that it went wrong."""
        # Not a daemon: the program waits for it at its end.
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=(self._run,))
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
        """Calls back with what comes of it, on its thread, or here if it has ended; not if it goes wrong."""
        with self._lock:
            if not self._ended:
                self._callbacks.append(callback)
                return
        if self._error is None:
            callback(self._value)

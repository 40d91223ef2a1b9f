"""Interfaces of handlers, which callers subclass, and work in the background."""

from __future__ import annotations

import abc
import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol, Self, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AsyncResponse(Protocol[T_co]):
    """Work in the background, as callers of v1 see it."""

    def result(self, timeout: float | None = None) -> T_co:
        """Waits for the work. Returns its result, or raises its error."""

    def on_complete(self, callback: Callable[[Any], None]) -> None:
        """Calls back with the result, on any thread. After an error there is no call."""


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
        # Unless `daemon` is set, the interpreter waits for the thread at exit.
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


class Closing:
    """An object that a ``with`` block closes."""

    def close(self) -> None:
        """Releases the resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class CheckpointHandler(abc.ABC):
    """Saves and restores one item."""

    @abc.abstractmethod
    def save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Saves the item into an existing folder."""

    @abc.abstractmethod
    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Restores the item from a folder."""

    def metadata(self, directory: Any) -> Any:
        """The metadata of the item; `None` by default."""
        return None

    def finalize(self, directory: Any) -> None:  # noqa: B027
        """Called after all files are written, before the commit."""

    def close(self) -> None:  # noqa: B027
        """Releases the resources of the handler."""

    @classmethod
    def typestr(cls) -> str:
        """The name of the class in ``_CHECKPOINT_METADATA``."""
        return f"{cls.__module__}.{cls.__qualname__}"


class AsyncCheckpointHandler(CheckpointHandler):
    """Saves in the background."""

    @abc.abstractmethod
    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Starts a save. Returns a list of futures that end when all is written, or `None`."""


class OrbaxHandler(AsyncCheckpointHandler):
    """A handler that Orbax has, too. Its saves end before they return."""

    _typestr: str | None = None
    """The module and class of the original, below its package of handlers."""

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Saves before it returns; the list of futures is empty."""
        self.save(directory, *args, **kwargs)
        return [NoopFuture()]

    @classmethod
    def typestr(cls) -> str:
        return super().typestr() if cls._typestr is None else f"orbax.checkpoint._src.handlers.{cls._typestr}"


class Future:
    """The result of work in the background."""

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the result, and raises the error of the work."""
        raise NotImplementedError

    def cancel(self) -> bool | None:
        """Asks the work to stop early. Work that cannot stop goes on."""
        return None


class NoopFuture(Future):
    def result(self, timeout: float | None = None) -> Any:
        return None


class CommitFuture(Future):
    """Runs a coroutine in its own thread."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, None],
        *,
        name: str | None = None,
        send_signals: Any = None,
        timeout_secs: int | None = None,
        operation_id: str | None = None,
    ) -> None:
        self._task = Task(lambda: asyncio.run(coro), name=name, daemon=True)

    def result(self, timeout: float | None = None) -> Any:
        return self._task.result(timeout)


class ChainedFuture(Future):
    """Several futures, and a function that is called when all have ended."""

    def __init__(self, futures: Any, cb: Any) -> None:
        self._futures, self._callback = list(futures), cb

    def result(self, timeout: float | None = None) -> Any:
        for future in self._futures:
            future.result(timeout)
        self._callback()

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()


def run(awaitable: Awaitable[Any]) -> Any:
    """Waits for the result of an awaitable, also if this thread has a running event loop."""

    async def result() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(result())
    return Task(lambda: asyncio.run(result())).result()

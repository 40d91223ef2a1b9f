"""What a handler is: the interfaces that callers subclass, and futures."""

from __future__ import annotations

import abc
import asyncio
import threading
from collections.abc import Coroutine
from typing import Any


class CheckpointHandler(abc.ABC):
    """Saves and restores one item."""

    @abc.abstractmethod
    def save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Saves the item into a folder that is there."""

    @abc.abstractmethod
    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Restores the item from a folder."""

    def metadata(self, directory: Any) -> Any:
        """What is known of the item; `None` by default."""
        return None

    def finalize(self, directory: Any) -> None:  # noqa: B027
        """Is called when all is written, before the commit."""

    def close(self) -> None:  # noqa: B027
        """Lets go of what the handler holds."""

    @classmethod
    def typestr(cls) -> str:
        """The name of the class in ``_CHECKPOINT_METADATA``."""
        return f"{cls.__module__}.{cls.__qualname__}"


class AsyncCheckpointHandler(CheckpointHandler):
    """Saves in the background."""

    @abc.abstractmethod
    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Begins to save; a list of futures that end when all is written, or `None`."""


class Future:
    """Something that ends."""

    def result(self, timeout: float | None = None) -> Any:
        """Waits for it, and raises what went wrong."""
        raise NotImplementedError

    def cancel(self) -> bool | None:
        """Asks it to end early; what cannot do that goes on."""
        return None


class NoopFuture(Future):
    """Ended before it began."""

    def result(self, timeout: float | None = None) -> Any:
        """Nothing."""
        return None


class CommitFuture(Future):
    """A coroutine, run in a thread of its own from now on."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, None],
        *,
        name: str | None = None,
        send_signals: Any = None,
        timeout_secs: int | None = None,
        operation_id: str | None = None,
    ) -> None:
        self._error: BaseException | None = None
        self._coro = coro
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._coro)
        except BaseException as error:
            self._error = error

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the coroutine, and raises what went wrong.

        Raises:
            TimeoutError: if it has not ended after `timeout` seconds.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"The future has not ended after {timeout} seconds.")
        if self._error is not None:
            raise self._error


class ChainedFuture(Future):
    """Several futures, and what is called when all have ended."""

    def __init__(self, futures: Any, cb: Any) -> None:
        self._futures, self._callback = list(futures), cb

    def result(self, timeout: float | None = None) -> Any:
        """Waits for all of them."""
        for future in self._futures:
            future.result(timeout)
        self._callback()

    def cancel(self) -> None:
        """Asks all of them to end early."""
        for future in self._futures:
            future.cancel()


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine, also where a loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(_caught(coroutine)))
    thread.start()
    thread.join()
    value, error = found[0]
    if error is not None:
        raise error
    return value


def _caught(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    try:
        return asyncio.run(coroutine), None
    except BaseException as error:
        return None, error

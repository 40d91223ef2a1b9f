"""Work in the background, as callers see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from .._background import Task

T_co = TypeVar("T_co", covariant=True)


class AsyncResponse(Protocol[T_co]):
    """Work in the background."""

    def result(self, timeout: float | None = None) -> T_co: ...

    def on_complete(self, callback: Callable[[Any], None]) -> None:
        """Calls back with the result, on any thread. After an error there is no call."""
        ...


Response = Task
"""Work in its own thread."""

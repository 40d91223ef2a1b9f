"""What goes on in the background, as callers see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from .._background import Task

T_co = TypeVar("T_co", covariant=True)


class AsyncResponse(Protocol[T_co]):
    """Something that goes on in the background."""

    def result(self, timeout: float | None = None) -> T_co:
        """Waits for it; what comes of it, or an exception with what went wrong."""
        ...

    def on_complete(self, callback: Callable[[Any], None]) -> None:
        """Calls back with what comes of it, on some thread; not if it goes wrong."""
        ...


Response = Task
"""Work that is done in a thread of its own."""

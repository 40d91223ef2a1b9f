"""Interfaces of checkpointables and handlers, which callers implement."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar, runtime_checkable

Checkpointable = Any
"""A named object of a checkpoint: a pytree, JSON, or an object with its own files."""
AbstractCheckpointable = Any
"""Describes a checkpointable in a target and in metadata."""

T = TypeVar("T")
AbstractT = TypeVar("AbstractT")


@runtime_checkable
class StatefulCheckpointable(Protocol):
    """An object that saves itself: grain's iterators, adapters of your own."""

    async def save(self, directory: Any) -> Any:
        """Saves at once the data that may change. Returns the coroutine that saves the rest."""

    async def load(self, directory: Any) -> Any:
        """Loads the data needed at once. Returns the coroutine that loads the rest."""


class CheckpointableHandler(Protocol[T, AbstractT]):
    """Saves and loads one kind of object. Subclass it, and register the class."""

    async def save(self, directory: Any, checkpointable: T) -> Awaitable[None]:
        """Saves what may change, in `await directory`. Returns an awaitable for the rest."""
        ...

    async def load(self, directory: Any, abstract_checkpointable: AbstractT | None = None) -> Awaitable[T]:
        """Starts to load. Returns an awaitable of the object."""
        ...

    async def metadata(self, directory: Any) -> AbstractT:
        """The metadata of a stored object, without its data."""
        ...

    def is_handleable(self, checkpointable: Any) -> bool:
        """Whether this handler can save such an object."""
        ...

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        """Whether this handler can load into a target; `None` if it does not know."""
        ...


def typestr(handler_type: type[Any]) -> str:
    own: str | None = handler_type.__dict__.get("_TYPESTR")
    return own or f"{handler_type.__module__}.{handler_type.__qualname__}"

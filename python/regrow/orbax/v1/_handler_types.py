"""What a checkpointable is, and who is in charge of one: the interfaces that callers write."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar, runtime_checkable

Checkpointable = Any
"""Something that a checkpoint holds by name: a pytree, JSON, an object with files of its own."""
AbstractCheckpointable = Any
"""What stands for one in a target and in metadata."""

T = TypeVar("T")
AbstractT = TypeVar("AbstractT")


@runtime_checkable
class StatefulCheckpointable(Protocol):
    """An object that saves itself: grain's iterators, adapters of your own."""

    async def save(self, directory: Any) -> Any:
        """Saves what must be saved now; gives the coroutine that saves the rest."""

    async def load(self, directory: Any) -> Any:
        """Loads what must be loaded now; gives the coroutine that loads the rest."""


class CheckpointableHandler(Protocol[T, AbstractT]):
    """Saves and loads objects of some kind. Subclass it, and register the class:
    `register_handler`, or a registry.
    """

    async def save(self, directory: Any, checkpointable: T) -> Awaitable[None]:
        """Saves what must be saved now; gives what saves the rest, in the background.

        `directory` is a `PathAwaitingCreation`: wait for it before you write into it.
        """
        ...

    async def load(self, directory: Any, abstract_checkpointable: AbstractT | None = None) -> Awaitable[T]:
        """Begins to load; gives what ends with the object."""
        ...

    async def metadata(self, directory: Any) -> AbstractT:
        """What is known of a stored object, its data left alone."""
        ...

    def is_handleable(self, checkpointable: Any) -> bool:
        """Whether this handler can save such an object."""
        ...

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        """Whether this handler can load what such a target asks for; `None`: whoever has saved
        it decides.
        """
        ...


def typestr(handler_type: type[Any]) -> str:
    """The name of a handler's class in ``_CHECKPOINT_METADATA``."""
    own: str | None = handler_type.__dict__.get("_TYPESTR")
    return own or f"{handler_type.__module__}.{handler_type.__qualname__}"

"""Handlers of checkpointables: their interfaces, registries, and the search in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from ..._errors import failure

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

    async def load(self, directory: Any, abstract_checkpointable: AbstractT | None = None) -> Awaitable[T]:
        """Starts to load. Returns an awaitable of the object."""

    async def metadata(self, directory: Any) -> AbstractT:
        """The metadata of a stored object, without its data."""

    def is_handleable(self, checkpointable: Any) -> bool:
        """Whether this handler can save such an object."""

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        """Whether this handler can load into a target; `None` if it does not know."""


def typestr(handler_type: type[Any]) -> str:
    own: str | None = handler_type.__dict__.get("_TYPESTR")
    return own or f"{handler_type.__module__}.{handler_type.__qualname__}"


HandlerType = type[CheckpointableHandler[Any, Any]]
Typestrs = Sequence[str] | None
Entry = tuple[HandlerType, str | None]
C = TypeVar("C", bound=type[Any])


class AlreadyExistsError(ValueError):
    """The registry has such an entry."""


class NoEntryError(KeyError):
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class IncompatibleHandlerError(NoEntryError, ValueError):
    """A handler failed to load one of several checkpointables; its error is the cause."""


class NotHandleableError(ValueError):
    """A handler that was chosen by name cannot do the requested work."""


class CheckpointableHandlerRegistry(Protocol):
    """Handlers for all checkpointables, or for one name. The last handler that fits is used."""

    def add(
        self, handler_type: HandlerType, *, checkpointable_name: str | None = None, secondary_typestrs: Typestrs = None
    ) -> CheckpointableHandlerRegistry:
        """Adds a handler. `secondary_typestrs` are other names that checkpoints may have for it."""

    def get(self, checkpointable_name: str) -> HandlerType: ...

    def has(self, checkpointable_name: str) -> bool: ...

    def get_all_entries(self) -> Sequence[Entry]: ...

    def get_secondary_typestrs(self, handler_type: HandlerType) -> Sequence[str]: ...


class Registry(CheckpointableHandlerRegistry):
    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._secondary: dict[HandlerType, Sequence[str]] = {}

    def add(
        self, handler_type: HandlerType, *, checkpointable_name: str | None = None, secondary_typestrs: Typestrs = None
    ) -> CheckpointableHandlerRegistry:
        if not isinstance(handler_type, type):
            raise ValueError(f"handler_type: expected a class, found {handler_type!r}")
        if checkpointable_name and self.has(checkpointable_name):
            raise AlreadyExistsError(f"the registry has a handler for the name {checkpointable_name!r} already")
        if not checkpointable_name and any(known is handler_type for known, _ in self._entries):
            raise AlreadyExistsError(f"the registry has the handler {handler_type} already")
        self._entries.append((handler_type, checkpointable_name))
        if secondary_typestrs is not None:
            self._secondary[handler_type] = secondary_typestrs
        return self

    def get(self, checkpointable_name: str) -> HandlerType:
        for handler_type, name in self._entries:
            if name == checkpointable_name:
                return handler_type
        raise NoEntryError(f"the registry has no handler for the name {checkpointable_name!r}")

    def has(self, checkpointable_name: str) -> bool:
        return any(name == checkpointable_name for _, name in self._entries)

    def get_all_entries(self) -> Sequence[Entry]:
        return self._entries

    def get_secondary_typestrs(self, handler_type: HandlerType) -> Sequence[str]:
        return self._secondary.get(handler_type, [])

    def __repr__(self) -> str:
        return f"Registry({self._entries})"


class ReadOnlyCheckpointableHandlerRegistry(Registry):
    """The entries of another registry. It refuses new ones."""

    def __init__(self, registry: CheckpointableHandlerRegistry) -> None:
        self._entries = list(registry.get_all_entries())
        self._secondary = {kind: registry.get_secondary_typestrs(kind) for kind, _ in self._entries}

    def add(self, *args: Any, **kwargs: Any) -> CheckpointableHandlerRegistry:
        help = "add to handlers.local_registry(), and set context.checkpointables.registry"
        raise failure(NotImplementedError, "the default registry of contexts is read only", help=help)

    def __repr__(self) -> str:
        return f"ReadOnly{super().__repr__()}"


_GLOBAL_REGISTRY = Registry()


def global_registry() -> CheckpointableHandlerRegistry:
    return _GLOBAL_REGISTRY


def local_registry(
    other_registry: CheckpointableHandlerRegistry | None = None, *, include_global_registry: bool = True
) -> CheckpointableHandlerRegistry:
    """A new registry, with the entries of the global one and of another."""
    registry = Registry()
    if include_global_registry:
        add_all(registry, _GLOBAL_REGISTRY)
    if other_registry is not None:
        add_all(registry, other_registry)
    return registry


def add_all(
    registry: CheckpointableHandlerRegistry, other_registry: CheckpointableHandlerRegistry
) -> CheckpointableHandlerRegistry:
    for handler_type, name in other_registry.get_all_entries():
        registry.add(
            handler_type,
            checkpointable_name=name,
            secondary_typestrs=other_registry.get_secondary_typestrs(handler_type),
        )
    return registry


def register_handler(
    cls: C, *, checkpointable_name: str | None = None, secondary_typestrs: Sequence[str] | None = None
) -> C:
    """Adds a handler to the global registry. It is also a decorator of the class."""
    _GLOBAL_REGISTRY.add(cls, checkpointable_name=checkpointable_name, secondary_typestrs=secondary_typestrs)
    return cls


def _made(handler_type: HandlerType) -> Any:
    try:
        return handler_type()
    except TypeError as error:
        raise failure(
            ValueError,
            f"the handler {handler_type} cannot be made without arguments: {error}",
            help="give its arguments defaults, or register a subclass that has them",
        ) from None


def _fitting(registry: CheckpointableHandlerRegistry, fits: Callable[[Any], Any]) -> Any:
    """The last handler for all names that fits; `None` if none does."""
    found = None
    for handler_type, name in registry.get_all_entries():
        if name is None and fits(handler := _made(handler_type)):
            found = handler
    return found


def resolve_handler_for_save(registry: CheckpointableHandlerRegistry, checkpointable: Any, *, name: str) -> Any:
    """The handler that saves: of stateful objects, else of the name, else the last that can."""
    if checkpointable is None:
        raise failure(ValueError, f"the checkpointable {name!r} is None", help="leave it out of what is saved")
    found = _fitting(registry, lambda handler: handler.is_handleable(checkpointable))
    if found is not None and isinstance(checkpointable, StatefulCheckpointable):
        return found
    if registry.has(name):
        return _made(registry.get(name))
    if found is not None:
        return found
    raise failure(
        NoEntryError,
        f'Could not identify a valid handler for the checkpointable: "{name}", a {type(checkpointable)}',
        f"found handlers: {[known for known, _ in registry.get_all_entries()]}",
        help=(
            "register one whose is_handleable() accepts it: handlers.register_handler, or "
            "context.checkpointables.registry"
        ),
    )


def resolve_handler_for_load(
    registry: CheckpointableHandlerRegistry,
    abstract_checkpointable: Any,
    *,
    name: str,
    handler_typestr: str | None = None,
) -> Any:
    """The first that can load into the target: of the name, the one that saved, the last added."""
    for_name = _made(registry.get(name)) if registry.has(name) else None
    saver = _by_typestr(registry, handler_typestr)

    def can(handler: Any) -> bool:
        return handler is not None and (
            abstract_checkpointable is None or bool(handler.is_abstract_handleable(abstract_checkpointable))
        )

    is_stateful = isinstance(abstract_checkpointable, StatefulCheckpointable)
    for handler in (saver, for_name) if is_stateful else (for_name, saver):
        if can(handler):
            return handler
    if abstract_checkpointable is not None:
        found = _fitting(registry, lambda handler: handler.is_abstract_handleable(abstract_checkpointable))
        if found is not None:
            return found
    if for_name is not None:
        return for_name
    raise failure(
        NoEntryError,
        (
            f"no handler can load the checkpointable {name!r}, saved by {handler_typestr}, as "
            f"{type(abstract_checkpointable)}"
        ),
        f"found handlers: {[known for known, _ in registry.get_all_entries()]}",
        help="register the handler that saved it: handlers.register_handler, or context.checkpointables.registry",
    )


def _by_typestr(registry: CheckpointableHandlerRegistry, wanted: str | None) -> Any:
    if wanted is None:
        return None
    for handler_type, _ in reversed(registry.get_all_entries()):
        if wanted == typestr(handler_type) or wanted in registry.get_secondary_typestrs(handler_type):
            return _made(handler_type)
    return None

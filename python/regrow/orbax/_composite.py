"""Checkpoints of several items: the handler of each item, and the results of a restore."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from .._errors import RegrowError, failure
from . import _handlers, metadata
from ._errors import as_orbax
from ._handlers import handler_of_args
from ._interfaces import CheckpointHandler, OrbaxHandler
from ._paths import as_path, is_pytree, is_temporary
from .checkpoint_args import (
    CheckpointArgs,
    get_registered_args_cls,
    get_registered_handler_cls,
    is_args,
    register_with_handler,
    takes,
)
from .options import MultiprocessingOptions

RESERVED_ITEM_NAMES: tuple[str, ...] = ()


class CompositeArgs(CheckpointArgs, Mapping[str, Any]):
    """Arguments or results of several items, by key or attribute."""

    def __init__(self, **items: Any) -> None:
        reserved = [name for name in items if name in RESERVED_ITEM_NAMES]
        if reserved:
            raise ValueError(f"Cannot specify reserved item names: {reserved}")
        self.__dict__["__items__"] = dict(items)

    def __getitem__(self, name: str) -> Any:
        items = self.__dict__["__items__"]
        if name not in items:
            raise KeyError(f"Unknown key: {name}. Available keys: {items.keys()}")
        return items[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError("Attributes of a Composite cannot be set.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__["__items__"])

    def __len__(self) -> int:
        return len(self.__dict__["__items__"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Composite({dict(self)!r})"


CompositeResults = CompositeArgs


class AlreadyExistsError(ValueError):
    """A registry has an entry for the item and the class of arguments."""


class NoEntryError(KeyError):
    """A registry has no entry for the item and the class of arguments."""


class CheckpointHandlerRegistry(Protocol):
    """Maps an item's name and the class of its arguments to a handler. An interface to subclass."""

    def add(self, item: str | None, args: Any, handler: Any = None) -> None:
        """Registers a handler for an item and a class of arguments. `None` stands for all items."""

    def get(self, item: str | None, args: Any) -> Any:
        """The handler of an item and its arguments."""

    def has(self, item: str | None, args: Any) -> bool:
        """Whether an item and its arguments have a handler."""

    def get_all_entries(self) -> Mapping[tuple[str | None, type[Any]], Any]:
        """All entries of the registry."""


class DefaultCheckpointHandlerRegistry(CheckpointHandlerRegistry):
    """A registry that holds its entries in memory."""

    def __init__(self, other_registry: CheckpointHandlerRegistry | None = None) -> None:
        self._entries: dict[tuple[str | None, type[Any]], Any] = {}
        if other_registry is not None:
            self._entries |= other_registry.get_all_entries()

    def add(self, item: str | None, args: Any, handler: Any = None) -> None:
        cls = _class_of(args)
        if self.has(item, cls):
            raise AlreadyExistsError(f"Entry for item={item} and args_type={cls} already exists in the registry.")
        given = f"Provided a `None` `CheckpointHandler` when registering item={item} and args_type={cls}."
        if handler is None:
            try:
                handler = get_registered_handler_cls(cls)
            except ValueError as error:
                raise ValueError(f"{given} No handler is registered with such arguments: give one.") from error
        if isinstance(handler, type):
            try:
                handler = handler()
            except TypeError as error:
                raise ValueError(f"{given} {handler} is not default-constructible: give a handler.") from error
        self._entries[item, cls] = handler

    def get(self, item: str | None, args: Any) -> Any:
        cls = _class_of(args)
        if (item, cls) not in self._entries:
            raise NoEntryError(f"No entry for item={item} and args_ty={cls} in the registry.")
        return self._entries[item, cls]

    def has(self, item: str | None, args: Any) -> bool:
        return (item, _class_of(args)) in self._entries

    def get_all_entries(self) -> dict[tuple[str | None, type[Any]], Any]:
        return self._entries

    def __repr__(self) -> str:
        return f"DefaultCheckpointHandlerRegistry({self._entries})"


def _class_of(args: Any) -> type[Any]:
    found: type[Any] = args if isinstance(args, type) else type(args)
    return found


def of_registry(registry: CheckpointHandlerRegistry | None, item: str, args: Any) -> Any:
    """The handler of an item, or else of all items; `None` if the registry has neither."""
    if registry is None or args is None:
        return None
    for name in (item, None):
        if registry.has(name, args):
            return registry.get(name, args)
    return None


def create_default_handler_registry(**items_to_handlers: Any) -> CheckpointHandlerRegistry:
    registry = DefaultCheckpointHandlerRegistry()
    for item, handler in items_to_handlers.items():
        for args in dict.fromkeys(get_registered_args_cls(handler)):
            registry.add(item, args, handler)
    return registry


@dataclasses.dataclass
class CompositeOptions:
    """Accepted and ignored; see `options`."""

    multiprocessing_options: MultiprocessingOptions = dataclasses.field(default_factory=MultiprocessingOptions)
    temporary_path_class: Any = None
    file_options: Any = None
    atomicity_options: Any = None
    async_options: Any = None


class CompositeCheckpointHandler(OrbaxHandler):
    """Saves and restores several items. The checkpointer commits them; see `_saving`."""

    def __init__(
        self,
        *item_names: str,
        composite_options: CompositeOptions | None = None,
        handler_registry: Any = None,
        **items_and_handlers: Any,
    ) -> None:
        for name, given, help in (
            ("item_names", item_names, "the registry knows its items: leave the names out"),
            ("items_and_handlers", items_and_handlers, "add the handlers to the registry"),
        ):
            if handler_registry is not None and given:
                raise failure(ValueError, f"Both `handler_registry` and `{name}` were specified.", help=help)
        self._item_names = {*item_names, *items_and_handlers}
        self._handlers = {name: handler for name, handler in items_and_handlers.items() if handler is not None}
        self._handler_registry = handler_registry

    def handler_for(self, name: str, args: Any) -> Any:
        """The handler of an item: of the constructor, or of the item's first arguments."""
        found = of_registry(self._handler_registry, name, args)
        if found is not None:
            return found
        registered = () if self._handler_registry is None else self._handler_registry.get_all_entries()
        is_known = not self._item_names or name in self._item_names
        if name not in self._handlers and is_known and all(item != name for item, _ in registered):
            self._handlers[name] = handler_of_args(args)
        handler = self._handlers.get(name)
        if handler is None or not takes(handler, args):
            told = {item: type(known).__name__ for item, known in self._handlers.items()}
            raise failure(
                ValueError,
                (
                    f'Item "{name}" and args "{type(args).__name__}" does not match with any registered handler! '
                    f"Registered handlers: {told}, {list(registered)}"
                ),
                help="save and restore an item with arguments of one handler, and name all items",
            )
        return handler

    def _handler_for_restore(self, path: Any, name: str, args: Any, typestr: str | None) -> Any:
        registry = self._handler_registry
        found = None
        if args is None and registry is not None:
            entries = registry.get_all_entries().items()
            found = next((handler for (item, _), handler in entries if item == name), None)
        if found is not None:
            return found
        if is_args(args):
            return self.handler_for(name, args)
        if name in self._handlers:
            return self._handlers[name]
        return handler_of_stored(path, typestr) if args is None else handler_of_args(args)

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        """Saves items into an existing folder. Without a checkpointer the save is not atomic."""
        composite = next(value for value in (*args, *kwargs.values()) if is_args(value))
        for name, own in composite.items():
            handler = self.handler_for(name, own)
            folder = as_path(directory) / name
            folder.mkdir(parents=True, exist_ok=True)
            handler.save(folder, args=own)

    def restore(self, directory: Any, args: Any = None, **_: Any) -> Any:
        """Restores the items that the arguments name, or all items without arguments."""
        path = as_path(directory)
        names = item_names(path)
        handlers = self._typestrs(path)
        wanted = dict(args) if args is not None and len(args) else dict.fromkeys(names)
        missing = next((name for name in wanted if name not in names), None)
        if missing is not None:
            raise KeyError(f'Item "{missing}" was not found in the checkpoint. Available items: {names}')
        results = {}
        for name, own in wanted.items():
            handler = self._handler_for_restore(path / name, name, own, handlers.get(name))
            if handler is not None:
                given = {} if own is None else {"args" if is_args(own) else "item": own}
                with as_orbax():
                    results[name] = handler.restore(path / name, **given)
        return CompositeResults(**results)

    def metadata(self, directory: Any) -> metadata.StepMetadata:
        """The metadata of the checkpoint and of its items, also without a known handler."""
        path = as_path(directory)
        if not path.exists():
            raise FileNotFoundError(f"Directory does not exist: {path}")
        found = metadata.read_step_metadata(path)
        if not isinstance(found.item_handlers, (dict, type(None))):
            raise ValueError(f"StepMetadata.item_handlers must be a dict, found {found.item_handlers!r} in {path}")
        handlers = self._typestrs(path)
        items: dict[str, Any] = {}
        for name in item_names(path):
            handler = self._handler_for_restore(path / name, name, None, handlers.get(name))
            items[name] = item_metadata(handler, path / name)
            handlers.setdefault(name, handler.typestr() if hasattr(handler, "typestr") else None)
        return dataclasses.replace(found, item_handlers=handlers, item_metadata=metadata.CompositeMetadata(items))

    def metadata_from_temporary_paths(self, directory: Any) -> Any:
        """The metadata of a checkpoint that is being written, without that of its items."""
        path = as_path(directory)
        if not path.exists():
            raise FileNotFoundError(f"Directory does not exist: {path}")
        return dataclasses.replace(metadata.read_step_metadata(path), item_handlers=self._typestrs(path))

    def _typestrs(self, path: Any) -> dict[str, Any]:
        told = metadata.read_step_metadata(path).item_handlers
        return dict(told) if isinstance(told, dict) else {}

    def close(self) -> None:
        for handler in self._handlers.values():
            handler.close()


def item_names(path: Any) -> list[str]:
    path = as_path(path)
    if not path.exists():
        raise FileNotFoundError(f"Checkpoint at {path} not found.")
    return sorted(child.name for child in path.iterdir() if child.is_dir() and not is_temporary(child))


def item_metadata(handler: Any, path: Any) -> Any:
    """The metadata of an item from its handler; `None` if it cannot be read, as in Orbax."""
    try:
        return handler.metadata(path)
    except (RegrowError, NotImplementedError, AttributeError, OSError):
        return None


BY_STORED_NAME: dict[str, type[Any]] = {"ArrayCheckpointHandler": _handlers.ArrayCheckpointHandler}
"""Handlers of Orbax that are found by their stored name, not by the content."""


def handler_of_stored(path: Any, typestr: str | None) -> Any:
    """The handler that restores an item, by its content and by the stored name."""
    path = as_path(path)
    short = (typestr or "").rpartition(".")[2]
    if short in BY_STORED_NAME:
        return BY_STORED_NAME[short]()
    if is_pytree(path):
        return _handlers.PyTreeCheckpointHandler()
    custom = _registered_class(typestr)
    if custom is not None:
        return custom()
    for name in ("metadata", "metrics", "data.json"):
        if (path / name).is_file():
            return _handlers.JsonCheckpointHandler(name)
    return _Unknown()


def _registered_class(typestr: str | None) -> Any:
    """A handler class of that name from modules that are already imported. It imports nothing."""
    module, _, name = (typestr or "").rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    is_handler = isinstance(found, type) and hasattr(found, "restore") and hasattr(found, "save")
    return found if is_handler and module.split(".")[0] != "orbax" else None


class _Unknown(CheckpointHandler):
    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        help = "give its handler, or arguments that are registered with one"
        raise failure(KeyError, f"Item {as_path(directory).name!r} was saved by an unknown handler", help=help)


register_with_handler(CompositeCheckpointHandler, for_save=True, for_restore=True)(CompositeArgs)


def metadata_of(handler: Any, path: Any) -> metadata.StepMetadata:
    """The metadata of a checkpoint and its content, as a checkpointer with this handler has it."""
    if isinstance(handler, CompositeCheckpointHandler):
        return handler.metadata(path)
    return dataclasses.replace(metadata.read_step_metadata(path), item_metadata=item_metadata(handler, path))

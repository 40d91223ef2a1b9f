"""The items of a manager: those of its constructor, of each save and of each restore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._core._duck import is_a
from .._errors import failure
from . import _composite
from ._composite import CompositeArgs, CompositeCheckpointHandler
from ._handlers import PyTreeCheckpointHandler, handler_of_args, restore_pytree
from ._manager_folder import METRIC_ITEM_NAME
from ._paths import is_pytree
from .checkpoint_args import is_args
from .checkpointers import call_of

DEFAULT_ITEM_NAME = "default"


def is_async_checkpointer(checkpointer: Any) -> bool:
    return hasattr(checkpointer, "wait_until_finished")


def determine_default_item_mode_from_args(args: Any) -> bool:
    """Whether arguments are of a single item without a name."""
    return not is_a(args, "CompositeArgs")


class DefaultItem:
    """Whether a manager has a single item without a name. The first call sets it."""

    def __init__(self, known: bool | None) -> None:
        self._known = known

    def get(self) -> bool | None:
        """Whether the item has no name; `None` if it is not set yet."""
        return self._known

    def set_if_none(self, known: bool) -> None:
        self._known = known if self._known is None else self._known

    def check(self, items: Any, args: Any) -> None:
        if is_args(items):
            help = "give them by keyword: args=..."
            raise failure(ValueError, "Found an instance of `CheckpointArgs` provided for `items`.", help=help)
        if args is None:
            return
        if not is_args(args):
            raise ValueError(f"Expected args of type `CheckpointArgs`; found {type(args)}.")
        is_default = determine_default_item_mode_from_args(args)
        if self._known and not is_default:
            raise ValueError(
                "Cannot provide `args` of type `Composite` when dealing with a single, unnamed (default)"
                " checkpointable object."
            )
        if self._known is False and is_default:
            raise ValueError(
                "Must provide `args` of type `Composite` when dealing with multiple checkpointable objects."
            )


def check_constructor(
    checkpointers: Any, item_names: Any, item_handlers: Any, handler_registry: Any, options: Any
) -> None:
    """Refuses arguments of a manager that exclude each other."""
    given = {"checkpointers": checkpointers, "item_names": item_names, "item_handlers": item_handlers}
    for name, other in given.items():
        if checkpointers is not None and name != "checkpointers" and other:
            raise ValueError(f"`{name}` and `checkpointers` are mutually exclusive - do not use together.")
        if handler_registry is not None and other is not None:
            raise ValueError(f"`{name}` and `handler_registry` are mutually exclusive: configure the registry.")
    if item_names and item_handlers is not None and not isinstance(item_handlers, Mapping):
        raise ValueError("`item_names` with one handler in `item_handlers`: a handler by name is needed, in a dict.")
    if options.preservation_policy is not None:
        for name in ("max_to_keep", "keep_time_interval", "keep_period"):
            if getattr(options, name):
                raise ValueError(f"`preservation_policy` and `{name}` are mutually exclusive - do not use together.")


class Items:
    """The handler of each item, and whether bare items have names."""

    def __init__(self, checkpointers: Any, item_names: Any, item_handlers: Any, handler_registry: Any) -> None:
        given = item_handlers if checkpointers is None else _handlers_of(checkpointers)
        self.is_by_name = isinstance(given, Mapping)
        """Whether bare items have names."""
        every = checkpointers.values() if isinstance(checkpointers, Mapping) else [checkpointers]
        self.is_async = checkpointers is None or any(map(is_async_checkpointer, every))
        """Whether saves run in the background: with checkpointers, if one of them does."""
        handlers = dict(given) if isinstance(given, Mapping) else {} if given is None else {DEFAULT_ITEM_NAME: given}
        is_told = checkpointers is not None or item_names is not None or item_handlers is not None
        self.default_item = DefaultItem(bool(handlers) and not self.is_by_name if is_told else None)
        if handler_registry is not None:
            self.composite = CompositeCheckpointHandler(handler_registry=handler_registry)
        else:
            self.composite = CompositeCheckpointHandler(*(item_names or ()), **handlers)

    def of_save(self, items: Any, save_kwargs: Any, args: Any) -> dict[str, Any]:
        """All items of a save with their arguments, by name."""
        if args is not None:
            return {DEFAULT_ITEM_NAME: args} if determine_default_item_mode_from_args(args) else dict(args.items())
        by_name = items if self.is_by_name else {DEFAULT_ITEM_NAME: items}
        if not isinstance(by_name, Mapping):
            raise ValueError(f"expected a dict of items by name, found {type(items).__name__}")
        keywords = save_kwargs or {}
        out = {}
        for name, item in by_name.items():
            own = (keywords.get(name) or {}) if self.is_by_name else keywords
            handler = self.composite._handlers.get(name)
            if handler is None:
                handler = self.composite._handlers[name] = PyTreeCheckpointHandler()
            call = call_of(handler, (item,), dict(own), for_save=True)
            out[name] = item if call.args is None else call.args
        return out

    def restore(self, path: Any, items: Any, restore_kwargs: Any, args: Any) -> Any:
        """Restores what the arguments ask for, or the items and keywords of the older interface."""
        names = _composite.item_names(path)
        if args is not None:
            is_default = determine_default_item_mode_from_args(args)
            return self._restore_default(path, names, args) if is_default else self.composite.restore(path, args)
        keywords = restore_kwargs or {}
        if self.is_by_name or (items is None and not keywords and DEFAULT_ITEM_NAME not in names):
            if is_pytree(path):
                return restore_pytree(path, call_of(PyTreeCheckpointHandler(), (), {}, for_save=False).args)
            targets = dict(items) if items else {}
            wanted = targets or dict.fromkeys(name for name in names if name != METRIC_ITEM_NAME)
            out = {name: self._legacy_args(name, item, keywords.get(name) or {}) for name, item in wanted.items()}
            return self.composite.restore(path, CompositeArgs(**out))
        return self._restore_default(path, names, self._legacy_args(DEFAULT_ITEM_NAME, items, keywords))

    def _legacy_args(self, name: str, item: Any, keywords: Mapping[str, Any]) -> Any:
        if item is None and not keywords:
            return None
        handler = self.composite._handlers.get(name) or PyTreeCheckpointHandler()
        call = call_of(handler, (item,), dict(keywords), for_save=False)
        return item if call.args is None else call.args

    def _restore_default(self, path: Any, names: list[str], args: Any) -> Any:
        if DEFAULT_ITEM_NAME in names:
            return self.composite.restore(path, CompositeArgs(**{DEFAULT_ITEM_NAME: args}))[DEFAULT_ITEM_NAME]
        if is_pytree(path):
            handler = PyTreeCheckpointHandler() if args is None else handler_of_args(args)
            return handler.restore(path, args=args)
        raise failure(
            KeyError,
            f'Item "{DEFAULT_ITEM_NAME}" was not found in {path}. Available items: {names}',
            help="name the items: restore(step, args=args.Composite(name=...))",
        )


def _handlers_of(checkpointers: Any) -> Any:
    """The handlers of a checkpointer, or of several by name, ours or the original's."""
    if isinstance(checkpointers, Mapping):
        return {name: _handlers_of(checkpointer) for name, checkpointer in checkpointers.items()}
    handler = getattr(checkpointers, "handler", getattr(checkpointers, "_handler", None))
    if handler is None:
        raise ValueError(f"expected a checkpointer, or a dict of them, found {type(checkpointers).__name__}")
    return handler

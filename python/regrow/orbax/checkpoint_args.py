"""Classes of arguments for handlers, and the handler of each class."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from .._errors import failure
from ._interfaces import CheckpointHandler as CheckpointHandler

ArgsClass = TypeVar("ArgsClass", bound=type[Any])


@dataclasses.dataclass
class CheckpointArgs:
    """The base class of all arguments of saves and restores."""


_HANDLERS: dict[type[Any], type[Any]] = {}
"""The handler of each class of arguments."""
_ARGS: dict[type[Any], dict[str, type[Any]]] = {}
"""The arguments of each handler, for ``save`` and ``restore``."""


def register_with_handler(
    handler_cls: type[Any], for_save: bool = False, for_restore: bool = False
) -> Callable[[ArgsClass], ArgsClass]:
    if not for_save and not for_restore:
        raise ValueError("Must provide at least one of `for_save` or `for_restore`.")

    def register(cls: ArgsClass) -> ArgsClass:
        if not is_args_class(cls):
            raise TypeError(f"{cls} must subclass `CheckpointArgs`.")
        own = _ARGS.setdefault(handler_cls, {})
        # As in Orbax: the first of several classes is the handler's, and all of them find the
        # handler.
        if for_save:
            own.setdefault("save", cls)
        if for_restore:
            own.setdefault("restore", cls)
        _HANDLERS[cls] = handler_cls
        return cls

    return register


def is_args_class(cls: Any) -> bool:
    """Whether a class is a class of arguments, ours or the original's."""
    return isinstance(cls, type) and any(base.__name__ == "CheckpointArgs" for base in cls.__mro__)


def is_args(value: Any) -> bool:
    """Whether a value is arguments, ours or the original's."""
    return is_args_class(type(value))


def get_registered_handler_cls(arg: Any) -> type[Any]:
    cls = arg if inspect.isclass(arg) else type(arg)
    if cls in _HANDLERS:
        return _HANDLERS[cls]
    original = _original()
    if original is not None and issubclass(cls, original.CheckpointArgs):
        # The original's arguments may belong to a handler of the caller.
        found: type[Any] = original.get_registered_handler_cls(cls)
        return found
    raise failure(ValueError, f"No handler is registered for {cls}", help="decorate it with `register_with_handler`")


def get_registered_args_cls(handler: Any) -> tuple[type[Any], type[Any]]:
    for cls in (handler if inspect.isclass(handler) else type(handler)).__mro__:
        own = _ARGS.get(cls, {})
        if "save" in own and "restore" in own:
            return own["save"], own["restore"]
    original = _original()
    if original is not None and original.has_registered_args(handler):
        found: tuple[type[Any], type[Any]] = original.get_registered_args_cls(handler)
        return found
    help = "decorate them with `register_with_handler`"
    raise failure(ValueError, f"{handler} has no registered arguments", help=help)


def has_registered_args(handler: Any) -> bool:
    try:
        get_registered_args_cls(handler)
    except ValueError:
        return False
    return True


def takes(handler: Any, args: Any) -> bool:
    """Whether a handler takes arguments, ours or the original's. One without its own takes any."""
    if not is_args(args) or not has_registered_args(handler):
        return True
    own = get_registered_args_cls(handler)
    # A handler may have several classes of arguments. Those of its base class are not its own.
    is_own = next((cls for cls in type(handler).__mro__ if cls in _ARGS), None) is _HANDLERS.get(type(args), object)
    if isinstance(args, own) or is_own:
        return True
    theirs = type(args)
    return theirs.__module__.split(".")[0] == "orbax" and theirs.__name__ in [cls.__name__ for cls in own]


def _original() -> Any:
    """The original's module of this name, if the program has imported it."""
    found = sys.modules.get("orbax.checkpoint.checkpoint_args")
    return None if found is sys.modules[__name__] else found

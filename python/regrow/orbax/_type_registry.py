"""Registries of type handlers: the handler of each type, and whether the engine needs any
of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from .._errors import failure
from . import _leaf_args
from ._errors import not_covered
from ._jax import jax
from ._type_handlers import (
    ArrayHandler,
    EngineHandler,
    NumpyHandler,
    PlaceholderHandler,
    ScalarHandler,
    SingleReplicaArrayHandler,
    StringHandler,
)

_log = logging.getLogger("regrow.orbax")

_STANDARD = (
    ArrayHandler,
    SingleReplicaArrayHandler,
    NumpyHandler,
    ScalarHandler,
    StringHandler,
    PlaceholderHandler,
)

_HOOKS = (
    "_background_serialize",
    "_get_json_tspec",
    "_get_json_tspec_read",
    "_get_json_tspec_write",
    "_open_and_write",
)
"""Methods of the original's handlers that subclasses may override, and that exist only there."""


def is_standard(handler: Any) -> bool:
    """Whether the engine does the work of a handler: one of ours, or of the original's."""
    return type(handler) in _STANDARD or type(handler).__module__.startswith("orbax.checkpoint")


def _check(handler: Any) -> None:
    """Refuses handlers that write arrays through the original's."""
    cls = type(handler)
    if is_standard(handler):
        return
    theirs = next((base for base in cls.__mro__ if base.__module__.startswith("orbax.checkpoint")), None)
    if theirs is not None and theirs.__name__ != "TypeHandler":
        raise not_covered(
            f"{cls.__name__}, which subclasses the original's {theirs.__name__}",
            f"subclass regrow.orbax.type_handlers.{theirs.__name__}, or call regrow.orbax.install() first",
        )
    hooks = [name for name in _HOOKS if hasattr(cls, name)]
    if isinstance(handler, EngineHandler) and hooks and cls.serialize is EngineHandler.serialize:
        raise not_covered(f"{cls.__name__}.{hooks[0]}", "override `serialize`, and call that of the base class")


class TypeHandlerRegistry:
    """Maps types to handlers. The first handler that fits is used."""

    def __init__(self, *handlers: tuple[Any, Any]) -> None:
        self._of_types: list[tuple[Callable[[Any], bool], Any]] = []
        self._of_names: dict[str, Any] = {}
        for ty, handler in handlers:
            self.add(ty, handler, override=True, ignore_warnings=True)

    def add(
        self,
        ty: Any,
        handler: Any,
        func: Callable[[Any], bool] | None = None,
        override: bool = False,
        ignore_warnings: bool = False,
    ) -> None:
        """Adds a handler for a class and its subclasses, or for those for which `func` is true."""
        _check(handler)
        fits = func or (lambda cls: issubclass(cls, ty))
        name = handler.typestr()
        at = next((at for at, (known, _) in enumerate(self._of_types) if known(ty)), None)
        if not override and at is not None:
            raise failure(ValueError, f'A TypeHandler for "{ty}" is already registered.', help="give override=True")
        if not override and name in self._of_names:
            raise ValueError(f'Type "{ty}" has a `typestr` ("{name}") which collides with that of another TypeHandler.')
        if not ignore_warnings and (at is not None or name in self._of_names):
            _log.warning('Type handler registry: "%s" is now handled by %s', ty, handler)
        if at is None:
            self._of_types.append((fits, handler))
        else:
            self._of_types[at] = fits, handler
        self._of_names[name] = handler

    def get(self, ty: Any) -> Any:
        if isinstance(ty, str):
            if ty in self._of_names:
                return self._of_names[ty]
        else:
            for fits, handler in self._of_types:
                if fits(ty):
                    return handler
        raise ValueError(f'Unknown type: "{ty}". Must register a TypeHandler.')

    def has(self, ty: Any) -> bool:
        try:
            self.get(ty)
        except ValueError:
            return False
        return True

    @property
    def handlers(self) -> list[Any]:
        return [handler for _, handler in self._of_types]


_DEFAULTS: tuple[tuple[Any, Any], ...] = (
    (int, ScalarHandler()),
    (float, ScalarHandler()),
    (bytes, ScalarHandler()),
    (np.number, ScalarHandler()),
    (np.ndarray, NumpyHandler()),
    (jax.Array, ArrayHandler()),
    (str, StringHandler()),
    (type(_leaf_args.PLACEHOLDER), PlaceholderHandler()),
)

GLOBAL_TYPE_HANDLER_REGISTRY = TypeHandlerRegistry(*_DEFAULTS)
"""The registry of pytree handlers that get none."""


def knows_all(registry: Any) -> bool:
    """Whether the engine needs no handlers: the program's registry has only standard handlers."""
    return registry is GLOBAL_TYPE_HANDLER_REGISTRY and all(map(is_standard, registry.handlers))


def array_handler(registry: Any) -> Any:
    return registry.get(jax.Array) if registry.has(jax.Array) else None


def create_type_handler_registry(*handlers: tuple[Any, Any]) -> TypeHandlerRegistry:
    """A registry of pairs of a class and its handler, without the standard handlers."""
    return TypeHandlerRegistry(*handlers)


def register_type_handler(
    ty: Any, handler: Any, func: Callable[[Any], bool] | None = None, override: bool = False
) -> None:
    """Adds a handler for a class to the program's registry; see `TypeHandlerRegistry.add`."""
    GLOBAL_TYPE_HANDLER_REGISTRY.add(ty, handler, func, override)


def get_type_handler(ty: Any) -> Any:
    """The handler of a class in the program's registry."""
    return GLOBAL_TYPE_HANDLER_REGISTRY.get(ty)


def has_type_handler(ty: Any) -> bool:
    """Whether the program's registry has a handler for a class."""
    return GLOBAL_TYPE_HANDLER_REGISTRY.has(ty)


def supported_types() -> list[Any]:
    """The classes with a standard handler."""
    return [ty for ty, _ in _DEFAULTS]


def register_standard_handlers_with_options(**kwargs: Any) -> None:
    """Sets standard handlers with these options for numbers and arrays."""
    for name in ("use_ocdbt", "ts_context"):
        kwargs.pop(name, None)
    array = SingleReplicaArrayHandler if kwargs.pop("use_single_replica_array_handler", False) else ArrayHandler
    key = kwargs.get("metadata_key")
    for ty in (int, float, bytes, np.number):
        GLOBAL_TYPE_HANDLER_REGISTRY.add(ty, ScalarHandler(key), override=True, ignore_warnings=True)
    GLOBAL_TYPE_HANDLER_REGISTRY.add(np.ndarray, NumpyHandler(key), override=True, ignore_warnings=True)
    GLOBAL_TYPE_HANDLER_REGISTRY.add(jax.Array, array(**kwargs), override=True, ignore_warnings=True)

"""The modules of JAX, Flax and msgpack that the program has imported. Nothing here imports them.

`sys.modules` is read each time, so the order of the imports does not matter.
"""

from __future__ import annotations

import sys
from typing import Any

Handlers = tuple[Any, Any]
"""A function to a state dict, and a function back, as in Flax' registry."""


def loaded(module: str) -> Any:
    """A module that the program has imported, or `None`."""
    return sys.modules.get(module)


def original(module: str) -> Any:
    """As `loaded`, but `None` for a module of this package in place of the original."""
    found = loaded(module)
    return None if getattr(found, "__name__", "").startswith("regrow.") else found


_known: tuple[Any, dict[Any, Handlers] | None] = (None, None)


def flax_registry() -> dict[Any, Handlers] | None:
    """The registry of `flax.serialization`, if the program has completely imported that module."""
    global _known
    module = original("flax.serialization")
    if module is _known[0]:
        return _known[1]
    registry = getattr(module, "_STATE_DICT_REGISTRY", None)
    # `to_bytes` is the last name that the module defines. Before that, its registry is not
    # complete.
    if not isinstance(registry, dict) or not hasattr(module, "to_bytes"):
        return None
    _known = module, registry
    return registry


def flax_error_context() -> Any:
    """Flax' names on the path of a restore, for each thread; `None` if Flax has no such record."""
    context = getattr(original("flax.serialization"), "_error_context", None)
    return context if isinstance(getattr(context, "path", None), list) else None


def frozen_dict_class() -> type[Any]:
    """Flax' `FrozenDict`; `dict` if there is none."""
    cls = getattr(loaded("flax.core.frozen_dict"), "FrozenDict", None)
    return cls if isinstance(cls, type) else dict


def is_partial(cls: type[Any]) -> bool:
    """Whether a class is `jax.tree_util.Partial`."""
    return cls is getattr(loaded("jax.tree_util"), "Partial", None)


def is_jax_array(value: Any) -> bool:
    """Whether a value is a `jax.Array`."""
    array = getattr(loaded("jax"), "Array", None)
    return array is not None and isinstance(value, array)


class _Stop(Exception):
    """Ends the chain of constructors, because our class and the original have different arguments."""

    def __init__(self, *args: object) -> None:
        BaseException.__init__(self, *args)


_made: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def _both(ours: type[Any], original: type[Any]) -> type[Any]:
    if (ours, original) not in _made:
        body = {"__module__": ours.__module__, "__qualname__": ours.__qualname__, "__doc__": ours.__doc__}
        _made[ours, original] = type(ours.__name__, (ours, _Stop, original), body)
    return _made[ours, original]


def as_original(ours: type[Any], module: str) -> type[Any]:
    """The class `ours`, or a subclass of `ours` and the original of the same name, so that a
    program's `except` catches either.
    """
    theirs = getattr(original(module), ours.__name__, None)
    return _both(ours, theirs) if isinstance(theirs, type) else ours

"""Finds attributes that an object or its class has itself, without `__getattr__`.

A proxy also answers names that it does not have itself: `nnx.Variable` answers the names of its
value, `nnx.State` its keys, and a mock every name. Such an answer does not tell the kind of the
object.
"""

from __future__ import annotations

import inspect
import types
from typing import Any
from weakref import WeakKeyDictionary

_MISSING = object()
_ANSWERS: WeakKeyDictionary[type[Any], bool] = WeakKeyDictionary()


def _answers_others(cls: type[Any]) -> bool:
    """Whether a class answers unknown attribute names with its own code."""
    found = _ANSWERS.get(cls)
    if found is None:
        found = _ANSWERS[cls] = any(
            "__getattr__" in base.__dict__ or isinstance(base.__dict__.get("__getattribute__"), types.FunctionType)
            for base in cls.__mro__
        )
    return found


def has(value: Any, *names: str) -> bool:
    """Whether an object has all of these attributes itself."""
    if _answers_others(type(value)):
        return all(inspect.getattr_static(value, name, _MISSING) is not _MISSING for name in names)
    return all(hasattr(value, name) for name in names)


def own_attribute(value: Any, name: str, default: Any = None) -> Any:
    """An attribute of the object itself, or `default`."""
    return getattr(value, name, default) if has(value, name) else default


def is_a(value: Any, *names: str) -> bool:
    """Whether the object's class, or a base class, has one of these names. The module of the class
    does not matter: a drop-in of regrow has the name of its original.
    """
    return any(base.__name__ in names for base in type(value).__mro__)

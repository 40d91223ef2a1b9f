"""Whether a drop-in has all that the original has, under the same names and with the same signatures."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any


def names_of(module: ModuleType) -> list[str]:
    """What a module offers, in public or not: nothing that it has only imported from other packages."""
    package = module.__name__.split(".")[0]

    def is_its_own(name: str, value: Any) -> bool:
        if inspect.ismodule(value) or (name.startswith("__") and name != "__version__"):
            return False
        home = getattr(value, "__module__", None)
        # Classes of an extension module have no home.
        return home is None or home == "builtins" or home.split(".")[0] == package

    return [name for name, value in vars(module).items() if is_its_own(name, value)]


def differences(original: ModuleType, ours: ModuleType, exceptions: Mapping[str, str]) -> list[str]:
    """What a caller of the original would miss, but for the exceptions; and exceptions that are none."""
    out = []
    for name in names_of(original):
        full = f"{original.__name__}.{name}"
        if name not in vars(ours):
            found = [f"{full} is missing"]
        else:
            found = _object_differences(full, vars(original)[name], vars(ours)[name])
        if full in exceptions:
            out += [] if found else [f"{full} is an exception for nothing"]
        else:
            out += found
    return out


def _object_differences(name: str, theirs: Any, ours: Any) -> list[str]:
    if inspect.isclass(theirs):
        if not inspect.isclass(ours):
            return [f"{name} is no class"]
        out = _signature_differences(name, theirs, ours)
        for member, value in vars(theirs).items():
            if member in ("__new__", "__doc__", "__module__", "__weakref__"):
                continue
            if not hasattr(ours, member):
                out.append(f"{name}.{member} is missing")
            elif callable(value):
                out += _signature_differences(f"{name}.{member}", value, getattr(ours, member))
        return out
    if callable(theirs):
        return _signature_differences(name, theirs, ours)
    if isinstance(theirs, dict):
        return [f"{name} lacks {key!r}" for key in theirs if key not in ours]
    return [] if type(theirs) is type(ours) else [f"{name} is of type {type(ours).__name__}"]


def _signature_differences(name: str, theirs: Any, ours: Any) -> list[str]:
    """The same parameters, of which a caller can give the same; ours may have more, by name and with a default."""
    try:
        expected = list(inspect.signature(theirs).parameters.values())
    except ValueError:
        return []  # of the interpreter, which says nothing
    found = list(inspect.signature(ours).parameters.values())
    if _calls(found[: len(expected)]) != _calls(expected):
        return [f"{name} takes {inspect.signature(ours)}, not {inspect.signature(theirs)}"]
    more = [parameter.name for parameter in found[len(expected) :] if not _is_optional(parameter)]
    out = [f"{name} wants {more}, too"] if more else []
    for one, other in zip(expected, found, strict=False):
        # An extension says only that there is a default, by `...`.
        if one.default is not Ellipsis and one.default != other.default:
            out.append(f"{name}: the default of {one.name} is {other.default!r}, not {one.default!r}")
    return out


def _calls(parameters: list[inspect.Parameter]) -> list[Any]:
    by_name = inspect.Parameter.KEYWORD_ONLY
    # What can only be given by position has no name that counts.
    only_placed = inspect.Parameter.POSITIONAL_ONLY
    return [
        (
            None if parameter.name == "self" or parameter.kind is only_placed else parameter.name,
            parameter.kind is by_name,
        )
        for parameter in parameters
    ]


def _is_optional(parameter: inspect.Parameter) -> bool:
    return parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is not inspect.Parameter.empty

"""Compares the public interfaces of two modules: what a caller of the first may do with the
second.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

PLAIN = (bool, int, float, str, bytes, tuple, type(None))


def names_in(module: ModuleType, package: str) -> set[str]:
    """The public names that a module defines, or imports from its package."""
    names: set[str] = set()
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=source, level=level) if level or (source or "").split(".")[0] == package:
                names |= {each.asname or each.name for each in node.names}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_") and hasattr(module, name)}


def differences(where: str, theirs: Any, ours: Any) -> Iterator[str]:
    """What a caller of an object of the original cannot do with ours, a line each."""
    if isinstance(theirs, type):
        if not isinstance(ours, type):
            yield f"{where}: no class"
            return
        yield from _of_classes(where, theirs, ours)
    elif inspect.isroutine(theirs):
        yield from _of_calls(where, theirs, ours)


def _of_classes(where: str, theirs: type[Any], ours: type[Any]) -> Iterator[str]:
    if _is_generic(theirs) and not _is_generic(ours):
        yield f"{where}[...]"
    if issubclass(theirs, BaseException):
        for base in theirs.__mro__:
            if base.__module__ == "builtins" and not issubclass(ours, base):
                yield f"{where}: no {base.__name__}"
        return
    if issubclass(theirs, enum.Enum):
        missing = theirs.__members__.keys() - getattr(ours, "__members__", {}).keys()
        yield from (f"{where}.{name}" for name in sorted(missing))
        return
    if _has_signature(theirs):
        yield from _of_calls(where, theirs, ours)
    for name in sorted(dir(theirs)):
        found = inspect.getattr_static(theirs, name)
        if name.startswith("_") or (getattr(found, "__module__", "") or "").startswith(("builtins", "enum", "abc")):
            continue
        if inspect.getattr_static(ours, name, None) is None and name not in _fields(ours):
            if found is not None or name not in _fields(theirs):
                yield f"{where}.{name}"
        elif inspect.isfunction(getattr(theirs, name, None)) or inspect.ismethod(getattr(theirs, name, None)):
            yield from _of_calls(f"{where}.{name}", getattr(theirs, name), getattr(ours, name))


def _fields(cls: type[Any]) -> set[str]:
    own = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    return own | {name for base in cls.__mro__ for name in inspect.get_annotations(base)}


def _is_generic(cls: type[Any]) -> bool:
    return hasattr(cls, "__class_getitem__") and bool(getattr(cls, "__parameters__", ())) and not issubclass(cls, dict)


def _has_signature(cls: type[Any]) -> bool:
    return not inspect.isabstract(cls) and not getattr(cls, "_is_protocol", False)


def _of_calls(where: str, theirs: Any, ours: Any) -> Iterator[str]:
    """Parameters that ours lacks, that have another default, and that it wants besides."""
    if not callable(ours):
        yield f"{where}: cannot be called"
        return
    try:
        wanted, found = inspect.signature(theirs).parameters, inspect.signature(ours).parameters
    except (TypeError, ValueError):
        return
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if wanted and all(parameter.kind in variable for parameter in wanted.values()):
        return  # A wrapper, or a protocol: nothing is known of it.
    kinds = {parameter.kind for parameter in found.values()}
    found = {name: parameter for name, parameter in found.items() if parameter.kind not in variable}
    takes_any = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds
    named = inspect.Parameter.VAR_KEYWORD in kinds
    for at, (name, parameter) in enumerate(wanted.items()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            if parameter.kind not in kinds:
                yield f"{where}({'*' * (1 + (parameter.kind is parameter.VAR_KEYWORD))}{name})"
            continue
        if name not in found:
            if parameter.kind is parameter.POSITIONAL_ONLY or name.startswith("_"):
                if len(found) <= at and not takes_any:
                    yield f"{where}({name})"
            elif not named:
                yield f"{where}({name})"
            continue
        own = found[name]
        has_default = parameter.default is not parameter.empty
        are_plain = isinstance(parameter.default, PLAIN) and isinstance(own.default, PLAIN)
        if has_default and own.default is own.empty:
            yield f"{where}({name}): no default"
        elif has_default and are_plain and own.default != parameter.default:
            yield f"{where}({name}={own.default!r}): {parameter.default!r}"
        is_elsewhere = own.kind is own.KEYWORD_ONLY or list(found).index(name) != at
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and is_elsewhere:
            yield f"{where}({name}): not at position {at}"
    if takes_any or any(each.kind is each.POSITIONAL_ONLY or each.name.startswith("_") for each in wanted.values()):
        return
    for name, parameter in found.items():
        if name not in wanted and parameter.default is parameter.empty:
            yield f"{where}({name}): is wanted"

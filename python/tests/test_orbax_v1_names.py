"""The names of v1, with their arguments: those of the original."""

from __future__ import annotations

import importlib
import inspect
import types
from typing import Any

import pytest
from orbax.checkpoint import v1 as theirs

from regrow.orbax import NotCoveredError
from regrow.orbax import v1 as ours

MODULES = (
    "",
    "arrays",
    "errors",
    "handlers",
    "multihost",
    "options",
    "partial",
    "path",
    "path.step",
    "training",
    "training.errors",
    "training.preservation_policies",
    "training.save_decision_policies",
    "tree",
)
LEFT_OUT = {
    "preservation_policy_lib": "a private module",
    "save_decision_policy": "a private module",
    "NestedDict": "an annotation",
    "regulator": "for the original's own use",
    "v0": "for the original's own use",
    "validate_abstract_leaves_handleable": "for the original's own use",
    "validate_leaves_handleable": "for the original's own use",
}
"""Public by their spelling only."""


def within(module: Any, path: str) -> Any:
    """A module in a module."""
    for name in filter(None, path.split(".")):
        module = getattr(module, name)
    return module


def names_of(module: Any) -> list[str]:
    """What a caller would take from it."""
    found = []
    for name, value in vars(module).items():
        is_library = isinstance(value, types.ModuleType) and name not in MODULES and f"training.{name}" not in MODULES
        is_typing = getattr(value, "__module__", "") in ("typing", "collections.abc")
        if not name.startswith("_") and name not in LEFT_OUT and name != "orbax" and not is_library and not is_typing:
            found.append(name)
    return found


def arguments(function: Any) -> dict[str, Any] | None:
    """Names of arguments, in their order: how they are given, and whether they have a default."""
    try:
        told = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return {one.name: (one.kind, one.default is one.empty) for one in told if one.name not in ("args", "kwargs")}


@pytest.mark.parametrize("path", MODULES)
def test_each_name_is_there(path: str) -> None:
    their_module, our_module = within(theirs, path), within(ours, path)
    for name in names_of(their_module):
        their = getattr(their_module, name)
        try:
            our = getattr(our_module, name)
        except NotCoveredError as error:
            assert name in str(error) and "help:" in str(error)
            continue
        if inspect.isfunction(their):
            check_arguments(name, our, their)
        elif inspect.isclass(their) and inspect.isclass(our):
            check_class(name, our, their)


def check_arguments(name: str, our: Any, their: Any) -> None:
    """All arguments are there, given in the same way; those that may be left out there may be
    left out here.
    """
    ours_told, theirs_told = arguments(our) or {}, arguments(their) or {}
    if not theirs_told:
        return
    kinds = {argument: kind for argument, (kind, _) in ours_told.items() if argument in theirs_told}
    assert kinds == {argument: kind for argument, (kind, _) in theirs_told.items()}, name
    needed = {argument for argument, (_, is_needed) in ours_told.items() if is_needed}
    assert needed <= {argument for argument, (_, is_needed) in theirs_told.items() if is_needed}, name


def check_class(name: str, our: Any, their: Any) -> None:
    """Methods, properties, fields and inner classes."""
    if "__init__" in vars(their) and not getattr(their, "_is_protocol", False):
        check_arguments(name, our, their)
    for member, value in vars(their).items():
        if member.startswith("_") or member in LEFT_OUT:
            continue
        if inspect.isclass(value):
            check_class(f"{name}.{member}", getattr(our, member), value)
        elif inspect.isfunction(value):
            check_arguments(f"{name}.{member}", getattr(our, member), value)
        else:
            is_there = hasattr(our, member) or member in inspect.get_annotations(our) or hasattr(our(), member)
            assert is_there, (name, member)


def test_the_original_has_no_other_modules() -> None:
    package = importlib.import_module("orbax.checkpoint.experimental.v1")
    modules = {name for name in names_of(package) if isinstance(getattr(package, name), types.ModuleType)}
    assert modules <= set(MODULES)


def test_what_is_not_covered_says_so() -> None:
    with pytest.raises(NotCoveredError, match="pathways"):
        _ = ours.training.pathways
    with pytest.raises(AttributeError):
        _ = ours.training.nothing

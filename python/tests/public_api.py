"""The public names of regrow, with their signatures, a line each: `python/public_api.txt` is what
they were.

    python tests/public_api.py            # writes the file again; `make api` does

`regrow.orbax` is left out: its names are Orbax', and `test_orbax_names.py` holds them against Orbax
itself. So is what can only be imported with PyTorch.
"""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "public_api.txt"
MODULES = (
    "regrow",
    "regrow.layouts",
    "regrow.reports",
    "regrow.errors",
    "regrow.jobs",
    "regrow.handlers",
    "regrow.protect",
    "regrow.equinox",
    "regrow.flax",
    "regrow.flax.checkpoints",
    "regrow.flax.errors",
    "regrow.flax.traverse_util",
    "regrow.pytree",
    "regrow.safetensors",
    "regrow.safetensors.flax",
    "regrow.safetensors.numpy",
    "regrow.trak",
)
_SPECIAL = (
    "__call__",
    "__contains__",
    "__enter__",
    "__exit__",
    "__fspath__",
    "__getitem__",
    "__iter__",
    "__len__",
    "__truediv__",
)


class _Text:
    """An annotation as it is written, without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def lines() -> list[str]:
    """All of it, in the order of the names."""
    return [line for module in MODULES for line in _of_module(importlib.import_module(module))]


def _of_module(module: Any) -> Iterator[str]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if _is_defined_in(module, name, value)]
    for name in sorted(names):
        yield from _of_value(f"{module.__name__}.{name}", getattr(module, name))


def _is_defined_in(module: Any, name: str, value: Any) -> bool:
    return not name.startswith("_") and str(getattr(value, "__module__", "")).startswith("regrow")


def _of_value(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _of_class(name, value)
    elif callable(value) and hasattr(value, "__module__") and not hasattr(value, "__origin__"):
        yield f"{name}{_signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _of_class(name: str, cls: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"class {name}{_signature(cls)}" + (f" of {bases}" if bases else "")
    annotated = inspect.get_annotations(cls)
    members = {member: vars(cls).get(member) for member in {*vars(cls), *annotated}}
    for member, value in sorted(members.items()):
        if member.startswith("_") and member not in _SPECIAL:
            continue
        if isinstance(value, (classmethod, staticmethod)):
            yield f"{name}.{member}{_signature(value.__func__)}  [{type(value).__name__}]"
        elif isinstance(value, property):
            yield f"{name}.{member}: {_annotation(value.fget, 'return')}  [property]"
        elif member in annotated:
            yield f"{name}.{member}: {_written(annotated[member])}"
        elif inspect.isfunction(value) or inspect.ismethoddescriptor(value):
            yield f"{name}.{member}{_signature(value)}"
        else:
            yield f"{name}.{member}: {type(value).__name__}"


def _signature(value: Any) -> str:
    if inspect.isclass(value) and not _is_made_by_us(value):
        return "(...)"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [each.replace(annotation=_quiet(each.annotation)) for each in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters, return_annotation=_quiet(signature.return_annotation)))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _is_made_by_us(cls: type) -> bool:
    """Whether its arguments are not those of another library's base class."""
    makers = (base for base in cls.__mro__ if {"__init__", "__new__"} & set(vars(base)))
    return next(makers).__module__.startswith("regrow")


def _quiet(annotation: Any) -> Any:
    return _Text(_written(annotation)) if isinstance(annotation, (str, typing.ForwardRef)) else annotation


def _annotation(function: Any, name: str) -> str:
    return _written(inspect.get_annotations(function).get(name, "?"))


def _written(annotation: Any) -> str:
    annotation = getattr(annotation, "__forward_arg__", annotation)
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n")

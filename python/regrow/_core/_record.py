"""Records: classes of fields that the engine or a module of ours reads by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, dataclass_transform


class _Lazy:
    """An attribute of a class that is made at each access."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        return self._make(owner)


def _signature(cls: Any) -> Any:
    """For `inspect.signature` and `help`."""
    from inspect import Parameter, Signature

    kind = Parameter.KEYWORD_ONLY if cls._is_kw_only else Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        Parameter(name, kind, default=getattr(cls, name, Parameter.empty), annotation=annotation)
        for name, annotation in cls.__annotations__.items()
    ]
    return Signature(parameters, return_annotation="None")


def _fields(cls: Any) -> Any:
    """For `dataclasses.fields` and `dataclasses.replace`."""
    from dataclasses import make_dataclass

    missing = object()
    found = ((name, getattr(cls, name, missing)) for name in cls.__annotations__)
    specs = [(name, Any) if default is missing else (name, Any, default) for name, default in found]
    made: Any = make_dataclass(cls.__name__, specs)
    return made.__dataclass_fields__


@dataclass_transform(kw_only_default=True)
class Record:
    """A dataclass that compiles no source when its module is imported: the import of a
    `dataclasses.dataclass` with ten fields takes half a millisecond. Do not change the fields of a
    record.

    `kw_only` and `frozen` are those of a dataclass.
    """

    _is_frozen = False
    _is_kw_only = True
    __signature__ = _Lazy(_signature)
    __dataclass_fields__ = _Lazy(_fields)

    def __init_subclass__(cls, *, kw_only: bool = True, frozen: bool = False) -> None:
        """Sets how records of this class are made."""
        cls._is_frozen, cls._is_kw_only = frozen, kw_only

    def __init__(self, *values: Any, **fields: Any) -> None:
        """Sets the fields. The others have the defaults of the class."""
        names = type(self).__annotations__
        if values:
            if self._is_kw_only or len(values) > len(names):
                most = 0 if self._is_kw_only else len(names)
                raise TypeError(f"{type(self).__name__} takes {most} positional arguments, found {len(values)}")
            given = dict(zip(names, values, strict=False))
            for name in given.keys() & fields.keys():
                raise TypeError(f"{type(self).__name__} got the field {name} twice")
            fields = given | fields
        unknown = fields.keys() - names.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        missing = [name for name in names if name not in fields and name not in type(self).__dict__]
        if missing:
            raise TypeError(f"{type(self).__name__} needs the field {', '.join(missing)}")
        self.__dict__.update(fields)

    def replaced(self, **changes: Any) -> Self:
        """The same record with other values of these fields."""
        return type(self)(**(self.__dict__ | changes))

    __replace__ = replaced

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_frozen:
            raise AttributeError(f"{type(self).__name__} cannot be changed: make another one with {name}=...")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).__annotations__)
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).__annotations__)

    def __hash__(self) -> int:
        if self._is_frozen:
            return hash(tuple(getattr(self, name) for name in type(self).__annotations__))
        return id(self)

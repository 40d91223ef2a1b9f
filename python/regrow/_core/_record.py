"""Records: classes of fields that the engine or a module of ours reads by name."""

from __future__ import annotations

from typing import Any, Self, dataclass_transform


@dataclass_transform(kw_only_default=True)
class Record:
    """A dataclass of keywords that compiles no source when its module is imported: the import of
    `dataclasses.dataclass` with ten fields takes half a millisecond. Do not change the fields of a
    record.
    """

    def __init__(self, **fields: Any) -> None:
        """Sets the fields. The others have the defaults of the class."""
        unknown = fields.keys() - self.__annotations__.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        self.__dict__.update(fields)

    def replaced(self, **changes: Any) -> Self:
        """The same record with other values of these fields."""
        return type(self)(**(self.__dict__ | changes))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__annotations__)

    def __hash__(self) -> int:
        return id(self)

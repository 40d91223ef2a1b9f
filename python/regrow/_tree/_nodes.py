"""Containers and leaves of a checkpoint when the caller gives no class for them.

Nothing here imports a class that a file names. A named tuple becomes a named tuple of the same
name and fields. A container of any other class becomes a `Node`. A save writes both as they were.
"""

from __future__ import annotations

import functools
import keyword
import operator
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from .._core._record import Record
from .._text import printable


def fields_of(value: Any) -> tuple[str, ...] | None:
    """The fields of a named tuple; `None` for anything else."""
    fields: tuple[str, ...] | None = type(value).__dict__.get("_fields") if isinstance(value, tuple) else None
    return fields


REPR_LEN_MAX = 2000
"""Longer texts of a node are cut: a training state has thousands of leaves."""


def bounded_repr(node: Node) -> str:
    """A node as text, with arrays by dtype and shape, and with at most this many characters."""
    parts: list[str] = []
    left = REPR_LEN_MAX

    def add(text: str) -> bool:
        nonlocal left
        if left <= 0:
            return False
        parts.append(text if len(text) <= left else f"{text[:left]}...")
        left -= len(text)
        return left > 0

    def write(value: Any) -> bool:
        if isinstance(value, Node):
            return add(f"{type_name_of(value)}(") and each(value.items(), "{}=") and add(")")
        fields = fields_of(value)
        if fields is not None:
            return add(f"{type(value).__name__}(") and each(zip(fields, value, strict=True), "{}=") and add(")")
        if type(value) is dict:
            return add("{") and each(value.items(), "{!r}: ") and add("}")
        if type(value) in (list, tuple):
            ends = "[]" if type(value) is list else "()"
            return add(ends[0]) and each(enumerate(value), "") and add(ends[1])
        if isinstance(value, np.ndarray) and value.size > 8:
            return add(f"{value.dtype}{list(value.shape)}")
        return add(repr(value))

    def each(children: Iterable[tuple[Any, Any]], form: str) -> bool:
        for count, (key, child) in enumerate(children):
            if not (add(", " * (count > 0) + form.format(key)) and write(child)):
                return False
        return True

    write(node)
    return printable("".join(parts))


class Node:
    """A dataclass or other registered node, without its class: children by attribute or key.

    ``node.kernel`` and ``node["kernel"]`` are the same child; ``len``, iteration over the keys,
    ``keys()``, ``values()`` and ``items()`` work as for a dict.
    """

    __slots__ = ("_children", "_key_kinds", "_kind", "_type_name")

    def __init__(
        self, type_name: str, children: dict[str | int, Any], kind: str = "dataclass", key_kinds: bytes = b""
    ) -> None:
        set_slot = object.__setattr__
        set_slot(self, "_type_name", type_name)
        set_slot(self, "_children", children)
        set_slot(self, "_kind", kind)
        set_slot(self, "_key_kinds", key_kinds)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._children[name]
        except KeyError:
            raise AttributeError(f"this {self._type_name} has no child {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Node cannot be changed")

    def __getitem__(self, key: str | int) -> Any:
        return self._children[key]

    def __iter__(self) -> Iterator[str | int]:
        return iter(self._children)

    def __len__(self) -> int:
        return len(self._children)

    def __contains__(self, key: object) -> bool:
        return key in self._children

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(key for key in self._children if isinstance(key, str))})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Node):
            return NotImplemented
        return type_name_of(self) == type_name_of(other) and bool(self._children == other._children)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return bounded_repr(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Node, (self._type_name, self._children, self._kind, self._key_kinds)

    def keys(self) -> Any:
        """The names of the children."""
        return self._children.keys()

    def values(self) -> Any:
        """The children."""
        return self._children.values()

    def items(self) -> Any:
        """Names and children."""
        return self._children.items()


def as_dicts(tree: Any) -> Any:
    """The tree with dicts in place of nodes and named tuples."""
    if isinstance(tree, Node):
        return {key: as_dicts(child) for key, child in tree.items()}
    fields = fields_of(tree)
    if fields is not None:
        return {key: as_dicts(child) for key, child in zip(fields, tree, strict=True)}
    if type(tree) is dict:
        return {key: as_dicts(child) for key, child in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(as_dicts(child) for child in tree)
    return tree


def type_name_of(node: Node) -> str:
    """The qualified name of the class that the node was saved from."""
    return str(object.__getattribute__(node, "_type_name"))


class PrngKey(Record, kw_only=False, frozen=True):
    """A typed JAX PRNG key, without JAX: its data, and the name of its implementation."""

    data: np.ndarray[Any, Any]
    """The key data, ``uint32``."""
    impl: str | None
    """``threefry2x32``, ``rbg``, ...; `None` if the checkpoint does not name the implementation."""

    def wrap(self) -> Any:
        """The key as a key of JAX."""
        import jax

        data: Any = self.data  # JAX takes NumPy arrays, its annotation does not
        return jax.random.wrap_key_data(data, impl=self.impl)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PrngKey):
            return NotImplemented
        return self.impl == other.impl and np.array_equal(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]


class UnknownLeaf(Record, kw_only=False, frozen=True):
    """A leaf that another program's type handler wrote. It has a name, and is not decoded."""

    type_name: str


class NamedTuple(tuple[Any, ...]):
    """The base of named tuples without their own class. It has the methods of
    `collections.namedtuple`, which compiles source text for each class. Here no text of a file
    reaches a compiler.
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _field_defaults: Mapping[str, Any] = MappingProxyType({})

    def __new__(cls, *values: Any, **named: Any) -> NamedTuple:
        rest = cls._fields[len(values) :]
        if len(values) > len(cls._fields) or named.keys() != set(rest):
            raise TypeError(f"{cls.__name__} takes {', '.join(cls._fields) or 'nothing'}")
        return tuple.__new__(cls, (*values, *(named[field] for field in rest)))

    @classmethod
    def _make(cls, values: Iterable[Any]) -> NamedTuple:
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
        return made

    def _replace(self, **changes: Any) -> NamedTuple:
        unknown = changes.keys() - set(self._fields)
        if unknown:
            raise ValueError(f"Got unexpected field names: {sorted(unknown)!r}")
        return self._make(changes.get(field, value) for field, value in zip(self._fields, self, strict=True))

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        inside = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({inside})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


@functools.lru_cache(maxsize=4096)
def named_tuple_class(type_name: str, fields: tuple[str, ...]) -> type[Any] | None:
    """A named tuple class of this name and these fields; `None` if Python could not have made
    one.
    """
    module, _, name = type_name.rpartition(".")
    usable = [*fields, name]
    if not all(word.isidentifier() and not keyword.iskeyword(word) for word in usable):
        return None
    # For Python, two names with the same NFKC form are one name.
    if len({unicodedata.normalize("NFKC", field) for field in fields}) != len(fields):
        return None
    if any(field.startswith("_") for field in fields):
        return None
    members: dict[str, Any] = {
        field: property(operator.itemgetter(at), doc=f"Alias for field number {at}") for at, field in enumerate(fields)
    }
    # No field has one of these names: fields that begin with `_` were refused above.
    members |= {
        "__slots__": (),
        "__module__": module or "regrow",
        "__match_args__": fields,
        "_fields": fields,
        "__regrow_type__": type_name,
    }
    return type(name, (NamedTuple,), members)


@functools.cache
def register_with_jax() -> None:
    """Makes `Node` a pytree node of JAX, so that ``jax.tree.map`` works on loaded trees."""
    import jax

    def flatten(node: Node) -> tuple[list[Any], tuple[Any, ...]]:
        get = object.__getattribute__
        return list(node.values()), (
            type_name_of(node),
            tuple(node),
            get(node, "_kind"),
            get(node, "_key_kinds"),
        )

    def flatten_with_keys(node: Node) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children, definition = flatten(node)
        keys = [jax.tree_util.GetAttrKey(str(key)) for key in node]
        return list(zip(keys, children, strict=True)), definition

    def unflatten(definition: tuple[Any, ...], children: Any) -> Node:
        type_name, keys, kind, key_kinds = definition
        return Node(type_name, dict(zip(keys, children, strict=True)), kind, key_kinds)

    jax.tree_util.register_pytree_with_keys(Node, flatten_with_keys, unflatten, flatten)

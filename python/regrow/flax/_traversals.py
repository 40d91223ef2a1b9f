"""Traversals: a path through immutable data that says which parts to read, and which to replace.

    >>> data = [{"foo": 1, "bar": 2}, {"foo": 3, "bar": 4}]
    >>> list(t_identity.each()["foo"].iterate(data))
    [1, 3]
    >>> t_identity.each()["foo"].update(lambda x: -x, data)
    [{'foo': -1, 'bar': 2}, {'foo': -3, 'bar': 4}]

The classes of `flax.traverse_util`, which Flax has deprecated and optimisers written for
`flax.optim` still use. `traverse_util` exports them. Data never changes: an update returns a copy
with the new parts.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

Function = Callable[[Any], Any]


class Traversal(abc.ABC):
    """The base of traversals. Methods, items and attributes extend a traversal."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Warns, as Flax does, that these classes are deprecated."""
        warnings.warn(
            "`flax.traverse_util.Traversal` will be deprecated. If you are using it for `flax.optim`, use `optax` "
            "instead. Refer to the update guide "
            "https://flax.readthedocs.io/en/latest/guides/converting_and_upgrading/optax_update_guide.html "
            "for detailed instructions.",
            DeprecationWarning,
            stacklevel=2,
        )
        return super().__new__(cls)

    @abc.abstractmethod
    def update(self, fn: Function, inputs: Any) -> Any:
        """A copy of `inputs` in which `fn` has been applied to every selected part."""

    @abc.abstractmethod
    def iterate(self, inputs: Any) -> Iterator[Any]:
        """The selected parts of `inputs`."""

    def set(self, values: list[Any], inputs: Any) -> Any:
        """A copy of `inputs` with `values` as the selected parts, in their order. `values` is used
        up.

        Raises:
            ValueError: if there are more or fewer values than parts.
        """

        def next_value(_: Any) -> Any:
            if not values:
                raise ValueError("Not enough values provided")
            return values.pop(0)

        updated = self.update(next_value, inputs)
        if values:
            raise ValueError("Too many values provided")
        return updated

    def compose(self, other: Any) -> Any:
        """The selection of `other` within this selection."""
        return TraverseCompose(self, other)

    def merge(self, *traversals: Any) -> Any:
        """The selections of `traversals` within this selection."""
        return self.compose(TraverseMerge(*traversals))

    def each(self) -> Any:
        """The items of the selected containers."""
        return self.compose(TraverseEach())

    def tree(self) -> Any:
        """The leaves of the selected pytrees."""
        return self.compose(TraverseTree())

    def filter(self, fn: Function) -> Any:
        """The selected parts for which `fn` returns true."""
        return self.compose(TraverseFilter(fn))

    def __getattr__(self, attr: str) -> Any:
        return self.compose(TraverseAttr(attr))

    def __getitem__(self, key: Any) -> Any:
        return self.compose(TraverseItem(key))


class TraverseId(Traversal):
    """Selects the whole value. Every traversal begins with this selection."""

    def update(self, fn: Function, inputs: Any) -> Any:
        return fn(inputs)

    def iterate(self, inputs: Any) -> Iterator[Any]:
        yield inputs


class TraverseMerge(Traversal):
    """Selects the selections of several traversals, one after the other."""

    def __init__(self, *traversals: Any) -> None:
        self._traversals = traversals

    def update(self, fn: Function, inputs: Any) -> Any:
        for traversal in self._traversals:
            inputs = traversal.update(fn, inputs)
        return inputs

    def iterate(self, inputs: Any) -> Iterator[Any]:
        for traversal in self._traversals:
            yield from traversal.iterate(inputs)


class TraverseCompose(Traversal):
    """Selects the selection of `y` within the selection of `x`."""

    def __init__(self, x: Any, y: Any) -> None:
        self._x = x
        self._y = y

    def update(self, fn: Function, inputs: Any) -> Any:
        return self._x.update(lambda part: self._y.update(fn, part), inputs)

    def iterate(self, inputs: Any) -> Iterator[Any]:
        for part in self._x.iterate(inputs):
            yield from self._y.iterate(part)


class TraverseFilter(Traversal):
    """Selects the whole value, if `fn` returns true for it."""

    def __init__(self, fn: Function) -> None:
        self._fn = fn

    def update(self, fn: Function, inputs: Any) -> Any:
        return fn(inputs) if self._fn(inputs) else inputs

    def iterate(self, inputs: Any) -> Iterator[Any]:
        if self._fn(inputs):
            yield inputs


class TraverseAttr(Traversal):
    """Selects an attribute, of a named tuple, a dataclass or any other object."""

    def __init__(self, attr: str) -> None:
        self._attr = attr

    def update(self, fn: Function, inputs: Any) -> Any:
        value = fn(getattr(inputs, self._attr))
        if _is_namedtuple(type(inputs)):
            return inputs._replace(**{self._attr: value})
        if dataclasses.is_dataclass(inputs) and not isinstance(inputs, type):
            return dataclasses.replace(inputs, **{self._attr: value})
        changed = copy.copy(inputs)
        setattr(changed, self._attr, value)
        return changed

    def iterate(self, inputs: Any) -> Iterator[Any]:
        yield getattr(inputs, self._attr)


class TraverseItem(Traversal):
    """Selects an item, or a slice of a tuple."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def update(self, fn: Function, inputs: Any) -> Any:
        if not isinstance(inputs, tuple):
            changed = copy.copy(inputs)
            changed[self._key] = fn(changed[self._key])
            return changed
        part = self._key if isinstance(self._key, slice) else slice(self._key, self._key + 1)
        chosen = set(range(*part.indices(len(inputs))))
        items = [fn(item) if at in chosen else item for at, item in enumerate(inputs)]
        cls: Any = type(inputs)
        return cls(*items) if _is_namedtuple(cls) else cls(items)

    def iterate(self, inputs: Any) -> Iterator[Any]:
        if isinstance(self._key, slice):
            yield from inputs[self._key]
        else:
            yield inputs[self._key]


class TraverseEach(Traversal):
    """Selects the values of a dict, or the items of a list or tuple."""

    def update(self, fn: Function, inputs: Any) -> Any:
        cls = type(inputs)
        if cls is dict:
            return {key: fn(value) for key, value in inputs.items()}
        if cls is not list and cls is not tuple:
            raise ValueError("Only the entries of a list or tuple can be traversed.")
        return cls(fn(item) for item in inputs)

    def iterate(self, inputs: Any) -> Iterator[Any]:
        yield from inputs.values() if isinstance(inputs, dict) else inputs


class TraverseTree(Traversal):
    """Selects the leaves of a pytree. The walk is JAX' own, so this class imports JAX."""

    def update(self, fn: Function, inputs: Any) -> Any:
        return importlib.import_module("jax").tree_util.tree_map(fn, inputs)

    def iterate(self, inputs: Any) -> Iterator[Any]:
        yield from importlib.import_module("jax").tree_util.tree_leaves(inputs)


def _is_namedtuple(t: type[Any]) -> bool:
    return issubclass(t, tuple) and hasattr(t, "_fields")


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    t_identity: Any = TraverseId()

"""Leaf handlers: save leaves of your own types, in any layout.

A handler turns a leaf of its type into a pytree of arrays, numbers, text and bytes, and back:

    class TokenizerHandler:
        type_name = "acme.Tokenizer"

        def save(self, leaf):
            return {"vocabulary": leaf.vocabulary, "merges": leaf.merges}

        def restore(self, state):
            return Tokenizer(state["vocabulary"], state["merges"])

    handlers = regrow.handlers.LeafRegistry((Tokenizer, TokenizerHandler()))
    with regrow.options(handlers=handlers):
        regrow.save(path, tree)
        tree = regrow.load(path)

In the file such a leaf is a dict of the name of its type and its state, in every layout:

    {"__leaf_type__": "acme.Tokenizer", "state": {...}}

A load without handlers gives this dict, and a save of the dict writes the same leaf. There is no
global registry: a call knows only the handlers that it gets.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .._core._duck import has
from .._errors import InvalidArgumentError, LeafTypeError, MismatchError, NotFoundError, failure

TYPE_KEY = "__leaf_type__"
STATE_KEY = "state"
STATE_KEYS = {TYPE_KEY, STATE_KEY}


@runtime_checkable
class LeafHandler(Protocol):
    """Saves and restores leaves of one type."""

    @property
    def type_name(self) -> str:
        """The name of the type in files. Do not change the name later. It may differ from the name
        of the class.
        """

    def save(self, leaf: Any) -> Any:
        """The leaf as a pytree of arrays, numbers, text and bytes. Every layout stores dicts; some
        layouts turn other containers into dicts.
        """

    def restore(self, state: Any) -> Any:
        """The leaf, from the pytree that `save` returned, as the layout reads the pytree."""


class StandardHandler:
    """The handler of a type that regrow saves without a handler of yours."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def save(self, leaf: Any) -> Any:
        """The leaf itself."""
        return leaf

    def restore(self, state: Any) -> Any:
        """The leaf itself."""
        return state

    def __repr__(self) -> str:
        return f"StandardHandler({self.type_name!r})"


Claim = type[Any] | Callable[[Any], bool]
"""A class (its subclasses too), or a predicate of a leaf."""


def _is_jax_array(leaf: Any) -> bool:
    return type(leaf).__module__.partition(".")[0] in ("jax", "jaxlib") and has(leaf, "sharding")


_STANDARD: tuple[tuple[Claim, StandardHandler], ...] = (
    (_is_jax_array, StandardHandler("jax.Array")),
    (np.ndarray, StandardHandler("np.ndarray")),
    (bool, StandardHandler("bool")),
    (int, StandardHandler("int")),
    (np.generic, StandardHandler("np.generic")),
    (float, StandardHandler("float")),
    (complex, StandardHandler("complex")),
    (str, StandardHandler("str")),
    (bytes, StandardHandler("bytes")),
)


class LeafRegistry:
    """The handlers of leaves. The first handler whose class or predicate matches a leaf saves the
    leaf.
    """

    def __init__(self, *pairs: tuple[Claim, LeafHandler]) -> None:
        """Makes a registry of the standard types. The given pairs of a class or predicate and its
        handler come first.
        """
        self._entries: list[tuple[Claim, LeafHandler]] = list(_STANDARD)
        self._own = 0
        for claim, handler in pairs:
            self.add(claim, handler)

    def add(self, claim: Claim, handler: LeafHandler, *, override: bool = False) -> None:
        """Adds a handler for a class, or for the leaves for which a predicate is true.

        Args:
            claim: The class or predicate.
            handler: Its handler.
            override: Replace the handler that has the class or the type name now, with a warning.

        Raises:
            InvalidArgumentError: if the class or the type name has a handler already, and
                `override` was not given; if the handler lacks `type_name`, `save` or `restore`.
        """
        if not isinstance(override, bool):
            raise InvalidArgumentError(f"override={override!r} is not valid: expected True or False")
        name = getattr(handler, "type_name", None)
        if not isinstance(name, str) or not name or not isinstance(handler, LeafHandler):
            raise InvalidArgumentError(
                f"{handler!r} is not a leaf handler: it needs a `type_name`, and methods `save` and `restore`"
            )
        if not isinstance(claim, type) and not callable(claim):
            raise InvalidArgumentError(f"{claim!r} is neither a class nor a predicate of a leaf")
        taken = [at for at, entry in enumerate(self._entries) if entry[0] is claim or entry[1].type_name == name]
        if taken and not override:
            old_claim, old = self._entries[taken[0]]
            what = f"the type name {name!r}" if old.type_name == name else _claim_text(old_claim)
            raise InvalidArgumentError(f"{what} already has the handler {old!r}: pass override=True to replace it")
        for at in reversed(taken):
            warnings.warn(f"{self._entries[at][1]!r} is replaced by {handler!r}", stacklevel=2)
            self._own -= at < self._own
            del self._entries[at]
        # Own handlers come before the standard ones, in the order in which they were added.
        self._entries.insert(self._own, (claim, handler))
        self._own += 1

    def get(self, what: Any) -> LeafHandler:
        """The handler of a type name, of a class, or of a leaf.

        Raises:
            NotFoundError: if there is none.
        """
        found = self._find(what)
        if found is None:
            names = ", ".join(handler.type_name for _, handler in self._entries)
            raise NotFoundError(f"{what!r} has no handler; the handlers are for {names}")
        return found

    def has(self, what: Any) -> bool:
        """Whether there is a handler for a type name, a class, or a leaf."""
        return self._find(what) is not None

    def _find(self, what: Any) -> LeafHandler | None:
        for claim, handler in self._entries:
            if isinstance(what, str):
                if handler.type_name == what:
                    return handler
            elif isinstance(what, type):
                if isinstance(claim, type) and issubclass(what, claim):
                    return handler
            elif _fits(claim, what):
                return handler
        return None

    def own_handler_of(self, leaf: Any) -> LeafHandler | None:
        """The handler of a leaf; `None` if the engine knows the leaf's type."""
        for claim, handler in self._entries[: self._own]:
            if _fits(claim, leaf):
                return handler
        return None

    def restore(self, type_name: Any, state: Any, place: str) -> Any:
        """The leaf of a type name, from its state."""
        handler = self._find(type_name) if isinstance(type_name, str) else None
        if handler is None:
            names = ", ".join(handler.type_name for _, handler in self._entries[: self._own]) or "none"
            raise failure(
                LeafTypeError,
                f"no handler for the leaf type {type_name!r}",
                leaf=place,
                help=f"the registry has {names}; add one, or load without handlers to get the stored state",
            )
        return handler.restore(state)


def check_type_name(stored: Any, handler: LeafHandler) -> None:
    """Refuses the state of one type for a template's leaf of another type."""
    if stored != handler.type_name:
        raise MismatchError(
            f"the template has a leaf of type {handler.type_name!r}, the checkpoint one of type {stored!r}"
        )


def _fits(claim: Claim, leaf: Any) -> bool:
    return isinstance(leaf, claim) if isinstance(claim, type) else bool(claim(leaf))


def _claim_text(claim: Claim) -> str:
    return f"the class {claim.__qualname__}" if isinstance(claim, type) else f"the predicate {claim!r}"

"""The base class of layouts. Saves in the default layout do not import the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import _native
from .._core import _arguments
from .._errors import InvalidArgumentError

CHUNKING = ("chunk_byte_size", "shard_axes", "write_chunk_shape", "read_chunk_shape")
"""The options of one leaf in `per_leaf`."""


class Layout:
    """The base class of all layouts. Each is a dataclass of its options."""

    name: ClassVar[str]

    def _given(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        from dataclasses import fields

        given = {}
        options: Any = self
        for each in fields(options):
            value = getattr(self, each.name)
            default = each.default_factory() if callable(each.default_factory) else each.default
            if value is not default and value != default:
                given[each.name] = value
        return given

    def _json(self) -> str:
        """The options as JSON for the engine."""
        import json

        texts = []
        for name, value in self._given().items():
            if name == "per_leaf":
                value = _per_leaf(value)
            try:
                texts.append(f"{json.dumps(name)}: {json.dumps(value, allow_nan=False, default=_plain)}")
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidArgumentError(f"{type(self).__name__}({name}=...) is not valid: {error}") from None
        return f"{{{', '.join(texts)}}}"


def _per_leaf(rules: Any) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(rules, Mapping) or not all(isinstance(own, Mapping) for own in rules.values()):
        raise _arguments.wrong("per_leaf", rules, "a dict of globs, with a dict of options for each")
    for pattern, options in rules.items():
        unknown = set(options) - set(CHUNKING)
        if unknown:
            raise InvalidArgumentError(
                f"per_leaf[{pattern!r}] has no option {', '.join(sorted(unknown))}; it takes {', '.join(CHUNKING)}"
            )
    return [
        (pattern, {name: value for name, value in options.items() if value is not None})
        for pattern, options in rules.items()
    ]


def _plain(value: Any) -> Any:
    """Converts other sequences to lists, and NumPy's integers to Python's, for JSON."""
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (Sequence, np.ndarray)):
        return list(value)
    raise TypeError(f"{value!r} has a type that no option accepts")


def chosen(layout: Any) -> tuple[str, str]:
    """The name of a layout and its options as JSON, from the caller's argument.

    Raises:
        InvalidArgumentError: for a name that no layout has, with the names of all.
    """
    if layout is None:
        return "regrow", "{}"
    if isinstance(layout, str) and layout in _native.LAYOUTS:
        return layout, "{}"
    if isinstance(layout, type) and issubclass(layout, Layout) and layout is not Layout:
        layout = layout()
    if isinstance(layout, Layout):
        return layout.name, layout._json()
    names = ", ".join(_native.LAYOUTS)
    raise InvalidArgumentError(
        f"layout={layout!r} is not valid: expected one of {names}, or an object of regrow.layouts"
    )

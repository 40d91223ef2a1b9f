"""Defaults of dataclass fields in the reference: for griffe, which reads the sources."""

from __future__ import annotations

from typing import Any

import griffe


class Defaults(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Shows ``field(default=None, metadata=...)`` as its default."""
        if isinstance(attr.value, griffe.ExprCall) and str(attr.value.function) in ("field", "_named"):
            *_, default = (each for each in attr.value.arguments if not str(each).startswith("metadata="))
            attr.value = default.value if isinstance(default, griffe.ExprKeyword) else default

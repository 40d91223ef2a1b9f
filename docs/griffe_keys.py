"""The `Keys:` of a `TypedDict`'s docstring as a table in the reference: for griffe, which reads
the sources.
"""

from __future__ import annotations

from typing import Any

import griffe


class Keys(griffe.Extension):
    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None:
            cls.docstring.value = cls.docstring.value.replace("\nKeys:\n", "\nAttributes:\n")

"""Names that Orbax has for Pathways."""

from __future__ import annotations

from ._errors import refusing

__all__: list[str] = []

_HINT = "use the original with Pathways"

__getattr__ = refusing(__name__, {"CheckpointingImpl": _HINT, "register_type_handlers": _HINT})

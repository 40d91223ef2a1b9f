"""Names of steps."""

from __future__ import annotations

from ...path.step import NameFormat, composite_name_format, standard_name_format

__all__ = ["NameFormat", "composite_name_format", "standard_name_format"]

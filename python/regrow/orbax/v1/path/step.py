"""Names of steps."""

from ...path.step import NameFormat as NameFormat
from ...path.step import composite_name_format as composite_name_format
from ...path.step import standard_name_format as standard_name_format

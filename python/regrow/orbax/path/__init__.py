"""Names of steps, and atomic publication of checkpoints."""

from .._errors import refusing
from . import atomicity as atomicity
from . import format_utils as format_utils
from . import step as step

__getattr__ = refusing(__name__, ("deleter", "managers delete steps: `max_to_keep`, `delete`"))

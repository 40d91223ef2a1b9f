"""The records of a manager, through `logging`. The engine makes them, and adds them to the file of
`log=`.

{"event": "save", "step": 400, "path": "run/400", "time": 1795232533.5, "seconds": 1.2, ...}
"""

from __future__ import annotations

import json
import logging
from typing import Any

from .._text import printable

LOGGER = logging.getLogger("regrow.manager")


def tell(text: str, is_bad: bool) -> None:
    """Logs a record, a JSON object."""
    level = logging.WARNING if is_bad else logging.INFO
    if not LOGGER.isEnabledFor(level):
        return
    record: dict[str, Any] = json.loads(text)
    if "passed_over" in record:
        record["passed_over"] = {int(step): why for step, why in record["passed_over"].items()}
    said = ", ".join(f"{name}={value}" for name, value in record.items() if name not in ("event", "step", "time"))
    LOGGER.log(level, "%s of step %d: %s", record["event"], record["step"], printable(said), extra={"record": record})

"""One structured record for each save and restore, to `logging` and to a file of lines.

{"event": "save", "step": 400, "path": "run/400", "time": 1795232533.5, "seconds": 1.2, ...}
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

from .._text import printable

LOGGER = logging.getLogger("regrow.manager")


class Records:
    """Where records go."""

    def __init__(self, file: str | None) -> None:
        self._file = file

    def add(self, event: str, step: int, path: str, *, is_bad: bool = False, **members: Any) -> None:
        """Logs what has happened; members that are `None` are left out."""
        record: dict[str, Any] = {"event": event, "step": step, "path": path, "time": time.time()}
        record |= {name: value for name, value in members.items() if value is not None}
        level = logging.WARNING if is_bad else logging.INFO
        if LOGGER.isEnabledFor(level):
            said = ", ".join(
                f"{name}={value}" for name, value in record.items() if name not in ("event", "step", "time")
            )
            LOGGER.log(level, "%s of step %d: %s", event, step, printable(said), extra={"record": record})
        if self._file is not None:
            line = json.dumps(record, default=str) + "\n"
            # One write at the end of the file: lines of several processes do not mix.
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)

"""Loggers that a manager may be given; it tells them of saves and restores."""

from __future__ import annotations

import logging as _logging
from typing import Any

__all__ = ["AbstractLogger", "CompositeLogger", "StandardLogger"]


class AbstractLogger:
    """Something that takes one record."""

    def log_entry(self, entry: Any) -> None:
        """Takes a record."""
        raise NotImplementedError


class StandardLogger(AbstractLogger):
    """Records go to Python's logging."""

    def log_entry(self, entry: Any) -> None:
        """Takes a record."""
        _logging.getLogger("regrow.orbax").info(str(entry))


class CompositeLogger(AbstractLogger):
    """Records go to several loggers."""

    def __init__(self, *loggers: AbstractLogger) -> None:
        self._loggers = loggers

    def log_entry(self, entry: Any) -> None:
        """Takes a record."""
        for logger in self._loggers:
            logger.log_entry(entry)

"""Loggers for a manager, which receive a record of each save and restore."""

from __future__ import annotations

import dataclasses
import logging as _logging
from collections.abc import Mapping
from typing import Any

from ._errors import refusing

__getattr__ = refusing(__name__, ("EmergencyRestoreStepStatistics", "use the original for emergency checkpoints"))


class AbstractLogger:
    def log_entry(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError


class StandardLogger(AbstractLogger):
    def log_entry(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        _logging.getLogger("regrow.orbax").info(str(msg), *args, **kwargs)


class CompositeLogger(AbstractLogger):
    def __init__(self, *loggers: AbstractLogger) -> None:
        self._loggers = loggers

    def log_entry(self, entry: Any, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        for logger in self._loggers:
            logger.log_entry(entry, *args, **kwargs)


@dataclasses.dataclass
class SaveStepStatistics:
    """The record of one save of a manager. Times are in seconds."""

    step: int | None = None
    event_type: str | None = "save"
    directory: str | None = None
    reached_preemption: bool | None = False
    preemption_received_at: float | None = None
    synchronous: bool | None = False
    wait_for_prev_start_time: float | None = None
    wait_for_prev_duration_secs: float | None = None
    time_between_consecutive_saves_sec: float | None = None
    checkpointer_blocking_start_time: float | None = None
    checkpointer_blocking_duration_secs: float | None = None
    get_old_steps_start_time: float | None = None
    get_old_steps_duration_secs: float | None = None
    checkpoint_manager_blocking_start_time: float | None = None
    checkpoint_manager_blocking_duration_secs: float | None = None


def statistics_of(told: Mapping[str, Any]) -> SaveStepStatistics:
    """The record of a save from the metadata of its checkpoint, as far as it is stored."""
    names = {field.name for field in dataclasses.fields(SaveStepStatistics)}
    return SaveStepStatistics(**{name: value for name, value in told.items() if name in names})


@dataclasses.dataclass
class RestoreStepStatistics:
    step: int | None = None
    event_type: str | None = "restore"
    directory: str | None = None
    checkpointer_start_time: float | None = None
    checkpointer_duration_secs: float | None = None
    checkpoint_manager_start_time: float | None = None
    checkpoint_manager_duration_secs: float | None = None

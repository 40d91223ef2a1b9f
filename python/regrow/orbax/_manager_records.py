"""What a manager's logger is told of each save and each restore: the fields that Orbax' loggers are given."""

from __future__ import annotations

import dataclasses
import time


@dataclasses.dataclass
class SaveRecord:
    """A save: when each part of what held up the caller began, and how many seconds it took."""

    step: int
    event_type: str = "save"
    directory: str | None = None
    reached_preemption: bool = False
    preemption_received_at: float | None = None
    synchronous: bool = False
    wait_for_prev_start_time: float | None = None
    wait_for_prev_duration_secs: float | None = None
    time_between_consecutive_saves_sec: float | None = None
    checkpointer_blocking_start_time: float | None = None
    checkpointer_blocking_duration_secs: float | None = None
    get_old_steps_start_time: float | None = None
    get_old_steps_duration_secs: float | None = None
    checkpoint_manager_blocking_start_time: float = dataclasses.field(default_factory=time.time)
    checkpoint_manager_blocking_duration_secs: float | None = None

    def waits(self, last_save: float | None) -> None:
        """The wait for the save before begins."""
        self.wait_for_prev_start_time = time.time()
        if last_save is not None:
            self.time_between_consecutive_saves_sec = self.wait_for_prev_start_time - last_save

    def begins(self) -> None:
        """The save itself begins."""
        self.checkpointer_blocking_start_time = now = time.time()
        self.wait_for_prev_duration_secs = now - (self.wait_for_prev_start_time or now)

    def returns(self) -> None:
        """The caller goes on. Which steps are old is found out in the background."""
        self.get_old_steps_start_time, self.get_old_steps_duration_secs = time.time(), 0.0
        now = self.get_old_steps_start_time
        self.checkpointer_blocking_duration_secs = now - (self.checkpointer_blocking_start_time or now)
        self.checkpoint_manager_blocking_duration_secs = now - self.checkpoint_manager_blocking_start_time


@dataclasses.dataclass
class RestoreRecord:
    """A restore: when it began, and how many seconds it took."""

    step: int | None
    event_type: str = "restore"
    directory: str | None = None
    checkpointer_start_time: float = dataclasses.field(default_factory=time.time)
    checkpointer_duration_secs: float | None = None
    checkpoint_manager_start_time: float = dataclasses.field(default_factory=time.time)
    checkpoint_manager_duration_secs: float | None = None

    def returns(self) -> None:
        """The caller goes on."""
        now = time.time()
        self.checkpointer_duration_secs = now - self.checkpointer_start_time
        self.checkpoint_manager_duration_secs = now - self.checkpoint_manager_start_time

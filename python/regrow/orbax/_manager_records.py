"""Records of saves and restores for a manager's logger, with the fields of Orbax' records."""

from __future__ import annotations

import time

from .logging import RestoreStepStatistics, SaveStepStatistics


class SaveRecord(SaveStepStatistics):
    """A save: when each of its parts that blocks the caller began, and its seconds."""

    def __init__(self, step: int, *, directory: str, synchronous: bool) -> None:
        super().__init__(step, directory=directory, synchronous=synchronous)
        self._began = self.checkpoint_manager_blocking_start_time = time.time()

    def waits(self, last_save: float | None) -> None:
        """The wait for the save before begins."""
        self.wait_for_prev_start_time = time.time()
        if last_save is not None:
            self.time_between_consecutive_saves_sec = self.wait_for_prev_start_time - last_save

    def begins(self) -> None:
        self.checkpointer_blocking_start_time = now = time.time()
        self.wait_for_prev_duration_secs = now - (self.wait_for_prev_start_time or now)

    def returns(self) -> None:
        """The call returns. The choice of old steps runs in the background."""
        self.get_old_steps_start_time, self.get_old_steps_duration_secs = time.time(), 0.0
        now = self.get_old_steps_start_time
        self.checkpointer_blocking_duration_secs = now - (self.checkpointer_blocking_start_time or now)
        self.checkpoint_manager_blocking_duration_secs = now - self._began


class RestoreRecord(RestoreStepStatistics):
    """A restore: when it began, and its seconds."""

    def __init__(self, step: int | None, *, directory: str) -> None:
        super().__init__(step, directory=directory)
        self._began = self.checkpointer_start_time = self.checkpoint_manager_start_time = time.time()

    def returns(self) -> None:
        self.checkpointer_duration_secs = self.checkpoint_manager_duration_secs = time.time() - self._began

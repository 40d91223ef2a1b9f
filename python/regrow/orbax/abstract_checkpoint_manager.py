"""What every manager of steps can do."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["AbstractCheckpointManager", "RestoreParams", "SaveParams"]

SaveParams = Mapping[str, Any]
RestoreParams = Mapping[str, Any]


class AbstractCheckpointManager(Protocol):
    """The interface of `CheckpointManager`, to subclass or to annotate with."""

    @property
    @abc.abstractmethod
    def directory(self) -> Any:
        """The folder of the steps."""

    @abc.abstractmethod
    def all_steps(self, read: bool = False) -> Sequence[int]:
        """All steps."""

    @abc.abstractmethod
    def latest_step(self) -> int | None:
        """The step with the highest number."""

    @abc.abstractmethod
    def best_step(self) -> int | None:
        """The step with the best metrics."""

    @abc.abstractmethod
    def reload(self) -> None:
        """Lists the steps anew."""

    @abc.abstractmethod
    def reached_preemption(self, step: int) -> bool:
        """Whether the job is about to be ended."""

    @abc.abstractmethod
    def should_save(self, step: int) -> bool:
        """Whether a save of this step would be one."""

    @abc.abstractmethod
    def delete(self, step: int) -> None:
        """Deletes a step."""

    @abc.abstractmethod
    def save(self, step: int, *args: Any, **kwargs: Any) -> bool:
        """Saves a step; false if it is none that is saved."""

    @abc.abstractmethod
    def restore(self, step: int | None, *args: Any, **kwargs: Any) -> Any:
        """Restores a step."""

    @abc.abstractmethod
    def item_metadata(self, step: int) -> Any:
        """What is known of the items of a step."""

    @abc.abstractmethod
    def metadata(self, step: int | None = None) -> Any:
        """What a step, or the folder, says of itself."""

    @abc.abstractmethod
    def metrics(self, step: int) -> Any:
        """The metrics of a step."""

    @abc.abstractmethod
    def wait_until_finished(self) -> None:
        """Waits for saves in the background."""

    @abc.abstractmethod
    def check_for_errors(self) -> None:
        """Raises what went wrong in the background."""

    @abc.abstractmethod
    def close(self) -> None:
        """Waits, and lets go of everything."""

"""The interface of all managers of steps."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

SaveParams = Mapping[str, Any]
RestoreParams = Mapping[str, Any]


class AbstractCheckpointManager(Protocol):
    """The interface of `CheckpointManager`, for subclasses and annotations."""

    @property
    @abc.abstractmethod
    def directory(self) -> Any: ...

    @abc.abstractmethod
    def all_steps(self, read: bool = False) -> Sequence[int]: ...

    @abc.abstractmethod
    def latest_step(self) -> int | None: ...

    @abc.abstractmethod
    def best_step(self) -> int | None: ...

    @abc.abstractmethod
    def reload(self) -> None: ...

    @abc.abstractmethod
    def reached_preemption(self, step: int) -> bool: ...

    @abc.abstractmethod
    def should_save(self, step: int) -> bool: ...

    @abc.abstractmethod
    def delete(self, step: int) -> None: ...

    @abc.abstractmethod
    def save(self, step: int, *args: Any, **kwargs: Any) -> bool: ...

    @abc.abstractmethod
    def restore(self, step: int | None, *args: Any, **kwargs: Any) -> Any: ...

    @abc.abstractmethod
    def item_metadata(self, step: int) -> Any: ...

    @abc.abstractmethod
    def metadata(self, step: int | None = None) -> Any: ...

    @abc.abstractmethod
    def metrics(self, step: int) -> Any: ...

    @abc.abstractmethod
    def wait_until_finished(self) -> None: ...

    @abc.abstractmethod
    def check_for_errors(self) -> None: ...

    @abc.abstractmethod
    def close(self) -> None: ...

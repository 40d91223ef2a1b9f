"""The metadata of a checkpoint, in v1's form."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, Generic, TypeVar

T = TypeVar("T")

PyTreeMetadata = Any
"""A tree of the metadata of the leaves: `arrays.ArrayMetadata`, numbers, text."""


def _time(nsecs: int | None) -> datetime.datetime | None:
    return None if nsecs is None else datetime.datetime.fromtimestamp(nsecs / 1e9, tz=datetime.UTC)


class CheckpointMetadata(Generic[T]):
    """The metadata of a checkpoint: ``.metadata`` is a tree of shapes, or a dict of trees."""

    def __init__(
        self,
        path: Any = None,
        *,
        metadata: T,
        init_timestamp_nsecs: int | None = None,
        commit_timestamp_nsecs: int | None = None,
        custom_metadata: Any = None,
    ) -> None:
        self._path = path
        self._metadata = metadata
        self._times = init_timestamp_nsecs, commit_timestamp_nsecs
        self._custom_metadata = custom_metadata

    @property
    def path(self) -> Any:
        return self._path

    @property
    def metadata(self) -> T:
        return self._metadata

    @property
    def init_timestamp_nsecs(self) -> int | None:
        """When the save began, in nanoseconds since 1970."""
        return self._times[0]

    @property
    def commit_timestamp_nsecs(self) -> int | None:
        """When the checkpoint was committed, in nanoseconds since 1970."""
        return self._times[1]

    @property
    def init_timestamp(self) -> datetime.datetime | None:
        """When the save began."""
        return _time(self._times[0])

    @property
    def commit_timestamp(self) -> datetime.datetime | None:
        """When the checkpoint was committed."""
        return _time(self._times[1])

    @property
    def custom_metadata(self) -> Any:
        return self._custom_metadata

    def _told(self) -> dict[str, Any]:
        names = ("metadata", "init_timestamp_nsecs", "commit_timestamp_nsecs", "custom_metadata")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"CheckpointMetadata({self._told()})"


class StepMetadata(CheckpointMetadata[T]):
    """The metadata of a step, with its number and metrics."""

    def __init__(
        self,
        step: int,
        path: Any = None,
        *,
        metadata: T = None,  # type: ignore[assignment]
        init_timestamp_nsecs: int | None = None,
        commit_timestamp_nsecs: int | None = None,
        custom_metadata: Any = None,
        metrics: Any = None,
    ) -> None:
        super().__init__(
            path,
            metadata=metadata,
            init_timestamp_nsecs=init_timestamp_nsecs,
            commit_timestamp_nsecs=commit_timestamp_nsecs,
            custom_metadata=custom_metadata,
        )
        self._step = step
        self._metrics = metrics

    @property
    def step(self) -> int:
        return self._step

    @property
    def metrics(self) -> Any:
        return self._metrics

    @property
    def time(self) -> datetime.datetime | None:
        """When the step was committed."""
        return self.commit_timestamp

    def _told(self) -> dict[str, Any]:
        return {"step": self.step, **super()._told(), "metrics": self.metrics}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RootMetadata:
    """The metadata of a folder of steps."""

    directory: Any
    custom_metadata: Any = None

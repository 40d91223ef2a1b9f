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


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CheckpointMetadata(Generic[T]):
    """The metadata of a checkpoint: ``.metadata`` is a tree of shapes, or a dict of trees."""

    path: Any = None
    _: dataclasses.KW_ONLY
    metadata: T
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None
    custom_metadata: Any = None

    @property
    def init_timestamp(self) -> datetime.datetime | None:
        """When the save began."""
        return _time(self.init_timestamp_nsecs)

    @property
    def commit_timestamp(self) -> datetime.datetime | None:
        """When the checkpoint was committed."""
        return _time(self.commit_timestamp_nsecs)

    def __repr__(self) -> str:
        told = {name: value for name, value in vars(self).items() if name != "path"}
        return f"CheckpointMetadata({told})"


class StepMetadata(CheckpointMetadata[T]):
    step: int
    metrics: Any

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
        given = locals()
        self.__dict__.update((name, given[name]) for name in given if name not in ("self", "__class__"))

    @property
    def time(self) -> datetime.datetime | None:
        return self.commit_timestamp


@dataclasses.dataclass(frozen=True, kw_only=True)
class RootMetadata:
    directory: Any
    custom_metadata: Any = None

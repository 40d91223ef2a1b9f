"""Several processes that save and load together, and how they exchange messages."""

from __future__ import annotations

from ._async import AsyncSaver
from ._coordination import Coordinator, Folder, coordinator
from ._executors import Executor, ray_executor
from ._job import Job
from ._sharded import ShardedArray
from ._single_replica import SingleReplica

__all__ = [
    "AsyncSaver",
    "Coordinator",
    "Executor",
    "Folder",
    "Job",
    "ShardedArray",
    "SingleReplica",
    "coordinator",
    "ray_executor",
]

"""Several processes that save and load together, and how they exchange messages."""

from __future__ import annotations

from ._jax._single_replica import SingleReplica
from ._jobs._coordination import Coordinator, Folder, coordinator
from ._jobs._job import Job
from ._leaves._sharded import ShardedArray
from ._operations._executors import Executor, ray_executor
from ._save._async import AsyncSaver

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

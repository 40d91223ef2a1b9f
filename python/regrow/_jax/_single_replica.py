"""The choice of the replica that reads for the others."""

from __future__ import annotations

from typing import Any

from .._core import _arguments
from .._core._record import Record


class SingleReplica(Record, kw_only=False, frozen=True):
    """Which replica of a mesh reads for the others, for `regrow.load`.

    A mesh of devices ``("data", "model")`` has as many replicas of a model as ``data`` is long. All
    replicas hold the same shards of an array that is not divided along ``data``: the processes of
    one replica read them, the others receive them over the network of the accelerators. Each
    process reads arrays that are divided along ``data``, and leaves that are no `jax.Array`, for
    itself.

        replica = regrow.jobs.SingleReplica("data")
        options = regrow.Options(single_replica=replica)
        regrow.load(path, like=state, options=options)

    In Orbax' words these are `replica_axis_index`, `primary_replica_id` and
    `broadcast_memory_limit_bytes` of `SingleReplicaArrayHandler`.
    """

    axis: str | int = 0
    """The axis of the mesh along which replicas lie: its name, or its number."""
    replica: int = 0
    """The replica that reads, counted along the axis."""
    memory_limit_bytes: int | None = None
    """Memory of each device that broadcasts may take beyond the result; 256 MiB if `None`. A reader
    takes half as much of the host's for each of its devices. An array whose shards need more is
    broadcast alone."""


def chosen(single_replica: Any) -> SingleReplica | None:
    """The caller's choice, checked as far as possible without a mesh."""
    if single_replica is None:
        return None
    if not isinstance(single_replica, SingleReplica):
        raise _arguments.wrong("single_replica", single_replica, "a regrow.jobs.SingleReplica, or None")
    axis, replica, limit = single_replica.axis, single_replica.replica, single_replica.memory_limit_bytes
    if not isinstance(axis, str) and _arguments.count("axis", axis) is None:
        raise _arguments.wrong("axis", axis, "the name of an axis of the mesh, or its number")
    if _arguments.count("replica", replica) is None:
        raise _arguments.wrong("replica", replica, "a number of at least 0")
    if _arguments.count("memory_limit_bytes", limit) == 0:
        raise _arguments.wrong("memory_limit_bytes", limit, "a number of bytes, or None")
    return single_replica

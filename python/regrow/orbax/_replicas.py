"""Restores in which one replica reads for the others, as Orbax' callers ask for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._single_replica import SingleReplica
from ._jax import jax
from ._type_handlers import SingleReplicaArrayHandler
from ._type_registry import array_handler


def chosen(registry: Any, restore_args: Iterable[Any]) -> SingleReplica | None:
    """Which replica reads: what the handler of JAX arrays says, or else the first args of a leaf that say something.

    `None` if every process reads for itself: without that handler, without `SingleReplicaArrayRestoreArgs`, and where
    there is one process.
    """
    handler = array_handler(registry)
    if type(handler).__name__ != SingleReplicaArrayHandler.__name__ or jax.process_count() == 1:
        return None
    args = [each for each in restore_args if hasattr(each, "single_replica_sharding")]
    if not args:
        return None

    def said(name: str, default: Any) -> Any:
        given = (getattr(each, name, None) for each in args)
        return next((value for value in given if value is not None), default)

    axis = said("replica_axis_index", handler.replica_axis_index)
    replica = said("primary_replica_id", handler.primary_replica_id)
    return SingleReplica(axis or 0, replica or 0, handler.broadcast_memory_limit_bytes)


def of_round(replica: SingleReplica | None, likes: Iterable[Any]) -> SingleReplica | None:
    """The same, if there is an array that several replicas hold alike: else there is nothing to send."""
    if replica is None:
        return None
    return replica if any(_is_alike(replica, like) for like in likes) else None


def _is_alike(replica: SingleReplica, like: Any) -> bool:
    sharding = getattr(like, "sharding", None)
    if not isinstance(sharding, jax.sharding.NamedSharding) or not isinstance(replica.axis, int):
        return False
    names = sharding.mesh.axis_names
    if replica.axis >= len(names) or sharding.mesh.devices.shape[replica.axis] == 1:
        return False
    cut = [name for entry in sharding.spec for name in (entry if isinstance(entry, tuple) else (entry,))]
    return names[replica.axis] not in cut

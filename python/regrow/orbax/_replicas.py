"""One replica reads arrays for the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._core._duck import is_a, own_attribute
from .._jax._single_replica import SingleReplica
from ._jax import jax
from .type_handlers import SingleReplicaArrayHandler, array_handler


def chosen(registry: Any, restore_args: Iterable[Any]) -> SingleReplica | None:
    """The replica that reads, of the handler and args; `None` if each process reads for itself."""
    handler = array_handler(registry)
    if type(handler).__name__ != SingleReplicaArrayHandler.__name__ or jax.process_count() == 1:
        return None
    args = [each for each in restore_args if is_a(each, "SingleReplicaArrayRestoreArgs")]
    if not args:
        return None

    def said(name: str, default: Any) -> Any:
        given = (getattr(each, name, None) for each in args)
        return next((value for value in given if value is not None), default)

    axis = said("replica_axis_index", handler.replica_axis_index)
    replica = said("primary_replica_id", handler.primary_replica_id)
    return SingleReplica(axis or 0, replica or 0, handler.broadcast_memory_limit_bytes)


def of_loading(loading: Any) -> SingleReplica | None:
    """The replica that reads, from the loading options of v1."""
    if not getattr(loading, "use_load_and_broadcast", False) or jax.process_count() == 1:
        return None
    options = loading.load_and_broadcast_options
    said = (getattr(options, name, None) for name in ("replica_axis_index", "primary_replica_id"))
    axis, replica = (value or 0 for value in said)
    return SingleReplica(axis, replica, getattr(options, "broadcast_memory_limit_bytes", None))


def of_round(replica: SingleReplica | None, likes: Iterable[Any]) -> SingleReplica | None:
    """The replica that reads, if several replicas hold the same array."""
    if replica is None:
        return None
    return replica if any(_is_common(replica, like) for like in likes) else None


def _is_common(replica: SingleReplica, like: Any) -> bool:
    sharding = own_attribute(like, "sharding")
    if not isinstance(sharding, jax.sharding.NamedSharding) or not isinstance(replica.axis, int):
        return False
    names = sharding.mesh.axis_names
    if replica.axis >= len(names) or sharding.mesh.devices.shape[replica.axis] == 1:
        return False
    cut = [name for entry in sharding.spec for name in (entry if isinstance(entry, tuple) else (entry,))]
    return names[replica.axis] not in cut

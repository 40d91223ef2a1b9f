"""The processes of a job, under Orbax' names."""

from __future__ import annotations

from typing import Any

from .._jobs._preemption import jax_says
from ._errors import refusing
from ._jax import jax

__getattr__ = refusing(
    __name__,
    (
        "BarrierSyncFn get_barrier_sync_fn initialize_runtime_to_distributed_ids "
        "is_runtime_to_distributed_ids_initialized multislice",
        "use jax.distributed: the engine has its own barrier",
    ),
)


_barriers: dict[str, int] = {}


def barrier(name: str, timeout_secs: int) -> None:
    """Waits for all processes of the job; returns at once if there is only one."""
    if jax.process_count() == 1:
        return
    from jax._src import distributed

    count = _barriers[name] = _barriers.get(name, 0) + 1
    client = distributed.global_state.client
    if client is not None:
        client.wait_at_barrier(f"regrow.orbax:{name}:{count}", timeout_in_ms=timeout_secs * 1000)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """The arrays of one process (0 by default), in all processes."""
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(in_tree, is_source=is_source)


def process_index() -> int:
    return int(jax.process_index())


def process_count() -> int:
    return int(jax.process_count())


def is_primary_host(primary_host: int | None = 0) -> bool:
    """Whether this process has that index; with `None`, true in every process."""
    return primary_host is None or primary_host == jax.process_index()


def is_jax_distributed_client_initialized() -> bool:
    """Whether this process belongs to a job of several processes."""
    from jax._src import distributed

    return distributed.global_state.client is not None


def sync_global_processes(
    name: str,
    *,
    timeout: int | None = None,
    processes: Any = None,
    barrier_sync_fn: Any = None,
    record_event_name: str = "/jax/checkpoint/sync_global_devices_duration_sec",
) -> None:
    barrier(name, timeout or 300)


def reached_preemption(step: int) -> bool:
    """Whether JAX' preemption service asks for a save at this step; false if the service is off."""
    return jax_says(step)

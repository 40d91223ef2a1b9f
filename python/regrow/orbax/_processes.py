"""The processes of a job: which one commits, and where they wait for each other."""

from __future__ import annotations

from ._jax import jax

_barriers: dict[str, int] = {}


def is_primary() -> bool:
    """Whether this process commits."""
    return bool(jax.process_index() == 0)


def barrier(name: str, timeout_secs: int) -> None:
    """Waits for all processes of the job; returns at once if there is only one."""
    if jax.process_count() == 1:
        return
    from jax._src import distributed

    count = _barriers[name] = _barriers.get(name, 0) + 1
    client = distributed.global_state.client
    if client is not None:
        client.wait_at_barrier(f"regrow.orbax:{name}:{count}", timeout_in_ms=timeout_secs * 1000)

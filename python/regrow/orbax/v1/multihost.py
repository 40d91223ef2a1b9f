"""The processes of a job."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from .. import multihost as _all
from .._jax import jax
from ..multihost import broadcast_one_to_all as broadcast_one_to_all
from ..multihost import is_primary_host as is_primary_host
from ..multihost import process_count as process_count
from ..multihost import process_index as process_index


def is_pathways_backend() -> bool:
    client = jax.devices()[0].client
    return hasattr(client, "pathways") or getattr(client, "runtime_type", "") in ("pathways", "proxy/pathways")


async def sync_global_processes(
    key: str,
    *,
    operation_id: str,
    timeout: int | None = None,
    processes: Collection[int] | None = None,
    record_event_name: str = "/jax/checkpoint/sync_global_devices_duration_sec",
) -> None:
    if timeout is not None and timeout <= 0:
        raise ValueError(f"timeout: expected a positive number of seconds, found {timeout}")
    await asyncio.to_thread(_all.sync_global_processes, f"{operation_id}:{key}", timeout=timeout)


def unique_barrier_key(key: str, *, prefix: str | None = None, suffix: str | None = None) -> str:
    key = key if prefix is None else f"{prefix}_{key}"
    return key if suffix is None else f"{key}.{suffix}"

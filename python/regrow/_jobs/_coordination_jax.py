"""JAX's coordination service: the key-value store of `jax.distributed`.

JAX has no public name for the store. If a JAX lacks the private client, regrow raises an error.
Rank 0 runs the service, so the job ends with the process of rank 0.

Values pass by gRPC, whose messages are at most 4 MB. A key takes 0.3 ms; a folder of a thousand
keys takes little longer. A blocking get with a timeout of zero gives up before the answer arrives,
so a `get` that does not wait calls `key_value_try_get_bytes`. Without `jax_enable_recoverability`
JAX aborts all processes when one process has died. With this option, `live` lists the live
processes.
"""

from __future__ import annotations

import posixpath
import sys
import threading
import time
from typing import Any

from .._errors import UnsupportedError, failure

NEEDED = ("key_value_set_bytes", "key_value_try_get_bytes", "blocking_key_value_get_bytes", "key_value_delete")
LIVE_FOR_SECONDS = 5.0
"""The oldest answer of JAX about live processes that still counts."""


class JaxCoordinator:
    """The processes of `jax.distributed.initialize`."""

    value_len_max_bytes = 3 << 20

    def __init__(self, client: Any, rank: int, size: int, knows_live: bool) -> None:
        missing = [name for name in NEEDED if not hasattr(client, name)]
        if missing:
            raise _changed(f"its client lacks {', '.join(missing)}")
        self.rank = rank
        self.size = size
        self._client = client
        self._get_folder = getattr(client, "key_value_dir_get_bytes", None)
        self._living = _Living(client, size) if knows_live and hasattr(client, "get_live_nodes") else None

    def put_if_absent(self, key: str, value: bytes) -> bool:
        try:
            self._client.key_value_set_bytes(key, value)
        except Exception as error:
            if _is(error, "ALREADY_EXISTS"):
                return False
            raise
        return True

    def get(self, key: str, wait: float) -> bytes | None:
        try:
            if wait <= 0:
                return bytes(self._client.key_value_try_get_bytes(key))
            return bytes(self._client.blocking_key_value_get_bytes(key, max(1, int(wait * 1000))))
        except Exception as error:
            if _is(error, "DEADLINE_EXCEEDED") or _is(error, "NOT_FOUND"):
                return None
            raise

    def get_many(self, keys: list[str]) -> dict[str, bytes] | None:
        if self._get_folder is None:
            return None
        folder = posixpath.commonpath(keys)
        wanted = set(keys)
        try:
            there = self._get_folder(folder)
        except Exception as error:
            if _is(error, "NOT_FOUND"):
                return {}
            # The values together exceed the limit of a message. One by one they fit.
            if _is(error, "RESOURCE_EXHAUSTED"):
                return None
            raise
        return {key: bytes(value) for key, value in there if key in wanted}

    def remove(self, key: str) -> None:
        # This also deletes the keys below this key.
        self._client.key_value_delete(key)

    def live(self) -> list[int] | None:
        return self._living.ranks() if self._living is not None else None


class _Living:
    """The live processes, according to JAX.

    `get_live_nodes` is a barrier: it returns when every live process has called it. So one thread
    at a time calls it, only during long waits. The answer arrives when all live processes wait.
    """

    def __init__(self, client: Any, size: int) -> None:
        self._client = client
        self._size = size
        self._lock = threading.Lock()
        self._asking = False
        self._answer: tuple[float, list[int]] | None = None

    def ranks(self) -> list[int] | None:
        with self._lock:
            if self._answer is not None:
                when, ranks = self._answer
                self._answer = None
                if time.monotonic() - when < LIVE_FOR_SECONDS:
                    return ranks
            if not self._asking:
                self._asking = True
                threading.Thread(target=self._ask, name="regrow-live", daemon=True).start()
        return None

    def _ask(self) -> None:
        try:
            ranks = sorted(self._client.get_live_nodes(list(range(self._size))))
        except Exception:
            # The service is gone. A waiting process notices this when it asks for a key.
            ranks = None
        with self._lock:
            self._asking = False
            self._answer = (time.monotonic(), ranks) if ranks is not None else None


def find() -> JaxCoordinator | None:
    """The coordinator, if `jax.distributed` has more than one process.

    Raises:
        UnsupportedError: if there are several processes, and no way to their service.
    """
    jax: Any = sys.modules["jax"]
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    client = getattr(state, "client", None)
    if client is not None and state is not None:
        size = state.num_processes or 1
        return None if size == 1 else JaxCoordinator(client, state.process_id, size, _is_recoverable())
    # Without this check, each process would consider itself the only one, and all would write to
    # the same path.
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if is_initialized is not None and is_initialized():
        raise _changed("it has no client")
    if _has_devices() and jax.process_count() > 1:
        help = "call jax.distributed.initialize(), or give regrow.jobs.Folder(path, rank=, size=)"
        raise failure(
            UnsupportedError,
            f"this job has {jax.process_count()} processes of JAX and no coordination service",
            help=help,
        )
    return None


def _has_devices() -> bool:
    """Whether JAX has already looked for devices. Asking for the number of processes would make JAX
    look for them.
    """
    has_looked = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    return has_looked is not None and bool(has_looked())


def _changed(what: str) -> UnsupportedError:
    help = "give regrow.jobs.Folder(path, rank=, size=) as the coordinator, and report this version of JAX"
    return failure(UnsupportedError, f"the coordination service of JAX {_version()} is not known: {what}", help=help)


def _is_recoverable() -> bool:
    config = getattr(sys.modules.get("jax"), "config", None)
    return bool(getattr(config, "jax_enable_recoverability", False))


def _is(error: Exception, status: str) -> bool:
    """Whether an error of the client has this gRPC status."""
    return str(error).startswith(status)


def _version() -> str:
    return str(getattr(sys.modules.get("jax"), "__version__", "unknown"))

"""torch's store: the store under `torch.distributed`, or a `TCPStore` of the caller.

Calls are short: a `wait` would block the one connection, which torch itself needs.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from typing import Any

TOKEN_LEN_BYTES = 16
PAYLOAD_LEN_MAX_BYTES = 8 << 20
"""The most bytes that a `TCPStore` takes at once; with one more it closes the connection."""
LOOKS_SECONDS = (0.001, 0.05)
"""The time before the second look at the store, and the longest time between two looks."""


class TorchCoordinator:
    """The processes that share a store of torch."""

    value_len_max_bytes = PAYLOAD_LEN_MAX_BYTES - TOKEN_LEN_BYTES

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._known: set[str] = set()

    def put_if_absent(self, key: str, value: bytes) -> bool:
        # The store answers with its current value. A token distinguishes our value from an equal
        # value of another process.
        mine = secrets.token_bytes(TOKEN_LEN_BYTES) + value
        held = self._store.compare_set(key, "", mine)
        self._known.add(key)
        return bytes(held) == mine

    def get(self, key: str, wait: float) -> bytes | None:
        until = time.monotonic() + wait
        pause, longest = LOOKS_SECONDS
        while not self._store.check([key]):
            left = until - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(pause * 2, longest)
        self._known.add(key)
        return bytes(self._store.get(key))[TOKEN_LEN_BYTES:]

    def get_many(self, keys: list[str]) -> dict[str, bytes] | None:
        get = getattr(self._store, "multi_get", None)
        if get is None:
            return None
        # A `get` would wait for missing keys, so ask only if all keys exist.
        if not self._store.check(keys):
            return {}
        self._known.update(keys)
        return {key: bytes(value)[TOKEN_LEN_BYTES:] for key, value in zip(keys, get(keys), strict=True)}

    def remove(self, key: str) -> None:
        # Some stores cannot list their keys, or list other names. So also delete the keys that this
        # process has put or read.
        keys = set(self._known)
        with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
            keys.update(self._store.list_keys())
        for found in keys:
            if found == key or found.startswith(f"{key}/"):
                self._store.delete_key(found)
                self._known.discard(found)

    def live(self) -> list[int] | None:
        return None


def find() -> TorchCoordinator | None:
    """The coordinator, if `torch.distributed` is initialised with more than one process."""
    distributed: Any = sys.modules["torch.distributed"]
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return None
    store = distributed.distributed_c10d._get_default_store()
    return TorchCoordinator(store, distributed.get_rank(), distributed.get_world_size())

"""Reports to a context's `serialization_status_callback`: each array that was copied, and
written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._jax import jax


class Status:
    """The arrays of one save."""

    def __init__(self, callback: Any, checkpointables: Mapping[str, Any]) -> None:
        self._callback = callback
        self._to_transfer: list[Any] = []
        self._paths: list[Any] = []
        for value in checkpointables.values() if callback is not None else ():
            flat, _ = jax.tree_util.tree_flatten_with_path(value)
            self._paths += [path for path, leaf in flat if isinstance(leaf, jax.Array)]
        self._to_transfer = list(self._paths)

    def transfer(self) -> None:
        """All arrays have been copied, and may change."""
        for path in self._to_transfer:
            self._callback.on_transfer_end(path)
        self._to_transfer = []

    def end(self) -> None:
        """The save has been committed."""
        self.transfer()
        for path in self._paths:
            self._callback.on_write_end(path)

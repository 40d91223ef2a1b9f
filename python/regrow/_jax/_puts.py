"""Makes thousands of JAX arrays from host memory.

JAX' public functions check their arguments in each call. For small arrays the check takes longer
than the rest. A public function makes the first array of each kind (sharding, shape, dtype), and
raises an error for wrong arguments. A private function of JAX makes all others of that kind. If JAX
lacks the private function, the public function makes all arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core._duck import has
from .._load._regions import box_of


class _Kind(NamedTuple):
    """The facts of the first array of a kind."""

    description: Any
    sharding: Any
    devices: list[Any]
    is_committed: bool


class Puts:
    """Arrays put on devices."""

    def __init__(self) -> None:
        self._jax: Any = sys.modules["jax"]
        self._put: Any = getattr(sys.modules.get("jaxlib._jax"), "batched_device_put", None)
        self._kinds: dict[tuple[Any, ...], _Kind] = {}

    def one(self, array: Any, sharding: Any) -> Any:
        """An array on one device. If `sharding` is `None`: on JAX' default device, uncommitted."""
        kind = (sharding, array.shape, array.dtype)
        if (known := self._kinds.get(kind)) is not None:
            return self._put(known.description, known.sharding, [array], known.devices, known.is_committed)
        made = self._jax.device_put(array, sharding)
        self._keep(kind, made, list(made.devices()))
        return made

    def spread(self, shape: tuple[int, ...], sharding: Any, devices: list[Any], parts: Sequence[Any]) -> Any:
        """An array from the parts of these devices. The devices are in the order of the sharding."""
        kind = (sharding, shape, parts[0].dtype)
        if (known := self._kinds.get(kind)) is not None:
            return self._put(known.description, known.sharding, parts, known.devices, known.is_committed)
        indices = sharding.addressable_devices_indices_map(shape).values()
        by_box = {box_of(index, shape): part for index, part in zip(indices, parts, strict=True)}
        made = self._jax.make_array_from_callback(shape, sharding, lambda index: by_box[box_of(index, shape)])
        self._keep(kind, made, devices)
        return made

    def as_weak(self, array: Any) -> Any:
        """The same array with a weak type: in computations, the dtypes of other arrays take
        precedence. The result shares the memory of `array`. If JAX lacks the private function, the
        result is `array`.
        """
        shards = array.addressable_shards
        if self._put is None or not shards or not has(array, "aval"):
            return array
        description = array.aval.update(weak_type=True)
        parts, devices = [shard.data for shard in shards], [shard.device for shard in shards]
        return self._put(description, array.sharding, parts, devices, bool(array.committed))

    def _keep(self, kind: tuple[Any, ...], made: Any, devices: list[Any]) -> None:
        if self._put is not None and has(made, "aval", "committed"):
            self._kinds[kind] = _Kind(made.aval, made.sharding, devices, bool(made.committed))

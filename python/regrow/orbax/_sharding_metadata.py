"""How saved arrays were distributed over devices, converted from and to shardings of JAX."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from ._jax import jax


@dataclasses.dataclass
class DeviceMetadata:
    id: int

    @classmethod
    def from_jax_device(cls, device: Any) -> Self:
        return cls(int(device.id))


@dataclasses.dataclass
class DeviceMetadataMesh:
    """Devices in nested lists, with the shape of a mesh."""

    mesh: Any

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(_map_nested(data["mesh"], lambda stored: DeviceMetadata(int(stored["id"]))))

    @classmethod
    def from_jax_mesh(cls, mesh: Any) -> Self:
        return cls(_map_nested(mesh.devices.tolist(), DeviceMetadata.from_jax_device))

    def ids(self) -> list[int]:
        """The ids of the devices, in order."""
        found: list[int] = []
        _map_nested(self.mesh, lambda device: found.append(device.id))
        return found


def _map_nested(node: Any, function: Any) -> Any:
    return [_map_nested(part, function) for part in node] if isinstance(node, list) else function(node)


@dataclasses.dataclass
class ShardingMetadata:
    """How a saved array was distributed over devices."""

    @classmethod
    def from_jax_sharding(cls, jax_sharding: Any) -> ShardingMetadata:
        raise NotImplementedError

    @classmethod
    def from_deserialized_dict(cls, deserialized_dict: Mapping[str, Any]) -> ShardingMetadata:
        raise NotImplementedError

    def to_jax_sharding(self) -> Any:
        raise NotImplementedError

    def to_serialized_string(self) -> str:
        raise NotImplementedError


@dataclasses.dataclass
class SingleDeviceShardingMetadata(ShardingMetadata):
    device_str: str

    @classmethod
    def from_jax_sharding(cls, jax_sharding: Any) -> Self:
        return cls(str(next(iter(jax_sharding.device_set))))

    @classmethod
    def from_deserialized_dict(cls, deserialized_dict: Mapping[str, Any]) -> Self:
        return cls(str(deserialized_dict.get("device_str")))

    def to_jax_sharding(self) -> Any:
        """The sharding on that device, else on the first: a checkpoint loads on any machine."""
        local = jax.local_devices()
        found = next((device for device in local if _as_now(str(device)) == _as_now(self.device_str)), local[0])
        return jax.sharding.SingleDeviceSharding(found)

    def to_serialized_string(self) -> str:
        return json.dumps({"sharding_type": "SingleDeviceSharding", "device_str": self.device_str})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SingleDeviceShardingMetadata) and _as_now(self.device_str) == _as_now(other.device_str)


def _as_now(device_str: str) -> str:
    """The name of a device in the form of JAX 0.10 and later."""
    return device_str.replace("TFRT_CPU_", "cpu:")


@dataclasses.dataclass
class NamedShardingMetadata(ShardingMetadata):
    shape: Any
    axis_names: list[str]
    partition_spec: tuple[Any, ...]
    axis_types: tuple[Any, ...] | None = None
    device_mesh: DeviceMetadataMesh | None = None

    @classmethod
    def from_jax_sharding(cls, jax_sharding: Any) -> Self:
        mesh = jax_sharding.mesh
        devices = DeviceMetadataMesh.from_jax_mesh(mesh)
        shape = np.array(list(mesh.shape.values()))
        return cls(shape, list(mesh.axis_names), tuple(jax_sharding.spec), tuple(mesh.axis_types), devices)

    @classmethod
    def from_deserialized_dict(cls, deserialized_dict: Mapping[str, Any]) -> Self:
        told = deserialized_dict
        types = {str(kind): kind for kind in jax.sharding.AxisType}
        stored = told.get("axis_types")
        return cls(
            np.array(told["shape"]),
            list(told["axis_names"]),
            tuple(told["partition_spec"]),
            tuple(types[name] for name in stored) if stored and all(name in types for name in stored) else None,
            DeviceMetadataMesh.from_dict(told["device_mesh"]) if told.get("device_mesh") else None,
        )

    def to_jax_sharding(self) -> Any:
        """The sharding on the same devices, else on the first as many devices, else on one."""
        sizes = tuple(map(int, self.shape))
        count, by_id = int(np.prod(sizes)), {device.id: device for device in jax.devices()}
        ids = [] if self.device_mesh is None else self.device_mesh.ids()
        if len(ids) == count and all(at in by_id for at in ids):
            devices = [by_id[at] for at in ids]
        elif count <= jax.device_count():
            devices = jax.devices()[:count]
        else:
            return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        mesh = jax.sharding.Mesh(np.array(devices).reshape(sizes), tuple(self.axis_names), axis_types=self.axis_types)
        spec = (tuple(entry) if isinstance(entry, list) else entry for entry in self.partition_spec)
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))

    def to_serialized_string(self) -> str:
        told: dict[str, Any] = {
            "sharding_type": "NamedSharding",
            "shape": self.shape.tolist(),
            "axis_names": self.axis_names,
        }
        if self.axis_types is not None:
            told["axis_types"] = [str(kind) for kind in self.axis_types]
        told["partition_spec"] = self.partition_spec
        if self.device_mesh is not None:
            told["device_mesh"] = dataclasses.asdict(self.device_mesh)
        return json.dumps(told)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, NamedShardingMetadata)
            and np.array_equal(self.shape, other.shape)
            and self.axis_names == other.axis_names
            and self.axis_types == other.axis_types
            and self.partition_spec == other.partition_spec
            and self.device_mesh == other.device_mesh
        )


_KINDS: dict[str, type[ShardingMetadata]] = {
    "NamedSharding": NamedShardingMetadata,
    "SingleDeviceSharding": SingleDeviceShardingMetadata,
}


def sharding_from_json(told: Any) -> ShardingMetadata | None:
    """The sharding of one leaf in `_sharding`; `None` for kinds that cannot be converted."""
    kind = _KINDS.get(told.get("sharding_type", "")) if isinstance(told, Mapping) else None
    return None if kind is None else kind.from_deserialized_dict(told)


def from_serialized_string(serialized_str: str) -> ShardingMetadata:
    told = json.loads(serialized_str)
    found = sharding_from_json(told)
    if found is None:
        raise NotImplementedError(f"Conversion for {told.get('sharding_type')} has not been implemented.")
    return found


def from_jax_sharding(jax_sharding: Any) -> ShardingMetadata | None:
    """The stored form of a sharding of JAX; `None`, with a warning, for kinds that have none."""
    kind = _KINDS.get(type(jax_sharding).__name__)
    if kind is None:
        logging.getLogger("regrow.orbax").warning("Conversion for %s has not been implemented.", type(jax_sharding))
        return None
    return kind.from_jax_sharding(jax_sharding)

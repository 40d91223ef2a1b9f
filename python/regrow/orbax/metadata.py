"""The metadata of checkpoints and their leaves, under Orbax' names."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from .. import _errors
from ._errors import refusing
from ._jax import jax
from ._paths import as_path, read_json
from .logging import SaveStepStatistics, statistics_of

__getattr__ = refusing(__name__, ("ValueMetadataEntry", "see ArrayMetadata, ScalarMetadata and StringMetadata"))

CompositeItemMetadata = dict[str, Any]
SerializedMetadata = dict[str, Any]
StepStatistics = SaveStepStatistics
SingleItemMetadata = Any


@dataclasses.dataclass
class PyTreeMetadataOptions:
    """Whether the names of the containers' classes are also stored."""

    support_rich_types: bool = False


PYTREE_METADATA_OPTIONS = PyTreeMetadataOptions()


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


@dataclasses.dataclass
class StorageMetadata:
    """How an array is divided into chunks and shards."""

    chunk_shape: tuple[int, ...] | None
    write_shape: tuple[int, ...] | None = None
    zarr_metadata: Any = dataclasses.field(default=None, compare=False, repr=False)


@dataclasses.dataclass
class Metadata:
    name: str
    directory: Any


@dataclasses.dataclass
class ArrayMetadata(Metadata):
    shape: tuple[int, ...]
    sharding: ShardingMetadata | None
    dtype: Any
    storage: StorageMetadata | None = None

    def __eq__(self, other: object) -> bool:
        # As in Orbax, the name and the folder do not count.
        return (
            isinstance(other, ArrayMetadata)
            and (self.shape, self.dtype) == (other.shape, other.dtype)
            and (self.sharding, self.storage) == (other.sharding, other.storage)
        )

    @classmethod
    def from_shape_dtype_struct(cls, s: Any, name: str | None = None, directory: Any = None) -> ArrayMetadata:
        return cls(name or "", directory, s.shape, s.sharding, s.dtype)


@dataclasses.dataclass
class ScalarMetadata(ArrayMetadata):
    shape: tuple[int, ...] = ()
    sharding: ShardingMetadata | None = None
    dtype: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScalarMetadata) and bool(self.dtype == other.dtype)


@dataclasses.dataclass
class StringMetadata(Metadata):
    """The metadata of a text."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StringMetadata)


@jax.tree_util.register_pytree_with_keys_class
class TreeMetadata(Mapping[str, Any]):
    """The metadata of a pytree: a mapping with its structure, and a pytree of its leaves."""

    def __init__(self, tree: Any, custom_metadata: Any = None, use_zarr3: bool = False) -> None:
        self.tree = tree
        """The tree, with the metadata of its leaves."""
        self.custom_metadata = custom_metadata
        """The caller's own metadata, saved with the pytree."""
        self.use_zarr3 = use_zarr3

    @classmethod
    def build(cls, tree: Any, *, custom_metadata: Any = None, **_: Any) -> TreeMetadata:
        return cls(tree, custom_metadata)

    def __getitem__(self, key: Any) -> Any:
        return self.tree[key]

    def get(self, key: Any, default: Any = None) -> Any:
        """The child at a key or an index; `default` if there is none."""
        try:
            return self.tree[key]
        except (KeyError, IndexError):
            return default

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tree)

    def __len__(self) -> int:
        return len(self.tree)

    def __contains__(self, key: object) -> bool:
        return key in self.tree

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeMetadata) and self.tree == other.tree

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TreeMetadata(custom_metadata={self.custom_metadata}, tree={self.tree}, use_zarr3={self.use_zarr3})"

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Any]:
        """For JAX: the children of the tree, by their keys."""
        flat, structure = jax.tree_util.tree_flatten_with_path(self.tree, is_leaf=lambda node: node is not self.tree)
        children = [(path[0] if path else jax.tree_util.GetAttrKey("tree"), child) for path, child in flat]
        return children, (structure, json.dumps(self.custom_metadata), self.use_zarr3)

    def tree_flatten(self) -> tuple[list[Any], Any]:
        children, about = self.tree_flatten_with_keys()
        return [child for _, child in children], about

    @classmethod
    def tree_unflatten(cls, about: Any, leaves: Any) -> TreeMetadata:
        structure, custom, use_zarr3 = about
        return cls(jax.tree_util.tree_unflatten(structure, leaves), json.loads(custom), use_zarr3)


@dataclasses.dataclass
class RootMetadata(Mapping[str, Any]):
    """The metadata of a manager's folder, and a mapping of the caller's own metadata."""

    internal_metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    custom_metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.custom_metadata[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.custom_metadata)

    def __len__(self) -> int:
        return len(self.custom_metadata)

    def __bool__(self) -> bool:
        return True


def serialize_root_metadata(metadata: Any) -> dict[str, Any]:
    """The metadata of a folder of steps, as JSON values."""
    return {name: dict(getattr(metadata, name) or {}) for name in ("internal_metadata", "custom_metadata")}


def deserialize_root_metadata(metadata_dict: Mapping[str, Any]) -> RootMetadata:
    """Root metadata from JSON values; keys that Orbax does not know are the caller's own."""
    own = dict(metadata_dict)
    internal, custom = (own.pop(key, None) or {} for key in ("internal_metadata", "custom_metadata"))
    return RootMetadata(dict(internal), own | dict(custom))


class CompositeMetadata(dict[str, Any]):
    """The metadata of items, by name or attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"Unknown key: {name}. Available keys: {self.keys()}")


@dataclasses.dataclass
class StepMetadata:
    """The metadata of a checkpoint. As a pytree, it has the leaves of its items."""

    item_handlers: Any = None
    item_metadata: Any = None
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    performance_metrics: Any = dataclasses.field(default_factory=SaveStepStatistics)
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None
    custom_metadata: dict[str, Any] = dataclasses.field(default_factory=dict)


_FIELDS = {field.name for field in dataclasses.fields(StepMetadata)}
jax.tree_util.register_dataclass(StepMetadata, ["item_metadata"], sorted(_FIELDS - {"item_metadata"}))
jax.tree_util.register_pytree_node(
    CompositeMetadata,
    lambda node: (tuple(node.values()), tuple(node)),
    lambda names, values: CompositeMetadata(zip(names, values, strict=True)),
)


def read_step_metadata(path: Any) -> StepMetadata:
    """The content of `_CHECKPOINT_METADATA`; empty if it is missing or not JSON, as in Orbax."""
    told = read_json(as_path(path) / "_CHECKPOINT_METADATA")
    if told is None:
        return StepMetadata()
    names = _FIELDS - {"item_metadata", "custom_metadata"}
    known = {name: value for name, value in told.items() if name in names and value is not None}
    if isinstance(known.get("performance_metrics"), dict):
        known["performance_metrics"] = statistics_of(known["performance_metrics"])
    custom = {name: value for name, value in told.items() if name not in names | {"custom_metadata", "custom"}}
    own = told.get("custom_metadata") or told.get("custom") or {}
    return StepMetadata(custom_metadata=custom | own, **known)


def get_step_metadata(path: Any) -> StepMetadata:
    if not as_path(path).exists():
        raise _errors.NotFoundError(f"Checkpoint at {path} not found.", file=str(path))
    return read_step_metadata(path)


def step_metadata_file_path(path: Any) -> Any:
    return _folder(path) / "_CHECKPOINT_METADATA"


def root_metadata_file_path(path: Any, *, legacy: bool = False) -> Any:
    """The metadata file of a manager's folder; with `legacy`, under its name before 2024."""
    return _folder(path) / ("metadata" if legacy else "_ROOT_METADATA")


def _folder(path: Any) -> Any:
    folder = as_path(path)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"Path is not a directory: {folder}")
    return folder


class MetadataStore:
    """Reads and writes JSON files of metadata. They are small, so `write` waits for the file."""

    def __init__(self, enable_write: bool) -> None:
        self._enable_write = enable_write

    def is_blocking_writer(self) -> bool:
        """Whether `write` returns after the file is written."""
        return True

    def write(self, file_path: Any, metadata: dict[str, Any]) -> None:
        """Writes a file, and replaces an existing one."""
        file = as_path(file_path)
        if not self._enable_write:
            return
        if not file.parent.exists():
            raise ValueError(f"Metadata path does not exist: {file.parent}")
        staged = file.parent / f".{file.name}.{os.getpid()}"
        staged.write_text(json.dumps(metadata))
        staged.replace(file)

    def read(self, file_path: Any) -> dict[str, Any] | None:
        """The content of a file; `None` if it is missing or is not JSON."""
        return read_json(file_path)

    def update(self, file_path: Any, **kwargs: Any) -> None:
        if self._enable_write:
            self.write(file_path, (self.read(file_path) or {}) | kwargs)

    def wait_until_finished(self) -> None:
        """Waits for writes in progress."""

    def close(self) -> None:
        """Waits for writes, and closes the store."""


def metadata_store(*, enable_write: bool, blocking_write: bool = False) -> MetadataStore:
    """A store; without `enable_write` it only reads. Writes always block."""
    return MetadataStore(enable_write)


value = sys.modules[__name__]
"""This module, under the original's name for its classes of leaves."""

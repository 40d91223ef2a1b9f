"""What a checkpoint says of itself, as Orbax' callers ask for it."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .. import _errors, _leaves
from ._jax import jax
from ._paths import as_path

__all__ = [
    "ArrayMetadata",
    "CompositeMetadata",
    "Metadata",
    "NamedShardingMetadata",
    "RootMetadata",
    "ScalarMetadata",
    "ShardingMetadata",
    "SingleDeviceShardingMetadata",
    "StepMetadata",
    "StorageMetadata",
    "StringMetadata",
    "TreeMetadata",
    "from_jax_sharding",
    "get_step_metadata",
    "read_step_metadata",
    "sharding_from_json",
]


@dataclasses.dataclass
class ShardingMetadata:
    """How an array was spread over devices when it was saved."""

    def to_jax_sharding(self) -> Any:
        """The same on the devices of this process."""
        raise NotImplementedError


@dataclasses.dataclass
class SingleDeviceShardingMetadata(ShardingMetadata):
    """On one device."""

    device_str: str

    def to_jax_sharding(self) -> Any:
        """On the device of that name, or the first one if there is none here.

        Orbax raises for a device that is not here: what a checkpoint holds does not depend on where it was saved.
        """
        found = next((device for device in jax.devices() if str(device) == self.device_str), jax.local_devices()[0])
        return jax.sharding.SingleDeviceSharding(found)


@dataclasses.dataclass
class NamedShardingMetadata(ShardingMetadata):
    """On a mesh with names."""

    shape: Any
    axis_names: list[str]
    partition_spec: tuple[Any, ...]
    axis_types: tuple[Any, ...] | None = None
    device_mesh: Any = None

    def to_jax_sharding(self) -> Any:
        """On the same devices, or the first as many, or one: whatever of that is here."""
        sizes = tuple(map(int, self.shape))
        count, by_id = int(np.prod(sizes)), {device.id: device for device in jax.devices()}
        ids = [] if self.device_mesh is None else _ids(self.device_mesh)
        if len(ids) == count and all(at in by_id for at in ids):
            devices = [by_id[at] for at in ids]
        elif count <= jax.device_count():
            devices = jax.devices()[:count]
        else:
            return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        mesh = jax.sharding.Mesh(np.array(devices).reshape(sizes), tuple(self.axis_names))
        spec = (tuple(entry) if isinstance(entry, list) else entry for entry in self.partition_spec)
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def _ids(mesh: Any) -> list[int]:
    if isinstance(mesh, list):
        return [at for part in mesh for at in _ids(part)]
    return [int(mesh["id"])] if isinstance(mesh, Mapping) and "id" in mesh else []


def sharding_from_json(told: Any) -> ShardingMetadata | None:
    """What `_sharding` says of one leaf; `None` for kinds that no sharding is made of."""
    if not isinstance(told, Mapping):
        return None
    if told.get("sharding_type") == "SingleDeviceSharding":
        return SingleDeviceShardingMetadata(str(told.get("device_str")))
    if told.get("sharding_type") == "NamedSharding":
        mesh = (told.get("device_mesh") or {}).get("mesh")
        spec = tuple(told["partition_spec"])
        return NamedShardingMetadata(np.array(told["shape"]), list(told["axis_names"]), spec, None, mesh)
    return None


def from_jax_sharding(sharding: Any) -> ShardingMetadata | None:
    """What would be stored of a sharding; `None` for kinds that are not stored."""
    text = _leaves._sharding_text(sharding, {})
    return None if text is None else sharding_from_json(json.loads(text))


@dataclasses.dataclass
class StorageMetadata:
    """How an array is cut."""

    chunk_shape: tuple[int, ...] | None
    write_shape: tuple[int, ...] | None = None
    zarr_metadata: Any = None


@dataclasses.dataclass
class Metadata:
    """What is known of a leaf."""

    name: str
    directory: Any


@dataclasses.dataclass
class ArrayMetadata(Metadata):
    """What is known of an array."""

    shape: tuple[int, ...]
    sharding: ShardingMetadata | None
    dtype: Any
    storage: StorageMetadata | None = None


@dataclasses.dataclass
class ScalarMetadata(ArrayMetadata):
    """What is known of a number."""

    shape: tuple[int, ...] = ()
    sharding: ShardingMetadata | None = None
    dtype: Any = None


@dataclasses.dataclass
class StringMetadata(Metadata):
    """What is known of a text."""


@jax.tree_util.register_pytree_with_keys_class
class TreeMetadata(Mapping[str, Any]):
    """What is known of a pytree: a mapping as the tree is one, and a pytree of leaves with shape and dtype."""

    def __init__(self, tree: Any, custom_metadata: Any = None, use_zarr3: bool = False) -> None:
        self.tree = tree
        """The tree, with the metadata of its leaves."""
        self.custom_metadata = custom_metadata
        """The caller's own metadata, saved with the pytree."""
        self.use_zarr3 = use_zarr3

    @classmethod
    def build(cls, tree: Any, *, custom_metadata: Any = None, **_: Any) -> TreeMetadata:
        """Of a tree."""
        return cls(tree, custom_metadata)

    def __getitem__(self, key: Any) -> Any:
        return self.tree[key]

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
        """For JAX: the tree is the one child, whose keys are the key paths."""
        flat, structure = jax.tree_util.tree_flatten_with_path(self.tree)
        children = [(_Joined(path), leaf) for path, leaf in flat]
        return children, (structure, json.dumps(self.custom_metadata), self.use_zarr3)

    def tree_flatten(self) -> tuple[list[Any], Any]:
        """For JAX: the leaves."""
        leaves, structure = jax.tree_util.tree_flatten(self.tree)
        return leaves, (structure, json.dumps(self.custom_metadata), self.use_zarr3)

    @classmethod
    def tree_unflatten(cls, about: Any, leaves: Any) -> TreeMetadata:
        """For JAX."""
        structure, custom, use_zarr3 = about
        return cls(jax.tree_util.tree_unflatten(structure, leaves), json.loads(custom), use_zarr3)


class _Joined(tuple[Any, ...]):
    """A key path as one key."""

    def __str__(self) -> str:
        return str(jax.tree_util.keystr(tuple(self)))


@dataclasses.dataclass
class RootMetadata(Mapping[str, Any]):
    """What a manager's folder says of itself. A mapping of the caller's own metadata, too."""

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


class CompositeMetadata(dict[str, Any]):
    """The metadata of items, by name or attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"Unknown key: {name}. Available keys: {self.keys()}")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["item_metadata"],
    meta_fields=[
        "item_handlers",
        "metrics",
        "performance_metrics",
        "init_timestamp_nsecs",
        "commit_timestamp_nsecs",
        "custom_metadata",
    ],
)
@dataclasses.dataclass
class StepMetadata:
    """What a checkpoint says of itself. A pytree: a map over it is one over the leaves of its items."""

    item_handlers: Any = None
    item_metadata: Any = None
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    performance_metrics: Any = dataclasses.field(default_factory=dict)
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None
    custom_metadata: dict[str, Any] = dataclasses.field(default_factory=dict)


jax.tree_util.register_pytree_node(
    CompositeMetadata,
    lambda node: (tuple(node.values()), tuple(node)),
    lambda names, values: CompositeMetadata(zip(names, values, strict=True)),
)


def read_step_metadata(path: Any) -> StepMetadata:
    """What `_CHECKPOINT_METADATA` says; nothing where it is missing or no JSON, as Orbax has it."""
    file = as_path(path) / "_CHECKPOINT_METADATA"
    try:
        told = json.loads(file.read_text())
    except (OSError, ValueError):
        return StepMetadata()
    if not isinstance(told, dict):
        return StepMetadata()
    names = {field.name for field in dataclasses.fields(StepMetadata)} - {"item_metadata", "custom_metadata"}
    known = {name: value for name, value in told.items() if name in names and value is not None}
    custom = {name: value for name, value in told.items() if name not in names | {"custom_metadata", "custom"}}
    own = told.get("custom_metadata") or told.get("custom") or {}
    return StepMetadata(custom_metadata=custom | own, **known)


def get_step_metadata(path: Any) -> StepMetadata:
    """What a checkpoint says of itself, its items left aside.

    Raises:
        NotFoundError: (a `FileNotFoundError`) if there is none.
    """
    if not as_path(path).exists():
        raise _errors.NotFoundError(f"Checkpoint at {path} not found.", file=str(path))
    return read_step_metadata(path)


value = sys.modules[__name__]
"""This module itself, under the name that the original has for its classes of leaves."""

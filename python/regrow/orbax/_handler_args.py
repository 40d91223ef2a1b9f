"""The arguments of each handler: of a save, and of a restore. `args` has their public names."""

from __future__ import annotations

import dataclasses
from typing import Any

from .checkpoint_args import CheckpointArgs


@dataclasses.dataclass
class PyTreeSaveArgs(CheckpointArgs):
    """Saves a pytree; `save_args` is a tree of `SaveArgs`."""

    item: Any
    save_args: Any = None
    ocdbt_target_data_file_size: int | None = None
    custom_metadata: Any = None


@dataclasses.dataclass
class PyTreeRestoreArgs(CheckpointArgs):
    """Restores a pytree; `item` gives the structure, `restore_args` says what leaves become."""

    item: Any = None
    restore_args: Any = None
    transforms: Any = None
    transforms_default_to_original: bool = True
    legacy_transform_fn: Any = None
    partial_restore: bool = False


@dataclasses.dataclass
class BasePyTreeSaveArgs(CheckpointArgs):
    item: Any
    save_args: Any = None
    ocdbt_target_data_file_size: int | None = None
    custom_metadata: Any = None


@dataclasses.dataclass
class BasePyTreeRestoreArgs(CheckpointArgs):
    """Restores a pytree, as `PyTreeRestoreArgs` without transformations."""

    item: Any = None
    restore_args: Any = None
    partial_restore: bool = False


@dataclasses.dataclass
class StandardSaveArgs(CheckpointArgs):
    item: Any
    save_args: Any = None
    custom_metadata: Any = None


@dataclasses.dataclass
class StandardRestoreArgs(CheckpointArgs):
    item: Any = None
    strict: bool = True
    support_layout: bool = False
    fallback_sharding: Any = None


@dataclasses.dataclass
class ArraySaveArgs(CheckpointArgs):
    item: Any
    save_args: Any = None


@dataclasses.dataclass
class ArrayRestoreArgs(CheckpointArgs):
    item: Any = None
    restore_args: Any = None


@dataclasses.dataclass
class JsonSaveArgs(CheckpointArgs):
    item: Any


@dataclasses.dataclass
class JsonRestoreArgs(CheckpointArgs):
    item: Any = None


@dataclasses.dataclass
class ProtoSaveArgs(CheckpointArgs):
    item: Any


@dataclasses.dataclass
class ProtoRestoreArgs(CheckpointArgs):
    """Restores a message of the class `item`."""

    item: Any


@dataclasses.dataclass
class JaxRandomKeySaveArgs(CheckpointArgs):
    item: Any
    save_args: Any = None


@dataclasses.dataclass
class JaxRandomKeyRestoreArgs(CheckpointArgs):
    restore_args: Any = None


@dataclasses.dataclass
class NumpyRandomKeySaveArgs(CheckpointArgs):
    item: Any


@dataclasses.dataclass
class NumpyRandomKeyRestoreArgs(CheckpointArgs):
    """Restores the state of NumPy's legacy generator."""

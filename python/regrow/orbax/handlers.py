"""Handlers, each of which saves and restores one kind of item."""

from __future__ import annotations

from ._composite import (
    CheckpointHandlerRegistry,
    CompositeArgs,
    CompositeCheckpointHandler,
    CompositeResults,
    DefaultCheckpointHandlerRegistry,
    create_default_handler_registry,
)
from ._interfaces import AsyncCheckpointHandler, CheckpointHandler
from ._key_handlers import (
    BaseRandomKeyCheckpointHandler,
    JaxRandomKeyCheckpointHandler,
    JaxRandomKeyRestoreArgs,
    JaxRandomKeySaveArgs,
    NumpyRandomKeyCheckpointHandler,
    NumpyRandomKeyRestoreArgs,
    NumpyRandomKeySaveArgs,
)
from ._other_handlers import (
    ArrayCheckpointHandler,
    ArrayRestoreArgs,
    ArraySaveArgs,
    JsonCheckpointHandler,
    JsonRestoreArgs,
    JsonSaveArgs,
)
from ._proto_handler import ProtoCheckpointHandler, ProtoRestoreArgs, ProtoSaveArgs
from ._standard_handlers import (
    BasePyTreeCheckpointHandler,
    BasePyTreeRestoreArgs,
    BasePyTreeSaveArgs,
    PyTreeCheckpointHandler,
    PyTreeRestoreArgs,
    PyTreeSaveArgs,
    StandardCheckpointHandler,
    StandardRestoreArgs,
    StandardSaveArgs,
)

__all__ = [
    "ArrayCheckpointHandler",
    "ArrayRestoreArgs",
    "ArraySaveArgs",
    "AsyncCheckpointHandler",
    "BasePyTreeCheckpointHandler",
    "BasePyTreeRestoreArgs",
    "BasePyTreeSaveArgs",
    "BaseRandomKeyCheckpointHandler",
    "CheckpointHandler",
    "CheckpointHandlerRegistry",
    "CompositeArgs",
    "CompositeCheckpointHandler",
    "CompositeResults",
    "DefaultCheckpointHandlerRegistry",
    "JaxRandomKeyCheckpointHandler",
    "JaxRandomKeyRestoreArgs",
    "JaxRandomKeySaveArgs",
    "JsonCheckpointHandler",
    "JsonRestoreArgs",
    "JsonSaveArgs",
    "NumpyRandomKeyCheckpointHandler",
    "NumpyRandomKeyRestoreArgs",
    "NumpyRandomKeySaveArgs",
    "ProtoCheckpointHandler",
    "ProtoRestoreArgs",
    "ProtoSaveArgs",
    "PyTreeCheckpointHandler",
    "PyTreeRestoreArgs",
    "PyTreeSaveArgs",
    "StandardCheckpointHandler",
    "StandardRestoreArgs",
    "StandardSaveArgs",
    "create_default_handler_registry",
]

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
from ._handler_args import (
    ArrayRestoreArgs,
    ArraySaveArgs,
    BasePyTreeRestoreArgs,
    BasePyTreeSaveArgs,
    JaxRandomKeyRestoreArgs,
    JaxRandomKeySaveArgs,
    JsonRestoreArgs,
    JsonSaveArgs,
    NumpyRandomKeyRestoreArgs,
    NumpyRandomKeySaveArgs,
    ProtoRestoreArgs,
    ProtoSaveArgs,
    PyTreeRestoreArgs,
    PyTreeSaveArgs,
    StandardRestoreArgs,
    StandardSaveArgs,
)
from ._handlers import (
    ArrayCheckpointHandler,
    BasePyTreeCheckpointHandler,
    JsonCheckpointHandler,
    ProtoCheckpointHandler,
    PyTreeCheckpointHandler,
    StandardCheckpointHandler,
)
from ._interfaces import AsyncCheckpointHandler, CheckpointHandler
from ._key_handlers import (
    BaseRandomKeyCheckpointHandler,
    JaxRandomKeyCheckpointHandler,
    NumpyRandomKeyCheckpointHandler,
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

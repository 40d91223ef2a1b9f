"""Handlers: what saves and restores one kind of item."""

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
from ._other_handlers import (
    ArrayCheckpointHandler,
    ArrayRestoreArgs,
    ArraySaveArgs,
    JsonCheckpointHandler,
    JsonRestoreArgs,
    JsonSaveArgs,
)
from ._standard_handlers import (
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
    "CheckpointHandler",
    "CheckpointHandlerRegistry",
    "CompositeArgs",
    "CompositeCheckpointHandler",
    "CompositeResults",
    "DefaultCheckpointHandlerRegistry",
    "JsonCheckpointHandler",
    "JsonRestoreArgs",
    "JsonSaveArgs",
    "PyTreeCheckpointHandler",
    "PyTreeRestoreArgs",
    "PyTreeSaveArgs",
    "StandardCheckpointHandler",
    "StandardRestoreArgs",
    "StandardSaveArgs",
    "create_default_handler_registry",
]

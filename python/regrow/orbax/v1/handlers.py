"""Handlers of checkpointables: built-in ones, your own, and registries of both."""

from __future__ import annotations

from ._handler_types import AbstractCheckpointable, Checkpointable, CheckpointableHandler, StatefulCheckpointable
from ._handlers import JsonHandler, ProtoHandler, PyTreeHandler
from ._registration import CheckpointableHandlerRegistry, global_registry, local_registry, register_handler

__all__ = [
    "AbstractCheckpointable",
    "Checkpointable",
    "CheckpointableHandler",
    "CheckpointableHandlerRegistry",
    "JsonHandler",
    "ProtoHandler",
    "PyTreeHandler",
    "StatefulCheckpointable",
    "global_registry",
    "local_registry",
    "register_handler",
]

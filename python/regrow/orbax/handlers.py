"""Handlers, each of which saves and restores one kind of item."""

from __future__ import annotations

from ._composite import CheckpointHandlerRegistry as CheckpointHandlerRegistry
from ._composite import CompositeArgs as CompositeArgs
from ._composite import CompositeCheckpointHandler as CompositeCheckpointHandler
from ._composite import CompositeResults as CompositeResults
from ._composite import DefaultCheckpointHandlerRegistry as DefaultCheckpointHandlerRegistry
from ._composite import create_default_handler_registry as create_default_handler_registry
from ._handler_args import ArrayRestoreArgs as ArrayRestoreArgs
from ._handler_args import ArraySaveArgs as ArraySaveArgs
from ._handler_args import BasePyTreeRestoreArgs as BasePyTreeRestoreArgs
from ._handler_args import BasePyTreeSaveArgs as BasePyTreeSaveArgs
from ._handler_args import JaxRandomKeyRestoreArgs as JaxRandomKeyRestoreArgs
from ._handler_args import JaxRandomKeySaveArgs as JaxRandomKeySaveArgs
from ._handler_args import JsonRestoreArgs as JsonRestoreArgs
from ._handler_args import JsonSaveArgs as JsonSaveArgs
from ._handler_args import NumpyRandomKeyRestoreArgs as NumpyRandomKeyRestoreArgs
from ._handler_args import NumpyRandomKeySaveArgs as NumpyRandomKeySaveArgs
from ._handler_args import ProtoRestoreArgs as ProtoRestoreArgs
from ._handler_args import ProtoSaveArgs as ProtoSaveArgs
from ._handler_args import PyTreeRestoreArgs as PyTreeRestoreArgs
from ._handler_args import PyTreeSaveArgs as PyTreeSaveArgs
from ._handler_args import StandardRestoreArgs as StandardRestoreArgs
from ._handler_args import StandardSaveArgs as StandardSaveArgs
from ._handlers import ArrayCheckpointHandler as ArrayCheckpointHandler
from ._handlers import BasePyTreeCheckpointHandler as BasePyTreeCheckpointHandler
from ._handlers import JsonCheckpointHandler as JsonCheckpointHandler
from ._handlers import ProtoCheckpointHandler as ProtoCheckpointHandler
from ._handlers import PyTreeCheckpointHandler as PyTreeCheckpointHandler
from ._handlers import StandardCheckpointHandler as StandardCheckpointHandler
from ._interfaces import AsyncCheckpointHandler as AsyncCheckpointHandler
from ._interfaces import CheckpointHandler as CheckpointHandler
from ._key_handlers import BaseRandomKeyCheckpointHandler as BaseRandomKeyCheckpointHandler
from ._key_handlers import JaxRandomKeyCheckpointHandler as JaxRandomKeyCheckpointHandler
from ._key_handlers import NumpyRandomKeyCheckpointHandler as NumpyRandomKeyCheckpointHandler

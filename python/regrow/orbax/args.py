"""Arguments of saves and restores, by kind of item."""

from __future__ import annotations

from ._composite import CompositeArgs as Composite
from ._handler_args import ArrayRestoreArgs as ArrayRestore
from ._handler_args import ArraySaveArgs as ArraySave
from ._handler_args import JaxRandomKeyRestoreArgs as JaxRandomKeyRestore
from ._handler_args import JaxRandomKeySaveArgs as JaxRandomKeySave
from ._handler_args import JsonRestoreArgs as JsonRestore
from ._handler_args import JsonSaveArgs as JsonSave
from ._handler_args import NumpyRandomKeyRestoreArgs as NumpyRandomKeyRestore
from ._handler_args import NumpyRandomKeySaveArgs as NumpyRandomKeySave
from ._handler_args import ProtoRestoreArgs as ProtoRestore
from ._handler_args import ProtoSaveArgs as ProtoSave
from ._handler_args import PyTreeRestoreArgs as PyTreeRestore
from ._handler_args import PyTreeSaveArgs as PyTreeSave
from ._handler_args import StandardRestoreArgs as StandardRestore
from ._handler_args import StandardSaveArgs as StandardSave
from .checkpoint_args import (
    CheckpointArgs,
    get_registered_args_cls,
    get_registered_handler_cls,
    has_registered_args,
    register_with_handler,
)

__all__ = [
    "ArrayRestore",
    "ArraySave",
    "CheckpointArgs",
    "Composite",
    "JaxRandomKeyRestore",
    "JaxRandomKeySave",
    "JsonRestore",
    "JsonSave",
    "NumpyRandomKeyRestore",
    "NumpyRandomKeySave",
    "ProtoRestore",
    "ProtoSave",
    "PyTreeRestore",
    "PyTreeSave",
    "StandardRestore",
    "StandardSave",
    "get_registered_args_cls",
    "get_registered_handler_cls",
    "has_registered_args",
    "register_with_handler",
]

"""Arguments of saves and restores, by kind of item."""

from __future__ import annotations

from ._composite import CompositeArgs as Composite
from ._key_handlers import JaxRandomKeyRestoreArgs as JaxRandomKeyRestore
from ._key_handlers import JaxRandomKeySaveArgs as JaxRandomKeySave
from ._key_handlers import NumpyRandomKeyRestoreArgs as NumpyRandomKeyRestore
from ._key_handlers import NumpyRandomKeySaveArgs as NumpyRandomKeySave
from ._other_handlers import ArrayRestoreArgs as ArrayRestore
from ._other_handlers import ArraySaveArgs as ArraySave
from ._other_handlers import JsonRestoreArgs as JsonRestore
from ._other_handlers import JsonSaveArgs as JsonSave
from ._proto_handler import ProtoRestoreArgs as ProtoRestore
from ._proto_handler import ProtoSaveArgs as ProtoSave
from ._standard_handlers import PyTreeRestoreArgs as PyTreeRestore
from ._standard_handlers import PyTreeSaveArgs as PyTreeSave
from ._standard_handlers import StandardRestoreArgs as StandardRestore
from ._standard_handlers import StandardSaveArgs as StandardSave
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

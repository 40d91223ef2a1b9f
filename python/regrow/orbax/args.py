"""Arguments of saves and restores, by kind of item."""

from . import _handler_args
from ._composite import CompositeArgs
from .checkpoint_args import CheckpointArgs as CheckpointArgs
from .checkpoint_args import get_registered_args_cls as get_registered_args_cls
from .checkpoint_args import get_registered_handler_cls as get_registered_handler_cls
from .checkpoint_args import has_registered_args as has_registered_args
from .checkpoint_args import register_with_handler as register_with_handler

ArrayRestore = _handler_args.ArrayRestoreArgs
ArraySave = _handler_args.ArraySaveArgs
JaxRandomKeyRestore = _handler_args.JaxRandomKeyRestoreArgs
JaxRandomKeySave = _handler_args.JaxRandomKeySaveArgs
JsonRestore = _handler_args.JsonRestoreArgs
JsonSave = _handler_args.JsonSaveArgs
NumpyRandomKeyRestore = _handler_args.NumpyRandomKeyRestoreArgs
NumpyRandomKeySave = _handler_args.NumpyRandomKeySaveArgs
ProtoRestore = _handler_args.ProtoRestoreArgs
ProtoSave = _handler_args.ProtoSaveArgs
PyTreeRestore = _handler_args.PyTreeRestoreArgs
PyTreeSave = _handler_args.PyTreeSaveArgs
StandardRestore = _handler_args.StandardRestoreArgs
StandardSave = _handler_args.StandardSaveArgs
Composite = CompositeArgs

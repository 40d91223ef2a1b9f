"""Handlers of checkpointables: built-in ones, your own, and registries of both."""

from ._handlers import JsonHandler as JsonHandler
from ._handlers import ProtoHandler as ProtoHandler
from ._handlers import PyTreeHandler as PyTreeHandler
from ._registration import AbstractCheckpointable as AbstractCheckpointable
from ._registration import Checkpointable as Checkpointable
from ._registration import CheckpointableHandler as CheckpointableHandler
from ._registration import CheckpointableHandlerRegistry as CheckpointableHandlerRegistry
from ._registration import StatefulCheckpointable as StatefulCheckpointable
from ._registration import global_registry as global_registry
from ._registration import local_registry as local_registry
from ._registration import register_handler as register_handler

"""The handler of protocol buffers, as text. It needs the ``protobuf`` package."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from ._interfaces import AsyncCheckpointHandler, NoopFuture
from ._jax import jax
from ._paths import as_path
from ._standard_handlers import HANDLERS
from .checkpoint_args import CheckpointArgs, register_with_handler
from .options import MultiprocessingOptions


class ProtoCheckpointHandler(AsyncCheckpointHandler):
    """One message, in protobuf's text format."""

    def __init__(
        self, filename: str = "proto.pbtxt", *, multiprocessing_options: MultiprocessingOptions | None = None
    ) -> None:
        self._filename = filename

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        """Saves into an existing folder.

        Raises:
            ModuleNotFoundError: without ``protobuf``.
        """
        message = item if args is None else args.item
        if jax.process_index() == 0:
            (as_path(directory) / self._filename).write_text(_text_format().MessageToString(message))

    async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> list[Any]:
        """Saves before it returns; the list of futures is empty."""
        self.save(directory, item, args)
        return [NoopFuture()]

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """The saved message.

        Raises:
            ValueError: without the class of the message.
        """
        cls = item if args is None else args.item
        if cls is None:
            raise ValueError("Must provide `item` in order to deserialize proto to the correct type.")
        return _text_format().Parse((as_path(directory) / self._filename).read_text(), cls())

    @classmethod
    def typestr(cls) -> str:
        """The name of the original's class, for its readers."""
        return f"{HANDLERS}.proto_checkpoint_handler.ProtoCheckpointHandler"


def _text_format() -> Any:
    return importlib.import_module("google.protobuf.text_format")


@register_with_handler(ProtoCheckpointHandler, for_save=True)
@dataclasses.dataclass
class ProtoSaveArgs(CheckpointArgs):
    """Saves a message."""

    item: Any


@register_with_handler(ProtoCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class ProtoRestoreArgs(CheckpointArgs):
    """Restores a message of the class `item`."""

    item: Any

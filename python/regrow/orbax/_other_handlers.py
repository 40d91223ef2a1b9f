"""Handlers of single arrays and of JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from . import _read
from ._interfaces import AsyncCheckpointHandler, NoopFuture
from ._jax import jax
from ._paths import as_path
from ._standard_handlers import HANDLERS, OwnHandler, PyTreeCheckpointHandler, PyTreeSaveArgs
from .checkpoint_args import CheckpointArgs, register_with_handler
from .options import MultiprocessingOptions

# ---- arrays ---------------------------------------------------------------------------


class ArrayCheckpointHandler(OwnHandler):
    """One array or number."""

    def __init__(self, checkpoint_name: str | None = None) -> None:
        self._name = checkpoint_name or "checkpoint"
        self._pytrees = PyTreeCheckpointHandler(use_ocdbt=False)

    def save_arguments(self, item: Any = None, save_args: Any = None, args: Any = None) -> Any:
        """As `OwnHandler`."""
        return ArraySaveArgs(item, save_args) if args is None else args

    def plan(self, args: Any) -> tuple[Any, dict[str, Any]]:
        """As `OwnHandler`.

        Raises:
            TypeError: for a value that is neither an array nor a number.
        """
        if not isinstance(args.item, (int, float, np.ndarray, np.generic, jax.Array)):
            raise TypeError(f"Unsupported type: {type(args.item)}.")
        wanted = None if args.save_args is None else {self._name: args.save_args}
        return self._pytrees.plan(PyTreeSaveArgs({self._name: args.item}, wanted))

    def restore(self, directory: Any, item: Any = None, restore_args: Any = None, args: Any = None) -> Any:
        """Restores the array."""
        wanted = getattr(args, "restore_args", None) if args is not None else restore_args
        tree = None if wanted is None else {self._name: wanted}
        return _read.restore(directory, restore_args=tree)[self._name]

    @classmethod
    def typestr(cls) -> str:
        """The name of the original's class, for its readers."""
        return f"{HANDLERS}.array_checkpoint_handler.ArrayCheckpointHandler"


# ---- JSON -----------------------------------------------------------------------------


class JsonCheckpointHandler(AsyncCheckpointHandler):
    """A JSON value, in a file."""

    def __init__(
        self, filename: str | None = None, *, multiprocessing_options: MultiprocessingOptions | None = None
    ) -> None:
        self._filename = filename or "metadata"

    @property
    def filename(self) -> str:
        """The name of the file."""
        return self._filename

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        """Saves into an existing folder."""
        value = item if args is None else args.item
        if jax.process_index() == 0:
            (as_path(directory) / self._filename).write_text(json.dumps(value))

    async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> list[Any]:
        """Saves before it returns; the list of futures is empty."""
        self.save(directory, item, args)
        return [NoopFuture()]

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """The saved value.

        Raises:
            FileNotFoundError: if the file does not exist.
        """
        file = as_path(directory) / self._filename
        if not file.exists():
            raise FileNotFoundError(f"File {self._filename} not found in {directory}.")
        return json.loads(file.read_text())

    @classmethod
    def typestr(cls) -> str:
        """The name of the original's class, for its readers."""
        return f"{HANDLERS}.json_checkpoint_handler.JsonCheckpointHandler"


@register_with_handler(ArrayCheckpointHandler, for_save=True)
@dataclasses.dataclass
class ArraySaveArgs(CheckpointArgs):
    """Saves one array or number."""

    item: Any
    save_args: Any = None


@register_with_handler(ArrayCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class ArrayRestoreArgs(CheckpointArgs):
    """Restores one array or number."""

    item: Any = None
    restore_args: Any = None


@register_with_handler(JsonCheckpointHandler, for_save=True)
@dataclasses.dataclass
class JsonSaveArgs(CheckpointArgs):
    """Saves a JSON value."""

    item: Any


@register_with_handler(JsonCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class JsonRestoreArgs(CheckpointArgs):
    """Restores a JSON value."""

    item: Any = None

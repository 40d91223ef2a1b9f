"""The built-in handlers: pytrees, JSON, metrics, messages of protocol buffers, stateful objects."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Awaitable
from typing import Any

from ..._errors import failure
from ..._save._save import save_as
from ..._save._writing import Writing
from ...layouts import Orbax
from .._errors import as_orbax, not_covered
from .._handlers import text_format
from .._jax import jax
from .._paths import as_path
from ..multihost import is_primary_host
from . import _find, _pytrees, _registration
from ._context import Context, current
from ._layout import CHECKPOINT_METADATA_FILENAME
from ._registration import CheckpointableHandler, StatefulCheckpointable

_PRIVATE = "orbax.checkpoint.experimental.v1._src.handlers"
_V0 = ("orbax.checkpoint._src.handlers", "orbax.checkpoint.v0._src.handlers")


class PartialSaveReplacementError(ValueError):
    """A leaf is saved in two parts of a checkpoint."""


async def _nothing() -> None:
    pass


class PyTreeHandler(CheckpointableHandler[Any, Any]):
    _TYPESTR = f"{_PRIVATE}.pytree_handler.PyTreeHandler"

    def __init__(
        self,
        *,
        context: Context | None = None,
        array_metadata_validator: Any = None,
        leaf_handler_registry: Any = None,
        partial_save_mode: bool = False,
    ) -> None:
        if leaf_handler_registry is not None:
            raise not_covered("PyTreeHandler(leaf_handler_registry=)", "make a pytree of arrays of such leaves first")
        if partial_save_mode:
            raise not_covered("PyTreeHandler(partial_save_mode=True)", "use partial.save and partial.finalize")
        self._context = context or current()

    def validate_leaves_handleable(self, checkpointable: Any) -> None:
        _pytrees.check_leaves(checkpointable)

    def validate_abstract_leaves_handleable(self, abstract_checkpointable: Any) -> None:
        for leaf in jax.tree_util.tree_leaves(abstract_checkpointable):
            _pytrees.restore_args(leaf, True)

    async def save(self, directory: Any, checkpointable: Any) -> Awaitable[None]:
        """Writes the whole pytree before it returns."""
        _pytrees.check_leaves(checkpointable)
        tree, options = _pytrees.save_plan(checkpointable, self._context)
        if isinstance(options["layout"], Orbax):
            options["layout"] = dataclasses.replace(options["layout"], v1=False)
        path = await directory.await_creation()
        with as_orbax():
            save_as(str(path), tree, Writing(overwrite=True, **options), progress=False)
        if is_primary_host():
            # Remove the files that the whole checkpoint has: this folder is only a part of it.
            for name in (CHECKPOINT_METADATA_FILENAME, "commit_success.txt"):
                (as_path(path) / name).unlink(missing_ok=True)
        return _nothing()

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Awaitable[Any]:
        async def read() -> Any:
            return _pytrees.load(directory, abstract_checkpointable, self._context)

        return read()

    async def metadata(self, directory: Any) -> Any:
        if not _find.is_pytree(as_path(directory)):
            raise _find.no_pytree(as_path(directory), "it has no _METADATA")
        return _pytrees.metadata(directory)[0]

    def is_handleable(self, checkpointable: Any) -> bool:
        return all(map(_pytrees.is_leaf, jax.tree_util.tree_leaves(checkpointable)))

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        try:
            jax.tree.map(lambda leaf: _pytrees.restore_args(leaf, True), abstract_checkpointable)
        except TypeError:
            return False
        return True


class _TextHandler(CheckpointableHandler[Any, Any]):
    """A handler that stores a value as text in one file."""

    def __init__(self, filename: str) -> None:
        self.filename = filename

    def _text(self, checkpointable: Any) -> str:
        raise NotImplementedError

    async def save(self, directory: Any, checkpointable: Any) -> Awaitable[None]:
        """Writes the file in the background."""
        text = self._text(checkpointable)

        async def write() -> None:
            path = await directory.await_creation()
            if is_primary_host():
                (path / self.filename).write_text(text)

        return write()


class JsonHandler(_TextHandler):
    _TYPESTR = f"{_PRIVATE}.json_handler.JsonHandler"

    def __init__(self, filename: str | None = None) -> None:
        super().__init__(filename or "data.json")

    def _text(self, checkpointable: Any) -> str:
        return json.dumps(checkpointable)

    async def load(self, directory: Any, abstract_checkpointable: None = None) -> Awaitable[Any]:
        async def read() -> Any:
            names = list(dict.fromkeys((self.filename, "data.json", "metadata")))
            files = (as_path(directory) / name for name in names)
            file = next((file for file in files if file.is_file()), None)
            if file is None:
                raise FileNotFoundError(f"{directory} has no JSON: expected one of {names}")
            return json.loads(file.read_text())

        return read()

    async def metadata(self, directory: Any) -> None:
        return None

    def is_handleable(self, checkpointable: Any) -> bool:
        try:
            json.dumps(checkpointable)
        except (TypeError, ValueError, RecursionError):
            return False
        return True

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        return None


class MetricsHandler(JsonHandler):
    _TYPESTR = f"{_PRIVATE}.json_handler.MetricsHandler"

    def __init__(self) -> None:
        super().__init__("metrics")


class ProtoHandler(_TextHandler):
    """Messages of protocol buffers, as text; the target is the class of the message."""

    _TYPESTR = f"{_PRIVATE}.proto_handler.ProtoHandler"

    def __init__(self, filename: str = "proto.pbtxt") -> None:
        super().__init__(filename)

    def _text(self, checkpointable: Any) -> str:
        text: str = text_format().MessageToString(checkpointable)
        return text

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Awaitable[Any]:
        if abstract_checkpointable is None:
            raise failure(ValueError, f"the message in {directory} has no class", help="give the class of the message")
        parse = text_format().Parse

        async def read() -> Any:
            return parse((as_path(directory) / self.filename).read_text(), abstract_checkpointable())

        return read()

    async def metadata(self, directory: Any) -> Any:
        raise NotImplementedError("a message of protocol buffers does not store its class")

    def is_handleable(self, checkpointable: Any) -> bool:
        message = sys.modules.get("google.protobuf.message")
        return message is not None and isinstance(checkpointable, message.Message)

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        message = sys.modules.get("google.protobuf.message")
        is_class = message is not None and inspect.isclass(abstract_checkpointable)
        return is_class and issubclass(abstract_checkpointable, message.Message)  # type: ignore[union-attr]


class StatefulCheckpointableHandler(CheckpointableHandler[Any, Any]):
    _TYPESTR = f"{_PRIVATE}.stateful_checkpointable_handler.StatefulCheckpointableHandler"

    async def save(self, directory: Any, checkpointable: Any) -> Awaitable[None]:
        rest: Awaitable[None] | None = await checkpointable.save(directory)
        return _nothing() if rest is None else rest

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Awaitable[Any]:
        if abstract_checkpointable is None:
            raise failure(
                ValueError,
                "To restore a `StatefulCheckpointable`, you must pass an instance of the object.",
                f"in {directory}",
                help="give an object of the class that was saved",
            )
        rest = await abstract_checkpointable.load(directory)

        async def loaded() -> Any:
            if rest is not None:
                await rest
            return abstract_checkpointable

        return loaded()

    async def metadata(self, directory: Any) -> Any:
        raise NotImplementedError("objects that save themselves have no metadata")

    def is_handleable(self, checkpointable: Any) -> bool:
        return _is_stateful(checkpointable)

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        return _is_stateful(abstract_checkpointable)


def _is_stateful(value: Any) -> bool:
    return isinstance(value, StatefulCheckpointable) and not isinstance(value, type)


def _register() -> None:
    """Registers the handlers. A later handler is chosen first."""

    def names(*of_v0: str) -> list[str]:
        return [f"{package}.{name}" for name in of_v0 for package in _V0]

    registry = _registration.global_registry()
    registry.add(ProtoHandler, secondary_typestrs=names("proto_checkpoint_handler.ProtoCheckpointHandler"))
    registry.add(JsonHandler, secondary_typestrs=names("json_checkpoint_handler.JsonCheckpointHandler"))
    registry.add(StatefulCheckpointableHandler)
    registry.add(MetricsHandler, checkpointable_name="metrics")
    registry.add(
        PyTreeHandler,
        secondary_typestrs=names(
            "pytree_checkpoint_handler.PyTreeCheckpointHandler", "standard_checkpoint_handler.StandardCheckpointHandler"
        ),
    )
    registry.add(PyTreeHandler, checkpointable_name="state")


_register()

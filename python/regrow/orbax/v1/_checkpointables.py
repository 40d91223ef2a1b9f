"""Things that a checkpoint holds by name: each is saved and loaded by the handler that is in charge of it."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from ..._errors import RegrowError
from ..._items import ItemsSave
from .. import _interfaces
from .._bucket_path import bucket_path
from .._composite import item_names
from .._paths import as_path, is_temporary, lacks_marker
from .._saving import Written
from ..metadata import read_step_metadata
from . import _deletion, _handlers, _pytrees, _registration
from ._context import Context, current
from ._handler_types import typestr
from ._layout import RESERVED_CHECKPOINTABLE_KEYS as RESERVED
from ._layout import STATE_CHECKPOINTABLE_KEY as STATE
from .errors import InvalidLayoutError


class Directory:
    """A folder, which handlers wait for before they write into it: here it is there already."""

    def __init__(self, path: Any) -> None:
        self._path = path

    @property
    def path(self) -> Any:
        """Where it is."""
        return self._path

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._path.name)

    async def await_creation(self) -> Any:
        """The path."""
        return self._path

    def __truediv__(self, other: Any) -> Directory:
        return Directory(self._path / getattr(other, "path", other))

    def __fspath__(self) -> str:
        return str(self._path)


def check_names(checkpointables: Any, what: str) -> None:
    """Refuses what is no dict of checkpointables by name.

    Raises:
        ValueError: for that, an empty name, and a name that the checkpoint uses itself.
    """
    if not isinstance(checkpointables, dict):
        raise ValueError(f"`{what}` must be a dict by name, found {type(checkpointables)}")
    if any(not isinstance(name, str) or not name or "/" in name for name in checkpointables):
        raise ValueError(
            f"`{what}` has a name that is empty or no name of a folder: {sorted(map(str, checkpointables))}"
        )
    reserved = sorted(RESERVED & checkpointables.keys())
    if reserved:
        raise ValueError(f"Provided reserved checkpointable keys: {reserved}.\n  help: give them other names")


# ---- saves ----------------------------------------------------------------------------------------------------


def add(save: ItemsSave, name: str, value: Any, context: Context, written: Written, *, in_background: bool) -> None:
    """Adds one of them: what its handler leaves to do is done before the commit."""
    handler = _registration.resolve_handler_for_save(context.checkpointables.registry, value, name=name)
    if isinstance(handler, _handlers.PyTreeHandler):
        _pytrees.check_leaves(value)
        tree, options = _pytrees.save_plan(value, context)
        (save.later if in_background else save.tree)(name, tree, **options)
        return
    save.handler(name, typestr(type(handler)))
    folder = Directory(context.file.path_class(Path(save.folder(name))))
    left = _interfaces.run(_begun(handler.save(folder, value)))
    if left is not None:
        written.add((), lambda: _interfaces.run(_begun(left)))


async def _begun(call: Awaitable[Any]) -> Any:
    return await call


# ---- loads ----------------------------------------------------------------------------------------------------


def names_in(path: Any, *, requested: Any = ()) -> list[str]:
    """The checkpointables of a checkpoint, those left out whose deletion has begun.

    Raises:
        DeletionInProgressError: if one of these is `requested`.
    """
    deleted = _deletion.pending(path, requested)
    return [name for name in item_names(path) if name not in RESERVED and name != deleted]


def saved_by(path: Any, name: str) -> str | None:
    """The handler that has saved one of them, by its name."""
    handlers = read_step_metadata(path).item_handlers
    return handlers.get(name) if isinstance(handlers, dict) else None


def load(path: Any, name: str, abstract: Any, context: Context) -> Any:
    """Loads one of a checkpoint, as `abstract` has it."""
    folder = _folder(path, name, context)
    handler = _for_load(path, name, abstract, context)
    if isinstance(handler, _handlers.PyTreeHandler):
        return _pytrees.load(folder, abstract, context)
    return _interfaces.run(_loaded(handler, folder, abstract))


def _folder(path: Any, name: str, context: Context) -> Any:
    """Where one of them is, as handlers get it: of the class that the context says, on a disk."""
    found = bucket_path(path)
    return (context.file.path_class(path) if found is None else found) / name


async def _loaded(handler: Any, folder: Any, abstract: Any) -> Any:
    return await (await handler.load(folder, abstract))


def _for_load(path: Any, name: str, abstract: Any, context: Context) -> Any:
    """Who loads one of them: by registration; else whoever knows the files."""
    registry = context.checkpointables.registry
    try:
        handler = _registration.resolve_handler_for_load(
            registry, abstract, name=name, handler_typestr=saved_by(path, name)
        )
    except _registration.NoEntryError:
        if not registry.has(STATE):
            raise
        handler = _handlers.PyTreeHandler(context=context)
    folder = as_path(path) / name
    if isinstance(handler, _handlers.PyTreeHandler) and not _pytrees.is_pytree(folder):
        json = _handlers.JsonHandler()
        return handler if json.file_in(folder) is None else json
    return handler


def described(path: Any, name: str, context: Context) -> Any:
    """What is known of one of them; `None` where that is nothing."""
    handler = _for_load(path, name, None, context)
    try:
        return _interfaces.run(_begun(handler.metadata(_folder(path, name, context))))
    except (RegrowError, NotImplementedError, AttributeError, OSError, ValueError, KeyError):
        return None


def refuse_incomplete(path: Any) -> Any:
    """The path of a checkpoint that is there.

    Raises:
        InvalidLayoutError: if there is none, or one that was never committed.
    """
    path = as_path(path)
    if not path.exists():
        raise InvalidLayoutError(f"Checkpoint at {path} not found.", file=str(path))
    if is_temporary(path) or lacks_marker(path, current().atomicity):
        raise InvalidLayoutError(
            f"Found incomplete checkpoint at {path}.\n  help: load one that was committed", file=str(path)
        )
    return path

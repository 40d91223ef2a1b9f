"""Checkpointables: the named objects of a checkpoint, each saved and loaded by its handler."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..._errors import RegrowError, failure
from ..._save._items import ItemsSave
from .. import _interfaces
from .._errors import as_orbax
from .._paths import as_path, bucket_path
from .._saving import Written
from ..metadata import read_step_metadata
from . import _find, _handlers, _pytrees, _registration
from ._context import Context
from ._layout import PYTREE_METADATA_FILE
from ._layout import RESERVED_CHECKPOINTABLE_KEYS as RESERVED
from ._layout import STATE_CHECKPOINTABLE_KEY as STATE
from ._registration import typestr


@dataclasses.dataclass(frozen=True, eq=False)
class Directory:
    """A folder that handlers await before they write to it. It always exists already."""

    path: Any

    @property
    def name(self) -> str:
        return str(self.path.name)

    async def await_creation(self) -> Any:
        return self.path

    def __truediv__(self, other: Any) -> Directory:
        return Directory(self.path / getattr(other, "path", other))

    def __fspath__(self) -> str:
        return str(self.path)


def check_names(checkpointables: Any, what: str) -> None:
    """Refuses a value that is not a dict of checkpointables by name."""
    if not isinstance(checkpointables, dict):
        raise ValueError(f"`{what}` must be a dict by name, found {type(checkpointables)}")
    if any(not isinstance(name, str) or not name or "/" in name for name in checkpointables):
        raise ValueError(
            f"`{what}` has an empty name, or one that cannot name a folder: {sorted(map(str, checkpointables))}"
        )
    reserved = sorted(RESERVED & checkpointables.keys())
    if reserved:
        raise failure(ValueError, f"Provided reserved checkpointable keys: {reserved}.", help="give them other names")


def add(save: ItemsSave, name: str, value: Any, context: Context, written: Written, *, in_background: bool) -> None:
    """Adds one checkpointable. The commit waits for the remaining work of its handler."""
    handler = _registration.resolve_handler_for_save(context.checkpointables.registry, value, name=name)
    if isinstance(handler, _handlers.PyTreeHandler):
        _pytrees.check_leaves(value)
        tree, options = _pytrees.save_plan(value, context)
        (save.later if in_background else save.tree)(name, tree, **options)
        return
    save.handler(name, typestr(type(handler)))
    folder = Directory(context.file.path_class(Path(save.folder(name))))
    left = _interfaces.run(handler.save(folder, value))
    if left is not None:
        written.add((), lambda: _interfaces.run(left))


def load(path: Any, name: str | None, abstract: Any, context: Context, *, is_one_of: bool = False) -> Any:
    """Loads one checkpointable into the form of `abstract`; without a name, the path itself."""
    handler = _for_load(path, name, abstract, context)
    folder = _folder(path, name, context)
    as_one_of = _incompatible(name, handler) if is_one_of else contextlib.nullcontext()
    if not isinstance(handler, _handlers.PyTreeHandler):
        return _interfaces.run(_loaded(handler, folder, abstract, as_one_of))
    with as_one_of, as_orbax():
        if name is not None and not _find.is_pytree(folder):
            raise _find.no_pytree(folder, f"{PYTREE_METADATA_FILE} is missing")
        return _pytrees.load(folder, abstract, context)


@contextlib.contextmanager
def _incompatible(name: str | None, handler: Any) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _registration.IncompatibleHandlerError(
            f"Failed to load checkpointable: {name} due to incompatible handler: {type(handler)}: {error}"
        ) from error


def _folder(path: Any, name: str | None, context: Context) -> Any:
    """The path of a checkpointable for handlers: of the context's class, on a disk."""
    found = bucket_path(path)
    found = context.file.path_class(path) if found is None else found
    return found if name is None else found / name


async def _loaded(handler: Any, folder: Any, abstract: Any, reading: AbstractContextManager[None]) -> Any:
    rest = await handler.load(folder, abstract)
    with reading:
        return await rest


def _for_load(path: Any, name: str | None, abstract: Any, context: Context) -> Any:
    """The handler that loads a checkpointable: the registered one, else that of pytrees."""
    registry = context.checkpointables.registry
    if name is None and not _find.is_pytree(as_path(path)):
        # The path is a file, or a folder of another layout: load it as a pytree.
        return _handlers.PyTreeHandler(context=context)
    saved_by = read_step_metadata(path).item_handlers
    if name is None:
        name, saver = as_path(path).name, saved_by if isinstance(saved_by, str) else None
    else:
        saver = saved_by.get(name) if isinstance(saved_by, dict) else None
    try:
        return _registration.resolve_handler_for_load(registry, abstract, name=name, handler_typestr=saver)
    except _registration.NoEntryError as error:
        if registry.has(STATE):
            return _handlers.PyTreeHandler(context=context)
        raise _registration.NoEntryError(
            f"Could not resolve a handler for {name!r} and no {STATE!r} handler found in {registry}: {error}"
        ) from None


def described(path: Any, name: str, context: Context) -> Any:
    handler = _for_load(path, name, None, context)
    if isinstance(handler, _handlers.PyTreeHandler) and not _find.is_pytree(as_path(path) / name):
        return None
    try:
        return _interfaces.run(handler.metadata(_folder(path, name, context)))
    except (RegrowError, NotImplementedError, AttributeError, OSError, ValueError, KeyError):
        return None

"""Saving and loading one checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ..._items import ItemsSave
from .. import _composite
from .._background import Task
from .._errors import as_orbax
from .._paths import absolute, as_path
from ..metadata import read_step_metadata
from . import _checkpointables
from ._context import Context, current
from ._metadata import CheckpointMetadata
from .errors import InvalidLayoutError

AUTO = "AUTO"
STATE = "state"


AsyncResponse = Task
"""Something that goes on in the background."""


def save_checkpointables(
    path: Any, checkpointables: Mapping[str, Any], *, overwrite: bool = False, custom_metadata: Any = None
) -> None:
    """Saves pytrees, JSON and stateful objects by name: all of them or nothing."""
    with as_orbax():
        publish(path, checkpointables, overwrite, custom_metadata, None).commit()


def save_checkpointables_async(
    path: Any, checkpointables: Mapping[str, Any], *, overwrite: bool = False, custom_metadata: Any = None
) -> AsyncResponse:
    """The same in the background: returns when the snapshot is taken."""
    with as_orbax():
        handle = begin(path, checkpointables, overwrite, custom_metadata, None)
    return AsyncResponse(functools.partial(finish, handle))


def publish(path: Any, checkpointables: Mapping[str, Any], overwrite: bool, custom: Any, metrics: Any) -> ItemsSave:
    """A checkpoint with all of them in it, which is left to commit."""
    save = _open(path, overwrite, custom, metrics)
    try:
        for name, value in checkpointables.items():
            _checkpointables.add(save, name, value, in_background=False)
    except BaseException:
        save.drop()
        raise
    return save


def begin(path: Any, checkpointables: Mapping[str, Any], overwrite: bool, custom: Any, metrics: Any) -> Any:
    """The same in the background; what one waits for."""
    from ..._async import AsyncSave, saver_of_calls

    save = _open(path, overwrite, custom, metrics)
    try:
        for name, value in checkpointables.items():
            _checkpointables.add(save, name, value, in_background=True)
        handle = saver_of_calls()._native.save_items(save._native, "mutable", False, 0.0, 0.0)
    except BaseException:
        save.drop()
        raise
    return AsyncSave(save.path, handle)


def finish(handle: Any) -> None:
    """Waits for a save in the background."""
    with as_orbax():
        handle.wait()


def _open(path: Any, overwrite: bool, custom: Any, metrics: Any) -> ItemsSave:
    options = _checkpointables.options_of(current())
    save = ItemsSave(str(absolute(path)), layout="orbax", orbax=options, overwrite=overwrite, metadata=custom)
    if metrics is not None:
        save.metrics(metrics)
    return save


def save(
    path: Any,
    state: Any,
    *,
    checkpointable_name: str = STATE,
    overwrite: bool = False,
    custom_metadata: Any = None,
) -> None:
    """Saves a pytree."""
    save_checkpointables(path, {checkpointable_name: state}, overwrite=overwrite, custom_metadata=custom_metadata)


def save_async(
    path: Any,
    state: Any,
    *,
    checkpointable_name: str = STATE,
    overwrite: bool = False,
    custom_metadata: Any = None,
) -> AsyncResponse:
    """Saves a pytree in the background: returns when the snapshot is taken."""
    return save_checkpointables_async(
        path, {checkpointable_name: state}, overwrite=overwrite, custom_metadata=custom_metadata
    )


def load(path: Any, abstract_state: Any = None, *, checkpointable_name: str | None = AUTO) -> Any:
    """Loads a pytree as `abstract_state` has it; as it was saved if that is `None`.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if the target does not fit.
        KeyError: for a name that is not there.
    """
    with as_orbax():
        return _checkpointables.load_pytree(pytree_path(path, checkpointable_name), abstract_state, current())


def load_async(path: Any, abstract_state: Any = None) -> AsyncResponse:
    """The same in the background."""
    context = Context(current())
    return AsyncResponse(lambda: _load_in(context, path, abstract_state))


def _load_in(context: Context, path: Any, abstract_state: Any) -> Any:
    with context:
        return load(path, abstract_state)


def pytree_path(path: Any, name: str | None) -> Any:
    """Where the pytree of a checkpoint is: an item of this name, or with `AUTO` the usual one, or the folder itself."""
    path = as_path(path)
    if not path.exists():
        raise InvalidLayoutError(f"Checkpoint at {path} not found.", file=str(path))
    if name is None or not path.is_dir():
        return path
    names = _composite.item_names(path)
    if name != AUTO:
        if name not in names:
            raise KeyError(f'Checkpointable "{name}" was not found in {path}. Available: {names}')
        return path / name
    found = next((usual for usual in (STATE, "pytree", "default") if usual in names), None)
    is_pytree = (path / "_METADATA").exists() or (path / "regrow.json").exists()
    return path if found is None or is_pytree else path / found


def load_checkpointables(path: Any, abstract_checkpointables: Any = None) -> dict[str, Any]:
    """Loads those that are named, as they are given; all of them if `None`.

    Raises:
        FileNotFoundError: if there is no checkpoint.
        KeyError: for a name that is not there.
    """
    if isinstance(abstract_checkpointables, CheckpointMetadata):
        abstract_checkpointables = abstract_checkpointables.metadata
    path = as_path(path)
    names = _composite.item_names(path)
    wanted = abstract_checkpointables or {name: None for name in names if name != "metrics"}
    missing = next((name for name in wanted if name not in names), None)
    if missing is not None:
        raise KeyError(f'Checkpointable "{missing}" was not found in {path}. Available: {names}')
    with as_orbax():
        return {name: _checkpointables.load(path / name, own, current()) for name, own in wanted.items()}


def metadata(path: Any, checkpointable_name: str | None = AUTO) -> CheckpointMetadata:
    """What is known of a pytree: ``.metadata`` is a tree of shapes and dtypes that `load` takes."""
    with as_orbax():
        found = _checkpointables.described(at := pytree_path(path, checkpointable_name))
        if found is None:
            from .._read import pytree_metadata as read

            found = read(at).tree
    return _of_checkpoint(path, found)


def checkpointables_metadata(path: Any) -> CheckpointMetadata:
    """What is known of all of them, by name."""
    path = as_path(path)
    names = [name for name in _composite.item_names(path) if name != "metrics"]
    return _of_checkpoint(path, {name: _checkpointables.described(path / name) for name in names})


def _of_checkpoint(path: Any, found: Any) -> CheckpointMetadata:
    told = read_step_metadata(path)
    return CheckpointMetadata(
        metadata=found,
        path=as_path(path),
        metrics=told.metrics or None,
        custom_metadata=told.custom_metadata or None,
        init_timestamp_nsecs=told.init_timestamp_nsecs,
        commit_timestamp_nsecs=told.commit_timestamp_nsecs,
    )


def is_orbax_checkpoint(path: Any) -> bool:
    """Whether there is a checkpoint of Orbax."""
    names = ("orbax.checkpoint", "_CHECKPOINT_METADATA", "_METADATA")
    return any((as_path(path) / name).exists() for name in names)


save_pytree, save_pytree_async, load_pytree, pytree_metadata = save, save_async, load, metadata

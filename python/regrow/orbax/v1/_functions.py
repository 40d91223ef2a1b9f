"""Saves and loads one checkpoint."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ... import _native
from ..._errors import NotACheckpointError, UncommittedError
from ..._jobs._job import Job
from ..._save._items import ItemsSave
from ..._save._writing import Writing
from .._errors import as_orbax, not_covered
from .._interfaces import Task as Response
from .._jax import jax
from .._paths import absolute, as_path
from .._saving import Pending, Written, publish, saver_of_calls
from ..metadata import read_step_metadata
from . import _checkpointables, _deletion, _find, _pytrees
from ._context import current
from ._find import is_orbax_checkpoint as is_orbax_checkpoint
from ._layout import AUTO_CHECKPOINTABLE_KEY as AUTO
from ._layout import STATE_CHECKPOINTABLE_KEY as STATE
from ._metadata import CheckpointMetadata
from .errors import InvalidLayoutError
from .options import CheckpointLayout


def save_checkpointables(
    path: Any, checkpointables: dict[str, Any], *, overwrite: bool = False, custom_metadata: Any = None
) -> None:
    """Saves pytrees, JSON values and objects with handlers by name, atomically."""
    _save(path, checkpointables, overwrite, custom_metadata)


def save_checkpointables_async(
    path: Any, checkpointables: dict[str, Any], *, overwrite: bool = False, custom_metadata: Any = None
) -> Response[None]:
    """Saves as `save_checkpointables`, in the background. Returns when the snapshot is taken."""
    return _save_async(path, checkpointables, overwrite, custom_metadata)


def _save(path: Any, checkpointables: dict[str, Any], overwrite: bool, custom: Any, **about: bool) -> None:
    with as_orbax():
        begun = begin(path, checkpointables, overwrite, custom, in_background=False, **about)
    begun.finish()


def _save_async(
    path: Any, checkpointables: dict[str, Any], overwrite: bool, custom: Any, **about: bool
) -> Response[None]:
    with as_orbax():
        begun = begin(path, checkpointables, overwrite, custom, in_background=True, **about)
    return Response(begun.finish)


class _Status:
    """Reports each array that was copied or written to a `serialization_status_callback`."""

    def __init__(self, callback: Any, checkpointables: Mapping[str, Any]) -> None:
        self._callback = callback
        self._paths: list[Any] = []
        for value in checkpointables.values() if callback is not None else ():
            flat, _ = jax.tree_util.tree_flatten_with_path(value)
            self._paths += [path for path, leaf in flat if isinstance(leaf, jax.Array)]
        self._to_transfer = list(self._paths)

    def transfer(self) -> None:
        """All arrays have been copied, and may change."""
        for path in self._to_transfer:
            self._callback.on_transfer_end(path)
        self._to_transfer = []

    def end(self) -> None:
        """The save has been committed."""
        self.transfer()
        for path in self._paths:
            self._callback.on_write_end(path)


def begin(
    path: Any,
    checkpointables: Mapping[str, Any],
    overwrite: bool,
    custom: Any,
    metrics: Any = None,
    *,
    in_background: bool,
    are_states: bool = False,
    of_step: bool = False,
) -> Pending:
    """Starts a save. In the background checkpointables may change as soon as this returns."""
    _checkpointables.check_names(checkpointables, "checkpointables")
    if not checkpointables:
        raise ValueError("`checkpointables` must be a dict with at least one, found none")
    context = current()
    if context.checkpoint_layout is CheckpointLayout.SAFETENSORS:
        raise not_covered(
            "saves of v1 with the layout safetensors", 'use regrow.save(path, tree, layout="safetensors")'
        )
    path = absolute(path)
    _deletion.refuse_pending(path)
    layout = _pytrees.save_plan(None, context)[1]["layout"]
    job = Job(timeout=context.asynchronous.timeout_secs) if in_background else None
    writing = Writing(layout=layout, overwrite=overwrite, metadata=custom, job=job)
    save = ItemsSave(path, writing, keeps_others=True, of_step=of_step)

    def add(written: Written) -> None:
        if metrics is not None:
            save.metrics(metrics)
        for name, value in checkpointables.items():
            if are_states and value is None:
                raise ValueError("checkpointable must not be None for saving: found no pytree")
            if are_states:
                # Check here and not earlier: only errors in `add` reach the other processes of a
                # job.
                _pytrees.check_leaves(value)
            _checkpointables.add(save, name, value, context, written, in_background=in_background)

    status = _Status(context.memory.serialization_status_callback, checkpointables)
    pending = publish(save, add, saver_of_calls() if in_background else None)
    if in_background:
        status.transfer()

    def finish() -> None:
        pending.finish()
        status.end()
        if context.file.path_permission_mode is not None:
            _native.set_mode(path, context.file.path_permission_mode)
        callback = context.asynchronous.post_finalization_callback
        if in_background and callback is not None:
            callback()

    return Pending(finish, pending.cancel)


def save(
    path: Any, state: Any, *, checkpointable_name: str = STATE, overwrite: bool = False, custom_metadata: Any = None
) -> None:
    """Saves a pytree."""
    _save(path, {checkpointable_name: state}, overwrite, custom_metadata, are_states=True)


def save_async(
    path: Any, state: Any, *, checkpointable_name: str = STATE, overwrite: bool = False, custom_metadata: Any = None
) -> Response[None]:
    """Saves a pytree in the background: returns when the snapshot is taken."""
    return _save_async(path, {checkpointable_name: state}, overwrite, custom_metadata, are_states=True)


def load(path: Any, abstract_state: Any = None, *, checkpointable_name: str | None = AUTO) -> Any:
    """Loads a pytree into the form of `abstract_state`, or as it was saved if that is `None`."""
    context = current()
    path, name = _find.pytree(path, checkpointable_name)
    with _as_layout(path):
        return _checkpointables.load(path, name, _unwrapped(abstract_state), context)


def load_async(path: Any, abstract_state: Any = None, *, checkpointable_name: str | None = AUTO) -> Response[Any]:
    """Loads as `load`, in the background."""
    return Response(lambda: load(path, abstract_state, checkpointable_name=checkpointable_name))


def load_checkpointables(path: Any, abstract_checkpointables: Any = None) -> dict[str, Any]:
    """Loads the named checkpointables into the given forms; all checkpointables if `None`."""
    context = current()
    abstract = _unwrapped(abstract_checkpointables)
    if abstract is not None:
        _checkpointables.check_names(abstract, "abstract_checkpointables")
    path = _find.composite(path)
    names = _find.names_in(path, requested=abstract or ())
    wanted = abstract or dict.fromkeys(names)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise KeyError(
            f"Requested checkpointables: {missing} for loading were not found in the checkpoint {path}; it has {names}"
        )
    return {name: _checkpointables.load(path, name, own, context, is_one_of=True) for name, own in wanted.items()}


def load_checkpointables_async(path: Any, abstract_checkpointables: Any = None) -> Response[dict[str, Any]]:
    """Loads as `load_checkpointables`, in the background."""
    return Response(lambda: load_checkpointables(path, abstract_checkpointables))


def _unwrapped(abstract: Any) -> Any:
    return abstract.metadata if isinstance(abstract, CheckpointMetadata) else abstract


@contextlib.contextmanager
def _as_layout(path: Any) -> Iterator[None]:
    """Raises v1's error for a missing checkpoint."""
    try:
        with as_orbax():
            yield
    except InvalidLayoutError:
        raise
    except (NotACheckpointError, UncommittedError) as error:
        raise _find.no_pytree(path, error.message) from None


def metadata(path: Any, checkpointable_name: str | None = AUTO) -> CheckpointMetadata[Any]:
    """The metadata of a pytree: ``.metadata`` is a tree of shapes and dtypes that `load` takes."""
    path, name = _find.pytree(path, checkpointable_name)
    with _as_layout(path):
        found, own = _pytrees.metadata(path if name is None else path / name)
    return _of_checkpoint(path, found, own)


def checkpointables_metadata(path: Any) -> CheckpointMetadata[dict[str, Any]]:
    """The metadata of all checkpointables, by name."""
    context = current()
    path = _find.composite(path)
    found = {name: _checkpointables.described(path, name, context) for name in _find.names_in(path)}
    return _of_checkpoint(path, found)


def _of_checkpoint(path: Any, found: Any, own: Mapping[str, Any] | None = None) -> CheckpointMetadata[Any]:
    """Adds the metadata of the checkpoint, or the `own` metadata of its files if it has none."""
    told = read_step_metadata(path)
    return CheckpointMetadata(
        as_path(path),
        metadata=found,
        custom_metadata=told.custom_metadata or dict(own or {}),
        init_timestamp_nsecs=told.init_timestamp_nsecs,
        commit_timestamp_nsecs=told.commit_timestamp_nsecs if path.is_dir() else int(path.stat().mtime * 1e9),
    )


def deprecated(name: str, instead: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"Use `{instead}` instead.", DeprecationWarning, stacklevel=2)
        return function(*args, **kwargs)

    renamed.__name__ = renamed.__qualname__ = name
    return renamed


save_pytree = deprecated("save_pytree", "save", save)
save_pytree_async = deprecated("save_pytree_async", "save_async", save_async)
load_pytree = deprecated("load_pytree", "load", load)
load_pytree_async = deprecated("load_pytree_async", "load_async", load_async)
pytree_metadata = deprecated("pytree_metadata", "metadata", metadata)

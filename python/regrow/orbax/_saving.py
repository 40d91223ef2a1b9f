"""One save: begun in the caller's thread, finished there or in the background.

A pytree alone, and several items, are saved by the engine, which publishes them at once. Only what is no pytree and has
a checkpoint for itself is staged here: in a temporary folder beside the target, which gets its name in the end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

from .._async import AsyncSave, AsyncSaver
from .._items import ItemsSave
from . import _interfaces, _settings
from ._composite import CompositeCheckpointHandler
from ._errors import DestinationExistsError, as_orbax
from ._jax import jax
from ._other_handlers import JsonCheckpointHandler
from ._paths import COMMIT_SUCCESS_FILE, TMP_DIR_SUFFIX, as_path
from ._standard_handlers import OwnHandler, SaveFuture
from .checkpoint_args import is_args


@dataclasses.dataclass
class About:
    """What is stored with a checkpoint besides its items."""

    custom_metadata: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    permission_mode: int | None = None
    timeout_secs: int = 1200


class Staged:
    """A checkpoint under its temporary name."""

    def __init__(self, path: Any, about: About, *, overwrite: bool) -> None:
        self.path = as_path(path)
        self.folder = self.path.parent / f"{self.path.name}{TMP_DIR_SUFFIX}"
        self.root = self.folder
        """What gets the final name."""
        self.handlers: Any = {}
        self._lent = self.folder / "lent"
        self._about = about
        self._overwrite = overwrite
        self._began_ns = time.time_ns()
        self.refuse_existing()
        if is_primary():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            if about.permission_mode is not None:
                os.chmod(self.folder, about.permission_mode)
        barrier(f"{self.path}:staged", about.timeout_secs)

    def refuse_existing(self) -> None:
        """Refuses a target that is there; an empty folder is none."""
        if not self._overwrite and self.path.exists():
            raise DestinationExistsError(
                f"Destination {self.path} already exists.\n  help: give force=True to replace it", file=str(self.path)
            )

    def lend(self) -> Any:
        """A folder for files that stand beside a pytree in the end."""
        self._lent.mkdir(parents=True, exist_ok=True)
        return self._lent

    def commit(self) -> None:
        """Gives it its name."""
        barrier(f"{self.path}:written", self._about.timeout_secs)
        if is_primary():
            for child in self._lent.iterdir() if self._lent.exists() else ():
                if (self.root / child.name).exists():
                    raise FileExistsError(f"A type handler has written {child.name}, which the pytree has for itself.")
                os.rename(child, self.root / child.name)
            told = {
                "item_handlers": self.handlers,
                "metrics": {},
                "performance_metrics": {},
                "init_timestamp_nsecs": self._began_ns,
                "commit_timestamp_nsecs": time.time_ns(),
                "custom_metadata": self._about.custom_metadata or {},
            }
            (self.root / "_CHECKPOINT_METADATA").write_text(json.dumps(told))
            (self.root / COMMIT_SUCCESS_FILE).write_text(f"Checkpoint commit was successful to {self.path}")
            sync(self.root)
            self.refuse_existing()
            aside = None
            if self.path.exists():
                aside = self.folder.parent / f"{self.folder.name}-replaced"
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(self.path, aside)
            os.rename(self.root, self.path)
            sync_folder(self.path.parent)
            if aside is not None:
                shutil.rmtree(aside)
            if self.root != self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)
        barrier(f"{self.path}:committed", self._about.timeout_secs)

    def discard(self) -> None:
        """Leaves nothing behind."""
        if is_primary():
            shutil.rmtree(self.folder, ignore_errors=True)


def sync(folder: Any) -> None:
    """Syncs all files below a folder, and the folders."""
    for base, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync_folder(os.path.join(base, name))
        sync_folder(base)


def sync_folder(path: Any) -> None:
    """Syncs one file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_primary() -> bool:
    """Whether this process commits."""
    return bool(jax.process_index() == 0)


def barrier(name: str, timeout_secs: int) -> None:
    """Waits for all processes of the job; nothing where there is one."""
    if jax.process_count() == 1:
        return
    from jax._src import distributed

    count = _barriers[name] = _barriers.get(name, 0) + 1
    client = distributed.global_state.client
    if client is not None:
        client.wait_at_barrier(f"regrow.orbax:{name}:{count}", timeout_in_ms=timeout_secs * 1000)


_barriers: dict[str, int] = {}


class Pending:
    """A save that was begun: what is left of it, and how it is given up."""

    def __init__(self, futures: Any, commit: Callable[[], None], discard: Callable[[], None]) -> None:
        self._futures = list(futures or [])
        self._commit = commit
        self.discard = discard

    def finish(self) -> None:
        """Waits for all of it, and commits.

        Raises:
            What went wrong; nothing is left then of what was begun.
        """
        try:
            for future in self._futures:
                future.result()
            with as_orbax():
                self._commit()
        except BaseException:
            self.discard()
            raise


def _nothing() -> None:
    pass


def begin(handler: Any, path: Any, call: Call, *, overwrite: bool, saver: AsyncSaver | None, about: About) -> Pending:
    """Begins a save with a handler. With a `saver` what can be done in the background is left to it."""
    with as_orbax():
        if isinstance(handler, CompositeCheckpointHandler):
            return _begin_items(handler, path, _items(call.args), overwrite, saver, about)
        if isinstance(handler, OwnHandler) and about.custom_metadata is None and not handler.own_leaves(call.args):
            futures = handler.begin(path, call.args, overwrite=overwrite, saver=saver)
            return Pending(futures, _nothing, _nothing)
        return _begin_staged(handler, path, call, overwrite, saver, about)


def _begin_items(
    handler: CompositeCheckpointHandler,
    path: Any,
    items: Mapping[str, Any],
    overwrite: bool,
    saver: AsyncSaver | None,
    about: About,
) -> Pending:
    """One publication of all items. What handlers of others write is written before this returns."""
    began = time.perf_counter()
    save = ItemsSave(path, layout=_settings.layout(), overwrite=overwrite, metadata=about.custom_metadata)
    try:
        for name, args in items.items():
            _add_item(save, name, handler.handler_for_save(name, args), args, saver)
        if about.metrics is not None:
            save.metrics(about.metrics)
        if saver is None:
            return Pending([], lambda: _commit(save), save.drop)
        handle = AsyncSave(save.path, saver._native.save_items(save._native, "mutable", False, *_since(began)))
    except BaseException as error:
        save.drop(error)
        raise
    return Pending([SaveFuture(handle)], _nothing, save.drop)


def _since(began: float) -> tuple[float, float]:
    return time.perf_counter() - began, 0.0


def _commit(save: ItemsSave) -> None:
    save.commit()


def _add_item(save: ItemsSave, name: str, handler: Any, args: Any, saver: AsyncSaver | None) -> None:
    if isinstance(handler, OwnHandler):
        tree, options = _plan(handler, args, lambda: save.folder(name))
        (save.tree if saver is None else save.later)(name, tree, **options)
    elif isinstance(handler, JsonCheckpointHandler):
        save.json(name, args.item if is_args(args) else args, file=handler.filename)
    else:
        folder = as_path(save.folder(name))
        for future in _write(handler, folder, Call(args), saver):
            future.result()
        if hasattr(handler, "finalize"):
            handler.finalize(folder)
    save.handler(name, typestr(handler))


def _plan(handler: OwnHandler, args: Any, lend: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """What the engine saves of a pytree, when type handlers have written their leaves into a folder beside it."""
    own = handler.own_leaves(args)
    if own is None:
        return handler.plan(args)
    folder = lend()
    for future in own.write(folder):
        future.result()
    own.finalize(folder)
    return handler.plan_beside(args, own)


def _begin_staged(
    handler: Any, path: Any, call: Call, overwrite: bool, saver: AsyncSaver | None, about: About
) -> Pending:
    """An item that has the checkpoint for itself, and writes its own files or comes with metadata."""
    staged = Staged(path, about, overwrite=overwrite)
    staged.handlers = typestr(handler)
    try:
        if isinstance(handler, OwnHandler):
            staged.root = staged.folder / "pytree"
            planned = _plan(handler, call.args, staged.lend)
            futures = handler.begin(staged.root, call.args, overwrite=False, saver=saver, planned=planned)
            return Pending(futures, staged.commit, staged.discard)

        def commit() -> None:
            if hasattr(handler, "finalize"):
                handler.finalize(staged.root)
            staged.commit()

        return Pending(_write(handler, staged.root, call, saver), commit, staged.discard)
    except BaseException:
        staged.discard()
        raise


@dataclasses.dataclass
class Call:
    """What a caller has given a handler: arguments of a class that is made for it, or anything."""

    args: Any = None
    positional: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _items(args: Any) -> dict[str, Any]:
    if not hasattr(args, "items"):
        raise ValueError(
            f"Expected args of type `Composite`; got {type(args)}"
            "\n  help: give args.Composite(name=...) with an item each"
        )
    return {name: value for name, value in args.items() if value is not None}


def _write(handler: Any, folder: Any, call: Call, saver: AsyncSaver | None) -> list[Any]:
    """Has a handler write its own files; futures of what is left."""
    positional, keywords = call.positional, dict(call.keywords)
    if call.args is not None:
        positional = ()
        keywords = {"args": call.args} if is_args(call.args) else {"item": call.args}
    if saver is not None and hasattr(handler, "async_save"):
        return list(_interfaces.run(handler.async_save(folder, *positional, **keywords)) or [])
    handler.save(folder, *positional, **keywords)
    return []


def typestr(handler: Any) -> str:
    """The name of a handler in ``_CHECKPOINT_METADATA``."""
    if hasattr(handler, "typestr"):
        name: str = handler.typestr()
        return name
    return f"{type(handler).__module__}.{type(handler).__qualname__}"

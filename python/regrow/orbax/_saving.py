"""One save: begun in the caller's thread, finished there or in the background.

A pytree alone is saved by the engine, at once and atomically. Items, and handlers that write files of their own, are
staged in a temporary folder beside the target, which gets its name when all of them are done.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Mapping
from typing import Any

from .._async import AsyncSaver
from . import _interfaces
from ._composite import CompositeCheckpointHandler
from ._errors import DestinationExistsError, as_orbax
from ._jax import jax
from ._paths import COMMIT_SUCCESS_FILE, TMP_DIR_SUFFIX, as_path
from ._standard_handlers import OwnHandler
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

    def item(self, name: str, *, make: bool) -> Any:
        """The folder of an item."""
        path = self.folder / name
        if make and is_primary():
            path.mkdir(parents=True, exist_ok=True)
        return path

    def commit(self) -> None:
        """Gives it its name."""
        barrier(f"{self.path}:written", self._about.timeout_secs)
        if is_primary():
            told = {
                "item_handlers": self.handlers,
                "metrics": self._about.metrics or {},
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
    """A save that was begun."""

    def __init__(self, staged: Staged | None) -> None:
        self._staged = staged
        self._futures: list[Any] = []
        self._finalize: list[tuple[Any, Any]] = []

    def add(self, futures: Any, handler: Any, folder: Any) -> None:
        """What is left of one item."""
        self._futures += list(futures or [])
        if not isinstance(handler, OwnHandler):
            self._finalize.append((handler, folder))

    def finish(self) -> None:
        """Waits for all of it, and commits.

        Raises:
            What went wrong; nothing is left then of what was begun.
        """
        try:
            for future in self._futures:
                future.result()
            for handler, folder in self._finalize:
                handler.finalize(folder)
            if self._staged is not None:
                self._staged.commit()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Leaves nothing behind."""
        if self._staged is not None:
            for future in self._futures:
                _ended(future)
            self._staged.discard()


def _ended(future: Any) -> None:
    """Waits for a future whose outcome no longer matters."""
    try:
        future.result()
    except Exception:
        return


def begin(handler: Any, path: Any, call: Call, *, overwrite: bool, saver: AsyncSaver | None, about: About) -> Pending:
    """Begins a save with a handler. With a `saver` what can be done in the background is left to it."""
    is_plain = isinstance(handler, OwnHandler) and about.custom_metadata is None
    with as_orbax():
        if is_plain:
            pending = Pending(None)
            pending.add(handler.begin(path, call.args, overwrite=overwrite, saver=saver), handler, path)
            return pending
        staged = Staged(path, about, overwrite=overwrite)
        pending = Pending(staged)
        try:
            if isinstance(handler, CompositeCheckpointHandler):
                staged.handlers = {}
                for name, args in _items(call.args).items():
                    own = handler.handler_for_save(name, args)
                    folder = staged.item(name, make=not isinstance(own, OwnHandler))
                    staged.handlers[name] = typestr(own)
                    pending.add(_begin_item(own, folder, Call(args), saver), own, folder)
            else:
                staged.handlers = typestr(handler)
                if isinstance(handler, OwnHandler):
                    staged.root = staged.folder / "pytree"
                pending.add(_begin_item(handler, staged.root, call, saver), handler, staged.root)
        except BaseException:
            pending.discard()
            raise
    return pending


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


def _begin_item(handler: Any, folder: Any, call: Call, saver: AsyncSaver | None) -> Any:
    if isinstance(handler, OwnHandler):
        return handler.begin(folder, call.args, overwrite=True, saver=saver)
    positional = call.positional
    keywords = dict(call.keywords)
    if call.args is not None:
        keywords = {"args": call.args} if is_args(call.args) else {"item": call.args}
        positional = ()
    if saver is not None and hasattr(handler, "async_save"):
        return _interfaces.run(handler.async_save(folder, *positional, **keywords))
    handler.save(folder, *positional, **keywords)
    return []


def typestr(handler: Any) -> str:
    """The name of a handler in ``_CHECKPOINT_METADATA``."""
    if hasattr(handler, "typestr"):
        name: str = handler.typestr()
        return name
    return f"{type(handler).__module__}.{type(handler).__qualname__}"

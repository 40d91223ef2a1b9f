"""One save: started in the caller's thread, finished there or in the background.

The engine publishes all files at once, also those that other handlers write.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._core._duck import is_a
from .._core._requests import BackgroundRequest
from .._errors import failure
from .._jobs._job import Job
from .._save import _async
from .._save._async import AsyncSaver, SaveHandle
from .._save._items import WHOLE, ItemsSave
from .._save._writing import Writing
from . import _interfaces, _settings
from ._composite import CompositeCheckpointHandler
from ._errors import as_orbax
from ._handlers import JsonCheckpointHandler, OwnHandler
from ._paths import as_path
from .checkpoint_args import is_args


@dataclasses.dataclass
class About:
    """Data stored with a checkpoint in addition to its items."""

    custom_metadata: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    permission_mode: int | None = None
    timeout_secs: float | None = None
    """Seconds that processes of a job wait for each other in each phase; `None` for the default."""

    @property
    def job(self) -> Job | None:
        return None if self.timeout_secs is None else Job(timeout=self.timeout_secs)


class Pending(NamedTuple):
    """A save in progress."""

    finish: Callable[[], None]
    """Does the remaining work, and waits for it."""
    cancel: Callable[[], object]
    """Asks the running work to stop."""


class Written:
    """Files that handlers write themselves: the work that remains after they returned."""

    def __init__(self, timeout_secs: float | None = None) -> None:
        self._timeout = timeout_secs
        self._end = None if timeout_secs is None else time.monotonic() + timeout_secs
        self._futures: list[Any] = []
        self._last: list[Callable[[], object]] = []
        self._error: BaseException | None = None

    def add(self, futures: Any, last: Callable[[], object]) -> None:
        """Adds futures of a handler's writes, and a function for when all files are written."""
        self._futures += list(futures or [])
        self._last.append(last)

    def __bool__(self) -> bool:
        return bool(self._last)

    def finish(self) -> None:
        """Waits for all writes, and lets the handlers finish: before the commit."""
        try:
            for done, future in enumerate(self._futures):
                self._wait(future, done)
            for last in self._last:
                last()
        except BaseException as error:
            self._error = error
            raise

    def _wait(self, future: Any, done: int) -> None:
        if self._end is None:
            future.result()
            return
        try:
            future.result(timeout=max(0.0, self._end - time.monotonic()))
        except TimeoutError as error:
            if time.monotonic() < self._end:
                raise
            raise failure(
                TimeoutError,
                (
                    f"ChainedFuture completed {done}/{len(self._futures)} futures but timed out after "
                    f"{self._timeout} seconds."
                ),
                help="raise timeout_secs",
            ) from error

    def abandon(self) -> None:
        """Waits until no handler writes, so that removed files do not come back."""
        for future in self._futures:
            with contextlib.suppress(BaseException):
                future.result()

    def wait_for(self, save: SaveHandle, saver: AsyncSaver) -> None:
        """Waits for the save that calls `finish`, with a saver that lives until then."""
        try:
            save.result()
        except BaseException:
            if self._error is not None:
                raise self._error from None
            raise


def begin(handler: Any, path: Any, call: Call, *, overwrite: bool, saver: AsyncSaver | None, about: About) -> Pending:
    """Starts a save with a handler. A `saver` does the rest in the background."""
    with as_orbax():
        if not isinstance(handler, CompositeCheckpointHandler):
            return _begin(path, {WHOLE: (handler, call)}, overwrite, saver, about)
        items = {name: (handler.handler_for(name, args), Call(args)) for name, args in _items(call.args).items()}
        return _begin(path, items, overwrite, saver, about)


def _begin(
    path: Any, items: Mapping[str, tuple[Any, Call]], overwrite: bool, saver: AsyncSaver | None, about: About
) -> Pending:
    writing = Writing(layout=_settings.layout(), overwrite=overwrite, metadata=about.custom_metadata, job=about.job)
    save = ItemsSave(path, writing, mode=about.permission_mode, keeps_others=True)

    def add(written: Written) -> None:
        for name, (handler, call) in items.items():
            _add_item(save, name, handler, call, saver, written)
        if about.metrics is not None:
            save.metrics(about.metrics)

    return publish(save, add, saver, about.timeout_secs)


def publish(
    save: ItemsSave, add: Callable[[Written], None], saver: AsyncSaver | None, timeout_secs: float | None = None
) -> Pending:
    """Calls `add` for the items. A `saver`, or else the caller of `finish`, does the rest."""
    began, written = time.perf_counter(), Written(timeout_secs)

    def discard(error: BaseException | None = None) -> None:
        if isinstance(error, TimeoutError):
            # Clean up in a thread: the handler may run for much longer, and the caller gets the
            # error now.
            threading.Thread(target=remove, args=(error,), daemon=True).start()
        else:
            remove(error)

    def remove(error: BaseException | None) -> None:
        written.abandon()
        save.drop(error)

    def finish(work: Callable[[], object]) -> None:
        try:
            with as_orbax():
                work()
        except BaseException as error:
            discard(error)
            raise

    def commit() -> None:
        written.finish()
        save.commit()

    try:
        add(written)
        if saver is None:
            return Pending(functools.partial(finish, commit), save.cancel)
        # Handlers run with the options that were in force at the call.
        context = contextvars.copy_context()
        context.run(_is_before_commit.set, True)
        before_commit = functools.partial(context.run, written.finish) if written else None
        how = BackgroundRequest(copy="mutable", check_source=False, seconds=time.perf_counter() - began)
        handle = SaveHandle(save.path, saver._native.save_items(save._native, how, before_commit))
    except BaseException as error:
        discard(error)
        raise
    return Pending(functools.partial(finish, lambda: written.wait_for(handle, saver)), handle.cancel)


_is_before_commit = contextvars.ContextVar("_is_before_commit", default=False)


def saver_of_calls() -> AsyncSaver:
    """The saver that all calls share. A save inside a save gets another one: the first waits."""
    return AsyncSaver() if _is_before_commit.get() else _async.saver_of_calls()


def _add_item(save: ItemsSave, name: str, handler: Any, call: Call, saver: AsyncSaver | None, written: Written) -> None:
    save.handler(name, typestr(handler))
    if isinstance(handler, OwnHandler) and _saves_as(handler, OwnHandler):
        tree, options = _plan(handler, call.args, lambda: save.folder(name))
        (save.tree if saver is None else save.later)(name, tree, **options)
    elif isinstance(handler, JsonCheckpointHandler) and _saves_as(handler, JsonCheckpointHandler):
        args = call.args
        save.json(name, args.item if is_args(args) else args, file=handler.filename)
    else:
        folder = as_path(save.folder(name))
        futures = _write(handler, folder, call, saver)
        written.add(futures, lambda: handler.finalize(folder) if hasattr(handler, "finalize") else None)


def _plan(handler: OwnHandler, args: Any, lend: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """The tree that the engine saves, after type handlers have written their leaves beside it."""
    own = handler.own_leaves(args)
    if own is None:
        return handler.plan(args)
    folder = lend()
    for future in own.write(folder):
        future.result()
    own.finalize(folder)
    return handler.plan_beside(args, own)


def _saves_as(handler: Any, cls: type[Any]) -> bool:
    """Whether the handler uses `save` of this class, not an override."""
    return all(getattr(type(handler), name) is getattr(cls, name) for name in ("save", "async_save"))


@dataclasses.dataclass
class Call:
    """The arguments of a handler: an instance of its class of arguments, or any values."""

    args: Any = None
    positional: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _items(args: Any) -> dict[str, Any]:
    if not is_a(args, "CompositeArgs"):
        help = "give args.Composite(name=...) with an item each"
        raise failure(ValueError, f"Expected args of type `Composite`; got {type(args)}", help=help)
    return {name: value for name, value in args.items() if value is not None}


def _write(handler: Any, folder: Any, call: Call, saver: AsyncSaver | None) -> list[Any]:
    """Lets a handler write its own files. Returns futures of the remaining work."""
    positional, keywords = call.positional, dict(call.keywords)
    if call.args is not None:
        positional = ()
        keywords = {"args": call.args} if is_args(call.args) else {"item": call.args}
    if saver is not None and hasattr(handler, "async_save"):
        return list(_interfaces.run(handler.async_save(folder, *positional, **keywords)) or [])
    handler.save(folder, *positional, **keywords)
    return []


def typestr(handler: Any) -> str:
    if hasattr(handler, "typestr"):
        name: str = handler.typestr()
        return name
    return f"{type(handler).__module__}.{type(handler).__qualname__}"

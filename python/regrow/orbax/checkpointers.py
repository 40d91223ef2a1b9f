"""Checkpointers: each saves and restores one item with a handler."""

from __future__ import annotations

import abc
import contextlib
import threading
from typing import Any

from .._errors import CancelledError, failure
from .._save._async import AsyncSaver
from . import _composite, _saving, metadata
from ._errors import DestinationExistsError, as_orbax, says_force
from ._handler_args import StandardRestoreArgs, StandardSaveArgs
from ._handlers import PyTreeCheckpointHandler, StandardCheckpointHandler
from ._interfaces import Closing, Task
from ._paths import absolute, as_path, is_temporary, lacks_marker, wants_marker
from .checkpoint_args import get_registered_args_cls, has_registered_args, is_args
from .options import AsyncOptions, MultiprocessingOptions, timeout_of
from .path import atomicity


class AbstractCheckpointer(abc.ABC):
    """The base class of all checkpointers."""

    @abc.abstractmethod
    def save(self, directory: Any, *args: Any, **kwargs: Any) -> Any: ...

    @abc.abstractmethod
    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any: ...

    def metadata(self, directory: Any) -> Any:
        raise NotImplementedError

    def structure(self, directory: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027
        """Releases the resources."""


def call_of(handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, for_save: bool) -> _saving.Call:
    """The arguments of a call in the handler's form. Arguments among the values win."""
    given = next((value for value in (*args, *kwargs.values()) if is_args(value)), None)
    if given is not None:
        return _saving.Call(given)
    if not has_registered_args(handler):
        return _saving.Call(None, args, kwargs)
    save_cls, restore_cls = get_registered_args_cls(handler)
    return _saving.Call((save_cls if for_save else restore_cls)(*args, **kwargs))


class Checkpointer(AbstractCheckpointer, Closing):
    """Saves and restores one item with a handler, and returns when that is done."""

    _saver: AsyncSaver | None = None
    _timeout: int | None = None

    def __init__(
        self,
        handler: Any,
        *,
        multiprocessing_options: MultiprocessingOptions | None = None,
        file_options: Any = None,
        atomicity_options: Any = None,
        checkpoint_metadata_store: Any = None,
        temporary_path_class: Any = None,
        primary_host: int | None = 0,
        active_processes: Any = None,
    ) -> None:
        self._handler = handler
        self._permission_mode = getattr(file_options, "path_permission_mode", None)
        wants_marker(atomicity_options)
        self._atomicity = atomicity_options
        self._temporary_path_class = temporary_path_class
        self._is_closed = False

    @property
    def handler(self) -> Any:
        """The handler."""
        return self._handler

    def get_temporary_path(self, directory: Any) -> atomicity.TemporaryPath:
        """The path that Orbax would write to first. The engine's saves use other paths."""
        return (self._temporary_path_class or atomicity.AtomicRenameTemporaryPath).from_final(as_path(directory))

    async def create_temporary_path(self, temporary_path: Any) -> None:
        await temporary_path.create()

    def synchronize_next_awaitable_signal_operation_id(self) -> None:
        """Does nothing: the engine's saves have no such ids."""

    def save(
        self,
        directory: Any,
        *args: Any,
        force: bool = False,
        custom_metadata: dict[str, Any] | None = None,
        save_context: Any = None,
        **kwargs: Any,
    ) -> None:
        """Saves an item, atomically."""
        self._wait()
        if self._is_closed:
            raise failure(RuntimeError, "save() after close()", help="make a new checkpointer")
        path = absolute(directory)
        if self._saver is not None and not force and path.exists() and any(path.iterdir()):
            help = "give force=True to replace it"
            raise failure(DestinationExistsError, f"Destination {path} already exists.", file=str(path), help=help)
        about = _saving.About(custom_metadata, None, self._permission_mode, self._timeout)
        call = call_of(self._handler, args, kwargs, for_save=True)
        with says_force():
            self._end(_saving.begin(self._handler, path, call, overwrite=force, saver=self._saver, about=about))

    def _wait(self) -> None:
        """Waits for the previous save."""

    def _end(self, pending: _saving.Pending) -> None:
        pending.finish()

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Restores the item."""
        path = as_path(directory)
        if not path.exists():
            raise FileNotFoundError(f"Checkpoint at {path} not found.")
        if is_temporary(path) or lacks_marker(path, self._atomicity):
            raise ValueError(f"Found incomplete checkpoint at {path}.")
        if "target" in kwargs:
            kwargs["item"] = kwargs.pop("target")
        call = call_of(self._handler, args, kwargs, for_save=False)
        with as_orbax():
            if call.args is None:
                return self._handler.restore(path, *call.positional, **call.keywords)
            return self._handler.restore(path, args=call.args)

    def metadata(self, directory: Any) -> metadata.StepMetadata:
        """The metadata of the checkpoint; ``.item_metadata`` is `None` if there is none."""
        return _composite.metadata_of(self._handler, as_path(directory))

    def structure(self, directory: Any) -> Any:
        """`None`, as in the original for all but old layouts."""
        return None

    def close(self) -> None:
        """Closes the handler."""
        self._is_closed = True
        self._handler.close()


class AsyncCheckpointer(Checkpointer):
    """Saves in the background, one save at a time. The next call raises the error of a save."""

    def __init__(
        self,
        handler: Any,
        timeout_secs: int | None = None,
        *,
        async_options: AsyncOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
        file_options: Any = None,
        atomicity_options: Any = None,
        checkpoint_metadata_store: Any = None,
        temporary_path_class: Any = None,
        primary_host: int | None = 0,
        barrier_sync_fn: Any = None,
        post_finalization_callback: Any = None,
    ) -> None:
        super().__init__(handler, file_options=file_options, atomicity_options=atomicity_options)
        self._saver = AsyncSaver()
        self._lock = threading.Lock()
        self._task: Task[None] | None = None
        self._pending: _saving.Pending | None = None
        options = async_options or AsyncOptions()
        self._timeout = timeout_of(options, timeout_secs)
        self._on_commit = options.post_finalization_callback or post_finalization_callback

    def _end(self, pending: _saving.Pending) -> None:
        self._pending = pending

        def work() -> None:
            with says_force():
                pending.finish()
            if self._on_commit is not None:
                self._on_commit()

        self._task = Task(work, name="regrow.orbax save")

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Restores as `Checkpointer.restore`, after the save in progress has ended."""
        self.wait_until_finished()
        return super().restore(directory, *args, **kwargs)

    def wait_until_finished(self) -> None:
        """Waits for the save, and raises its error. Any thread may call it, and again."""
        task = self._task
        if task is not None:
            task.join()
        self.check_for_errors()

    def _wait(self) -> None:
        self.wait_until_finished()

    def check_for_errors(self) -> None:
        """Raises the error of a save that has ended, once."""
        if self.is_busy():
            return
        with self._lock:
            task, self._task = self._task, None
        if task is not None:
            task.result()

    def is_busy(self) -> bool:
        """Whether a save is in progress."""
        task = self._task
        return task is not None and not task.done()

    def cancel(self) -> None:
        """Cancels the save in the background, unless it is already committed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()
            with contextlib.suppress(CancelledError):
                self.wait_until_finished()

    def close(self) -> None:
        """Waits for the save, and closes the handler."""
        try:
            self.wait_until_finished()
        finally:
            super().close()


class PyTreeCheckpointer(Checkpointer):
    """Saves and restores pytrees."""

    def __init__(
        self,
        primary_host: int | None = 0,
        use_ocdbt: bool = True,
        use_zarr3: bool = False,
        use_compression: bool = True,
    ) -> None:
        super().__init__(
            PyTreeCheckpointHandler(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3, use_compression=use_compression)
        )


class StandardCheckpointer(AsyncCheckpointer):
    """Saves pytrees of arrays and numbers in the background."""

    def __init__(
        self,
        *,
        async_options: AsyncOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
        file_options: Any = None,
        atomicity_options: Any = None,
        checkpoint_metadata_store: Any = None,
        temporary_path_class: Any = None,
        **kwargs: Any,
    ) -> None:
        handler = StandardCheckpointHandler(**kwargs)
        super().__init__(
            handler, async_options=async_options, file_options=file_options, atomicity_options=atomicity_options
        )

    def save(  # type: ignore[override]
        self,
        directory: Any,
        state: Any,
        *args: Any,
        save_args: Any = None,
        force: bool = False,
        custom_metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Starts to save a pytree."""
        given = next((value for value in (state, *args, *kwargs.values()) if is_args(value)), None)
        chosen = StandardSaveArgs(state, save_args) if given is None else given
        super().save(directory, args=chosen, force=force, custom_metadata=custom_metadata)

    def restore(self, directory: Any, target: Any = None, *args: Any, strict: bool = True, **kwargs: Any) -> Any:
        """Restores into the form of the target; with `strict=False` also into other shapes."""
        given = next((value for value in (target, *args, *kwargs.values()) if is_args(value)), None)
        chosen = StandardRestoreArgs(target, strict=strict) if given is None else given
        return super().restore(directory, args=chosen)

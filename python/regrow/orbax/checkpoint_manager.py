"""A manager of steps, with the constructors and keywords that Orbax has had, the older ones too.

The list of steps is what storage has committed: a save in progress, or one that failed, is in no list.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from .._async import AsyncSaver
from . import _retention, _saving
from ._background import Background
from ._composite import CompositeArgs, CompositeCheckpointHandler
from ._errors import StepAlreadyExistsError, as_orbax
from ._manager_folder import (
    METADATA_ITEM_NAME,
    METRIC_ITEM_NAME,
    clean_up,
    create,
    listed,
    read_info,
    read_root_metadata,
    remove,
    write_root_metadata,
)
from ._manager_options import CheckpointManagerOptions
from ._manager_restore import DEFAULT_ITEM_NAME, Restorer, is_composite
from ._paths import as_path, is_temporary
from ._standard_handlers import PyTreeCheckpointHandler
from .checkpoint_args import is_args
from .checkpoint_managers import DecisionContext, PolicyCheckpointInfo
from .checkpointers import call_of
from .multihost import reached_preemption
from .options import AsyncOptions
from .path import step as steps

__all__ = [
    "DEFAULT_ITEM_NAME",
    "METADATA_ITEM_NAME",
    "METRIC_ITEM_NAME",
    "AsyncOptions",
    "CheckpointInfo",
    "CheckpointManager",
    "CheckpointManagerOptions",
    "StepAlreadyExistsError",
]


CheckpointInfo = PolicyCheckpointInfo

_log = logging.getLogger("regrow.orbax")


class CheckpointManager:
    """Saves, lists, restores and deletes the steps of a folder."""

    def __init__(
        self,
        directory: Any,
        checkpointers: Any = None,
        options: CheckpointManagerOptions | None = None,
        metadata: Mapping[str, Any] | None = None,
        item_names: Sequence[str] | None = None,
        item_handlers: Any = None,
        logger: Any = None,
        handler_registry: Any = None,
    ) -> None:
        """Of a folder.

        Args:
            directory: Where the steps are.
            checkpointers: One, or a dict of them by item: whose handlers save and restore. The older way.
            options: See `CheckpointManagerOptions`.
            metadata: Your own metadata of the folder, written once.
            item_names: Names of items; not needed.
            item_handlers: A handler, or a dict of them by item.
            logger: Is told of saves and restores.
            handler_registry: Handlers by item and class of arguments.

        Raises:
            ValueError: for `checkpointers` with `item_names`, `item_handlers` or `handler_registry`.
        """
        for name, other in (("item_names", item_names), ("item_handlers", item_handlers)):
            if checkpointers is not None and other is not None:
                raise ValueError(f"`{name}` and `checkpointers` are mutually exclusive - do not use together.")
        if handler_registry is not None and (checkpointers is not None or item_handlers is not None):
            raise ValueError("`handler_registry` excludes `checkpointers` and `item_handlers`: add to the registry.")
        if options is not None and options.preservation_policy is not None and options.max_to_keep is not None:
            raise ValueError("`preservation_policy` and `max_to_keep` are mutually exclusive - do not use together.")
        self._directory = as_path(directory)
        self._options = options or CheckpointManagerOptions()
        self._logger = logger
        self._saver = AsyncSaver()
        self._background = Background()
        self._is_closed = False
        self._saving_step: int | None = None
        self._name_format = self._options.step_name_format or steps.standard_name_format(
            step_prefix=self._options.step_prefix, step_format_fixed_length=self._options.step_format_fixed_length
        )
        given = item_handlers if checkpointers is None else _handlers_of(checkpointers)
        is_async = checkpointers is None or _any_async(checkpointers)
        self._is_async = is_async and self._options.enable_async_checkpointing
        """Whether saves go on in the background: with checkpointers, if one of them does that."""
        self._is_by_name = isinstance(given, Mapping)
        """Whether bare items are given by name."""
        handlers = dict(given) if isinstance(given, Mapping) else {} if given is None else {DEFAULT_ITEM_NAME: given}
        self._composite = CompositeCheckpointHandler(handler_registry=handler_registry)
        self._composite._handlers |= {name: handler for name, handler in handlers.items() if handler is not None}
        self._restorer = Restorer(self._composite, self._is_by_name)
        if self._options.create and not self._options.read_only:
            create(self._directory, self._options)
        clean_up(self._directory, self._options)
        write_root_metadata(self._directory, metadata, self._options)
        self._infos: dict[int, PolicyCheckpointInfo] = {}
        self.reload()

    # ---- what is there ----------------------------------------------------------------------------------------

    @property
    def directory(self) -> Any:
        """The folder."""
        return self._directory

    @property
    def _checkpoints(self) -> list[PolicyCheckpointInfo]:
        return self._listed()

    def all_steps(self, read: bool = False) -> list[int]:
        """The steps that storage has committed; with `read` looked for anew."""
        if read:
            self.reload()
        return sorted(info.step for info in self._listed())

    def latest_step(self) -> int | None:
        """The highest of them; `None` if there are none."""
        return max(self.all_steps(), default=None)

    def best_step(self) -> int | None:
        """The best by `best_fn`, the latest of several; the latest step where nothing is measured."""
        if self._options.best_fn is None:
            return self.latest_step()
        measured = [info for info in self._listed() if info.metrics is not None]
        if not measured:
            return None
        sign = 1 if self._options.best_mode == "max" else -1
        best = self._options.best_fn
        return max(measured, key=lambda info: (sign * best(info.metrics), info.step)).step

    def reload(self) -> None:
        """Looks for steps anew."""
        self._infos = listed(self._directory, self._name_format)

    def _listed(self) -> list[PolicyCheckpointInfo]:
        """In the order in which they were saved: of those that were there, by number."""
        return list(self._infos.values())

    def metrics(self, step: int) -> Any:
        """The metrics of a step; `None` if it has none."""
        info = self._infos.get(step)
        return None if info is None else info.metrics

    def metadata(self, step: int | None = None) -> Any:
        """What a step says of itself, or without one the folder.

        Raises:
            FileNotFoundError: if there is no such step.
        """
        if step is None:
            return read_root_metadata(self._directory)
        self._wait_for(step)
        found = self._composite.metadata(self._path_of_stored(step))
        found.item_metadata = self._unwrapped(found.item_metadata)
        if not found.metrics:
            found.metrics = self.metrics(step) or {}
        return found

    def item_metadata(self, step: int) -> Any:
        """What is known of the items of a step, by name; of the item itself where there is one without a name.

        Raises:
            FileNotFoundError: if there is no such step.
        """
        return self.metadata(step).item_metadata

    def _unwrapped(self, items: Any) -> Any:
        items.pop(METRIC_ITEM_NAME, None)
        return items.get(DEFAULT_ITEM_NAME, items)

    def _path_of_stored(self, step: int) -> Any:
        found = steps.maybe_find_step_metadata(self._directory, self._name_format, step=step)
        if found is None:
            path = steps.build_step_path(self._directory, self._name_format, step)
            raise FileNotFoundError(f"Directory does not exist: {path}")
        return found.path

    # ---- saving -----------------------------------------------------------------------------------------------

    def should_save(self, step: int) -> bool:
        """Whether `save` would save this step."""
        options = self._options
        if options.read_only:
            return False
        last = self._last_step()
        if last is not None and last >= step:
            return False
        preempted = self.reached_preemption(step)
        listed = self._listed()
        if options.save_decision_policy is not None:
            context = DecisionContext(
                is_saving_in_progress=self.is_saving_in_progress(),
                reached_preemption=preempted,
                multiprocessing_options=options.multiprocessing_options,
            )
            now = PolicyCheckpointInfo(step, datetime.datetime.now(tz=datetime.UTC))
            return bool(options.save_decision_policy.should_save(now, listed, context=context))
        if preempted:
            return True
        if options.should_save_fn is not None:
            return bool(options.should_save_fn(step, last))
        is_due = options.save_interval_steps > 0 and step % options.save_interval_steps == 0
        return last is None or is_due or step in (options.save_on_steps or ())

    def _last_step(self) -> int | None:
        """The last step that is there, or being saved."""
        known = [*self._infos, *([] if self._saving_step is None else [self._saving_step])]
        return max(known, default=None)

    def reached_preemption(self, step: int) -> bool:
        """Whether JAX' preemption service wants a save; false where the service is off."""
        return reached_preemption(step)

    def save(
        self,
        step: int,
        items: Any = None,
        save_kwargs: Any = None,
        metrics: Any = None,
        force: bool | None = False,
        args: Any = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> bool:
        """Saves a step, if it is due: in the background, unless the options say otherwise.

        Args:
            step: Its number.
            items: An item, or a dict of them by name, without arguments: the older way.
            save_kwargs: With `items`: ``{"save_args": ...}``, or a dict of these by name.
            metrics: Numbers of this step; kept also where no `best_fn` asks for them.
            force: Save also if it is not due.
            args: Arguments of an item, or `args.Composite` of several.
            custom_metadata: Your own metadata.

        Returns:
            Whether it is saved; false for a step that is not due, or not after the last one.

        Raises:
            StepAlreadyExistsError: (a `ValueError`) with `force`, for a step that is there.
            RuntimeError: after `close`.
            What an earlier save in the background ended with.
        """
        if self._is_closed:
            raise RuntimeError("save() after close()\n  help: make a new CheckpointManager")
        if step < 0:
            raise ValueError(f"step: expected a number of 0 or more, found {step}")
        if self._options.read_only:
            return False
        if items is None and args is None:
            raise ValueError("Must provide `args` for `save`.\n  help: save(step, args=args.StandardSave(state))")
        if args is None and is_args(items):
            args, items = items, None
        if not force and not self.should_save(step):
            return False
        self.wait_until_finished()
        if step in self._infos or (not force and not self.should_save(step)):
            if force:
                raise StepAlreadyExistsError(f"Checkpoint for step {step} already exists.")
            return False
        composite = self._composite_args(items, save_kwargs, args)
        self._begin(step, composite, metrics, custom_metadata)
        return True

    def _composite_args(self, items: Any, save_kwargs: Any, args: Any) -> dict[str, Any]:
        """All items with their arguments, by name."""
        if args is not None:
            return dict(args.items()) if is_composite(args) else {DEFAULT_ITEM_NAME: args}
        by_name = items if self._is_by_name else {DEFAULT_ITEM_NAME: items}
        if not isinstance(by_name, Mapping):
            raise ValueError(f"expected a dict of items by name, found {type(items).__name__}")
        keywords = save_kwargs or {}
        out = {}
        for name, item in by_name.items():
            own = (keywords.get(name) or {}) if self._is_by_name else keywords
            handler = self._composite._handlers.get(name)
            if handler is None:
                handler = self._composite._handlers[name] = PyTreeCheckpointHandler()
            call = call_of(handler, (item,), dict(own), for_save=True)
            out[name] = item if call.args is None else call.args
        return out

    def _begin(self, step: int, items: dict[str, Any], metrics: Any, custom: Any) -> None:
        path = self.path_of(step)
        mode = self._options.file_options.path_permission_mode if self._options.file_options else None
        timeout = self._options.async_options.timeout_secs if self._options.async_options else 1200
        about = _saving.About(custom, None if self._options.prevent_write_metrics else metrics, mode, timeout)
        # What lies there is no step: an empty folder, or what a broken deletion has left.
        is_empty = path.exists() and not any(path.iterdir())
        call = _saving.Call(CompositeArgs(**items))
        saver = self._saver if self._is_async else None
        pending = _saving.begin(self._composite, path, call, overwrite=is_empty, saver=saver, about=about)
        finish = self.keep_track(step, pending.finish)
        if saver is None:
            finish()
        else:
            self._background.run(finish)

    def path_of(self, step: int) -> Any:
        """Where a step is, or would be."""
        return steps.build_step_path(self._directory, self._name_format, step)

    def keep_track(self, step: int, finish: Callable[[], None]) -> Callable[[], bool]:
        """Takes a save that was begun for this manager's; what finishes it, lists the step and deletes older ones."""
        began, path = time.time(), self.path_of(step)
        self._saving_step = step

        def run() -> bool:
            try:
                finish()
            finally:
                self._saving_step = None
            self._infos.pop(step, None)
            self._infos[step] = read_info(step, path)
            self._tell({"event_type": "save", "step": step, "directory": str(path), "seconds": time.time() - began})
            self._prune()
            callback = getattr(self._options.async_options, "post_finalization_callback", None)
            if callback is not None:
                callback()
            return True

        return run

    def _tell(self, record: dict[str, Any]) -> None:
        _log.info("%s", json.dumps(record))
        if self._logger is not None:
            self._logger.log_entry(record)

    # ---- restoring --------------------------------------------------------------------------------------------

    def restore(
        self,
        step: Any = None,
        items: Any = None,
        restore_kwargs: Any = None,
        directory: Any = None,
        args: Any = None,
    ) -> Any:
        """Restores a step.

        Args:
            step: Its number; the latest if `None`. A path is taken as it is, below the folder.
            items: A target, or a dict of them by name: the older way.
            restore_kwargs: With or without `items`: ``{"restore_args": ...}``, or a dict of these by name.
            directory: Another folder of steps.
            args: Arguments of an item, or `args.Composite` of several.

        Returns:
            The item without a name, or what `args.Composite` is of several.

        Raises:
            FileNotFoundError: if there is no such step, or none at all.
            KeyError: for an item that is not there.
        """
        path = self._path_to_restore(step, directory)
        if args is None and is_args(items):
            args, items = items, None
        began = time.time()
        with as_orbax():
            result = self._restorer.restore(path, items, restore_kwargs, args)
        self._tell({"event_type": "restore", "step": step, "directory": str(path), "seconds": time.time() - began})
        return result

    def _path_to_restore(self, step: Any, directory: Any) -> Any:
        root = self._directory if directory is None else as_path(directory)
        if directory is None:
            self._wait_for(step)
        if step is None:
            step = self.latest_step() if directory is None else _latest(root, self._name_format)
            if step is None:
                raise FileNotFoundError(f"No steps found in {root}.")
        if isinstance(step, (str, os.PathLike)):
            path = root / os.fspath(step)
        else:
            found = steps.maybe_find_step_metadata(root, self._name_format, step=step) if root.exists() else None
            path = steps.build_step_path(root, self._name_format, step) if found is None else found.path
        if not path.exists():
            raise FileNotFoundError(f"Checkpoint at {path} not found.")
        if is_temporary(path):
            raise ValueError(f"Found incomplete checkpoint at {path}.")
        return path

    # ---- deleting ---------------------------------------------------------------------------------------------

    def delete(self, step: int) -> None:
        """Deletes a step.

        Raises:
            FileNotFoundError: if it is not there.
        """
        if self._options.read_only:
            _log.warning("%s is read only: step %s was not deleted", self._directory, step)
            return
        if step not in self._infos:
            raise FileNotFoundError(f"Requested deleting a non-existent step: {step}.")
        self._wait_for(step)
        self._remove(step)

    def _remove(self, step: int) -> None:
        self._infos.pop(step, None)
        found = steps.maybe_find_step_metadata(self._directory, self._name_format, step=step)
        if found is not None:
            remove(self._directory, found.path, self._options)

    def _prune(self) -> None:
        """Deletes what the options do not keep; never all of it."""
        for step in _retention.to_delete(self._listed(), self._options):
            self._remove(step)

    # ---- waiting ----------------------------------------------------------------------------------------------

    def wait_until_finished(self) -> None:
        """Waits for the save in the background, and raises what went wrong, once."""
        self._background.wait()

    def _wait_for(self, step: Any) -> None:
        """Waits for the save of a step that is asked for, or of any if the latest is."""
        if step is None or step == self._saving_step:
            self.wait_until_finished()

    def check_for_errors(self) -> None:
        """Raises what went wrong with a save that has ended, once."""
        self._background.check()

    def is_saving_in_progress(self) -> bool:
        """Whether a save is in progress."""
        return self._background.is_busy()

    def close(self) -> None:
        """Waits for the save, and refuses any other."""
        try:
            self.wait_until_finished()
        finally:
            self._is_closed = True
            self._composite.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _handlers_of(checkpointers: Any) -> Any:
    """The handlers of a checkpointer, or of several by name; of the original's too."""
    if isinstance(checkpointers, Mapping):
        return {name: _handlers_of(checkpointer) for name, checkpointer in checkpointers.items()}
    handler = getattr(checkpointers, "handler", getattr(checkpointers, "_handler", None))
    if handler is None:
        raise ValueError(f"expected a checkpointer, or a dict of them, found {type(checkpointers).__name__}")
    return handler


def _any_async(checkpointers: Any) -> bool:
    every = checkpointers.values() if isinstance(checkpointers, Mapping) else [checkpointers]
    return any(hasattr(checkpointer, "wait_until_finished") for checkpointer in every)


def _latest(root: Any, name_format: Any) -> int | None:
    found = steps.latest_step_metadata(root, name_format) if root.exists() else None
    return None if found is None else found.step

"""A manager of steps, with the constructors and keywords that Orbax has had, the older ones too.

The list of steps is what storage has committed, and the manager's own save in progress; one that
failed is in no list. Other managers may write to the folder at the same time: each deletes only
steps that it has listed or saved itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from .._async import AsyncSaver
from . import _manager_policies, _saving
from ._background import Background
from ._composite import CompositeArgs
from ._errors import StepAlreadyExistsError, as_orbax
from ._manager_deletions import Deletions
from ._manager_folder import METADATA_ITEM_NAME, METRIC_ITEM_NAME, Folder
from ._manager_items import Items, check_constructor
from ._manager_options import CheckpointManagerOptions
from ._manager_records import RestoreRecord, SaveRecord
from ._manager_restore import DEFAULT_ITEM_NAME, Restorer, is_composite, is_pytree
from ._manager_saves import Tracked
from ._paths import lacks_marker
from .checkpoint_managers import PolicyCheckpointInfo
from .metadata import RootMetadata
from .multihost import reached_preemption
from .options import AsyncOptions, timeout_of

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
            checkpointers: One, or a dict of them by item: whose handlers save and restore. The
                older way.
            options: See `CheckpointManagerOptions`.
            metadata: Your own metadata of the folder, written once.
            item_names: Names of items; not needed.
            item_handlers: A handler, or a dict of them by item.
            logger: Is told of saves and restores.
            handler_registry: Handlers by item and class of arguments.

        Raises:
            ValueError: for `checkpointers` with `item_names`, `item_handlers` or
                `handler_registry`.
        """
        self._options = options or CheckpointManagerOptions()
        check_constructor(checkpointers, item_names, item_handlers, handler_registry, self._options)
        self._logger = logger
        self._items = Items(checkpointers, item_names, item_handlers, handler_registry)
        self._default_item = self._items.default_item
        self._composite = self._items.composite
        self._restorer = Restorer(self._composite, self._items.is_by_name)
        self._is_async = self._items.is_async and self._options.enable_async_checkpointing
        self._timeout = timeout_of(self._options.async_options)
        self._saver = AsyncSaver()
        self._background = Background()
        self._tracked: Tracked | None = None
        self.last_save: float | None = None
        self._is_closed = False
        self._folder = Folder(directory, self._options)
        self._directory = self._folder.path
        if self._options.create and not self._options.read_only:
            self._folder.create()
        self._folder.clean_up()
        self._given_metadata = dict(metadata or {})
        self._folder.write_root_metadata(metadata)
        self._infos: dict[int, PolicyCheckpointInfo] = {}
        self._deletions = Deletions(self._folder, self._options, self._committed, self._forget)
        self.reload()

    # ---- what is there ----------------------------------------------------------------

    @property
    def directory(self) -> Any:
        """The folder."""
        return self._directory

    @property
    def _checkpoints(self) -> list[PolicyCheckpointInfo]:
        return self._listed()

    def all_steps(self, read: bool = False) -> list[int]:
        """The steps that are committed, and this manager's own that is being saved; `read` lists
        the folder again.
        """
        if read:
            self.reload()
        return sorted(info.step for info in self._listed())

    def latest_step(self) -> int | None:
        """The highest of them; `None` if there are none."""
        return max(self.all_steps(), default=None)

    def best_step(self) -> int | None:
        """The best by `best_fn`, the latest of several; the latest step where nothing is
        measured.
        """
        if self._options.best_fn is None:
            return self.latest_step()
        return _manager_policies.best(self._listed(), self._options)

    def reload(self) -> None:
        """Looks for steps anew."""
        with as_orbax():
            self._infos = self._folder.listed()

    def _committed(self) -> list[PolicyCheckpointInfo]:
        """In the order in which they were saved: of those that were there, by number."""
        return [info for info in list(self._infos.values()) if info.step not in self._deletions.doomed]

    def _listed(self) -> list[PolicyCheckpointInfo]:
        """The same, with what this manager is saving."""
        tracked = self._tracked
        # Before the list is read: when it has ended, the list has it.
        saving = None if tracked is None or tracked.is_done else tracked.info
        committed = self._committed()
        if saving is None or any(info.step == saving.step for info in committed):
            return committed
        return [*committed, saving]

    def _forget(self, step: int) -> None:
        self._infos.pop(step, None)

    def metrics(self, step: int) -> Any:
        """The metrics of a step; `None` if it has none."""
        return next((info.metrics for info in self._listed() if info.step == step), None)

    def metadata(self, step: int | None = None) -> Any:
        """What a step says of itself, or without one the folder.

        Raises:
            FileNotFoundError: if there is no such step.
        """
        if step is None:
            given = self._given_metadata if self._options.read_only else {}
            return self._folder.read_root_metadata() or RootMetadata(custom_metadata=given)
        self._wait_for(step)
        with as_orbax():
            path = self._folder.find(step)
        if path is None:
            raise FileNotFoundError(f"Directory does not exist: {self.path_of(step)}")
        found = self._composite.metadata(path)
        if self._options.best_fn is None:
            # Nobody has asked for them: they are stored all the same.
            found.item_metadata.pop(METRIC_ITEM_NAME, None)
        found.item_metadata = found.item_metadata.get(DEFAULT_ITEM_NAME, found.item_metadata)
        if not found.metrics:
            found.metrics = self.metrics(step) or {}
        return found

    def item_metadata(self, step: int) -> Any:
        """What is known of the items of a step, by name; of the item itself where there is one
        without a name.

        Raises:
            FileNotFoundError: if there is no such step.
        """
        return self.metadata(step).item_metadata

    # ---- saving -----------------------------------------------------------------------

    def should_save(self, step: int) -> bool:
        """Whether `save` would save this step."""
        return self.is_due(step, self._listed())

    def is_due(self, step: int, others: list[PolicyCheckpointInfo]) -> bool:
        """Whether `save` would save this step beside these."""
        if self._options.read_only:
            return False
        return _manager_policies.is_due(
            step,
            others,
            self._options,
            is_saving=self.is_saving_in_progress(),
            preempted=self.reached_preemption(step),
        )

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
            ValueError: for arguments of another kind than before: of one item without a name, or of
                several by name.
            Exception: what `best_fn` raises, once it ranks steps: the step is saved, and none is
                deleted.
            RuntimeError: after `close`.
            Exception: what an earlier save in the background ended with.
        """
        if self._is_closed:
            raise RuntimeError("save() after close()\n  help: make a new CheckpointManager")
        if step < 0:
            raise ValueError(f"step: expected a number of 0 or more, found {step}")
        if self._options.read_only:
            return False
        if items is None and args is None:
            raise ValueError("Must provide `args` for `save`.\n  help: save(step, args=args.StandardSave(state))")
        self._default_item.set_if_none(not is_composite(args))
        self._default_item.check(items, args)
        if not force and not self.should_save(step):
            return False
        record = SaveRecord(step, directory=str(self._directory), synchronous=not self._is_async)
        record.waits(self.last_save)
        # For the write before, and not for the deletions that follow it.
        self._wait_for_write()
        if step in self._deletions.doomed:
            self._deletions.wait()
        record.begins()
        if step in self._infos or (not force and not self.should_save(step)):
            if force:
                raise StepAlreadyExistsError(f"Checkpoint for step {step} already exists.")
            return False
        ranked = [*self._listed(), PolicyCheckpointInfo(step, metrics=metrics)]
        unranked = _manager_policies.error_of_ranks(ranked, self._options)
        self._begin(step, self._items.of_save(items, save_kwargs, args), metrics, custom_metadata, unranked is not None)
        if unranked is not None:
            raise unranked
        record.returns()
        self.tell(record)
        return True

    def _begin(self, step: int, items: dict[str, Any], metrics: Any, custom: Any, is_unranked: bool) -> None:
        path = self.path_of(step)
        mode = self._options.file_options.path_permission_mode if self._options.file_options else None
        told = None if self._options.prevent_write_metrics else metrics
        about = _saving.About(custom, told, mode, self._timeout if self._is_async else None)
        with as_orbax():
            self._folder.check_writer()
        # What lies there is no step: an empty folder, or what a broken deletion or save has left.
        is_none = path.exists() and (not any(path.iterdir()) or lacks_marker(path, self._options.atomicity_options))
        call = _saving.Call(CompositeArgs(**items))
        saver = self._saver if self._is_async else None
        pending = _saving.begin(self._composite, path, call, overwrite=is_none, saver=saver, about=about)
        tracked = self.keep_track(step, pending.finish, metrics, is_unranked=is_unranked)
        if saver is not None:
            self._background.run(tracked.finish)
            return
        try:
            tracked()
        except BaseException:
            # Told now, and not once more.
            self._tracked = None
            raise
        self.wait_for_deletions()

    def path_of(self, step: int) -> Any:
        """Where a step is, or would be."""
        return self._folder.path_of(step)

    def keep_track(
        self,
        step: int,
        finish: Callable[[], None],
        metrics: Any = None,
        *,
        tells: bool = True,
        is_unranked: bool = False,
    ) -> Tracked:
        """Takes a save that was begun for this manager's; what finishes it, lists the step and
        deletes older ones.

        Unless it `tells`, the one that finishes it says what went wrong, and not this manager.
        Nothing is deleted without an error if it `is_unranked`: then `save` has raised that error.
        """
        info = PolicyCheckpointInfo(step, datetime.datetime.now(tz=datetime.UTC), metrics)

        def work() -> None:
            finish()
            self.last_save = time.time()
            if info.metrics is None:
                info.metrics = self._folder.metrics(step)
            self._forget(step)
            self._infos[step] = info
            try:
                self._folder.set_permissions(step)
                callback = getattr(self._options.async_options, "post_finalization_callback", None)
                if callback is not None:
                    callback()
            finally:
                # Whatever these do here: the other processes of a job meet there.
                self._deletions.follow(step, is_unranked=is_unranked)

        self._tracked = tracked = Tracked(info, work, tells=tells)
        return tracked

    def tell(self, record: SaveRecord | RestoreRecord) -> None:
        """Tells the logger of a save or a restore."""
        entry = dataclasses.asdict(record)
        _log.info("%s", entry)
        if self._logger is not None:
            self._logger.log_entry(entry)

    # ---- restoring --------------------------------------------------------------------

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
            restore_kwargs: With or without `items`: ``{"restore_args": ...}``, or a dict of these
                by name.
            directory: Another folder of steps.
            args: Arguments of an item, or `args.Composite` of several.

        Returns:
            The item without a name, or what `args.Composite` is of several.

        Raises:
            FileNotFoundError: if there is no such step, or none at all.
            KeyError: for an item that is not there.
        """
        folder = self._folder if directory is None else Folder(directory, self._options)
        if folder is self._folder:
            self._wait_for(step)
            step = self.latest_step() if step is None else step
        path, number = folder.to_restore(step)
        self._default_item.set_if_none((path / DEFAULT_ITEM_NAME).exists() or is_pytree(path))
        self._default_item.check(items, args)
        record = RestoreRecord(number, directory=str(folder.path))
        with as_orbax(), contextlib.nullcontext() if number is None else folder.reading(number):
            result = self._restorer.restore(path, items, restore_kwargs, args)
        record.returns()
        self.tell(record)
        return result

    # ---- deleting ---------------------------------------------------------------------

    def delete(self, step: int) -> None:
        """Deletes a step: process 0 does, and what it finds is true of all.

        Raises:
            FileNotFoundError: if it is not there.
            ValueError: if somebody reads it, or there are files of yours in it.
        """
        if self._options.read_only:
            _log.warning("%s is read only: step %s was not deleted", self._directory, step)
            return
        self._wait_for(step)
        if step not in self._infos:
            raise FileNotFoundError(f"Requested deleting a non-existent step: {step}.")
        self._deletions.delete(step)

    # ---- waiting ----------------------------------------------------------------------

    def wait_until_finished(self) -> None:
        """Waits for the save in the background and the deletions after it, and raises what went
        wrong.

        Each thread is told once. With `enable_background_delete` only `close` waits for deletions.
        """
        self._wait_for_write()
        if self._options.enable_background_delete:
            self._deletions.wait_for_choice()
        self.wait_for_deletions()

    def wait_for_deletions(self) -> None:
        """Waits for the deletions that follow saves, unless they are to go on in the background."""
        if not self._options.enable_background_delete:
            self._deletions.wait()

    def _wait_for_write(self) -> None:
        self._background.wait()
        if self._tracked is not None:
            self._tracked.wait()

    def _wait_for(self, step: Any) -> None:
        """Waits for the save of a step that is asked for, or of any if the latest is."""
        tracked = self._tracked
        if tracked is not None and (step is None or step == tracked.info.step):
            self._wait_for_write()

    def check_for_errors(self) -> None:
        """Raises what went wrong with a save that has ended, once."""
        if self._tracked is not None:
            self._tracked.check()

    def is_saving_in_progress(self) -> bool:
        """Whether a save is in progress."""
        return self._tracked is not None and not self._tracked.is_done

    def close(self) -> None:
        """Waits for the save and all deletions, and refuses any other save."""
        try:
            self._wait_for_write()
        finally:
            self._is_closed = True
            try:
                self._deletions.close()
            finally:
                self._composite.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

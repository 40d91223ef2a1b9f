"""A manager of steps, with the constructors and keywords of Orbax, old and new.

Its list of steps has the steps that the storage has committed, and the manager's own save in
progress. A failed save is not in the list. Other managers may write to the folder at the same time.
Each manager deletes only steps that it has listed or saved itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._errors import failure
from .._save._async import AsyncSaver
from . import _manager_options, _saving
from ._composite import CompositeArgs
from ._errors import StepAlreadyExistsError as StepAlreadyExistsError
from ._errors import as_orbax
from ._interfaces import CheckpointHandler, Closing, Task
from ._manager_folder import METADATA_ITEM_NAME as METADATA_ITEM_NAME
from ._manager_folder import METRIC_ITEM_NAME as METRIC_ITEM_NAME
from ._manager_folder import Deletions, Folder
from ._manager_items import DEFAULT_ITEM_NAME as DEFAULT_ITEM_NAME
from ._manager_items import Items, check_constructor, determine_default_item_mode_from_args
from ._manager_items import is_async_checkpointer as is_async_checkpointer
from ._manager_options import CheckpointManagerOptions as CheckpointManagerOptions
from ._paths import is_pytree, lacks_marker
from .abstract_checkpoint_manager import RestoreParams as RestoreParams
from .abstract_checkpoint_manager import SaveParams as SaveParams
from .checkpoint_managers import PolicyCheckpointInfo
from .checkpointers import AbstractCheckpointer
from .logging import RestoreStepStatistics, SaveStepStatistics
from .metadata import RootMetadata
from .metadata import deserialize_root_metadata as deserialize_root_metadata
from .metadata import serialize_root_metadata as serialize_root_metadata
from .multihost import reached_preemption
from .options import AsyncOptions as AsyncOptions
from .options import timeout_of

CheckpointDirs = tuple[str, str]
CheckpointHandlersDict = Mapping[str, CheckpointHandler]
CheckpointInfo = PolicyCheckpointInfo
CheckpointersDict = Mapping[str, AbstractCheckpointer]
ItemMetadata = Any
RESERVED_ITEM_NAMES: list[str] = []

_log = logging.getLogger("regrow.orbax")


class SaveRecord(SaveStepStatistics):
    """A save: when each of its parts that blocks the caller began, and its seconds."""

    def __init__(self, step: int, *, directory: str, synchronous: bool) -> None:
        super().__init__(step, directory=directory, synchronous=synchronous)
        self._began = self.checkpoint_manager_blocking_start_time = time.time()

    def waits(self, last_save: float | None) -> None:
        """The wait for the save before begins."""
        self.wait_for_prev_start_time = time.time()
        if last_save is not None:
            self.time_between_consecutive_saves_sec = self.wait_for_prev_start_time - last_save

    def begins(self) -> None:
        self.checkpointer_blocking_start_time = now = time.time()
        self.wait_for_prev_duration_secs = now - (self.wait_for_prev_start_time or now)

    def returns(self) -> None:
        """The call returns. The choice of old steps runs in the background."""
        self.get_old_steps_start_time, self.get_old_steps_duration_secs = time.time(), 0.0
        now = self.get_old_steps_start_time
        self.checkpointer_blocking_duration_secs = now - (self.checkpointer_blocking_start_time or now)
        self.checkpoint_manager_blocking_duration_secs = now - self._began


class RestoreRecord(RestoreStepStatistics):
    """A restore: when it began, and its seconds."""

    def __init__(self, step: int | None, *, directory: str) -> None:
        super().__init__(step, directory=directory)
        self._began = self.checkpointer_start_time = self.checkpoint_manager_start_time = time.time()

    def returns(self) -> None:
        self.checkpointer_duration_secs = self.checkpoint_manager_duration_secs = time.time() - self._began


class Tracked:
    """A save in progress. The thread that calls it finishes the save."""

    def __init__(self, info: PolicyCheckpointInfo, work: Callable[[], None], *, tells: bool) -> None:
        self.info, self._work, self._tells = info, work, tells
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._told: set[int] = set()

    def __call__(self) -> bool:
        """Finishes the save. Returns true, or raises its error."""
        try:
            self._work()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._done.set()
        return True

    def finish(self) -> None:
        """Finishes the save in its own thread; `wait` raises its error."""
        with contextlib.suppress(BaseException):
            self()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        """Waits for the save in any thread, and raises its error once in each thread."""
        self._done.wait()
        self.check()

    def check(self) -> None:
        """Raises the error of a save that has ended, once in each thread."""
        thread = threading.get_ident()
        if self._tells and self._error is not None and self.is_done and thread not in self._told:
            self._told.add(thread)
            raise self._error


class CheckpointManager(Closing):
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
        self._options = options or CheckpointManagerOptions()
        check_constructor(checkpointers, item_names, item_handlers, handler_registry, self._options)
        self._logger = logger
        self._items = Items(checkpointers, item_names, item_handlers, handler_registry)
        self._default_item = self._items.default_item
        self._composite = self._items.composite
        self._is_async = self._items.is_async and self._options.enable_async_checkpointing
        self._timeout = timeout_of(self._options.async_options)
        self._saver = AsyncSaver()
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

    @property
    def directory(self) -> Any:
        """The folder."""
        return self._directory

    @property
    def _checkpoints(self) -> list[PolicyCheckpointInfo]:
        return self._listed()

    def all_steps(self, read: bool = False) -> list[int]:
        """The committed steps, and the step that this manager is saving; `read` lists again."""
        if read:
            self.reload()
        return sorted(info.step for info in self._listed())

    def latest_step(self) -> int | None:
        """The highest step; `None` if there is none."""
        return max(self.all_steps(), default=None)

    def best_step(self) -> int | None:
        """The best step by `best_fn`, the latest of equal ones; without it, the latest step."""
        if self._options.best_fn is None:
            return self.latest_step()
        return _manager_options.best(self._listed(), self._options)

    def reload(self) -> None:
        """Lists the steps again."""
        with as_orbax():
            self._infos = self._folder.listed()

    def _committed(self) -> list[PolicyCheckpointInfo]:
        """The committed steps in the order of their saves. Steps of earlier managers come first, by
        number.
        """
        return [info for info in list(self._infos.values()) if info.step not in self._deletions.doomed]

    def _listed(self) -> list[PolicyCheckpointInfo]:
        """The committed steps, and the one that this manager is saving."""
        tracked = self._tracked
        # Read the save before the list: if the save ends in between, the list has its step.
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
        """The metadata of a step, or of the folder without a step."""
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
            # Omit the metrics, which are stored even without a `best_fn`.
            found.item_metadata.pop(METRIC_ITEM_NAME, None)
        found.item_metadata = found.item_metadata.get(DEFAULT_ITEM_NAME, found.item_metadata)
        if not found.metrics:
            found.metrics = self.metrics(step) or {}
        return found

    def item_metadata(self, step: int) -> Any:
        """The metadata of the items of a step by name, or of its item without a name."""
        return self.metadata(step).item_metadata

    def should_save(self, step: int) -> bool:
        """Whether `save` would save this step."""
        return self.is_due(step, self._listed())

    def is_due(self, step: int, others: list[PolicyCheckpointInfo]) -> bool:
        if self._options.read_only:
            return False
        return _manager_options.is_due(
            step, others, self._options, is_saving=self.is_saving_in_progress(), preempted=self.reached_preemption(step)
        )

    def reached_preemption(self, step: int) -> bool:
        """Whether JAX' preemption service asks for a save; false if the service is off."""
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
        """Saves a step, and returns true, if the step is due. Older steps may be deleted then."""
        if self._is_closed:
            raise failure(RuntimeError, "save() after close()", help="make a new CheckpointManager")
        if step < 0:
            raise ValueError(f"step: expected a number of 0 or more, found {step}")
        if self._options.read_only:
            return False
        if items is None and args is None:
            help = "save(step, args=args.StandardSave(state))"
            raise failure(ValueError, "Must provide `args` for `save`.", help=help)
        self._default_item.set_if_none(determine_default_item_mode_from_args(args))
        self._default_item.check(items, args)
        if not force and not self.should_save(step):
            return False
        record = SaveRecord(step, directory=str(self._directory), synchronous=not self._is_async)
        record.waits(self.last_save)
        # Wait for the earlier write, and not for the deletions after it.
        self._wait_for_write()
        if step in self._deletions.doomed:
            self._deletions.wait()
        record.begins()
        if step in self._infos or (not force and not self.should_save(step)):
            if force:
                raise StepAlreadyExistsError(f"Checkpoint for step {step} already exists.")
            return False
        ranked = [*self._listed(), PolicyCheckpointInfo(step, metrics=metrics)]
        unranked = _manager_options.error_of_ranks(ranked, self._options)
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
        # Overwrite a path without a committed step: an empty folder, or what a broken deletion or
        # save left.
        is_none = path.exists() and (not any(path.iterdir()) or lacks_marker(path, self._options.atomicity_options))
        call = _saving.Call(CompositeArgs(**items))
        saver = self._saver if self._is_async else None
        pending = _saving.begin(self._composite, path, call, overwrite=is_none, saver=saver, about=about)
        tracked = self.keep_track(step, pending.finish, metrics, is_unranked=is_unranked)
        if saver is not None:
            Task(tracked.finish, name="regrow.orbax save")
            return
        try:
            tracked()
        except BaseException:
            # The caller gets the error here. Forget the save: no later call may raise it again.
            self._tracked = None
            raise
        self.wait_for_deletions()

    def path_of(self, step: int) -> Any:
        """The path of a step, which need not exist."""
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
        """Takes over a save in progress. Unless it `tells`, only the result raises its error."""
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
                # Call `follow` also after an error: in `follow` the other processes of a job wait
                # for this process.
                self._deletions.follow(step, is_unranked=is_unranked)

        self._tracked = tracked = Tracked(info, work, tells=tells)
        return tracked

    def tell(self, record: SaveRecord | RestoreRecord) -> None:
        entry = dataclasses.asdict(record)
        _log.info("%s", entry)
        if self._logger is not None:
            self._logger.log_entry(entry)

    def restore(
        self, step: Any = None, items: Any = None, restore_kwargs: Any = None, directory: Any = None, args: Any = None
    ) -> Any:
        """Restores a step, the latest if `None`. A path is used unchanged, below the folder."""
        folder = self._folder if directory is None else Folder(directory, self._options)
        if folder is self._folder:
            self._wait_for(step)
            step = self.latest_step() if step is None else step
        path, number = folder.to_restore(step)
        self._default_item.set_if_none((path / DEFAULT_ITEM_NAME).exists() or is_pytree(path))
        self._default_item.check(items, args)
        record = RestoreRecord(number, directory=str(folder.path))
        with as_orbax(), contextlib.nullcontext() if number is None else folder.reading(number):
            result = self._items.restore(path, items, restore_kwargs, args)
        record.returns()
        self.tell(record)
        return result

    def delete(self, step: int) -> None:
        """Deletes a step. Process 0 deletes it, and all processes get its result."""
        if self._options.read_only:
            _log.warning("%s is read only: step %s was not deleted", self._directory, step)
            return
        self._wait_for(step)
        if step not in self._infos:
            raise FileNotFoundError(f"Requested deleting a non-existent step: {step}.")
        self._deletions.delete(step)

    def wait_until_finished(self) -> None:
        """Waits for the save and the deletions after it. Each thread gets an error once."""
        self._wait_for_write()
        if self._options.enable_background_delete:
            self._deletions.wait_for_choice()
        self.wait_for_deletions()

    def wait_for_deletions(self) -> None:
        """Waits for the deletions after saves, unless they run in the background."""
        if not self._options.enable_background_delete:
            self._deletions.wait()

    def _wait_for_write(self) -> None:
        if self._tracked is not None:
            self._tracked.wait()

    def _wait_for(self, step: Any) -> None:
        """Waits for the save of that step, or of any step if the latest is asked for."""
        tracked = self._tracked
        if tracked is not None and (step is None or step == tracked.info.step):
            self._wait_for_write()

    def check_for_errors(self) -> None:
        """Raises the error of a save that has ended, once."""
        if self._tracked is not None:
            self._tracked.check()

    def is_saving_in_progress(self) -> bool:
        """Whether a save is in progress."""
        return self._tracked is not None and not self._tracked.is_done

    def close(self) -> None:
        """Waits for the save and all deletions. Later saves are refused."""
        try:
            self._wait_for_write()
        finally:
            self._is_closed = True
            try:
                self._deletions.close()
            finally:
                self._composite.close()

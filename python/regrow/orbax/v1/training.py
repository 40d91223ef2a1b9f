"""Steps of a training run."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec

from ..._errors import failure
from .. import checkpoint_managers as preservation_policies
from .. import checkpoint_managers as save_decision_policies
from .._errors import as_orbax, refusing
from .._interfaces import Closing
from .._interfaces import Task as Response
from .._manager_options import CheckpointManagerOptions
from .._saving import Pending
from ..checkpoint_manager import CheckpointManager, RestoreRecord, SaveRecord
from . import _deletion, _functions
from . import _training_errors as errors
from ._context import Context, current
from ._layout import STATE_CHECKPOINTABLE_KEY as STATE
from ._metadata import RootMetadata as RootMetadata
from ._metadata import StepMetadata as CheckpointMetadata

__all__ = [
    "CheckpointMetadata",
    "Checkpointer",
    "RootMetadata",
    "errors",
    "preservation_policies",
    "save_decision_policies",
]

P = ParamSpec("P")

__getattr__ = refusing(__name__, ("pathways", "use the original with Pathways"))


def _default_policy() -> Any:
    """The default: save when the previous save has ended, and before the machine is preempted."""
    own = save_decision_policies
    policies = (own.InitialSavePolicy, own.ContinuousCheckpointingPolicy, own.PreemptionCheckpointingPolicy)
    return own.AnySavePolicy([policy() for policy in policies])


def _old_name_of(name: str) -> Callable[..., Any]:
    """Makes a method with an old name, which warns and passes any arguments to method `name`."""

    def renamed(self: Any, *args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"Use `{name}` instead.", DeprecationWarning, stacklevel=2)
        return getattr(self, name)(*args, **kwargs)

    return renamed


def _waiting(begin: Callable[P, Response[bool] | None]) -> Callable[P, bool]:
    """Makes a method that also waits for the save. It returns false if the step is not due."""

    @functools.wraps(begin)
    def save(*args: P.args, **kwargs: P.kwargs) -> bool:
        begun = begin(*args, **kwargs)
        return begun is not None and bool(begun.result())

    save.__name__ = begin.__name__.removesuffix("_async")
    return save


class Checkpointer(Closing):
    """Saves, lists, loads and deletes the steps of a folder."""

    def __init__(
        self,
        directory: Any,
        *,
        context: Context | None = None,
        save_decision_policy: Any = None,
        preservation_policy: Any = None,
        step_name_format: Any = None,
        custom_metadata: Any = None,
        cleanup_tmp_directories: bool = False,
        lightweight_initialize: bool = False,
        logger: Any = None,
    ) -> None:
        """Opens or makes a folder of steps. `context` applies outside of other contexts."""
        self._context = Context(context or current())
        options = CheckpointManagerOptions(
            save_decision_policy=save_decision_policy or _default_policy(),
            preservation_policy=preservation_policy,
            step_name_format=step_name_format,
            cleanup_tmp_directories=cleanup_tmp_directories,
            lightweight_initialize=lightweight_initialize,
            atomicity_options=self._context.atomicity.v0(),
            todelete_full_path=self._context.deletion.gcs_deletion_options.todelete_full_path,
        )
        self._manager = CheckpointManager(directory, options=options, metadata=custom_metadata, logger=logger)
        self._saving: tuple[int, Pending, Response[bool]] | None = None
        self._deleting: Response[bool] | None = None

    @property
    def directory(self) -> Any:
        return self._manager.directory

    @property
    def latest(self) -> CheckpointMetadata[None] | None:
        """The highest step, as an object with ``.step``; `None` if there is none."""
        return next(reversed(self.checkpoints), None)

    @property
    def checkpoints(self) -> Sequence[CheckpointMetadata[None]]:
        """All committed steps, by number, as of the last listing."""
        return [
            CheckpointMetadata(
                info.step,
                self._manager.path_of(info.step),
                metadata=None,
                commit_timestamp_nsecs=int(info.time.timestamp() * 1e9),
                metrics=info.metrics,
            )
            for info in sorted(self._manager._checkpoints, key=lambda info: info.step)
        ]

    def reload(self) -> None:
        self._wait_for_deletion()
        self._manager.reload()

    def root_metadata(self) -> RootMetadata:
        return RootMetadata(directory=self.directory, custom_metadata=self._manager.metadata().custom_metadata)

    def _found(self, step: Any) -> CheckpointMetadata[None]:
        """An existing step, the latest if `None`."""
        number = getattr(step, "step", step)
        if self._saving is not None and number in (None, self._saving[0]):
            self.wait()
        there = self.checkpoints
        found = next((one for one in reversed(there) if number in (None, one.step)), None)
        if found is None:
            which = "no step" if number is None else f"no step {number}"
            known = [one.step for one in there]
            raise errors.StepNotFoundError(f"{self.directory} has {which}\n  found the steps {known}")
        return found

    def should_save(self, step: int) -> bool:
        self._let_go()
        with current(self._context):
            return self._manager.should_save(getattr(step, "step", step))

    def _is_due(self, step: int) -> bool:
        """Whether a save of this step is due, without the step that it would replace."""
        self._let_go()
        with current(self._context):
            return self._manager.is_due(step, [info for info in self._manager._checkpoints if info.step != step])

    def save_async(
        self,
        step: int,
        state: Any,
        *,
        checkpointable_name: str = STATE,
        force: bool = False,
        overwrite: bool = False,
        metrics: Any = None,
        custom_metadata: Any = None,
    ) -> Response[bool] | None:
        """Saves one pytree; see `save_checkpointables_async`."""
        states = {checkpointable_name: state}
        return self._save(step, states, force, overwrite, metrics, custom_metadata, are_states=True)

    def save_checkpointables_async(
        self,
        step: int,
        checkpointables: dict[str, Any],
        *,
        force: bool = False,
        overwrite: bool = False,
        metrics: Any = None,
        custom_metadata: Any = None,
    ) -> Response[bool] | None:
        """Saves a step, if it is due. A step that is not due stays, also with `overwrite`."""
        return self._save(step, checkpointables, force, overwrite, metrics, custom_metadata)

    save = _waiting(save_async)
    save_checkpointables = _waiting(save_checkpointables_async)

    def _save(
        self, step: int, values: dict[str, Any], force: bool, overwrite: bool, metrics: Any, custom: Any, **about: bool
    ) -> Response[bool] | None:
        self._wait_for_deletion()
        manager = self._manager
        record = SaveRecord(step, directory=str(self.directory), synchronous=False)
        if not overwrite and any(found.step == step for found in self.checkpoints):
            raise failure(errors.StepAlreadyExistsError, f"Step {step} already exists.", help="give overwrite=True")
        if not force and not self._is_due(step):
            return None
        record.waits(manager.last_save)
        self.wait()
        record.begins()
        path = manager.path_of(step)
        with current(self._context), as_orbax():
            begun = _functions.begin(
                path, values, overwrite, custom, metrics, in_background=True, of_step=True, **about
            )
        finish = manager.keep_track(step, begun.finish, metrics, tells=False)

        def both() -> bool:
            done = finish()
            manager.wait_for_deletions()
            return done

        response = Response(both)
        self._saving = step, begun, response
        record.returns()
        manager.tell(record)
        return response

    def cancel(self, step: Any = None) -> None:
        """Cancels the save in the background, and deletes a step."""
        self._wait_for_deletion()
        saving, self._saving = self._saving, None
        if saving is not None:
            saving[1].cancel()
            saving[2].join()
        number = getattr(step, "step", step)
        if number is not None and any(found.step == number for found in self.checkpoints):
            self.delete(number)

    def load(self, step: Any = None, abstract_state: Any = None, *, checkpointable_name: str = STATE) -> Any:
        """Loads a pytree of a step, the latest if `None`."""
        found = self._found(step)
        with current(self._context), self._telling(found.step):
            return _functions.load(found.path, abstract_state, checkpointable_name=checkpointable_name)

    @contextlib.contextmanager
    def _telling(self, step: int) -> Iterator[None]:
        """Passes a record of the load in the block to the logger."""
        record = RestoreRecord(step, directory=str(self.directory))
        yield
        record.returns()
        self._manager.tell(record)

    def load_async(self, step: Any = None, abstract_state: Any = None) -> Response[Any]:
        found = self._found(step)
        return Response(lambda: self.load(found, abstract_state))

    def load_checkpointables(self, step: Any = None, abstract_checkpointables: Any = None) -> dict[str, Any]:
        """Loads checkpointables of a step, the latest if `None`."""
        found = self._found(step)
        with current(self._context), self._telling(found.step):
            return _functions.load_checkpointables(found.path, abstract_checkpointables)

    def load_checkpointables_async(
        self, step: Any = None, abstract_checkpointables: Any = None
    ) -> Response[dict[str, Any]]:
        found = self._found(step)
        return Response(lambda: self.load_checkpointables(found, abstract_checkpointables))

    def metadata(self, step: Any = None) -> CheckpointMetadata[Any]:
        found = self._found(step)
        with current(self._context):
            return _of_step(found, _functions.metadata(found.path))

    def checkpointables_metadata(self, step: Any = None) -> CheckpointMetadata[dict[str, Any]]:
        found = self._found(step)
        with current(self._context):
            return _of_step(found, _functions.checkpointables_metadata(found.path))

    def delete(self, step: Any, *, checkpointable_name: str | None = None, missing_ok: bool = False) -> bool:
        """Deletes a step, or one checkpointable of it. Returns whether there was one."""
        response = self.delete_async(step, checkpointable_name=checkpointable_name, missing_ok=missing_ok)
        self._wait_for_deletion()
        return bool(response.result())

    def delete_async(
        self, step: Any, *, checkpointable_name: str | None = None, missing_ok: bool = False
    ) -> Response[bool]:
        """Deletes as `delete`, in the background. The step leaves all lists at once."""
        number = getattr(step, "step", step)
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"step: expected a number, found {step!r}")
        if number < 0:
            raise ValueError(f"step: expected a number of 0 or more, found {number}")
        _deletion.check_arguments(checkpointable_name, missing_ok)
        self.wait()
        path = self._manager.path_of(number)
        if not path.exists() and not missing_ok:
            raise errors.StepNotFoundError(f"step {number} does not exist in {self.directory}")
        with current(self._context) as context:
            work = _deletion.plan(path, checkpointable_name, missing_ok, context, is_step=True)
        if work is None:
            response = Response(lambda: False)
        elif checkpointable_name is None and any(found.step == number for found in self.checkpoints):
            self._manager.delete(number)
            response = Response(lambda: True)
        else:
            response = Response(work)
        self._deleting = response
        return response

    def is_saving_in_progress(self) -> bool:
        self._let_go()
        return self._manager.is_saving_in_progress()

    def _let_go(self) -> None:
        """Waits for the manager's thread if the save has ended, but the thread may still run."""
        if self._saving is not None and self._saving[2].done():
            self._manager.wait_until_finished()

    def wait(self) -> None:
        """Waits for work in the background, and raises its error unless a caller has had it."""
        self._wait_for_deletion()
        saving, self._saving = self._saving, None
        if saving is not None:
            saving[2].join()
            if not saving[2].was_raised:
                saving[2].result()
        self._manager.wait_until_finished()

    def _wait_for_deletion(self) -> None:
        deleting, self._deleting = self._deleting, None
        if deleting is not None:
            deleting.result()

    def close(self) -> None:
        """Waits for work in the background. Later saves are refused."""
        try:
            self.wait()
        finally:
            self._manager.close()

    save_pytree = _old_name_of("save")
    save_pytree_async = _old_name_of("save_async")
    load_pytree = _old_name_of("load")
    load_pytree_async = _old_name_of("load_async")
    pytree_metadata = _old_name_of("metadata")


def _of_step(step: CheckpointMetadata[None], found: Any) -> CheckpointMetadata[Any]:
    return CheckpointMetadata(step.step, metrics=step.metrics, **vars(found))

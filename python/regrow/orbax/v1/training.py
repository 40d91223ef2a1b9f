"""Steps of a training run."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from .._errors import as_orbax, not_covered
from .._manager_options import CheckpointManagerOptions
from .._manager_records import RestoreRecord, SaveRecord
from ..checkpoint_manager import CheckpointManager
from . import _deletion, _functions
from . import _preservation_policies as preservation_policies
from . import _save_decision_policies as save_decision_policies
from . import _training_errors as errors
from ._context import Context, current
from ._layout import STATE_CHECKPOINTABLE_KEY as STATE
from ._metadata import RootMetadata
from ._metadata import StepMetadata as CheckpointMetadata
from ._responses import Response

__all__ = [
    "CheckpointMetadata",
    "Checkpointer",
    "RootMetadata",
    "errors",
    "preservation_policies",
    "save_decision_policies",
]


def __getattr__(name: str) -> object:
    if name == "pathways":
        raise not_covered("v1.training.pathways", "use the original with Pathways")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _default_policy() -> Any:
    """As often as saves end, and when the machine is about to be taken away."""
    policies = save_decision_policies
    return policies.AnySavePolicy(
        [
            policies.InitialSavePolicy(),
            policies.ContinuousCheckpointingPolicy(),
            policies.PreemptionCheckpointingPolicy(),
        ]
    )


class Checkpointer:
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
        """Of a folder, which is made. `context` is in force in all of its calls where no other
        is.
        """
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
        self._saving: tuple[int, _functions.Begun, Response[bool]] | None = None
        self._deleting: Response[bool] | None = None

    # ---- what is there ----------------------------------------------------------------

    @property
    def directory(self) -> Any:
        """The folder."""
        return self._manager.directory

    @property
    def latest(self) -> CheckpointMetadata[None] | None:
        """The highest step, as an object with ``.step``; `None` if there is none."""
        return next(reversed(self.checkpoints), None)

    @property
    def checkpoints(self) -> Sequence[CheckpointMetadata[None]]:
        """All steps that storage has committed, by number: as they were known at the last look."""
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
        """Looks for steps anew."""
        self._wait_for_deletion()
        self._manager.reload()

    def root_metadata(self) -> RootMetadata:
        """What the folder says of itself."""
        return RootMetadata(directory=self.directory, custom_metadata=self._manager.metadata().custom_metadata)

    def _found(self, step: Any) -> CheckpointMetadata[None]:
        """A step that is there, the latest if `None`.

        Raises:
            StepNotFoundError: if there is none.
        """
        number = getattr(step, "step", step)
        if self._saving is not None and number in (None, self._saving[0]):
            self.wait()
        there = self.checkpoints
        found = next((one for one in reversed(there) if number in (None, one.step)), None)
        if found is None:
            which = "no step" if number is None else f"no step {number}"
            known = [one.step for one in there]
            raise errors.StepNotFoundError(f"there is {which} in {self.directory}\n  found the steps {known}")
        return found

    # ---- saves ------------------------------------------------------------------------

    def should_save(self, step: int) -> bool:
        """Whether a save of this step would not be passed over."""
        self._let_go()
        with current(self._context):
            return self._manager.should_save(getattr(step, "step", step))

    def _is_due(self, step: int) -> bool:
        """The same where the step is not there yet: so what it replaces is no reason to pass it
        over.
        """
        self._let_go()
        with current(self._context):
            return self._manager.is_due(step, [info for info in self._manager._checkpoints if info.step != step])

    def save(
        self,
        step: int,
        state: Any,
        *,
        checkpointable_name: str = STATE,
        force: bool = False,
        overwrite: bool = False,
        metrics: Any = None,
        custom_metadata: Any = None,
    ) -> bool:
        """As `save_checkpointables`, of one pytree."""
        states = {checkpointable_name: state}
        return _done(self._save(step, states, force, overwrite, metrics, custom_metadata, are_states=True))

    def save_checkpointables(
        self,
        step: int,
        checkpointables: dict[str, Any],
        *,
        force: bool = False,
        overwrite: bool = False,
        metrics: Any = None,
        custom_metadata: Any = None,
    ) -> bool:
        """Saves a step; false if it is not due.

        With `overwrite`, a step that is not due stays what it was; `force` saves it.

        Raises:
            StepAlreadyExistsError: for a step that is there, without `overwrite`.
        """
        return _done(self._save(step, checkpointables, force, overwrite, metrics, custom_metadata))

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
        """As `save_checkpointables_async`, of one pytree."""
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
        """The same in the background; `None` if the step is not due."""
        return self._save(step, checkpointables, force, overwrite, metrics, custom_metadata)

    def _save(
        self,
        step: int,
        checkpointables: dict[str, Any],
        force: bool,
        overwrite: bool,
        metrics: Any,
        custom: Any,
        **about: bool,
    ) -> Response[bool] | None:
        self._wait_for_deletion()
        manager = self._manager
        record = SaveRecord(step, directory=str(self.directory), synchronous=False)
        if not overwrite and any(found.step == step for found in self.checkpoints):
            raise errors.StepAlreadyExistsError(f"Step {step} already exists.\n  help: give overwrite=True")
        if not force and not self._is_due(step):
            return None
        record.waits(manager.last_save)
        self.wait()
        record.begins()
        path = manager.path_of(step)
        with current(self._context), as_orbax():
            begun = _functions.begin(
                path, checkpointables, overwrite, custom, metrics, in_background=True, of_step=True, **about
            )
        finish = manager.keep_track(step, begun.wait, metrics, tells=False)

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
        """Gives up the save in the background, and deletes a step."""
        self._wait_for_deletion()
        saving, self._saving = self._saving, None
        if saving is not None:
            saving[1].cancel()
            saving[2].join()
        number = getattr(step, "step", step)
        if number is not None and any(found.step == number for found in self.checkpoints):
            self.delete(number)

    # ---- loads ------------------------------------------------------------------------

    def load(self, step: Any = None, abstract_state: Any = None, *, checkpointable_name: str = STATE) -> Any:
        """Loads a pytree of a step, the latest if `None`.

        Raises:
            StepNotFoundError: (a `FileNotFoundError`) if there is no such step.
            InvalidLayoutError: if the step has no pytree of that name.
        """
        found = self._found(step)
        with current(self._context), self._telling(found.step):
            return _functions.load(found.path, abstract_state, checkpointable_name=checkpointable_name)

    @contextlib.contextmanager
    def _telling(self, step: int) -> Iterator[None]:
        """Tells the logger of the load within."""
        record = RestoreRecord(step, directory=str(self.directory))
        yield
        record.returns()
        self._manager.tell(record)

    def load_async(self, step: Any = None, abstract_state: Any = None) -> Response[Any]:
        """The same in the background."""
        found = self._found(step)
        return Response(lambda: self.load(found, abstract_state))

    def load_checkpointables(self, step: Any = None, abstract_checkpointables: Any = None) -> dict[str, Any]:
        """Loads checkpointables of a step, the latest if `None`.

        Raises:
            StepNotFoundError: (a `FileNotFoundError`) if there is no such step.
            KeyError: for a name that is not there.
        """
        found = self._found(step)
        with current(self._context), self._telling(found.step):
            return _functions.load_checkpointables(found.path, abstract_checkpointables)

    def load_checkpointables_async(
        self, step: Any = None, abstract_checkpointables: Any = None
    ) -> Response[dict[str, Any]]:
        """The same in the background."""
        found = self._found(step)
        return Response(lambda: self.load_checkpointables(found, abstract_checkpointables))

    def metadata(self, step: Any = None) -> CheckpointMetadata[Any]:
        """What is known of the pytree of a step."""
        found = self._found(step)
        with current(self._context):
            return _of_step(found, _functions.metadata(found.path))

    def checkpointables_metadata(self, step: Any = None) -> CheckpointMetadata[dict[str, Any]]:
        """What is known of a step."""
        found = self._found(step)
        with current(self._context):
            return _of_step(found, _functions.checkpointables_metadata(found.path))

    # ---- deletions --------------------------------------------------------------------

    def delete(self, step: Any, *, checkpointable_name: str | None = None, missing_ok: bool = False) -> bool:
        """Deletes a step, or one checkpointable of it; whether there was something to delete.

        Raises:
            StepNotFoundError: (a `FileNotFoundError`) if there is no such step, without
                `missing_ok`.
            As `v1.delete`.
        """
        response = self.delete_async(step, checkpointable_name=checkpointable_name, missing_ok=missing_ok)
        self._wait_for_deletion()
        return bool(response.result())

    def delete_async(
        self, step: Any, *, checkpointable_name: str | None = None, missing_ok: bool = False
    ) -> Response[bool]:
        """The same in the background. A step is in no list from now on."""
        number = getattr(step, "step", step)
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"step: expected a number, found {step!r}")
        if number < 0:
            raise ValueError(f"step: expected a number of 0 or more, found {number}")
        _deletion.check_arguments(checkpointable_name, missing_ok)
        self.wait()
        path = self._manager.path_of(number)
        if not path.exists() and not missing_ok:
            raise errors.StepNotFoundError(f"there is no step {number} in {self.directory}")
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

    # ---- waiting ----------------------------------------------------------------------

    def is_saving_in_progress(self) -> bool:
        """Whether a save is in progress."""
        self._let_go()
        return self._manager.is_saving_in_progress()

    def _let_go(self) -> None:
        """Has the manager know that a save has ended: its own thread may not have seen that yet."""
        if self._saving is not None and self._saving[2].done():
            self._manager.wait_until_finished()

    def wait(self) -> None:
        """Waits for what goes on in the background, and raises what went wrong, if nobody was
        told yet.
        """
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
        """Waits for what goes on in the background, and refuses any other save."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- old names --------------------------------------------------------------------

    def save_pytree(self, *args: Any, **kwargs: Any) -> bool:
        """`save`."""
        return bool(_renamed("save", self.save)(*args, **kwargs))

    def save_pytree_async(self, *args: Any, **kwargs: Any) -> Any:
        """`save_async`."""
        return _renamed("save_async", self.save_async)(*args, **kwargs)

    def load_pytree(self, *args: Any, **kwargs: Any) -> Any:
        """`load`."""
        return _renamed("load", self.load)(*args, **kwargs)

    def load_pytree_async(self, *args: Any, **kwargs: Any) -> Any:
        """`load_async`."""
        return _renamed("load_async", self.load_async)(*args, **kwargs)

    def pytree_metadata(self, *args: Any, **kwargs: Any) -> CheckpointMetadata[Any]:
        """`metadata`."""
        found: CheckpointMetadata[Any] = _renamed("metadata", self.metadata)(*args, **kwargs)
        return found


def _done(begun: Response[bool] | None) -> bool:
    return begun is not None and bool(begun.result())


def _renamed(name: str, method: Any) -> Any:
    warnings.warn(f"Use `{name}` instead.", DeprecationWarning, stacklevel=3)
    return method


def _of_step(step: CheckpointMetadata[None], found: Any) -> CheckpointMetadata[Any]:
    return CheckpointMetadata(
        step.step,
        found.path,
        metadata=found.metadata,
        init_timestamp_nsecs=found.init_timestamp_nsecs,
        commit_timestamp_nsecs=found.commit_timestamp_nsecs,
        custom_metadata=found.custom_metadata,
        metrics=step.metrics,
    )

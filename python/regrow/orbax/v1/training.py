"""Steps of a training run."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from .. import checkpoint_managers
from .._errors import StepAlreadyExistsError, as_orbax
from .._manager_options import CheckpointManagerOptions
from ..checkpoint_manager import CheckpointManager
from . import _functions
from ._context import Context, current
from ._metadata import CheckpointMetadata

__all__ = ["CheckpointMetadata", "Checkpointer", "errors", "preservation_policies", "save_decision_policies"]

save_decision_policies = preservation_policies = checkpoint_managers
errors = SimpleNamespace(StepAlreadyExistsError=StepAlreadyExistsError)


class Checkpointer:
    """Saves, lists and loads the steps of a folder."""

    def __init__(
        self,
        directory: Any,
        *,
        context: Context | None = None,
        save_decision_policy: Any = None,
        preservation_policy: Any = None,
        step_name_format: Any = None,
        custom_metadata: Mapping[str, Any] | None = None,
        cleanup_tmp_directories: bool = False,
        lightweight_initialize: bool = False,
        logger: Any = None,
    ) -> None:
        """Of a folder, which is made. `context` is in force in all of its calls."""
        self._context = Context(context or current())
        options = CheckpointManagerOptions(
            save_decision_policy=save_decision_policy,
            preservation_policy=preservation_policy,
            step_name_format=step_name_format,
            cleanup_tmp_directories=cleanup_tmp_directories,
        )
        self._manager = CheckpointManager(directory, options=options, metadata=custom_metadata, logger=logger)

    @property
    def directory(self) -> Any:
        """The folder."""
        return self._manager.directory

    @property
    def latest(self) -> CheckpointMetadata | None:
        """The highest step, as an object with ``.step``; `None` if there is none."""
        return max(self.checkpoints, key=lambda found: found.step or 0, default=None)

    @property
    def checkpoints(self) -> Sequence[CheckpointMetadata]:
        """All steps that storage has committed."""
        return [CheckpointMetadata(step=info.step, metrics=info.metrics) for info in self._manager._checkpoints]

    def should_save(self, step: int) -> bool:
        """Whether a save of this step would not be passed over."""
        return self._manager.should_save(step)

    def save_checkpointables(
        self,
        step: int,
        checkpointables: Mapping[str, Any],
        *,
        force: bool = False,
        overwrite: bool = False,
        metrics: Any = None,
        custom_metadata: Any = None,
    ) -> bool:
        """Saves a step; false if it is not due.

        Raises:
            StepAlreadyExistsError: for a step that is there, without `overwrite`.
        """
        begun = self.save_checkpointables_async(
            step,
            checkpointables,
            force=force,
            overwrite=overwrite,
            metrics=metrics,
            custom_metadata=custom_metadata,
        )
        return begun is not None and bool(begun.result())

    def save_checkpointables_async(
        self,
        step: int,
        checkpointables: Mapping[str, Any],
        *,
        force: bool = False,
        overwrite: bool = False,
        metrics: Any = None,
        custom_metadata: Any = None,
    ) -> _functions.AsyncResponse | None:
        """The same in the background; `None` if the step is not due."""
        manager = self._manager
        if not (force or overwrite) and not manager.should_save(step):
            return None
        manager.wait_until_finished()
        if step in manager.all_steps() and not overwrite:
            raise StepAlreadyExistsError(f"Checkpoint for step {step} already exists.")
        with self._context, as_orbax():
            path = manager.path_of(step)
            handle = _functions.begin(path, checkpointables, overwrite, custom_metadata, metrics)
        finish = functools.partial(_functions.finish, handle)
        return _functions.AsyncResponse(manager.keep_track(step, finish))

    def save(self, step: int, state: Any, *, checkpointable_name: str = "state", **options: Any) -> bool:
        """As `save_checkpointables`, of one pytree."""
        return self.save_checkpointables(step, {checkpointable_name: state}, **options)

    def save_async(self, step: int, state: Any, *, checkpointable_name: str = "state", **options: Any) -> Any:
        """As `save_checkpointables_async`, of one pytree."""
        return self.save_checkpointables_async(step, {checkpointable_name: state}, **options)

    save_pytree, save_pytree_async = save, save_async

    def load_checkpointables(self, step: Any = None, abstract_checkpointables: Any = None) -> dict[str, Any]:
        """Loads a step, the latest if `None`."""
        with self._context:
            return _functions.load_checkpointables(self._path(step), abstract_checkpointables)

    def load(self, step: Any = None, abstract_state: Any = None, *, checkpointable_name: str = "state") -> Any:
        """Loads a pytree of a step, the latest if `None`."""
        with self._context:
            return _functions.load(self._path(step), abstract_state, checkpointable_name=checkpointable_name)

    load_pytree = load

    def checkpointables_metadata(self, step: Any = None) -> CheckpointMetadata:
        """What is known of a step."""
        found = _functions.checkpointables_metadata(self._path(step))
        found.step = self._number(step)
        return found

    def metadata(self, step: Any = None) -> CheckpointMetadata:
        """What is known of the pytree of a step."""
        found = _functions.metadata(self._path(step))
        found.step = self._number(step)
        return found

    pytree_metadata = metadata

    def root_metadata(self) -> Any:
        """What the folder says of itself."""
        return self._manager.metadata()

    def delete(self, step: Any, *, checkpointable_name: str | None = None, missing_ok: bool = False) -> bool:
        """Deletes a step."""
        if checkpointable_name is not None:
            raise NotImplementedError("regrow.orbax does not delete one checkpointable of a step: delete the step")
        number = self._number(step)
        if missing_ok and number not in self._manager.all_steps():
            return False
        self._manager.delete(number)
        return True

    def reload(self) -> None:
        """Looks for steps anew."""
        self._manager.reload()

    def is_saving_in_progress(self) -> bool:
        """Whether a save is in progress."""
        return self._manager.is_saving_in_progress()

    def wait(self) -> None:
        """Waits for the save in the background, and raises what went wrong."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the save, and refuses any other."""
        self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _number(self, step: Any) -> int:
        number: int | None = self._manager.latest_step() if step is None else getattr(step, "step", step)
        if number is None:
            raise FileNotFoundError(f"No steps found in {self.directory}.")
        return number

    def _path(self, step: Any) -> Any:
        number = self._number(step)
        self._manager._wait_for(number)
        path = self._manager.path_of(number)
        if not path.exists():
            raise FileNotFoundError(f"Checkpoint at {path} not found.")
        return path

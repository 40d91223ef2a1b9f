"""The exceptions of saves and restores of checkpoint files, under the names of `flax.errors`.

If the program has imported Flax, each exception is also an instance of Flax' class of the same
name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidArgumentError,
    NotFoundError,
    RegrowError,
    UnsupportedError,
)
from ._upstream import as_original

__all__ = [
    "CheckpointNotFoundError",
    "InvalidCheckpointError",
    "MPACheckpointingRequiredError",
    "MPARestoreDataCorruptedError",
    "MPARestoreTargetRequiredError",
]

Step = Any
"""Usually a number; the errors only print it."""


class CheckpointNotFoundError(NotFoundError, ValueError):
    """The path has no checkpoint, or no checkpoint of this step."""


class InvalidCheckpointError(AlreadyExistsError, ValueError):
    """A checkpoint of this step or of a later step exists, and ``overwrite=True`` was not given.

    A `ValueError`, too: Flax raises one where it saves folders of Orbax.
    """

    def __init__(self, path: str, step: Step) -> None:
        super().__init__(f'Trying to save an outdated checkpoint at step: "{step}" and path: "{path}".', file=path)
        self._made_of: tuple[Any, ...] = (path, step)

    def __reduce__(self) -> tuple[Any, ...]:
        return InvalidCheckpointError, self._made_of


class MPACheckpointingRequiredError(UnsupportedError):
    """The state has arrays that several processes hold together, but the call has no manager that
    saves or restores them.
    """

    def __init__(self, path: str, step: Step, arrays: Sequence[str] = ()) -> None:
        super().__init__(
            f'Checkpoint failed at step: "{step}" and path: "{path}": Target contains a multiprocess array should'
            f" be saved/restored with a GlobalAsyncCheckpointManager.{_lines(arrays)}",
            file=path,
        )
        self._made_of: tuple[Any, ...] = (path, step, tuple(arrays))

    def __reduce__(self) -> tuple[Any, ...]:
        return MPACheckpointingRequiredError, self._made_of


class MPARestoreTargetRequiredError(InvalidArgumentError):
    """The checkpoint has an array that several processes hold together, but the target has no array
    that gives its sharding.
    """

    def __init__(self, path: str, step: Step, key: Any = None, arrays: Sequence[str] = ()) -> None:
        fired = f"This error fired when trying to restore array at {key}." if key else ""
        super().__init__(
            f'Restore checkpoint failed at step: "{step}" and path: "{path}": Checkpoints containing a multiprocess'
            " array need to be restored with a target with pre-created arrays. If you cannot provide a full valid"
            f" target, consider ``allow_partial_mpa_restoration=True``. {fired}{_lines(arrays)}",
            file=path,
        )
        self._made_of: tuple[Any, ...] = (path, step, key, tuple(arrays))

    def __reduce__(self) -> tuple[Any, ...]:
        return MPARestoreTargetRequiredError, self._made_of


class MPARestoreDataCorruptedError(CorruptError):
    """Several processes have written the folder of arrays, but its save was never finished."""

    def __init__(self, step: Step, path: str, arrays: Sequence[str] = ()) -> None:
        super().__init__(
            f'Restore checkpoint failed at step: "{step}" on multiprocess array at  "{path}": No'
            ' "commit_success.txt" found on this "_gda" directory. Was its save halted before completion?'
            f"{_lines(arrays)}",
            file=path,
        )
        self._made_of: tuple[Any, ...] = (step, path, tuple(arrays))

    def __reduce__(self) -> tuple[Any, ...]:
        return MPARestoreDataCorruptedError, self._made_of


def raised(cls: type[RegrowError]) -> Any:
    """The class that is raised for `cls`."""
    return as_original(cls, "flax.errors")


def _lines(arrays: Sequence[str]) -> str:
    return "".join(f"\n    {array}" for array in arrays)

"""Exceptions: those of regrow, which are those that callers of Orbax catch, too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .. import _errors


class DestinationExistsError(_errors.AlreadyExistsError, ValueError):
    """There is a checkpoint already, and ``force=True`` was not given."""


class IncompleteError(_errors.UncommittedError, ValueError):
    """The checkpoint was never committed."""


class UnsupportedValueError(_errors.UnsupportedError, ValueError):
    """Something that Orbax' files cannot hold."""


class NoStructureError(_errors.NotACheckpointError, FileNotFoundError):
    """The folder holds no checkpoint."""


class StepAlreadyExistsError(ValueError):
    """There is a checkpoint of this step already."""


class StructureError(_errors.MismatchError):
    """Target and checkpoint have other leaves. Also a `ValueError`."""


class NotCoveredError(_errors.UnsupportedError, NotImplementedError):
    """Something of Orbax that this front does not have."""


_ALSO: dict[type[_errors.RegrowError], type[_errors.RegrowError]] = {
    _errors.AlreadyExistsError: DestinationExistsError,
    _errors.UncommittedError: IncompleteError,
    _errors.NotACheckpointError: NoStructureError,
    _errors.UnsupportedError: UnsupportedValueError,
}


@contextlib.contextmanager
def as_orbax() -> Iterator[None]:
    """Raises errors of the engine as what Orbax' callers catch, with the same text."""
    try:
        yield
    except _errors.RegrowError as error:
        also = _ALSO.get(type(error))
        if also is None:
            raise
        raise also(error.message, file=error.file, leaf=error.leaf, help=error.help) from None


def not_covered(name: str, help: str) -> NotCoveredError:
    """The error for a name of Orbax that is not there."""
    return NotCoveredError(f"regrow.orbax does not have {name}\n  help: {help}", help=help)

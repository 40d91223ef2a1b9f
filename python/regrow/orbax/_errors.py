"""Exceptions: those of regrow, which are those that callers of Orbax catch, too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from .. import _errors


class DestinationExistsError(_errors.AlreadyExistsError, ValueError):
    """There is a checkpoint already, and ``force=True`` was not given."""


class IncompleteError(_errors.UncommittedError, ValueError):
    """The checkpoint was never committed."""


class NoStructureError(_errors.NotACheckpointError, FileNotFoundError):
    """The folder holds no checkpoint."""


class DamagedError(_errors.CorruptError, ValueError):
    """A file of the checkpoint is damaged or missing."""


class StepAlreadyExistsError(ValueError):
    """There is a checkpoint of this step already."""


class StructureError(_errors.MismatchError):
    """Target and checkpoint have other leaves. Also a `ValueError`."""


class UnsupportedLeafError(_errors.LeafTypeError, ValueError):
    """A leaf is of a type that nothing saves."""


class UnsupportedTreeError(_errors.UnsupportedError, ValueError):
    """The layout cannot hold what is saved."""


class NotCoveredError(_errors.UnsupportedError, NotImplementedError):
    """Something of Orbax that this front does not have."""


_ALSO: dict[type[_errors.RegrowError], type[_errors.RegrowError]] = {
    _errors.AlreadyExistsError: DestinationExistsError,
    _errors.CorruptError: DamagedError,
    _errors.UncommittedError: IncompleteError,
    _errors.NotACheckpointError: NoStructureError,
    _errors.LeafTypeError: UnsupportedLeafError,
    _errors.UnsupportedError: UnsupportedTreeError,
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
        told = error.message
        if also is UnsupportedLeafError:
            told = f"TypeHandler lookup failed: {told}"
        elif "has no elements" in told:
            told = f"zero size: {told}"
        raise also(told, file=error.file, leaf=error.leaf, help=error.help) from None


def not_covered(name: str, help: str) -> NotCoveredError:
    """The error for a name of Orbax that is not there."""
    return NotCoveredError(f"regrow.orbax does not have {name}\n  help: {help}", help=help)


def refusing(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a module: public names of the original that it does not have raise,
    with a hint each.
    """

    def get(name: str) -> object:
        if name in names:
            raise not_covered(f"{module}.{name}".partition(".orbax.")[2], names[name])
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    get.names = frozenset(names)  # type: ignore[attr-defined]
    return get

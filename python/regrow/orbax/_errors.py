"""Exceptions of regrow that are also the exceptions which callers of Orbax catch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from .. import _errors
from .._errors import failure


class DestinationExistsError(_errors.AlreadyExistsError, ValueError):
    """The path has a checkpoint, and the call did not pass ``force=True``."""


class IncompleteError(_errors.UncommittedError, ValueError):
    """The checkpoint was never committed."""


class NoStructureError(_errors.NotACheckpointError, FileNotFoundError):
    """The folder holds no checkpoint."""


class DamagedError(_errors.CorruptError, ValueError):
    """A file of the checkpoint is damaged or missing."""


class StepAlreadyExistsError(ValueError):
    """A checkpoint of this step exists."""


class StructureError(_errors.MismatchError):
    """The target and the checkpoint have different leaves. Also a `ValueError`."""


class UnsupportedLeafError(_errors.LeafTypeError, ValueError):
    """A leaf is of a type that cannot be saved."""


class UnsupportedTreeError(_errors.UnsupportedError, ValueError):
    """The layout cannot hold this pytree."""


class NotCoveredError(_errors.UnsupportedError, NotImplementedError):
    """A part of Orbax that regrow does not have."""


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
    """Raises errors of the engine as those that callers of Orbax catch, with the same text."""
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


@contextlib.contextmanager
def says_force() -> Iterator[None]:
    """Names Orbax' keyword ``force`` in errors, where regrow has ``overwrite``."""
    try:
        yield
    except _errors.RegrowError as error:
        error.message = error.message.replace("overwrite=True", "force=True")
        error.help = error.help and error.help.replace("overwrite=True", "force=True")
        raise


def not_covered(name: str, help: str) -> NotCoveredError:
    """The error for a name of Orbax that regrow does not have."""
    return failure(NotCoveredError, f"regrow.orbax does not have {name}", help=help)


def refusing(module: str, *groups: tuple[str, str]) -> Callable[[str], object]:
    """A module's `__getattr__` that refuses groups of names, each with what to do instead.

    The name ``*`` refuses all public names.
    """
    helps = {name: help for names, help in groups for name in names.split()}

    def get(name: str) -> object:
        help = helps.get(name) or (None if name.startswith("_") else helps.get("*"))
        if help is not None:
            raise not_covered(f"{module}.{name}".partition(".orbax.")[2], help)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get

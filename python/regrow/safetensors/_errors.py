"""`SafetensorError`, the one exception of safetensors, with the fields of regrow's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .._errors import (
    CorruptError,
    InvalidArgumentError,
    IoError,
    LeafTypeError,
    LimitError,
    NameCollisionError,
    NotDurableError,
    NotFoundError,
    PermissionDeniedError,
    RegrowError,
    StorageFullError,
    UncommittedError,
    UnsupportedError,
)


class SafetensorError(RegrowError):
    """A file breaks the rules of safetensors, or a value cannot be stored in a file. `kind` names
    the broken rule.
    """

    @classmethod
    def of(cls, error: RegrowError) -> SafetensorError:
        """Converts an error of the engine."""
        place = {"file": error.file, "leaf": error.leaf, "offset_bytes": error.offset_bytes}
        out = cls(error.message, help=error.help, **place)  # type: ignore[arg-type]
        out.kind = error.kind
        return out


class SafetensorIndexError(SafetensorError, IndexError):
    """A slice reaches outside its tensor."""

    kind = "invalid_argument"


class SafetensorBoundError(SafetensorError, OverflowError):
    """A slice begins or ends at a negative number."""

    kind = "invalid_argument"


class SafetensorNotFoundError(SafetensorError, NotFoundError):
    """The folder to write to does not exist and cannot be created."""


class SafetensorPermissionError(SafetensorError, PermissionDeniedError):
    """The file permissions do not allow the write."""


class SafetensorFullError(SafetensorError, StorageFullError):
    """The file system is full."""


class SafetensorNotDurableError(SafetensorError, NotDurableError):
    """The file is written completely, but the disk did not confirm it."""


class SafetensorArgumentError(SafetensorError, InvalidArgumentError):
    """An argument is not valid, or the path is a folder, which a file cannot replace."""


class SafetensorIoError(SafetensorError, IoError):
    """Any other failure of the operating system."""


_THEIRS = (CorruptError, LimitError, NameCollisionError, UncommittedError, UnsupportedError)
"""Errors for which safetensors always raises `SafetensorError`."""

_WRITING: dict[type[RegrowError], type[SafetensorError]] = {
    NotFoundError: SafetensorNotFoundError,
    PermissionDeniedError: SafetensorPermissionError,
    StorageFullError: SafetensorFullError,
    NotDurableError: SafetensorNotDurableError,
    InvalidArgumentError: SafetensorArgumentError,
    IoError: SafetensorIoError,
}
"""Errors for which safetensors raises `SafetensorError` only in writes. In reads, an unreadable
file is an `OSError` there.
"""


@contextmanager
def as_safetensor_errors(writing: bool = False) -> Iterator[None]:
    """Converts the errors for which safetensors raises `SafetensorError`. All other errors stay
    unchanged.
    """
    try:
        yield
    except LeafTypeError:
        raise
    except _THEIRS as error:
        raise SafetensorError.of(error) from error
    except RegrowError as error:
        of_both = _WRITING.get(type(error)) if writing else None
        if of_both is None:
            raise
        raise of_both.of(error) from error

"""safetensors has one exception; ours is it, with what the engine knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .._errors import (
    CorruptError,
    InvalidArgumentError,
    LeafTypeError,
    LimitError,
    NameCollisionError,
    RegrowError,
    UncommittedError,
    UnsupportedError,
)


class SafetensorError(RegrowError):
    """A file breaks the rules of safetensors, or something cannot be put into one. `kind` says which rule."""

    @classmethod
    def of(cls, error: RegrowError) -> SafetensorError:
        """What the engine said."""
        place = {"file": error.file, "leaf": error.leaf, "offset_bytes": error.offset_bytes}
        out = cls(error.message, help=error.help, **place)  # type: ignore[arg-type]
        out.kind = error.kind
        return out


class SafetensorIndexError(SafetensorError, IndexError):
    """A slice leaves its tensor."""

    kind = "invalid_argument"


_THEIRS = (CorruptError, LimitError, NameCollisionError, UncommittedError, UnsupportedError)
"""What safetensors raises its one exception for. A missing file is `FileNotFoundError` there, too."""


@contextmanager
def as_safetensor_errors() -> Iterator[None]:
    """Makes `SafetensorError` of what safetensors has it for; all else stays what it is."""
    try:
        yield
    except (LeafTypeError, InvalidArgumentError):
        raise
    except _THEIRS as error:
        raise SafetensorError.of(error) from error

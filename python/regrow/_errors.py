"""The exceptions: one class a kind, each also the built-in that Python programs already catch."""

from __future__ import annotations

from ._text import printable


class RegrowError(Exception):
    """What went wrong, where, and what to do: the base of all that regrow raises.

    The message has everything for people; the attributes have it for programs.
    """

    kind: str = "error"
    """A stable lower-case name, for example ``corrupt``."""

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        leaf: str | None = None,
        offset_bytes: int | None = None,
        help: str | None = None,
    ) -> None:
        # Names in it come from files and paths, and exceptions end on terminals.
        message = printable(message)
        super().__init__(message)
        self.message = message
        self.file = file
        """The file, or the key in a kvstore, whose bytes were at fault."""
        self.leaf = leaf
        """The key path of the leaf that was being read or written."""
        self.offset_bytes = offset_bytes
        """Bytes from the start of ``file``."""
        self.help = help
        """The way out."""

    def __str__(self) -> str:
        return self.message


class NotFoundError(RegrowError, FileNotFoundError):
    """The path, step or item asked for is not there."""

    kind = "not_found"


class LeafNotFoundError(NotFoundError, KeyError):
    """The checkpoint has no leaf of this key path."""


class NotACheckpointError(RegrowError):
    """The path is there, but no known layout is in it."""

    kind = "not_a_checkpoint"


class UncommittedError(RegrowError):
    """A checkpoint that was never committed: a save in progress, or one that was killed."""

    kind = "uncommitted"


class CorruptError(RegrowError):
    """Stored bytes disagree with their own record, or break the rules of their layout."""

    kind = "corrupt"


class UntrustedError(RegrowError):
    """The checkpoint has no signature by a key that the caller trusts, or one that does not verify."""

    kind = "untrusted"


class UnsupportedError(RegrowError):
    """Well formed, but of a version, codec or dtype that this build cannot read or write."""

    kind = "unsupported"


class LeafTypeError(UnsupportedError, TypeError):
    """A leaf, or the key of a dict, is of a type that a checkpoint cannot hold."""


class MismatchError(RegrowError, ValueError):
    """The template and the checkpoint differ; the message lists every difference."""

    kind = "mismatch"


class AlreadyExistsError(RegrowError, FileExistsError):
    """The target is there already and ``overwrite=True`` was not given."""

    kind = "already_exists"


class NameCollisionError(RegrowError, ValueError):
    """Two leaves would get the same stored name, or a key cannot be said in the layout asked for."""

    kind = "name_collision"


class InvalidArgumentError(RegrowError, ValueError):
    """An argument makes no sense: a bad glob, an unknown option, a tree that contains itself."""

    kind = "invalid_argument"


class UnknownKeywordError(InvalidArgumentError, TypeError):
    """A function was given a keyword that it does not take. Also a `TypeError`, as Python itself raises."""


class LimitError(RegrowError):
    """A size passes a limit that regrow sets so that no input can make it allocate without bound."""

    kind = "limit"


class PermissionDeniedError(RegrowError, PermissionError):
    """Reading or writing was refused: a read-only file system, missing permission."""

    kind = "permission_denied"


class StorageFullError(RegrowError, OSError):
    """The file system is full."""

    kind = "storage_full"


class NotDurableError(RegrowError, OSError):
    """The path holds the new checkpoint, whole, but the disk did not confirm it: a power cut may cost it.

    This is the only error of a save after which the path does not hold what it held before.
    """

    kind = "not_durable"


class ReplacedError(NotFoundError):
    """Another checkpoint took the path while this one was being read: open it again."""

    kind = "replaced"


class CancelledError(RegrowError):
    """A progress callback, or whoever has the handle of a background save, asked to stop."""

    kind = "cancelled"


class SourceChangedError(RegrowError):
    """A leaf was changed while it was being saved in the background."""

    kind = "source_changed"


class TimedOutError(RegrowError, TimeoutError):
    """Other processes of the job have not come in time, or have ended; the message names their ranks."""

    kind = "timed_out"


class IoError(RegrowError, OSError):
    """Any other failure of the operating system."""

    kind = "io"


class InternalError(RegrowError, RuntimeError):
    """regrow itself is at fault; please report it."""

    kind = "internal"


class IncompleteCheckpointWarning(UserWarning):
    """A checkpoint has lost files, and can be read without them: damage to it, or more of it lost, may go unseen."""


class SalvageWarning(UserWarning):
    """Leaves of a checkpoint are lost, and the others were loaded; `report` lists them."""

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message)
        self.report = report
        """A `SalvageReport`."""


BY_KIND: dict[str, type[RegrowError]] = {
    cls.kind: cls
    for cls in (
        NotFoundError,
        NotACheckpointError,
        UncommittedError,
        CorruptError,
        UntrustedError,
        UnsupportedError,
        MismatchError,
        AlreadyExistsError,
        NameCollisionError,
        InvalidArgumentError,
        LimitError,
        PermissionDeniedError,
        StorageFullError,
        NotDurableError,
        ReplacedError,
        CancelledError,
        SourceChangedError,
        TimedOutError,
        IoError,
        InternalError,
    )
}


def from_native(
    kind: str,
    message: str,
    file: str | None,
    leaf: str | None,
    offset_bytes: int | None,
    help: str | None,
) -> RegrowError:
    """The exception for an error of the engine; the one place where kinds become classes."""
    cls = BY_KIND.get(kind, RegrowError)
    return cls(message, file=file, leaf=leaf, offset_bytes=offset_bytes, help=help)

"""The exceptions: one class for each kind, which is also the built-in exception of that kind."""

from __future__ import annotations

from typing import Any, TypeVar

from ._text import printable

E = TypeVar("E", bound=Exception)


class RegrowError(Exception):
    """The base class of the errors that regrow raises.

    The message describes the failure, its place and the remedy. The attributes contain the same for
    programs.
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
        # Messages contain names from files and paths, and terminals print them.
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
        """The advice; `None` if there is none."""

    def __str__(self) -> str:
        return self.message


class NotFoundError(RegrowError, FileNotFoundError):
    """The path, step or item does not exist."""

    kind = "not_found"


class LeafNotFoundError(NotFoundError, KeyError):
    """The checkpoint has no leaf of this key path."""


class NotACheckpointError(RegrowError):
    """The path exists, but holds no checkpoint of a known layout."""

    kind = "not_a_checkpoint"


class UncommittedError(RegrowError):
    """The checkpoint was never committed: its save is in progress, or was killed."""

    kind = "uncommitted"


class CorruptError(RegrowError):
    """Stored bytes disagree with their own record, or break the rules of their layout."""

    kind = "corrupt"


class UntrustedError(RegrowError):
    """The checkpoint has no signature of a trusted key, or the signature does not verify."""

    kind = "untrusted"


class UnsupportedError(RegrowError):
    """The data is valid, but this build cannot read or write its version, codec or dtype."""

    kind = "unsupported"


class LeafTypeError(UnsupportedError, TypeError):
    """A leaf, or the key of a dict, is of a type that a checkpoint cannot hold."""


class MismatchError(RegrowError, ValueError):
    """The template and the checkpoint differ; the message lists the first 100 differences."""

    kind = "mismatch"


class AlreadyExistsError(RegrowError, FileExistsError):
    """The target exists, and ``overwrite=True`` was not given."""

    kind = "already_exists"


class BusyError(RegrowError):
    """Another process is changing the checkpoint. The message names the process."""

    kind = "busy"


class NameCollisionError(RegrowError, ValueError):
    """Two leaves would get the same stored name, or the layout cannot hold a key."""

    kind = "name_collision"


class InvalidArgumentError(RegrowError, ValueError):
    """An argument is not valid: a bad glob, an unknown option, a tree that contains itself."""

    kind = "invalid_argument"


class UnknownKeywordError(InvalidArgumentError, TypeError):
    """A function has no such keyword. Also a `TypeError`, as Python itself raises."""


class LimitError(RegrowError):
    """A size exceeds a limit of regrow. Limits keep damaged files from allocating memory without
    bound.
    """

    kind = "limit"


class PermissionDeniedError(RegrowError, PermissionError):
    """The file system refused a read or a write: no permission, or mounted read-only."""

    kind = "permission_denied"


class StorageFullError(RegrowError, OSError):
    """The file system is full."""

    kind = "storage_full"


class NotDurableError(RegrowError, OSError):
    """The path holds the complete new checkpoint, but the disk did not confirm it: it may not
    survive a power cut.

    It is the only error of a save after which the content of the path has changed.
    """

    kind = "not_durable"


class ReplacedError(NotFoundError):
    """Another checkpoint replaced this one while it was being read. Open it again."""

    kind = "replaced"


class CancelledError(RegrowError):
    """A progress callback, or `SaveHandle.cancel`, asked to stop."""

    kind = "cancelled"


class SourceChangedError(RegrowError):
    """A leaf was changed while it was being saved in the background."""

    kind = "source_changed"


class TimedOutError(RegrowError, TimeoutError):
    """Other processes of the job did not answer in time, or have ended. The message names their
    ranks.
    """

    kind = "timed_out"


class IoError(RegrowError, OSError):
    """Any other failure of the operating system."""

    kind = "io"


class InternalError(RegrowError, RuntimeError):
    """A bug in regrow. Please report it."""

    kind = "internal"


class IncompleteCheckpointWarning(UserWarning):
    """A checkpoint has lost files, and can be read without them. Further damage may go unseen."""


class SalvageWarning(UserWarning):
    """Leaves of a checkpoint are lost, and the others were loaded. `report` lists the lost
    leaves.
    """

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
        BusyError,
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


def failure(
    cls: type[E],
    what: str,
    *lines: str,
    leaf: str | None = None,
    first_leaf: str | None = None,
    help: str | None = None,
    **fields: Any,
) -> E:
    """An error with the text that all errors have: what failed, where, and what to do.

    Args:
        cls: The class of the error. Built-in exceptions have no `leaf` and no `help`.
        what: The first line.
        *lines: Further lines, such as ``in PATH`` and ``expected X, found Y``.
        leaf: The key path of the leaf. It gets its own line.
        first_leaf: The first of the leaves that `what` lists.
        help: The remedy.
        **fields: Other arguments of the class.
    """
    shown = [what, *lines]
    if leaf is not None:
        shown.insert(1, f"leaf {leaf}")
    if help is not None:
        shown.append(f"help: {help}")
    message = "\n  ".join(shown)
    if not issubclass(cls, RegrowError):
        return cls(message, **fields)
    return cls(message, leaf=leaf or first_leaf, help=help, **fields)


def advise(error: RegrowError, help: str) -> None:
    """Adds help to an error that is being raised."""
    error.message += f"\n  help: {help}"

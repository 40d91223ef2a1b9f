"""Saving in the background: `save_async`, and savers of one's own."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import weakref
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, Unpack, get_args

from . import _arguments, _job, _native, _options
from ._errors import CancelledError, InvalidArgumentError, RegrowError
from ._keywords import SAVE, SaveOptions
from ._leaves import to_native
from ._location import StrPath, places, shown
from ._report import SaveReport
from ._text import printable
from ._tree import flatten

WhenBusy = Literal["wait", "skip", "queue"]
CopyLeaves = Literal["mutable", "all", "nothing"]

_OWN = ("when_busy", "copy", "check_source")
"""Keywords of saves in the background alone."""


class Blocked(NamedTuple):
    """What the call that started a save has taken."""

    seconds: float
    """From the call to its return, with all that follows."""
    waited_seconds: float
    """Of these, waiting for an earlier save."""
    copied_bytes: int
    """Bytes that were copied."""


class AsyncSave:
    """A save in the background. Dropping it neither ends nor waits for the save.

    ``await`` it in a coroutine, or `wait` for it.
    """

    def __init__(self, path: str, handle: _native.SaveHandle | None) -> None:
        self._handle = handle
        self.path = path
        """Where the checkpoint will be."""

    @property
    def skipped(self) -> bool:
        """Whether nothing is saved, because another save was running and ``when_busy="skip"``."""
        return self._handle is None

    @property
    def blocked(self) -> Blocked:
        """What the call that started it has taken."""
        return Blocked(0.0, 0.0, 0) if self._handle is None else Blocked(*self._handle.blocked)

    def done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self._handle is None or self._handle.is_done()

    def progress(self) -> tuple[int, int]:
        """Bytes done, and bytes in all (0 until that is known)."""
        return (0, 0) if self._handle is None else self._handle.progress()[1:]

    def stage(self) -> str:
        """What it is at: ``"prepare"``, ``"compare"``, ``"copy"``, ``"write"``, ``"sync"``, ``"commit"`` ..."""
        return "skipped" if self._handle is None else self._handle.progress()[0]

    def cancel(self) -> None:
        """Asks it to stop, soon, leaving nothing behind. Nobody but who waits for it is told."""
        if self._handle is not None:
            self._handle.cancel()

    def wait(self, timeout: float | None = None) -> SaveReport | None:
        """Waits until it has ended; the report, or `None` if it was skipped.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            TimeoutError: if it has not ended by then. It goes on.
            CancelledError: if it was cancelled.
            SourceChangedError: with ``check_source=True``, if a leaf was changed meanwhile.
            RegrowError: as `save`.
        """
        if self._handle is None:
            return None
        report = self._handle.wait(timeout)
        if report is None:
            raise TimeoutError(f"the save of {self.path} has not ended after {timeout} s")
        return SaveReport.from_native(report)

    def __await__(self) -> Generator[Any, None, SaveReport | None]:
        import asyncio

        # The wait lets the interpreter go, so a thread of the loop's own is enough.
        return asyncio.get_running_loop().run_in_executor(None, self.wait).__await__()

    def __repr__(self) -> str:
        if self.done():
            return f"AsyncSave({self.path!r}, {'skipped' if self.skipped else 'done'})"
        done, total = self.progress()
        return f"AsyncSave({self.path!r}, {self.stage()}, {done} of {total} bytes)"


class AsyncSaver:
    """Saves in the background, one after the other, in the order of the calls.

    Failures cannot be missed: whoever waits for a save is told; otherwise the next `save` or `wait` raises it; and one
    that nobody has seen when the program ends goes to standard error and makes it end with status 1.

    As a context manager it waits at the end of the block.
    """

    def __init__(self) -> None:
        self._native = _native.AsyncSaver()
        self._pid = os.getpid()
        _savers.add(self)
        _wait_at_exit()

    @SAVE.documented
    def save(
        self,
        path: StrPath,
        tree: Any,
        *,
        when_busy: WhenBusy = "wait",
        copy: CopyLeaves = "mutable",
        check_source: bool = False,
        **options: Unpack[SaveOptions],
    ) -> AsyncSave:
        """As `regrow.save_async`, with this saver.

        Args:
            path: As in `regrow.save_async`, like all that is not named here.
            **options: The keywords of `SaveOptions`.
        """
        began = time.perf_counter()
        with _job.posts_errors(options.get("job"), path):
            given = SAVE.chosen("save", options, _OWN)
            at = places(given["storage_options"], path=path, base=given["base"])
            given = _options.with_layout(given, at["path"])
            _arguments.choice("when_busy", when_busy, get_args(WhenBusy))
            _arguments.choice("copy", copy, get_args(CopyLeaves))
            check_source = _arguments.flag("check_source", check_source)
            save_options = _options.of_write(given, at.get("base"))
            if _options.job_of(save_options) is not None and when_busy == "skip":
                raise InvalidArgumentError(
                    'when_busy="skip" cannot be used by several processes: some would save, others skip;'
                    ' use "wait" or "queue"'
                )
            if when_busy == "skip" and self._native.is_busy():
                return AsyncSave(shown(at["path"]), None)
            flat = flatten(tree, _arguments.handlers(given["handlers"]), layout=given["layout"])
            leaves = to_native(flat, _arguments.flag("replica_parallel", given["replica_parallel"]))
        seconds = time.perf_counter() - began
        handle = self._native.save(
            at["path"], flat.structure, leaves, save_options, when_busy, copy, check_source, seconds
        )
        return AsyncSave(shown(at["path"]), handle)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until nothing is left to save.

        Raises:
            TimeoutError: if something is, after `timeout` seconds.
            RegrowError: the first failure that nobody has been told of; call again for more.
        """
        if not self._native.wait(timeout):
            raise TimeoutError(f"there is something left to save after {timeout} s")

    def is_busy(self) -> bool:
        """Whether a save is running or waiting for its turn."""
        return self._native.is_busy()

    def release_memory(self) -> None:
        """Gives the memory of the last snapshots back to the system; it is kept to make the next ones fast."""
        self._native.release_memory()

    def __enter__(self) -> AsyncSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait()


@SAVE.documented
def save_async(
    path: StrPath,
    tree: Any,
    *,
    when_busy: WhenBusy = "wait",
    copy: CopyLeaves = "mutable",
    check_source: bool = False,
    **options: Unpack[SaveOptions],
) -> AsyncSave:
    """Saves a pytree in the background: returns as soon as the snapshot is taken.

    What is done to the tree after the return is not in the checkpoint. JAX arrays of 4 KiB and more are referred to,
    which costs nothing on the CPU: they cannot change. Those of a GPU or TPU are brought to the host before the return.
    While a save refers to them JAX cannot donate their memory to the result of a computation: it makes new memory
    instead, without a word, until the save has ended. Everything else is copied into memory that the next snapshot uses
    again, so the first one is the slowest.

    Args:
        path: As in `save`.
        tree: As in `save`; it may change as soon as this has returned.
        when_busy: What to do while an earlier save is running: ``"wait"`` for it, ``"skip"`` this one, or ``"queue"``
            it with its snapshot (8 at most wait, then the call does).
        copy: ``"mutable"`` leaves, ``"all"``, or ``"nothing"``: then nobody may write to an array until the save is
            done. ``"all"`` keeps JAX free to donate.
        check_source: For finding a bug: hash what is saved now and again before the commit; a leaf that was changed
            in between is a `SourceChangedError` that names it, and nothing is saved.
        **options: The keywords of `SaveOptions`.

    Raises:
        RegrowError: why an earlier save failed, if nobody was told; then nothing is saved now.
        AlreadyExistsError: if `path` is there and `overwrite` was not given.
        LeafTypeError: for a leaf or key that no checkpoint can hold. Other failures are for the handle to say.
    """
    with _job.posts_errors(options.get("job"), path):
        SAVE.chosen("save_async", options, _OWN)
    return saver_of_calls().save(path, tree, when_busy=when_busy, copy=copy, check_source=check_source, **options)


# ---- the saver behind save_async, and the end of the program -------------------------------------------------


class Drained(Protocol):
    """Something that follows saves, and knows of failures that nobody else was told of."""

    def drain(self) -> list[BaseException]:
        """Waits until all is done; what went wrong."""


_savers: weakref.WeakSet[AsyncSaver] = weakref.WeakSet()
_following: set[Drained] = set()
_default: AsyncSaver | None = None
_waits_at_exit = False

_TELL_AFTER_SECONDS = 1.0


def saver_of_calls() -> AsyncSaver:
    """The saver behind `save_async` and `save_items_async`."""
    global _default
    # A saver is of no use in a child: its thread is the parent's.
    if _default is None or _default._pid != os.getpid():
        _default = AsyncSaver()
    return _default


def end_with_program(follower: Drained) -> None:
    """Waits for this, too, when the program ends, before the savers that it looks at."""
    _following.add(follower)
    _wait_at_exit()


def ended(follower: Drained) -> None:
    """It has ended before."""
    _following.discard(follower)


def _wait_at_exit() -> None:
    global _waits_at_exit
    if not _waits_at_exit:
        _waits_at_exit = True
        # Handlers run last first: this one before those of what was imported earlier, JAX among it.
        atexit.register(_at_exit)


def _at_exit() -> None:
    failures: list[BaseException] = [failure for follower in list(_following) for failure in follower.drain()]
    failures += [failure for saver in list(_savers) if saver._pid == os.getpid() for failure in _drain(saver)]
    if failures:
        _end_badly(failures)


def _end_badly(failures: Sequence[BaseException]) -> NoReturn:
    """Ends the program with status 1, for failures that nobody knows of."""
    for failure in failures:
        print(printable(f"regrow: {failure}"), file=sys.stderr)
    # An exception raised here would not change the exit status, and a job whose last checkpoint is missing must not
    # look well. The other handlers have their turn first.
    atexit.unregister(_at_exit)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(1)


def _drain(saver: AsyncSaver) -> list[RegrowError]:
    """Waits for all its saves; what went wrong and nobody knows."""
    failures: list[RegrowError] = []
    is_told = False
    while True:
        try:
            saver.wait(_TELL_AFTER_SECONDS)
            return failures
        except TimeoutError:
            running = saver._native.running()
            if running is not None and not is_told:
                is_told = True
                path, done, total = running
                print(printable(f"regrow: waiting for the save of {path} ({done} of {total} bytes)"), file=sys.stderr)
        except CancelledError:
            continue
        except RegrowError as error:
            failures.append(error)

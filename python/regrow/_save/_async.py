"""Saves in the background: `save_async` and `AsyncSaver`. A program may have several savers."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, get_args

from .. import _native
from .._core import _arguments, _progress
from .._core._keywords import keywords
from .._core._location import StrPath, places, shown
from .._core._options import Options
from .._core._progress import Progress
from .._core._report import SaveReport
from .._core._requests import BackgroundRequest
from .._errors import CancelledError, InvalidArgumentError, RegrowError
from .._jobs import _job
from .._jobs._job import Job
from .._leaves._columns import to_native
from .._text import printable
from .._tree._flatten import flatten
from ._layout import Layout
from ._writing import Writing

WhenBusy = Literal["wait", "skip", "queue"]
CopyLeaves = Literal["mutable", "all", "nothing"]


class Blocked(NamedTuple):
    """The time for which the call that started a save blocked the program."""

    seconds: float
    """The time from the call to its return."""
    waited_seconds: float
    """The part of `seconds` for which the call waited for an earlier save."""
    copied_bytes: int
    """The bytes that the snapshot copied."""


class SaveHandle:
    """A save in the background. Dropping the handle neither ends the save nor waits for it.

    ``await`` it in a coroutine, or ask for its `result`.
    """

    def __init__(self, path: str, handle: _native.SaveHandle | None) -> None:
        self._handle = handle
        self._watching: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.path = path
        """The path of the new checkpoint."""

    @property
    def skipped(self) -> bool:
        """Whether nothing is saved, because another save was running and ``when_busy="skip"``."""
        return self._handle is None

    @property
    def blocked(self) -> Blocked:
        """The time for which the call that started the save blocked the program."""
        return Blocked(0.0, 0.0, 0) if self._handle is None else Blocked(*self._handle.blocked)

    def done(self) -> bool:
        """Whether the save has ended, with or without an error."""
        return self._handle is None or self._handle.is_done()

    def progress(self) -> tuple[int, int]:
        """The bytes done, and the bytes in total (0 until the total is known)."""
        return (0, 0) if self._handle is None else self._handle.progress()[1:]

    def stage(self) -> str:
        """The stage: ``"prepare"``, ``"compare"``, ``"copy"``, ``"write"``, ``"sync"``,
        ``"commit"`` ...
        """
        return "skipped" if self._handle is None else self._handle.progress()[0]

    def follow(self, watch: _progress.Watch) -> None:
        """Shows the progress on its own thread, if `watch` shows progress."""
        self._watching = _progress.follow(self, watch)

    def give_up(self, error: BaseException) -> None:
        """Ends the save soon; `result` raises `error`."""
        self._failure = error
        self.cancel()

    def cancel(self) -> None:
        """Asks the save to stop soon. Its temporary files are deleted, and `result` raises
        `CancelledError`.
        """
        if self._handle is not None:
            self._handle.cancel()

    def result(self, timeout: float | None = None) -> SaveReport | None:
        """Waits until the save has ended. Returns the report, or `None` if the save was skipped.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            TimeoutError: if the save has not ended by then. The save continues.
            CancelledError: if it was cancelled.
            SourceChangedError: with ``Options(check_source=True)``, if the program changed a leaf
                during the save.
            RegrowError: as `save`.
        """
        if self._handle is None:
            return None
        try:
            report = self._handle.wait(timeout)
        except CancelledError:
            if self._failure is not None:
                raise self._failure from None
            raise
        if report is None:
            raise TimeoutError(f"the save of {self.path} has not ended after {timeout} s")
        if self._watching is not None:
            self._watching.join()
        if self._failure is not None:
            raise self._failure
        return SaveReport.from_native(report)

    def __await__(self) -> Generator[Any, None, SaveReport | None]:
        import asyncio

        # `result` releases the GIL while it waits, so it can wait on a thread of the loop's default
        # executor.
        return asyncio.get_running_loop().run_in_executor(None, self.result).__await__()

    def __repr__(self) -> str:
        if self.done():
            return f"SaveHandle({self.path!r}, {'skipped' if self.skipped else 'done'})"
        done, total = self.progress()
        return f"SaveHandle({self.path!r}, {self.stage()}, {done} of {total} bytes)"


class AsyncSaver:
    """Saves in the background, one after the other, in the order of the calls.

    No failure is lost. A wait for the save raises it. Otherwise the next `save` or `wait` raises
    it. If no call has raised it when the program ends, it is printed to standard error and the exit
    status is 1.

    As a context manager it waits at the end of the block.
    """

    def __init__(self) -> None:
        self._native = _native.AsyncSaver()
        self._pid = os.getpid()
        _savers.add(self)
        _wait_at_exit()

    @keywords
    def save(
        self,
        path: StrPath,
        tree: Any,
        *,
        when_busy: WhenBusy = "wait",
        layout: str | Layout | None = None,
        overwrite: bool = False,
        cast: Any = None,
        lossy: bool = False,
        compression: Any = None,
        metadata: Any = None,
        base: StrPath | None = None,
        durable: bool = True,
        parity: str | None = None,
        seal: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        progress: Progress = False,
        job: Job | None = None,
        options: Options | None = None,
    ) -> SaveHandle:
        """As `save_async`, with this saver.

        Args:
            path: As for `save_async`, like all further arguments.
            tree: Any pytree.
            when_busy: The action while an earlier save is running.
            layout: As for `save`.
            overwrite: As for `save`.
            cast: As for `save`.
            lossy: As for `save`.
            compression: As for `save`.
            metadata: As for `save`.
            base: As for `save`.
            durable: As for `save`.
            parity: As for `save`.
            seal: As for `save`.
            storage_options: As for `save`.
            progress: As for `save_async`.
            job: As for `save`.
            options: Rare settings.
        """
        writing = Writing(
            layout=layout, overwrite=overwrite, cast=cast, lossy=lossy, compression=compression, metadata=metadata,
            base=base, durable=durable, parity=parity, seal=seal, storage_options=storage_options, job=job,
            options=options,
        )  # fmt: skip
        watch = _progress.Watch(progress, "saving")
        handle = self.begin(path, tree, writing, when_busy)
        handle.follow(watch)
        return handle

    def begin(self, path: StrPath, tree: Any, writing: Writing, when_busy: WhenBusy = "wait") -> SaveHandle:
        """Saves with the keywords in `writing`."""
        began = time.perf_counter()
        with _job.posts_errors(writing.asked_job(), path):
            rare = writing.rare()
            at = places(writing.storage_options, path=path, base=writing.base)
            writing = writing.laid_out(at["path"])
            _arguments.choice("when_busy", when_busy, get_args(WhenBusy))
            _arguments.choice("copy", rare.copy, get_args(CopyLeaves))
            check_source = _arguments.flag("check_source", rare.check_source)
            request = writing.request(at.get("base"))
            if when_busy == "skip":
                refuse_skip_in_a_job(writing)
                if self._native.is_busy():
                    return SaveHandle(shown(at["path"]), None)
            flat = flatten(tree, _arguments.handlers(rare.handlers), layout=writing.layout_name)
            leaves = to_native(flat, _arguments.flag("replica_parallel", rare.replica_parallel))
        how = BackgroundRequest(
            when_busy=when_busy, copy=rare.copy, check_source=check_source, seconds=time.perf_counter() - began
        )
        handle = self._native.save(at["path"], flat.structure, leaves, request, how)
        return SaveHandle(shown(at["path"]), handle)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all saves have ended.

        Raises:
            TimeoutError: if a save is still running after `timeout` seconds.
            RegrowError: the first failure that no call has raised yet; call again for further ones.
        """
        if not self._native.wait(timeout):
            raise TimeoutError(f"saves are still running after {timeout} s")

    def is_busy(self) -> bool:
        """Whether a save is running or waiting for its turn."""
        return self._native.is_busy()

    def release_memory(self) -> None:
        """Returns the memory of the last snapshots to the system. The saver keeps this memory to
        make the next snapshots fast.
        """
        self._native.release_memory()

    def __enter__(self) -> AsyncSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait()


@keywords
def save_async(
    path: StrPath,
    tree: Any,
    *,
    when_busy: WhenBusy = "wait",
    layout: str | Layout | None = None,
    overwrite: bool = False,
    cast: Any = None,
    lossy: bool = False,
    compression: Any = None,
    metadata: Any = None,
    base: StrPath | None = None,
    durable: bool = True,
    parity: str | None = None,
    seal: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = False,
    job: Job | None = None,
    options: Options | None = None,
) -> SaveHandle:
    """Saves a pytree in the background: returns as soon as the snapshot is taken.

    Changes to the tree after the return are not in the checkpoint. JAX arrays of 4 KiB and more are
    not copied on the CPU, because they cannot change: the save refers to them. Arrays of a GPU or
    TPU are copied to the host before the return. While a save refers to an array, JAX cannot donate
    its memory to the result of a computation and allocates new memory instead. All other leaves are
    copied into memory that the next snapshot reuses. Therefore the first snapshot is the slowest.

    Args:
        path: As for `save`.
        tree: As for `save`; it may change as soon as this function has returned.
        when_busy: The action while an earlier save is running: ``"wait"`` for it, ``"skip"`` this
            save, or ``"queue"`` this save with its snapshot (with 8 in the queue the call waits).
        layout: As for `save`.
        overwrite: As for `save`.
        cast: As for `save`.
        lossy: As for `save`.
        compression: As for `save`.
        metadata: As for `save`.
        base: As for `save`.
        durable: As for `save`, for the commit.
        parity: As for `save`.
        seal: As for `save`.
        storage_options: As for `save`.
        progress: As for `save`, on its own thread; off by default. An exception in the function
            ends the save if it is not committed yet, and `SaveHandle.result` raises it.
        job: As for `save`.
        options: Rare settings; `copy` and `check_source` are for saves in the background.

    Raises:
        RegrowError: the failure of an earlier save that no call has raised yet. Nothing is saved in
            this case.
        AlreadyExistsError: if `path` exists and `overwrite` was not given.
        LeafTypeError: for a leaf or key that no checkpoint can hold. `SaveHandle.result` raises
            other errors.
    """
    writing = Writing(
        layout=layout, overwrite=overwrite, cast=cast, lossy=lossy, compression=compression, metadata=metadata,
        base=base, durable=durable, parity=parity, seal=seal, storage_options=storage_options, job=job, options=options,
    )  # fmt: skip
    watch = _progress.Watch(progress, "saving")
    handle = saver_of_calls().begin(path, tree, writing, when_busy)
    handle.follow(watch)
    return handle


def refuse_skip_in_a_job(writing: Writing) -> None:
    """Refuses ``when_busy="skip"`` in a job of several processes: some processes would save, and
    others would skip.
    """
    if writing.native_job() is not None:
        raise InvalidArgumentError(
            'when_busy="skip" cannot be used by several processes: some would save, others skip; use "wait" or "queue"'
        )


# ---- the saver behind save_async, and the end of the program --------------------------


class Drained(Protocol):
    """Follows saves, and keeps failures that no call has raised yet."""

    def drain(self) -> list[BaseException]:
        """Waits for all saves. Returns the failures that no call has raised."""


_savers: weakref.WeakSet[AsyncSaver] = weakref.WeakSet()
_following: set[Drained] = set()
_default: AsyncSaver | None = None
_waits_at_exit = False

_TELL_AFTER_SECONDS = 1.0


def saver_of_calls() -> AsyncSaver:
    """The saver behind `save_async` and `save_items_async`."""
    global _default
    # A forked child needs its own saver: the thread of this one belongs to the parent.
    if _default is None or _default._pid != os.getpid():
        _default = AsyncSaver()
    return _default


def end_with_program(follower: Drained) -> None:
    """At the end of the program, waits for `follower` before the savers."""
    _following.add(follower)
    _wait_at_exit()


def ended(follower: Drained) -> None:
    """Removes a follower that has already ended."""
    _following.discard(follower)


def _wait_at_exit() -> None:
    global _waits_at_exit
    if not _waits_at_exit:
        _waits_at_exit = True
        # Exit handlers run in reverse order: this one runs before those of earlier imports such as
        # JAX.
        atexit.register(_at_exit)


def _at_exit() -> None:
    failures: list[BaseException] = [failure for follower in list(_following) for failure in follower.drain()]
    failures += [failure for saver in list(_savers) if saver._pid == os.getpid() for failure in _drain(saver)]
    if failures:
        _end_badly(failures)


def _end_badly(failures: Sequence[BaseException]) -> NoReturn:
    """Ends the program with status 1 for failures that no call has raised."""
    for failure in failures:
        print(printable(f"regrow: {failure}"), file=sys.stderr)
    # An exception raised here would not change the exit status, and a job without its last
    # checkpoint must not seem successful. Let the other handlers run first.
    atexit.unregister(_at_exit)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(1)


def _drain(saver: AsyncSaver) -> list[RegrowError]:
    """Waits for all saves of a saver. Returns the failures that no call has raised."""
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

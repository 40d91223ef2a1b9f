"""Work in shares: an executor makes one call for each share.

A call is a function of this module with plain arguments: paths, options, numbers. Its result is
small. A share whose worker dies is submitted again: shares are independent, and each writes files
of its own.
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

from .. import _native
from .._core._location import Portable, arrived
from .._core._progress import Progress, Watch, unwatched
from .._core._report import Finding
from .._core._requests import ConvertRequest, SaveRequest
from .._errors import CorruptError, IoError, RegrowError, ReplacedError, UnsupportedError, failure
from .._load._checkpoint import VerifyReport
from .._load._opening import Opening
from .._text import counted
from ._executors import Executor

TRIES = 3
"""The number of times that a share is submitted before the work fails."""

_Outcome = tuple[Any, RegrowError | None]
"""The result of a share, or its exception: an executor may pack an exception that is raised
into one of its own.
"""


# ---- converting -----------------------------------------------------------------------


def convert(
    shared: tuple[Executor, int],
    at: dict[str, Portable],
    save: SaveRequest,
    rules: ConvertRequest,
    progress: Progress,
) -> tuple[Any, list[tuple[str, str, str]]]:
    """Converts a checkpoint: the executor makes one call for each share. Returns what the native
    half's `convert` returns.

    This process plans, begins and commits the conversion. It starts again if the source is replaced
    in between.
    """
    return _native.read_unreplaced(lambda _: _convert(shared, at, save, rules, progress))


def _convert(
    shared: tuple[Executor, int],
    at: dict[str, Portable],
    save: SaveRequest,
    rules: ConvertRequest,
    progress: Progress,
) -> tuple[Any, list[tuple[str, str, str]]]:
    executor, count = shared
    source, target, base = at["source"], at["target"], at.get("base")
    here = _with_base(save, base)
    with Watch(progress, "converting") as (gets_signals, callback):
        begun = _native.SharedConvert(arrived(source), arrived(target), here, rules, gets_signals)
        try:
            ticket, step, share_bytes = begun.about(count)
            # A newer step may exist when the last share opens the source, so fix the step.
            pinned = rules if step is None else rules.replaced(step=step)
            # If there are more shares than leaves, the last shares are empty.
            numbers = [share for share in range(count) if share_bytes[share] > 0] or [0]
            calls = [(source, target, base, save, pinned, (ticket, share, count)) for share in numbers]
            written = run(executor, "a conversion", convert_share, calls, _told(callback, share_bytes))
            return begun.finish(written, gets_signals)
        finally:
            begun.give_up()


def convert_share(
    source: Portable,
    target: Portable,
    base: Portable | None,
    save: SaveRequest,
    rules: ConvertRequest,
    share: tuple[str, int, int],
    _call: tuple[Any, ...],
) -> _Outcome:
    """Writes a share of a conversion, in a process of an executor."""
    try:
        here = _with_base(save, base)
        return _native.convert_share(arrived(source), arrived(target), here, rules, share, unwatched()), None
    except RegrowError as error:
        return None, error


def _with_base(save: SaveRequest, base: Portable | None) -> SaveRequest:
    return save.replaced(base=None if base is None else arrived(base))


# ---- verifying ------------------------------------------------------------------------


def verify(
    shared: tuple[Executor, int],
    at: Portable,
    opening: Opening,
    progress: Progress,
) -> VerifyReport:
    """Verifies a checkpoint: the executor makes one call for each share. Starts again if the
    checkpoint is replaced in between.
    """
    return _native.read_unreplaced(lambda _: _verify(shared, at, opening, progress))


def _verify(
    shared: tuple[Executor, int],
    at: Portable,
    opening: Opening,
    progress: Progress,
) -> VerifyReport:
    executor, count = shared
    with Watch(progress, "verifying") as (_, callback):
        opened = _opened(at, opening)
        pinned = opening._replace(step=opened.step) if opened.steps else opening
        calls = [(at, pinned, (share, count)) for share in range(count)]
        ends = [opened.data_bytes * share // count for share in range(count + 1)]
        share_bytes = [end - start for start, end in pairwise(ends)]
        found = run(executor, "a verification", verify_share, calls, _told(callback, share_bytes))
        if opened.is_replaced():
            raise ReplacedError(f"{at[0]} was replaced while it was being verified")
    placed = [
        (place, Finding(*finding), said)
        for (findings, *_), places in found
        for finding, (place, said) in zip(findings, places, strict=True)
    ]
    placed.sort(key=lambda each: each[0])
    (_, _, leaf_count, has_data_checksums, notes, _, signer, _, step), _ = found[0]
    unprotected: Counter[str] = Counter()
    for (*_, files, _), _ in found:
        for file, bytes_ in files:
            unprotected[file] += bytes_
    said = {said for _, _, said in placed}
    return VerifyReport(
        [finding for _, finding, _ in placed],
        sum(checked_bytes for (_, checked_bytes, *_), _ in found),
        leaf_count,
        has_data_checksums,
        [note for note in notes if note not in said],
        unprotected.total(),
        signer,
        sorted(unprotected.items()),
        step,
    )


def _opened(at: Portable, opening: Opening) -> _native.Checkpoint:
    """Opens the checkpoint. If its side files are damaged, which is a finding, opens it without its
    seal, or only its arrays.
    """
    try:
        return _native.open(arrived(at), opening)
    except (CorruptError, UnsupportedError):
        for other in (opening._replace(ignore_seal=True), opening._replace(arrays_only=True)):
            with suppress(RegrowError):
                return _native.open(arrived(at), other)
        raise


def verify_share(
    at: Portable,
    opening: Opening,
    share: tuple[int, int],
    _call: tuple[Any, ...],
) -> _Outcome:
    """Verifies a share, in a process of an executor."""
    try:
        return _native.verify_share(arrived(at), opening, share, unwatched()), None
    except RegrowError as error:
        return None, error


# ---- running --------------------------------------------------------------------------


def run(
    executor: Executor,
    what: str,
    work: Callable[..., _Outcome],
    calls: Sequence[tuple[Any, ...]],
    done: Callable[[int, Any], None],
) -> list[Any]:
    """Lets an executor make all calls, and returns their results in order. `done` gets each result
    as soon as its call has ended.

    A call that ends without a result of `work` (its worker died, or was lost) is repeated. The
    first error that `work` returns is raised after all running calls have ended.

    Raises:
        IoError: if a call was lost `TRIES` times.
    """
    submitter = _Submitter(executor)
    results: list[Any] = [None] * len(calls)
    nonce = uuid.uuid4().hex

    def submit(at: int, tried: int) -> Any:
        # The nonce makes all calls different, so that no executor reuses the result of another
        # call.
        return submitter.submit(work, *calls[at], (nonce, at, tried))

    pending: deque[tuple[int, int, Any]] = deque()
    try:
        pending.extend((at, 1, submit(at, 1)) for at in range(len(calls)))
        while pending:
            at, tried, future = pending[0]
            try:
                results[at], error = future.result()
            except Exception as lost:
                pending.popleft()
                if tried == TRIES:
                    raise _lost(what, at, len(calls), lost) from lost
                pending.append((at, tried + 1, submit(at, tried + 1)))
                continue
            pending.popleft()
            if error is not None:
                raise error
            done(at, results[at])
    except BaseException:
        _wait([future for _, _, future in pending])
        raise
    finally:
        submitter.close()
    return results


def _wait(futures: list[Any]) -> None:
    """Waits until no call is running, because the files they write are removed afterwards."""
    for future in futures:
        # Other executors may report a running call as cancelled although it continues.
        if isinstance(future, Future):
            future.cancel()
    for future in futures:
        try:
            future.result()
        except Exception:  # the first error is raised
            continue


def _lost(what: str, at: int, count: int, lost: Exception) -> IoError:
    times = counted(TRIES, "time", "times")
    return failure(
        IoError,
        f"share {at + 1} of {count} of {what} was lost {times}, the last time with {type(lost).__name__}: {lost}",
        help="read the logs of the workers: killed processes often lack memory",
    )


class _Submitter:
    """An executor. A new process pool replaces a broken process pool."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._own: list[ProcessPoolExecutor] = []

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return self._executor.submit(work, *arguments)
        except BrokenExecutor:
            # A pool of processes does not survive the death of one of them.
            if not isinstance(self._executor, ProcessPoolExecutor):
                raise
            self._executor = _another(self._executor)
            self._own.append(self._executor)
            return self._executor.submit(work, *arguments)

    def close(self) -> None:
        for executor in self._own:
            executor.shutdown()


def _another(pool: ProcessPoolExecutor) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        getattr(pool, "_max_workers", None),
        mp_context=getattr(pool, "_mp_context", None),
        initializer=getattr(pool, "_initializer", None),
        initargs=getattr(pool, "_initargs", ()),
    )


def _told(callback: Callable[[int, int], object] | None, share_bytes: Sequence[int]) -> Callable[[int, Any], None]:
    """A function that reports finished shares, in bytes, to the caller's progress function."""
    total, so_far = sum(share_bytes), 0

    def done(share: int, _result: Any) -> None:
        nonlocal so_far
        so_far += share_bytes[share]
        if callback is not None:
            callback(so_far, total)

    return done

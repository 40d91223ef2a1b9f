"""Saves in the background. The copy of the tensors is in the background, too.

    async_save ── returns ── forward, backward ── wait_for_staging ── optimizer.step()
         └── worker: copies tensors to memory that is used again ──┘
                     └── engine: writes, syncs, commits ─────────────── wait

At any time at most one save is copied and at most one is written, because all saves use the same
memory. A later save waits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from .._core._keywords import keywords
from .._core._location import StrPath, places, shown
from .._core._options import Options
from .._core._report import SaveReport

# Import this module before a thread can import it: a fork during an import would leave the child
# with half a module.
from .._jobs import _coordination_torch as _coordination_torch
from .._jobs._job import Job
from .._save import _async
from .._save._writing import Writing
from ..layouts import Layout
from ._save import prepared


class SaveHandle:
    """A save in the background. Dropping it neither ends nor waits for the save."""

    def __init__(self, path: str, staged: Future[_async.SaveHandle]) -> None:
        self.path = path
        """Where the checkpoint will be."""
        self._staged = staged
        self._is_told = False

    def wait_for_staging(self, timeout: float | None = None) -> None:
        """Waits until all data is copied. After that, tensors and arrays may change.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            TimeoutError: if the copy has not ended by then. The copy continues.
            RegrowError: as `regrow.save_async`.
        """
        self._handle(timeout)

    def result(self, timeout: float | None = None) -> SaveReport:
        """Waits until the checkpoint exists. Returns the report.

        Args:
            timeout: Seconds to wait at most, for the copy and again for the rest.

        Raises:
            TimeoutError: if the save has not ended by then. The save continues.
            RegrowError: as `save`.
        """
        report = self._handle(timeout).result(timeout)
        if report is None:
            raise AssertionError("a save that waits for other processes cannot be skipped")
        return report

    def is_staged(self) -> bool:
        """Whether all data is copied, or the copy has failed."""
        return self._staged.done()

    def done(self) -> bool:
        """Whether the save has ended, with success or failure."""
        return self._staged.done() and (self._staged.exception() is not None or self._staged.result().done())

    def _handle(self, timeout: float | None) -> _async.SaveHandle:
        try:
            handle = self._staged.result(timeout)
        except NotYet:
            if self._staged.done():
                self._is_told = True
                raise
            raise TimeoutError(f"the save of {self.path} has not been copied after {timeout} s") from None
        except BaseException:
            self._is_told = True
            raise
        return handle

    def _raise_untold(self) -> None:
        """Raises the failure of the copy, if no call has raised it."""
        if self._staged.done() and not self._is_told:
            self._is_told = True
            self._staged.result()

    def __repr__(self) -> str:
        state = "done" if self.done() else "staged" if self.is_staged() else "staging"
        return f"SaveHandle({self.path!r}, {state})"


@keywords
def async_save(
    path: StrPath,
    obj: Any,
    *,
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
    job: Job | None = None,
    options: Options | None = None,
) -> SaveHandle:
    """Saves in the background the same objects as `save`. Returns at once, before tensors are
    copied.

    Do not change any tensor or array of `obj` until `SaveHandle.wait_for_staging` has returned.
    Call it before the step of the optimizer: then the forward and backward pass run during the
    copy. The next save reuses the memory of the copy. A call waits while an earlier save is being
    copied. The second of two saves is copied when the first is written.

    Args:
        path: As for `save`.
        obj: As for `save`. Dicts and lists may change as soon as this function has returned.
        layout: As for `regrow.save`.
        overwrite: As for `regrow.save`.
        cast: As for `regrow.save`.
        lossy: As for `regrow.save`.
        compression: As for `regrow.save`.
        metadata: Your own metadata, a dict. For a safetensors file the values are text.
        base: As for `regrow.save`.
        durable: As for `regrow.save`.
        parity: As for `regrow.save`.
        seal: As for `regrow.save`.
        storage_options: As for `regrow.save`.
        job: As for `regrow.save`.
        options: Rare settings.

    Raises:
        RegrowError: the failure of an earlier save that no call has raised yet. Nothing is saved in
            this case.
        LeafTypeError: for a value that cannot be written without pickle. `SaveHandle.result` raises
            other errors.
    """
    writing = Writing(
        layout=layout, overwrite=overwrite, cast=cast, lossy=lossy, compression=compression, metadata=metadata,
        base=base, durable=durable, parity=parity, seal=seal, storage_options=storage_options, job=job, options=options,
    )  # fmt: skip
    encoded, writing = prepared(path, obj, writing)
    at = places(storage_options, path=path)["path"]
    return _of_this_process().save(shown(at), path, encoded.tree, writing)


class _Staging:
    """The saver and the copying thread of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._saver = _async.AsyncSaver()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="regrow-staging")
        self._lock = threading.Lock()
        self._last: SaveHandle | None = None
        _async.end_with_program(self)

    def save(self, name: str, path: StrPath, tree: Any, writing: Writing) -> SaveHandle:
        """Starts a save after the copy of the previous one."""
        with self._lock:
            if self._last is not None:
                self._last._staged.exception()
                self._last._raise_untold()
            self._last = SaveHandle(name, self._worker.submit(self._saver.begin, path, tree, writing))
            return self._last

    def drain(self) -> list[BaseException]:
        """Waits for the last copy. Returns its failure, if no call has raised it. The saver raises
        later failures.
        """
        # In a forked child the worker belongs to the parent, which reports the failure.
        if self._last is None or self._last._is_told or self.pid != os.getpid():
            return []
        error = self._last._staged.exception()
        return [] if error is None else [error]


_staging: _Staging | None = None
_making = threading.Lock()


def _of_this_process() -> _Staging:
    global _staging
    with _making:
        if _staging is None or _staging.pid != os.getpid():
            _staging = _Staging()
        return _staging

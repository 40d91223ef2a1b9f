"""Deletions of a manager: those after saves, and those that a caller asks for.

Process 0 of a job chooses the steps, deletes them and sends the list of deleted steps to the
others. So the lists of all processes match the storage, although a reader may keep a step and each
process has its own clock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .._errors import InvalidArgumentError, failure
from . import _manager_options, _settings
from ._errors import as_orbax
from ._manager_folder import Folder
from ._manager_options import CheckpointManagerOptions
from .checkpoint_managers import PolicyCheckpointInfo

_log = logging.getLogger("regrow.orbax")


class Followed:
    """Tasks after saves, in one thread and in order."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def add(self, task: Callable[..., None], *args: Any) -> None:
        """Runs a task after all earlier ones."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="regrow.orbax deletions")
        before = self._last

        def work() -> None:
            if before is not None and (error := before.exception()) is not None:
                # If no caller saw this error, the next error reports it.
                task(*args)
                raise error
            task(*args)

        try:
            self._last = self._executor.submit(work)
        except RuntimeError:
            # At exit the interpreter waits only for threads that it started itself: for the thread
            # of the save.
            task(*args)

    def wait(self) -> None:
        """Waits for all tasks, and raises their error once."""
        last = self._last
        if last is None:
            return
        try:
            last.result()
        except BaseException:
            self._last = None
            raise

    def close(self) -> None:
        """Waits for all tasks, and ends the thread."""
        try:
            self.wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None


class Deletions(Followed):
    """Deletes steps of a folder. Deletions after saves run in their own thread."""

    def __init__(
        self,
        folder: Folder,
        options: CheckpointManagerOptions,
        listed: Callable[[], list[PolicyCheckpointInfo]],
        forget: Callable[[int], object],
    ) -> None:
        """Deletes steps of `listed`, and calls `forget` for each deleted step."""
        super().__init__()
        self._folder = folder
        self._options = options
        self._listed = listed
        self._forget = forget
        self._chosen = threading.Event()
        self._chosen.set()
        self.doomed: set[int] = set()
        """Steps that a thread is deleting."""

    def follow(self, saved: int, *, is_unranked: bool = False) -> None:
        """After a save, deletes in the background the steps that the options do not keep."""
        self._chosen = chosen = threading.Event()
        self.add(self._tidy, saved, chosen, is_unranked)

    def wait_for_choice(self) -> None:
        """Waits until the steps to delete after the last save are chosen."""
        self._chosen.wait()

    def delete(self, step: int) -> None:
        self.wait()

        def work() -> None:
            left = self._folder.delete([step])
            if step in left:
                raise left[step] or failure(
                    InvalidArgumentError, f"step {step} is being read", help="wait until it is closed"
                )

        with as_orbax():
            self._folder.of_process_0(f"orbax-deletion-{step}", work)
        self._forget(step)
        with as_orbax():
            self._folder.point()

    def _tidy(self, saved: int, chosen: threading.Event, is_unranked: bool) -> None:
        """Deletes the steps that the options do not keep, once the save exists. Never all steps."""
        doomed: list[int] = []
        try:
            try:
                if not _manager_options.keeps_all(self._options) or _settings.checks_saves():
                    doomed = self._folder.of_process_0("orbax-deletions-chosen", lambda: self._choice_after(saved))
                self.doomed.update(doomed)
            except Exception:
                if not is_unranked:
                    raise
            finally:
                chosen.set()
            if doomed:
                for step in self._folder.of_process_0("orbax-deletions", lambda: self._delete(doomed)):
                    self._forget(step)
        finally:
            self.doomed.difference_update(doomed)
        self._folder.point()

    def _choice_after(self, saved: int) -> list[int]:
        return _manager_options.to_delete(self._listed(), self._options) if self._folder.is_good(saved) else []

    def _delete(self, doomed: list[int]) -> list[int]:
        left = self._folder.delete(doomed)
        for step, error in left.items():
            # The next save tries again.
            _log.warning("step %d was not deleted: %s", step, error or "it is being read")
        return [step for step in doomed if step not in left]

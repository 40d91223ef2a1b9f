"""Saves that the engine's manager follows on its own thread: the thread waits for each save,
verifies the step, deletes older steps and adds a record.

The next call of the manager raises a failure. A failure that no call has raised goes to standard
error when the program ends, and makes it end with status 1.
"""

from __future__ import annotations

from .. import _native
from .._core._report import SaveReport
from .._save._async import SaveHandle


class StepHandle(SaveHandle):
    """The save of a step. It is done when the older steps that no policy keeps are deleted, too."""

    def __init__(self, handle: SaveHandle, followed: _native.Followed) -> None:
        super().__init__(handle.path, handle._handle)
        self._followed = followed

    def done(self) -> bool:
        """Whether the save and the work after it have ended."""
        return self._followed.is_done()

    def result(self, timeout: float | None = None) -> SaveReport | None:
        """Waits until the save and the work after it have ended. Returns the report.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            TimeoutError: if the save has not ended by then. The save continues.
            RegrowError: the failure of the save. No later call raises it again.
        """
        report = self._followed.wait(timeout)
        if report is None:
            raise TimeoutError(f"the save of {self.path} has not ended after {timeout} s")
        return SaveReport.from_native(report)


class Following:
    """The saves of a manager, at the end of the program."""

    def __init__(self, run: _native.Run) -> None:
        self._run = run

    def drain(self) -> list[BaseException]:
        """Waits for all saves. Returns the failures that no call has raised."""
        self._run.wait(None)
        failures: list[BaseException] = []
        while (failure := self._run.failure()) is not None:
            failures.append(failure)
        return failures

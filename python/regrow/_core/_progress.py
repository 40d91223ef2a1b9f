"""Progress of long work: bars on a terminal, or the caller's own function.

The engine calls the bar or the function at most 20 times a second, on the caller's own thread. For
a save in the background, `follow` calls it on another thread. An exception of the function stops
the work, and no temporary files are left. An error of the terminal does not stop the work.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from .._errors import InvalidArgumentError

Progress = bool | Callable[[int, int], object] | None
"""`None`: a bar on a terminal for work that takes longer than a second; `True`: a bar; `False`: no
bar; or a function of the bytes done and the bytes in total.
"""

SHOW_AFTER_SECONDS = 1.0
LINE_EVERY_SECONDS = 1.0
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Watch:
    """The bar or function that gets the progress of a call. A context manager around the call."""

    __slots__ = ("_bar", "_callback")

    def __init__(self, progress: Progress, what: str) -> None:
        self._bar: Bar | None = None
        self._callback: Callable[[int, int], object] | None = None
        if progress is None:
            if _is_terminal():
                self._bar = Bar(what, SHOW_AFTER_SECONDS, stays=False)
        elif progress is True:
            self._bar = Bar(what, 0.0, stays=True)
        elif callable(progress):
            self._callback = progress
        elif progress is not False:
            raise InvalidArgumentError(f"`progress` must be None, True, False or a function, not {progress!r}")
        if self._bar is not None:
            self._callback = self._bar.show

    def __enter__(self) -> tuple[bool, Callable[[int, int], object] | None]:
        """For the native half: whether this thread gets signals, and the function to call."""
        return _gets_signals(), self._callback

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


class Bar:
    """A bar of tqdm, or else of rich, or else a line of text. The package is imported when the bar
    is first drawn.
    """

    def __init__(self, what: str, after_seconds: float, *, stays: bool) -> None:
        self._what = what
        self._stays = stays
        self._show_at = time.monotonic() + after_seconds
        self._drawing: _Tqdm | _Rich | _Plain | None = None
        self._is_broken = False

    def show(self, done: int, total: int) -> None:
        """Moves the bar, once it is time to have one."""
        if self._is_broken or time.monotonic() < self._show_at:
            return
        try:
            if self._drawing is None:
                self._drawing = _drawing(self._what, total, self._stays)
            self._drawing.update(done, total)
        except Exception:  # an error of the terminal must not stop the work
            self._is_broken = True

    def close(self) -> None:
        """Removes the bar, or leaves the bar if it is meant to stay."""
        if self._drawing is not None:
            try:
                self._drawing.close()
            except Exception:  # an error of the terminal must not stop the work
                self._is_broken = True


class _Running(Protocol):
    """A save in the background, as the bar sees it."""

    def done(self) -> bool:
        """Whether the save has ended."""

    def progress(self) -> tuple[int, int]:
        """Bytes done, and bytes in total."""

    def give_up(self, error: BaseException) -> None:
        """Ends the save soon, with this error."""


FOLLOW_EVERY_SECONDS = 0.05


def follow(work: _Running, watch: Watch) -> threading.Thread | None:
    """Shows the progress of a save in the background, on a thread of its own. An exception ends
    the save.
    """
    if watch._callback is None:
        return None
    show = watch._callback

    def look() -> None:
        last = (-1, -1)
        with watch:
            is_done = False
            while not is_done:
                is_done = work.done()
                now = work.progress()
                if now != last and (now[1] > 0 or is_done):
                    last = now
                    try:
                        show(*now)
                    except BaseException as error:
                        work.give_up(error)
                        return
                if not is_done:
                    time.sleep(FOLLOW_EVERY_SECONDS)

    thread = threading.Thread(target=look, name="regrow-progress", daemon=True)
    thread.start()
    return thread


def unwatched() -> tuple[bool, None]:
    """A watch for work without progress. Ctrl-C still ends the work."""
    return _gets_signals(), None


def _gets_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, OSError, ValueError):
        return False  # there is no stderr, or it is closed


def _drawing(what: str, total: int, stays: bool) -> _Tqdm | _Rich | _Plain:
    import importlib.util  # only a long call draws

    for name, drawing in (("tqdm", _Tqdm), ("rich", _Rich)):
        if importlib.util.find_spec(name) is not None:
            try:
                return drawing(what, total, stays)
            except Exception:  # the import fails, or the module is another package of the same name
                continue
    return _Plain(what, stays)


class _Tqdm:
    def __init__(self, what: str, total: int, stays: bool) -> None:
        tqdm: Any = importlib.import_module("tqdm")
        self._bar = tqdm.tqdm(
            desc=what, total=total, unit="B", unit_scale=True, unit_divisor=1024, leave=stays, file=sys.stderr
        )

    def update(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class _Rich:
    def __init__(self, what: str, total: int, stays: bool) -> None:
        progress: Any = importlib.import_module("rich.progress")
        console: Any = importlib.import_module("rich.console")
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(binary_units=True),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=console.Console(file=sys.stderr),
            transient=not stays,
        )
        self._task = self._bar.add_task(what, total=total)
        self._bar.start()

    def update(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def close(self) -> None:
        self._bar.stop()


class _Plain:
    """One line that is overwritten. Without a terminal, at most one line a second."""

    def __init__(self, what: str, stays: bool) -> None:
        self._what = what
        self._stays = stays
        self._is_terminal = _is_terminal()
        self._width = 0
        self._next_line_at = 0.0

    def update(self, done: int, total: int) -> None:
        percent = 100 * done // total if total else 100
        line = f"{self._what}: {format_bytes(done)} of {format_bytes(total)} ({percent} %)"
        if self._is_terminal:
            self._write("\r" + line.ljust(self._width))
            self._width = len(line)
        elif time.monotonic() >= self._next_line_at or done == total:
            self._next_line_at = time.monotonic() + LINE_EVERY_SECONDS
            self._write(line + "\n")

    def close(self) -> None:
        if self._is_terminal:
            self._write("\n" if self._stays else "\r" + " " * self._width + "\r")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def format_seconds(seconds: float) -> str:
    """As people read times: ``1.250 s``, ``4.2 ms``."""
    if seconds >= 0.1:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.00005 else "<0.1 ms"


def format_speed(bytes: int, gb_per_s: float) -> str:
    """As people read speeds: ``2.15 GB/s``; empty for few bytes, whose speed means nothing."""
    return f"{gb_per_s:.2f} GB/s" if bytes >= 1 << 20 and gb_per_s > 0 else ""


def format_bytes(len_bytes: int) -> str:
    """As people read sizes: ``1.5 GiB``."""
    value, unit = float(len_bytes), 0
    while value >= 1024 and unit + 1 < len(UNITS):
        value /= 1024
        unit += 1
    return f"{len_bytes} B" if unit == 0 else f"{value:.1f} {UNITS[unit]}"

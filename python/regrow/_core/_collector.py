"""Pauses Python's garbage collector while a call makes thousands of objects.

None of the objects is garbage. Without the pause the collector looks at all objects many times,
which takes a third of a load of 20,000 leaves.
"""

from __future__ import annotations

import gc
import os
import threading
from contextlib import ContextDecorator
from types import TracebackType


class Paused(ContextDecorator):
    """Stops the collector in all threads during a `with` block or a decorated function.

    The end of the last such block restores the collector.
    """

    _lock = threading.Lock()
    _inside = 0
    _was_enabled = False

    def __enter__(self) -> None:
        with Paused._lock:
            if Paused._inside == 0:
                Paused._was_enabled = gc.isenabled()
                gc.disable()
            Paused._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with Paused._lock:
            Paused._inside -= 1
            if Paused._inside == 0 and Paused._was_enabled:
                gc.enable()


def _in_child() -> None:
    """Resets the state in a forked child: the threads that paused the collector belong to the
    parent.
    """
    Paused._lock = threading.Lock()
    if Paused._inside > 0:
        Paused._inside = 0
        if Paused._was_enabled:
            gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

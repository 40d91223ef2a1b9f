"""The number of times that a load starts again after a replacement of the checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator

ATTEMPTS_MIN = 20
SECONDS_MAX = 10.0


def attempts() -> Iterator[bool]:
    """For each attempt, whether it is the last: not before both limits are passed, the clock and
    the count.
    """
    since, done = time.monotonic(), 0
    while True:
        done += 1
        is_last = done >= ATTEMPTS_MIN and time.monotonic() - since >= SECONDS_MAX
        yield is_last
        if is_last:
            return

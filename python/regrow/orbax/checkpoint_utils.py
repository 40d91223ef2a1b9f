"""Makes restore args from a target, and waits for checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from ._errors import refusing
from ._leaf_args import PLACEHOLDER as PLACEHOLDER
from ._paths import as_path
from ._targets import STANDARD_ARRAY_TYPES as STANDARD_ARRAY_TYPES
from ._targets import construct_restore_args as construct_restore_args
from .path import step as steps

__getattr__ = refusing(__name__, ("get_snapshot_dir_from_step_dir", "no snapshots are made: see checkpoints_iterator"))


@contextlib.contextmanager
def wait_for_new_checkpoint(
    checkpoint_dir: Any,
    *,
    until_step: int | None = None,
    seconds_to_sleep: float = 1,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    step_prefix: str | None = None,
    step_format_fixed_length: int | None = None,
    step_name_format: Any = None,
    snapshot_dir: Any = None,
    set_immutable: bool | None = None,
    ignore_snapshot_errors: bool = True,
) -> Iterator[int]:
    """Waits for a step of at least `until_step`: its number, or -1 after the time-out."""
    form = step_name_format or _names(step_prefix, step_format_fixed_length)
    yield _wait(checkpoint_dir, form, until_step, seconds_to_sleep, timeout, timeout_fn)


def _names(step_prefix: str | None, step_format_fixed_length: int | None) -> Any:
    return steps.standard_name_format(step_prefix=step_prefix, step_format_fixed_length=step_format_fixed_length)


def _wait(folder: Any, form: Any, until_step: int | None, pause: float, timeout: float | None, timeout_fn: Any) -> int:
    began = time.monotonic()
    while True:
        found = steps.latest_step_metadata(folder, form) if as_path(folder).exists() else None
        if found is not None and (until_step is None or found.step >= until_step):
            latest: int = found.step
            return latest
        if timeout is not None and time.monotonic() - began + pause > timeout:
            if timeout_fn is None or timeout_fn():
                return -1
            began = time.monotonic()
        time.sleep(pause)


def checkpoints_iterator(
    checkpoint_dir: Any,
    *,
    min_interval_secs: float = 0,
    seconds_to_sleep: float = 1,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    step_prefix: str | None = None,
    step_format_fixed_length: int | None = None,
    step_name_format: Any = None,
    snapshot_dir: Any = None,
    set_immutable: bool | None = None,
    ignore_snapshot_errors: bool = True,
) -> Iterator[int]:
    """Yields the newest step each time there is a newer one. It makes no snapshot folders."""
    last = -1
    form = step_name_format or _names(step_prefix, step_format_fixed_length)
    while True:
        began = time.monotonic()
        step = _wait(checkpoint_dir, form, last + 1, seconds_to_sleep, timeout, timeout_fn)
        if step < 0:
            # As in Orbax, the function that ended the wait is called once more.
            if timeout_fn is None or timeout_fn():
                return
            continue
        last = step
        yield step
        time.sleep(max(0.0, began + min_interval_secs - time.monotonic()))

"""Whether the program is asked to end: by SIGTERM, or by the preemption service of JAX.

The first SIGTERM sets a flag, which any code can read. A second SIGTERM has the effect that SIGTERM
had before `Flag.watch`.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

from .. import _native
from .._errors import InvalidArgumentError, failure


class Flag:
    """A flag that SIGTERM sets after `watch`."""

    def __init__(self, takes_sigterm: bool) -> None:
        # JAX's service sets the flag of all processes before the same step; SIGTERM sets it in one
        # process.
        self.native = _native.Preemption(not takes_sigterm)
        self._before: Any = None
        self._watches = False

    @property
    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self.native.is_set

    def watch(self) -> None:
        """Installs the handler of SIGTERM.

        Raises:
            InvalidArgumentError: outside the main thread, where Python does not receive signals.
        """
        if self._watches:
            return
        if threading.current_thread() is not threading.main_thread():
            raise failure(
                InvalidArgumentError,
                "`preemption_timeout` needs the main thread, where Python handles signals",
                help="make the manager in the main thread",
            )
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        self._watches = True

    def unwatch(self) -> None:
        """Restores the handler of SIGTERM, unless another one was set since."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._watches and is_main and signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._before if self._before is not None else signal.SIG_DFL)
            self._watches = False

    def set(self) -> None:
        """Sets the flag, as the signal does."""
        self.native.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_set:
            # Send a second signal to the earlier handler, which usually ends the program.
            signal.signal(signal.SIGTERM, self._before if self._before is not None else signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
            return
        self.set()
        if callable(self._before):
            self._before(number, frame)


def jax_says(step: int) -> bool:
    """Whether JAX's preemption service has chosen this step for a save of all processes. False if
    the service is off.
    """
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return False
    from jax.experimental import multihost_utils

    try:
        return bool(multihost_utils.reached_preemption_sync_point(step))
    except RuntimeError:
        # The preemption service of JAX is off.
        return False

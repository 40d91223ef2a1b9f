"""The command: `regrow` of the wheel, and `python -m regrow`. It runs the Rust program's code."""

from __future__ import annotations

import os
import sys

from . import _native

# The built-in part of `signal`, which is loaded in every Python. `signal` makes classes with
# `enum`, and importing them takes longer than the command itself.
import _signal as signal  # type: ignore[import-not-found]  # isort: skip


def main() -> int:
    """Runs the command with the arguments of this process; the number to end it with."""
    for stream in (0, 1, 2):
        # If a standard stream is closed, a file that the command opens must not get its number.
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # With Python's own handler the signal would take effect only after the command has ended.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.command(["regrow", *sys.argv[1:]], _packages)


def _packages() -> list[tuple[str, str | None, str]]:
    from ._core._packages import packages

    return packages()


if __name__ == "__main__":
    sys.exit(main())

"""Without PyTorch `regrow.torch` says how to get it, and the rest of regrow works."""

from __future__ import annotations

import subprocess
import sys

HIDDEN = """
import sys
sys.modules["torch"] = None
import regrow
try:
    import regrow.torch
except ModuleNotFoundError as error:
    assert error.name == "torch", error
    print(error)
"""


def test_the_error_names_what_to_install_and_what_works_without() -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("regrow.torch needs torch, which is not installed\n  help: ")
    assert "`regrow.load` reads .pt files without it" in done.stdout

"""The stub of the native half says what is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import regrow


def test_the_stub_fits_the_extension(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    # The buffer protocol has a name in Python from 3.12 on; a stub exports what it holds without a list.
    allowed.write_text("regrow._native.Slab.__buffer__\nregrow._native.__all__\n")
    command = [sys.executable, "-m", "mypy.stubtest", "regrow._native", "--allowlist", str(allowed)]
    done = subprocess.run(
        [*command, "--ignore-unused-allowlist"], capture_output=True, text=True, timeout=110, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed() -> None:
    assert (Path(regrow.__file__).parent / "py.typed").exists()


def test_all_is_what_there_is() -> None:
    assert sorted(regrow.__all__) == regrow.__all__
    assert all(hasattr(regrow, name) for name in regrow.__all__)


def test_an_import_is_quick() -> None:
    """NumPy is imported when something is done that needs it; names are there all the same."""
    code = (
        "import sys, regrow; assert 'numpy' not in sys.modules; "
        "assert set(regrow.__all__) <= set(dir(regrow)); assert 'numpy' not in sys.modules; "
        "from regrow import *; assert Checkpoint is regrow.Checkpoint; "
        "assert not hasattr(regrow, 'nothing')"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(regrow.__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)

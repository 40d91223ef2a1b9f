"""Something else than a file in a TRAK store, a pipe for example, is an error at once and never
waited for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(300)  # ten seconds where nothing else runs
def test_anything_with_the_name_of_a_file_is_an_error_at_once(tmp_path: Path) -> None:
    program = [sys.executable, HERE / "trak_odd_nodes.py", tmp_path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=280, check=False)
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, f"ended by {ran.returncode} at {lines[-1:]}\n{ran.stderr[-4000:]}"
    assert lines[-1] == "done" and len(lines) > 250

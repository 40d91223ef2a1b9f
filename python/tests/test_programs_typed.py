"""Benchmarks and examples name functions, keywords and attributes that regrow has."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from conftest import MYPY_CACHE, REPOSITORY

CODES = ["attr-defined", "call-arg", "call-overload"]
"""Errors that an old name makes; other errors of types break no program."""


@pytest.mark.parametrize("folder", ["benches", "examples"])
def test_programs_use_the_names_of_today(folder: str) -> None:
    files = sorted(path.name for path in (REPOSITORY / folder).glob("*.py"))
    assert len(files) > 5
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(MYPY_CACHE), *files]
    environment = {**os.environ, "MYPYPATH": str(REPOSITORY / "python")}
    done = subprocess.run(command, cwd=REPOSITORY / folder, env=environment, capture_output=True, text=True)
    assert "checked" in done.stdout, done.stdout + done.stderr
    assert not re.findall(rf"^.*error: .*\[(?:{'|'.join(CODES)})\]$", done.stdout, re.MULTILINE), done.stdout

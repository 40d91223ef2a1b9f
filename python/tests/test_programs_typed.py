"""Benchmarks and examples name functions, keywords and attributes that regrow has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CODES = ["attr-defined", "call-arg", "call-overload"]
"""Errors that an old name makes; other errors of types break no program."""


@pytest.mark.parametrize("folder", ["benches", "examples"])
def test_programs_use_the_names_of_today(folder: str, tmp_path: Path) -> None:
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nignore_missing_imports = True\nfollow_imports = silent\n")
    files = sorted(path.name for path in (REPOSITORY / folder).glob("*.py"))
    assert len(files) > 5
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", str(tmp_path), *files]
    environment = {**os.environ, "MYPYPATH": str(REPOSITORY / "python")}
    done = subprocess.run(command, cwd=REPOSITORY / folder, env=environment, capture_output=True, text=True)
    assert "checked" in done.stdout, done.stdout + done.stderr
    assert not re.findall(rf"^.*error: .*\[(?:{'|'.join(CODES)})\]$", done.stdout, re.MULTILINE), done.stdout

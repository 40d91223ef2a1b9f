"""No sequence of failing system calls marks a row of a TRAK store as done whose bytes are not on
the disk.

A disk that cannot take a page reports it once. The kernel counts the page as written then: the next
sync succeeds, and code that trusts it marks lost rows as done.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("failing") / "failing_calls.so"
    source = HERE / "failing_calls.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", built, source, "-ldl"], check=True)
    return built


@pytest.mark.timeout(300)  # half a minute where nothing else runs
def test_no_row_is_done_that_is_not_on_the_disk(library: Path, tmp_path: Path) -> None:
    program = [sys.executable, HERE / "trak_failing_life.py", library, tmp_path]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "lives" in ran.stdout

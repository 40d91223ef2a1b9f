"""Examples that are programs of their own: each runs to its end and says what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

SAYS = {
    "sharded": [
        "saved by 4 processes on a mesh {'data': 4, 'model': 2}: 3 leaves",
        "process 0 of 2 has restored 4096 of 8192 bytes of the weights",
        "process 1 of 2 has restored 4096 of 8192 bytes of the weights",
    ],
    "bucket": ["step 0: begins", "40: committed", "60: committed"],
    "gemma_to_data": ["the same bits as Orbax restores, in all 16"],
    "rules_llama": ["back again: 21 tensors, the same names and the same bits"],
}


def run(name: str, *arguments: str | Path) -> list[str]:
    """What an example prints."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, REPOSITORY / "examples" / f"{name}.py", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(name: str) -> None:
    said = run(name)
    assert [line for line in SAYS[name] if line not in said] == []


def test_scores_go_on_with_the_rows_that_are_missing(tmp_path: Path) -> None:
    first, second = run("trak_scores", tmp_path / "trak"), run("trak_scores", tmp_path / "trak")
    assert (first[0], second[0]) == ("0 rows were done before", "1000 rows were done before")
    assert first[1:] == second[1:] and first[1] == "scores of 1000 examples for 50 targets"

"""The examples that train and resume: 2N steps, and N steps, an end, and N steps more, are the
same to the bit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, same_bits

import regrow

EXAMPLES = ("linen", "nnx", "equinox")
STEPS, EVERY = 12, 3

RUN = """
import importlib, sys
from pathlib import Path
folder = Path(sys.argv[1])
for job in sys.argv[2:]:
    example, run, steps, every = job.split(":")
    importlib.import_module(f"resume_{example}").train(folder / example / run, int(steps), int(every))
"""


def train(folder: Path, jobs: list[str]) -> list[str]:
    """Runs of the examples, in a process of their own; what they print."""
    examples = REPOSITORY / "examples"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "",
        # The second process compiles nothing again. It finds only programs of the very same types.
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    command = [sys.executable, "-c", RUN, str(folder), *jobs]
    done = subprocess.run(command, cwd=examples, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Each example run once to the end, and once in two processes; what the second one says."""
    folder = tmp_path_factory.mktemp("runs")
    whole = [f"{name}:whole:{STEPS}:{STEPS}" for name in EXAMPLES]
    half = [f"{name}:parts:{STEPS // 2}:{EVERY}" for name in EXAMPLES]
    said = train(folder, whole + half)
    assert sum("begins" in line for line in said) == 2 * len(EXAMPLES)
    return folder, train(folder, [f"{name}:parts:{STEPS}:{STEPS}" for name in EXAMPLES])


def leaves(path: Path) -> dict[str, Any]:
    with_keys = {key: leaf.read() for key, leaf in regrow.open(path).items()}
    return {key: leaf.data if isinstance(leaf, regrow.PrngKey) else leaf for key, leaf in with_keys.items()}


@pytest.mark.timeout(600)  # the first one waits for both processes
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_resumed_run_is_the_uninterrupted_one(runs: tuple[Path, list[str]], name: str) -> None:
    folder, said = runs
    assert said[2 * EXAMPLES.index(name)] == f"step {STEPS // 2}: goes on"
    whole, parts = leaves(folder / name / "whole" / str(STEPS)), leaves(folder / name / "parts" / str(STEPS))
    assert whole.keys() == parts.keys()
    different = [key for key in whole if not same_bits(whole[key], parts[key])]
    assert not different
    # And the second half was something to resume for.
    half = leaves(folder / name / "parts" / str(STEPS // 2))
    changed = [key for key in whole if not same_bits(whole[key], half[key])]
    assert len(changed) > len(whole) // 2
    assert all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in whole.values())


def test_a_run_that_has_ended_has_nothing_left_to_do(runs: tuple[Path, list[str]]) -> None:
    folder, _ = runs
    assert [each.name for each in regrow.list_checkpoints(folder / "nnx" / "parts")] == ["3", "6", "12"]

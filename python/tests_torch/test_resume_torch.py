"""The example that trains and resumes: 2N steps, and N steps, an end, and N steps more, are the
same to the bit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import regrow
import regrow.torch

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, EVERY = 12, 3

RUN = """
import sys
from pathlib import Path
import resume_torch
for job in sys.argv[1:]:
    folder, steps, every = job.rsplit(":", 2)
    resume_torch.train(Path(folder), int(steps), int(every))
"""


def train(*jobs: str) -> list[str]:
    """Runs of the example, in a process of their own; what they print."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", RUN, *jobs]
    done = subprocess.run(command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.timeout(600)
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(f"{whole}:{STEPS}:{STEPS}", f"{parts}:{STEPS // 2}:{EVERY}")
    assert train(f"{parts}:{STEPS}:{EVERY}")[0] == f"step {STEPS // 2}: goes on"
    assert_same(regrow.torch.load(parts), regrow.torch.load(whole))
    assert [found.name for found in regrow.list_checkpoints(parts)] == ["3", "6", "9", "12"]
    half = regrow.torch.load(parts, step=STEPS // 2)
    assert not torch.equal(half["rng"], regrow.torch.load(whole)["rng"])
    assert half["scheduler"]["last_epoch"] == STEPS // 2

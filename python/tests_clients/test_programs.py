"""Programs of the package registry with regrow's drop-ins in the originals' place, compared to
the bit.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import DAMAGE, PROGRAMS

HERE = Path(__file__).parent
WHO = ("original", "regrow")
WRONG = [(name, call) for name, program in PROGRAMS.items() for call in program.wrong]


def play(who: str, program: str, act: str, folder: Path) -> Any:
    """What one act ended with."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(HERE / "play.py"), who, program, act, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{who}: {program} {act}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("saved_by", WHO)
@pytest.mark.parametrize("program", PROGRAMS)
def test_both_load_what_either_has_saved(program: str, saved_by: str, tmp_path: Path) -> None:
    saved = play(saved_by, program, "save", tmp_path / "run")
    assert saved["state"]
    for loaded_by in WHO:
        assert play(loaded_by, program, "load", tmp_path / "run") == saved, f"loaded by {loaded_by}"


@pytest.mark.parametrize(("program", "call"), WRONG)
def test_wrong_input_ends_as_with_the_original(program: str, call: str, tmp_path: Path) -> None:
    original, ours = (play(who, program, call, tmp_path / who) for who in WHO)
    assert original.keys() == ours.keys(), (original, ours)
    if "raised" in original:
        # A caller who catches what the original raises catches ours, too.
        assert original["raised"][0] in ours["raised"], (original, ours)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("program", PROGRAMS)
def test_damaged_files_end_as_with_the_original(program: str, damage: str, tmp_path: Path) -> None:
    """Where the original raises for a file that was cut, emptied or lost, ours raises what its
    callers catch.
    """
    saved = play("original", program, "save", tmp_path / "run")
    for who in WHO:
        shutil.copytree(tmp_path / "run", tmp_path / who)
    original, ours = (play(who, program, damage, tmp_path / who) for who in WHO)
    if "raised" in original:
        assert "raised" in ours and original["raised"][0] in ours["raised"], (original, ours)
    elif "returned" in ours:
        # What is not refused is what was saved, or what the original makes of the same files.
        assert ours["returned"] in (original["returned"], saved["state"])

"""Programs of the package registry with regrow's drop-ins in the originals' place, compared to
the bit.
"""

from __future__ import annotations

import builtins
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import DAMAGE, PROGRAMS

HERE = Path(__file__).parent
WHO = ("original", "regrow")
WRONG = [(name, call) for name, program in PROGRAMS.items() for call in program.wrong]

# The first test of a program starts three processes, each of which imports JAX and the program.
pytestmark = pytest.mark.timeout(1800)

Answers = dict[tuple[str, str, str], Any]
"""By what program has loaded or saved, the act, and what program has saved."""


def play(who: str, program: str, folder: Path, acts: list[tuple[str, str]]) -> Answers:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(HERE / "play.py"), who, program, str(folder), *map(":".join, acts)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{who}: {program}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    answers = json.loads(done.stdout.splitlines()[-1])
    return {(who, *act): answer for act, answer in zip(acts, answers, strict=True)}


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Answers]:
    """All acts of a program. Each act is played once."""

    @functools.cache
    def of(program: str) -> Answers:
        folder = tmp_path_factory.mktemp(program)
        others = [(act, "original") for act in (*PROGRAMS[program].wrong, *DAMAGE)]
        by_original, by_regrow = ([(act, who) for act in ("save", "load")] for who in WHO)
        return {
            **play("original", program, folder, [*by_original, *others]),
            **play("regrow", program, folder, [*by_regrow, ("load", "original"), *others]),
            **play("original", program, folder, [("load", "regrow")]),
        }

    return of


@pytest.mark.parametrize("saved_by", WHO)
@pytest.mark.parametrize("program", PROGRAMS)
def test_both_load_what_either_has_saved(program: str, saved_by: str, played: Callable[[str], Answers]) -> None:
    saved = played(program)[saved_by, "save", saved_by]
    assert saved.get("returned"), saved
    for loaded_by in WHO:
        assert played(program)[loaded_by, "load", saved_by] == saved, f"loaded by {loaded_by}"


@pytest.mark.parametrize(("program", "call"), WRONG)
def test_wrong_input_ends_as_with_the_original(program: str, call: str, played: Callable[[str], Answers]) -> None:
    original, ours = (played(program)[who, call, "original"] for who in WHO)
    assert original.keys() == ours.keys(), (original, ours)
    if "raised" in original:
        # A caller who catches what the original raises catches ours, too.
        assert original["raised"][0] in ours["raised"], (original, ours)
    else:
        assert ours == original


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("program", PROGRAMS)
def test_damaged_files_end_as_with_the_original(program: str, damage: str, played: Callable[[str], Answers]) -> None:
    """After a file was cut, emptied or lost, ours gives what was saved, or ends as the original does.

    Ours may also refuse what the original reads.
    """
    saved = played(program)["original", "save", "original"]["returned"]
    original, ours = (played(program)[who, damage, "original"] for who in WHO)
    if "returned" in ours:
        assert ours["returned"] in (saved, original.get("returned"))
    elif "raised" in original:
        # A class of a parser, as JSONDecodeError, stands for Python's class that callers catch.
        caught = next(name for name in original["raised"] if hasattr(builtins, name))
        assert caught in ours["raised"], (original, ours)

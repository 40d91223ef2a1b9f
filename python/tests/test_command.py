"""The command of the wheel: the same as the program's in all that a shell sees, and quick to
start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow

COMMAND = [sys.executable, "-m", "regrow"]


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("command") / "step_1"
    regrow.save(path, {"params": {f"layer_{i}": np.zeros(3, np.float32) for i in range(3000)}})
    yield path


def test_the_wheel_names_the_command() -> None:
    (script,) = entry_points(group="console_scripts", name="regrow")
    from regrow.__main__ import main

    assert script.load() is main


def test_output_and_codes_are_the_programs(saved: Path, tmp_path: Path) -> None:
    listed = run("ls", saved, "params/layer_7")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines()[1].split() == ["params/layer_7", "float32", "[3]", "12", "raw"]

    wrong = run("ls", "--no-such-option")
    assert wrong.returncode == 2
    assert "Usage: regrow ls" in wrong.stderr
    assert "\x1b" not in wrong.stderr
    absent = run("ls", "--json", tmp_path / "none")
    assert absent.returncode == 3
    assert json.loads(absent.stderr)["error"]["kind"] == "not_found"
    # An option before the command's name and one after it are counted among the arguments of the
    # command alone.
    both = run("--storage-option", "a=1", "ls", "s3://b/c", "--storage-option", "b=2")
    assert both.returncode == 2
    assert "before and after the command" in both.stderr


def test_a_reader_that_has_seen_enough_is_no_error(saved: Path) -> None:
    # Far more than a pipe holds.
    shell = f'"{sys.executable}" -m regrow ls --json "{saved}" | head -n 1; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", ""), done


def test_closed_streams_get_nothing_of_the_files() -> None:
    code = """
import os, sys, regrow.__main__ as command
sys.argv = ["regrow", "-V"]
assert command.main() == 0
null = os.stat(os.devnull).st_rdev
sys.exit([os.fstat(stream).st_rdev == null for stream in range(3)] != [True] * 3)
"""
    # Once all are closed, the next three files that are opened would take their places.
    shell = ["bash", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(shell, check=False).returncode == 0


def test_an_interrupt_ends_it_as_it_ends_a_program(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    steps.mkdir()
    regrow.save(steps / "1", {"a": np.zeros(3)})
    # A shell has its jobs in the background ignore interrupts, and these tests may be one.
    heed = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", heed, *COMMAND, "steps", str(steps), "--watch", "60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().split()[:2] == ["1", "1"]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT


def test_help_imports_nothing_but_the_engine() -> None:
    code = "import sys, regrow.__main__ as m; sys.argv = ['regrow', '--help']; m.main(); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *help_lines, modules = done.stdout.splitlines()
    assert help_lines[0].startswith("Look into pytree checkpoints")
    # Python itself imports a few modules at its start. Everything else takes time.
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sorted(sys.modules))"], capture_output=True, text=True, check=True
    )
    added = set(modules.split()) - set(bare.stdout.split())
    assert added == {"__future__", "regrow", "regrow.__main__", "regrow._native"}


def test_version_tells_of_the_build() -> None:
    first, *rest = run("--version").stdout.splitlines()
    assert first == f"regrow {regrow.__version__}"
    told = dict(line.split(maxsplit=1) for line in rest)
    assert told["compiler"].startswith("rustc 1.")
    assert "s3://" in told["URLs"]
    assert run("-V").stdout == f"{first}\n"


def test_info_prints_the_text_of_overview(saved: Path) -> None:
    assert run("info", saved).stdout == str(regrow.overview(saved)) == str(regrow.open(saved).overview())


def test_no_package_is_installed_from_an_index(saved: Path) -> None:
    told = json.loads(run("doctor", "--json", saved).stdout)
    uses = [each["used_for"] for each in told["packages"] if "pip" in each["used_for"]]
    assert uses and all("pip install './python[" in use for use in uses)


def test_doctor_knows_the_packages(saved: Path) -> None:
    told = json.loads(run("doctor", "--json", saved).stdout)
    versions = {each["name"]: each["version"] for each in told["packages"]}
    assert versions["numpy"] == np.__version__
    assert versions["Python"] == ".".join(map(str, sys.version_info[:3]))
    # Beside the checkpoint, not in it.
    assert told["place"]["folder"] == str(saved.parent)
    assert told["place"]["abilities"]["syncs of files"] is True
    assert os.listdir(saved.parent) == [saved.name]
    absent = [name for name, version in versions.items() if version is None]
    assert [each["what"] for each in told["missing"] if each["what"] in versions] == absent

"""safetensors files that are replaced or removed while they are read, odd names, and headers
with space in front.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy as theirs

import regrow
from regrow import safetensors as ours

FIRST = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    ours.save_file(FIRST, path)
    return path


def _replace(path: Path) -> None:
    ours.save_file({"z": np.zeros(9)}, path)


@pytest.mark.parametrize("spoil", [_replace, Path.unlink], ids=["replaced", "removed"])
def test_an_open_file_is_read_after_any_change_of_its_path(path: Path, spoil: Callable[[Path], None]) -> None:
    checkpoint = regrow.open(path)
    with ours.safe_open(path, "np") as file:
        spoil(path)
        assert file.keys() == ["a"]
        assert np.array_equal(file.get_tensor("a"), FIRST["a"])
        assert np.array_equal(file.get_slice("a")[1:, ::2], FIRST["a"][1:, ::2])
        assert np.array_equal(file.get_slice("a")[1], FIRST["a"][1])
        assert np.array_equal(file.get_tensors()["a"], FIRST["a"])
        assert np.array_equal(checkpoint.load()["a"], FIRST["a"])


WRITER = """
import sys
import numpy as np
from regrow.safetensors import save_file

for number in range(10**9):
    tensors = {f"{name}{number % 3}": np.full(50 + number % 3, number) for name in "ab"}
    shard = {"max_shard_size": 500} if sys.argv[2] == "folder" else {}
    save_file(tensors, sys.argv[1], durable=False, **shard)
    if number == 0:
        print("ready", flush=True)
"""


@pytest.mark.parametrize("form", ["file", "folder"])
def test_a_load_never_fails_because_of_a_writer(tmp_path: Path, form: str) -> None:
    path = tmp_path / ("model.safetensors" if form == "file" else "model")
    command = [sys.executable, "-c", WRITER, str(path), form]
    env = {**os.environ, "PYTHONPATH": str(Path(regrow.__file__).parent.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            seen = set()
            end = time.monotonic() + 3
            while len(seen) < 50 and time.monotonic() < end:
                first, second = ours.load_file(path).values()
                assert np.array_equal(first, second)
                assert len(first) == 50 + first[0] % 3
                seen.add(int(first[0]))
            assert writer.poll() is None
            assert len(seen) > 10
        finally:
            writer.kill()


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    plain = tmp_path / os.fsdecode(b"x\xff5")
    ours.save_file(FIRST, plain)
    assert np.array_equal(ours.load_file(plain)["a"], FIRST["a"])
    assert np.array_equal(theirs.load(plain.read_bytes())["a"], FIRST["a"])
    named = tmp_path / os.fsdecode(b"\xff.safetensors")
    report = regrow.convert(plain.rename(tmp_path / os.fsdecode(b"y\xff.safetensors")), named, layout="safetensors")
    assert os.fsencode(report.path) == os.fsencode(named)
    assert np.array_equal(regrow.load(named)["a"], FIRST["a"])
    ours.save_file(FIRST, tmp_path / "folder" / named.name)
    assert np.array_equal(ours.load_file(tmp_path / "folder")["a"], FIRST["a"])


def test_space_in_front_of_the_header(path: Path) -> None:
    stored = path.read_bytes()
    header_len = int.from_bytes(stored[:8], "little")
    header = b" \n\r\t" + stored[8 : 8 + header_len]
    path.write_bytes(len(header).to_bytes(8, "little") + header + stored[8 + header_len :])
    assert np.array_equal(theirs.load_file(path)["a"], FIRST["a"])
    assert np.array_equal(ours.load_file(path)["a"], FIRST["a"])

"""One process changes a checkpoint at a time: the second waits, or gets an error that names it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow
import regrow.protect

HOLDER = """
import fcntl, json, os, sys, time
file = open(sys.argv[1], "w+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
json.dump({"host": "here", "pid": os.getpid(), "operation": "repair", "since": int(time.time())}, file)
file.flush()
print("locked", flush=True)
sys.stdin.read()
os.unlink(sys.argv[1])
"""


def holder_of(target: Path) -> subprocess.Popen[str]:
    """A process that has the lock of a target until its input ends."""
    lock = target.parent / f".{target.name}.regrow.__lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def key_file(tmp_path: Path) -> Path:
    key = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True)
    return key


TREE = {"a": np.arange(4.0, dtype=np.float32)}


def save(path: Path, wait: float) -> None:
    regrow.save(path, {"a": TREE["a"] + 1}, overwrite=True, options=regrow.Options(wait=wait))


def copy(path: Path, wait: float) -> None:
    regrow.save(path.with_name("other" + path.suffix), TREE, overwrite=True)
    regrow.copy(path.with_name("other" + path.suffix), path, overwrite=True, wait=wait)


CHANGES: dict[str, Any] = {
    "save": save,
    "copy": copy,
    "remove": lambda path, wait: regrow.remove(path, wait=wait),
    "repair": lambda path, wait: regrow.protect.repair(path, wait=wait),
    "seal": lambda path, wait: regrow.protect.seal(path, wait=wait),
    "sign": lambda path, wait: regrow.protect.sign(path, key_file(path.parent), wait=wait),
    "add_parity": lambda path, wait: regrow.protect.add_parity(path, "1/4", wait=wait),
}


@pytest.mark.parametrize("layout", ["orbax", "safetensors", "npy"])
@pytest.mark.parametrize("name", CHANGES)
def test_every_change_names_the_process_that_has_the_lock(tmp_path: Path, name: str, layout: str) -> None:
    path = tmp_path / ("x.npz" if layout == "npy" else "x")
    regrow.save(path, TREE, layout=layout)
    holder = holder_of(path)
    try:
        with pytest.raises(regrow.errors.BusyError, match=rf"process {holder.pid} on here: repair"):
            CHANGES[name](path, 0)
        np.testing.assert_array_equal(regrow.load(path)["a"], TREE["a"])
    finally:
        holder.communicate("")
    CHANGES[name](path, 0)
    assert not list(tmp_path.glob(".*")), "no lock file stays"


def test_a_second_process_waits_and_a_dead_one_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x"
    regrow.save(path, TREE)
    holder = holder_of(path)
    began = time.monotonic()
    with pytest.raises(regrow.errors.BusyError):
        save(path, 0.5)
    assert time.monotonic() - began >= 0.5
    holder.kill()
    holder.wait()
    save(path, 0)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("wait", [-1, float("nan"), "soon", None, True])
def test_a_wait_that_is_no_time_is_refused(tmp_path: Path, wait: Any) -> None:
    with pytest.raises(regrow.errors.InvalidArgumentError, match="wait"):
        regrow.remove(tmp_path / "x", wait=wait)

"""The garbage collector is paused during restores, and as it was before afterwards."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import regrow
import regrow.orbax as ocp
from regrow._core._collector import Paused


def test_it_is_as_it_was_before() -> None:
    with pytest.raises(KeyError), Paused():
        with Paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with Paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_and_children() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with Paused():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with Paused():
        pass
    assert not gc.isenabled()
    child = os.fork()
    if child == 0:
        os._exit(0 if gc.isenabled() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_restore_pauses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    plain = ocp._read.open_checkpoint

    def looks(path: object) -> object:
        seen.append(gc.isenabled())
        return plain(path)

    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(tmp_path / "x", {"a": np.ones(3)})
    monkeypatch.setattr(ocp._read, "open_checkpoint", looks)
    assert checkpointer.restore(tmp_path / "x")["a"].tolist() == [1, 1, 1]
    assert seen and not any(seen) and gc.isenabled()


def test_a_load_pauses_it(tmp_path: Path) -> None:
    seen: list[bool] = []

    def looks(path: str, shape: tuple[int, ...]) -> None:
        seen.append(gc.isenabled())

    regrow.save(tmp_path / "x", {"a": np.ones(3)})
    assert regrow.load(tmp_path / "x", options=regrow.Options(region=looks))["a"].tolist() == [1, 1, 1]
    regrow.open(tmp_path / "x").load(options=regrow.Options(region=looks))
    assert seen == [False, False] and gc.isenabled()

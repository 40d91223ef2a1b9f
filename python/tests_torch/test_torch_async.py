"""`regrow.torch.async_save`: what may change when, and who is told of failures."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_objects import same, training

import regrow
import regrow.torch


def test_what_changes_after_staging_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    obj, expected = training(), training()
    saving = regrow.torch.async_save(tmp_path / "a", obj)
    # Containers are those of the call.
    obj["model"]["more"] = torch.ones(1)
    obj["losses"].append(1.0)
    del obj["optimizer"]["state"]
    saving.wait_for_staging()
    assert saving.is_staged()
    obj["model"]["embed.weight"].fill_(5)
    obj["loader"]["shard"][:] = 9
    report = saving.result()
    assert saving.done() and report.path == saving.path == str(tmp_path / "a")
    expected["rng"] = {**expected["rng"], "numpy": obj["rng"]["numpy"], "python": obj["rng"]["python"]}
    same(expected, regrow.torch.load(tmp_path / "a"))


def test_staging_happens_beside_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call returns before anything is copied: here a copy that waits for the caller."""
    go = threading.Event()
    tensor = torch.ones(4)
    plain = regrow._torch._tensors.memory

    def waits(leaf: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        assert go.wait(60)
        return plain(leaf)

    monkeypatch.setattr(regrow._torch._tensors, "memory", waits)
    saving = regrow.torch.async_save(tmp_path / "a", {"w": tensor})
    assert not saving.is_staged() and not saving.done()
    with pytest.raises(TimeoutError, match=r"not been copied after 0\.01 s"):
        saving.wait_for_staging(0.01)
    assert "staging" in repr(saving)
    tensor.mul_(3)
    go.set()
    saving.result()
    monkeypatch.undo()
    assert torch.equal(regrow.torch.load(tmp_path / "a")["w"], torch.full((4,), 3.0))


def test_saves_follow_each_other(tmp_path: Path) -> None:
    tensor = torch.zeros(1 << 16)
    saves = []
    for step in range(4):
        saves.append(regrow.torch.async_save(tmp_path / str(step), {"w": tensor, "step": step}))
        saves[-1].wait_for_staging()
        tensor.add_(1)
    for step, saving in enumerate(saves):
        saving.result()
        loaded = regrow.torch.load(tmp_path / str(step))
        assert loaded["step"] == step and loaded["w"].eq(step).all()


def test_failures_are_told(tmp_path: Path) -> None:
    with pytest.raises(regrow.errors.LeafTypeError, match="state_dict"):
        regrow.torch.async_save(tmp_path / "a", {"m": torch.nn.Linear(1, 1)})
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("")
    saving = regrow.torch.async_save(tmp_path / "there", {"a": torch.ones(1)})
    with pytest.raises(regrow.errors.AlreadyExistsError):
        saving.result()
    # Without a wait: the next call raises the error, and the one after that saves.
    untold = regrow.torch.async_save(tmp_path / "there", {"a": torch.ones(1)})
    while not untold.done():
        threading.Event().wait(0.01)
    del untold, saving
    gc.collect()
    with pytest.raises(regrow.errors.AlreadyExistsError):
        regrow.torch.async_save(tmp_path / "b", {"a": torch.ones(1)}).wait_for_staging()
    regrow.torch.async_save(tmp_path / "c", {"a": torch.ones(1)}).result()
    assert not (tmp_path / "b").exists() and regrow.verify(tmp_path / "c").ok


def test_a_program_that_ends_saves_first_and_ends_badly_if_it_cannot(tmp_path: Path) -> None:
    program = """
        import sys, torch, regrow.torch
        regrow.torch.async_save(sys.argv[1] + "/a", {"w": torch.ones(1 << 20)})
        regrow.torch.async_save(sys.argv[1] + "/mine", {"w": torch.ones(1 << 20)})
    """
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 1 and f"{tmp_path}/mine" in ended.stderr, ended.stderr
    assert regrow.torch.load(tmp_path / "a")["w"].eq(1).all()


def test_a_child_saves_while_its_parent_copies(tmp_path: Path) -> None:
    """A fork has none of its parent's threads: what was being copied there is none of its
    business.
    """
    program = """
        import os, sys, threading, torch, regrow, regrow.torch
        go, plain = threading.Event(), regrow._torch._tensors.memory

        def waits(leaf):
            go.wait()
            return plain(leaf)

        regrow._torch._tensors.memory = waits
        saving = regrow.torch.async_save(sys.argv[1] + "/parent", {"w": torch.ones(4)})
        child = os.fork()
        go.set()
        if child == 0:
            regrow.torch.async_save(sys.argv[1] + "/child", {"w": torch.zeros(4)}).result()
            sys.exit(7)
        saving.result()
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 7, ended.stderr
    for name, value in (("parent", 1), ("child", 0)):
        assert regrow.torch.load(tmp_path / name)["w"].eq(value).all()

"""A file takes the name of a checkpoint that is a folder: at no moment is neither of the two
there to be had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow
from regrow.flax import checkpoints as ours

pytestmark = pytest.mark.usefixtures("legacy_flax_files")


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("call", ["rename", "replace"])
def test_an_overwrite_that_fails_leaves_the_folder(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regrow.save(tmp_path / "checkpoint_1", {"a": np.ones(2)})

    def refuse(*_: Any) -> None:
        raise OSError(5, "no")

    with monkeypatch.context() as patch, pytest.raises(regrow.errors.IoError):
        patch.setattr(os, call, refuse)
        ours.save_checkpoint(tmp_path, {"a": 1}, 1, overwrite=True)
    assert names(tmp_path) == ["checkpoint_1"]
    assert regrow.load(tmp_path / "checkpoint_1")["a"].tolist() == [1, 1]


KILLED_REPLACE = """
import os, sys
from regrow.flax import _folder, checkpoints
call, folder = sys.argv[1:]
def die(*args, **kwargs):
    os._exit(9)
owner = _folder.shutil if call == "rmtree" else os
setattr(owner, call, die)
checkpoints.save_checkpoint(folder, {"a": 2}, 1, overwrite=True)
"""


@pytest.mark.parametrize(("call", "stays"), [("replace", True), ("rmtree", False)])
def test_a_killed_overwrite_loses_no_folder_and_leaves_none(call: str, stays: bool, tmp_path: Path) -> None:
    regrow.save(tmp_path / "checkpoint_1", {"a": np.ones(2)})
    done = subprocess.run([sys.executable, "-c", KILLED_REPLACE, call, tmp_path], check=False)
    assert done.returncode == 9
    assert any(name.endswith("-replaced") for name in names(tmp_path))
    ours.save_checkpoint(tmp_path, {"a": 3}, 3, keep=2)
    assert names(tmp_path) == ["checkpoint_1", "checkpoint_3"]
    if stays:
        assert regrow.load(tmp_path / "checkpoint_1")["a"].tolist() == [1, 1]
    else:
        assert ours.restore_checkpoint(tmp_path, None, 1) == {"a": 2}


def test_a_folder_is_removed_when_its_successor_is_on_disk_and_by_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regrow.flax import _folder

    regrow.save(tmp_path / "checkpoint_1", {"a": np.ones(2)})
    events: list[str] = []
    replace, sync, rmtree = os.replace, _folder._native.sync_folder, shutil.rmtree

    def replaced(*args: Any) -> None:
        _folder._sweep(str(tmp_path))
        replace(*args)
        events.append("named")

    def synced(folder: str) -> None:
        sync(folder)
        events.append("synced")

    def removed(path: Any) -> None:
        _folder._sweep(str(tmp_path))
        assert os.path.isdir(path)
        rmtree(path)
        events.append("removed")

    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(_folder._native, "sync_folder", synced)
    monkeypatch.setattr(shutil, "rmtree", removed)
    ours.save_checkpoint(tmp_path, {"a": 1}, 1, overwrite=True)
    assert events[:3] == ["named", "synced", "removed"]
    assert names(tmp_path) == ["checkpoint_1"]

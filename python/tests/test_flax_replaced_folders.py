"""A save with `overwrite=True` puts a file in the place of a checkpoint folder. A kill loses neither.

`crates/regrow/tests/it/faults.rs` kills such a save before each of its system calls. Here are the
states that a kill leaves.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import regrow
from regrow.flax import checkpoints as ours
from regrow.flax import to_bytes

pytestmark = pytest.mark.usefixtures("legacy_flax_files")

ASIDE = "checkpoint_1.orbax-checkpoint-tmp-replaced-1-0123456789abcdef"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("has_new_file", [False, True])
def test_next_save_settles_a_killed_overwrite(has_new_file: bool, tmp_path: Path) -> None:
    """Where a file system cannot exchange two names, the old folder is moved aside first."""
    regrow.save(tmp_path / "checkpoint_1", {"a": np.ones(2)})
    os.rename(tmp_path / "checkpoint_1", tmp_path / ASIDE)
    if has_new_file:
        (tmp_path / "checkpoint_1").write_bytes(to_bytes({"a": 2}))
    ours.save_checkpoint(tmp_path, {"a": 3}, 3, keep=2)
    assert names(tmp_path) == ["checkpoint_1", "checkpoint_3"]
    if has_new_file:
        assert ours.restore_checkpoint(tmp_path, None, 1) == {"a": 2}
    else:
        assert regrow.load(tmp_path / "checkpoint_1")["a"].tolist() == [1, 1]


def test_failed_overwrite_leaves_the_folder(tmp_path: Path) -> None:
    regrow.save(tmp_path / "checkpoint_1", {"a": np.ones(2)})
    (tmp_path / "checkpoint_1" / "notes.txt").touch()
    with pytest.raises(regrow.errors.InvalidArgumentError, match=r"notes\.txt"):
        ours.save_checkpoint(tmp_path, {"a": 1}, 1, overwrite=True)
    assert names(tmp_path) == ["checkpoint_1"]
    assert regrow.load(tmp_path / "checkpoint_1")["a"].tolist() == [1, 1]

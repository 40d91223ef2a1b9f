"""PyTorch's own files: what torch.save and torch.distributed.checkpoint wrote, read without
torch.
"""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import assert_same
from torch_zips import CASES, changed

import regrow


def test_files_of_torch_save_are_read_without_torch(fixtures: Path) -> None:
    state = regrow.load(fixtures / "torch" / "pytorch_model.bin")
    assert_same(state, collections.OrderedDict(w=np.ones((2, 2), np.float32), b=np.zeros(2, np.float32)))
    report = regrow.verify(fixtures / "torch" / "pytorch_model.bin")
    assert report.ok and report.has_data_checksums
    training = regrow.load(fixtures / "torch" / "training.pt")
    assert training["optimizer"]["state"][0]["exp_avg"].shape == (2, 3)
    assert training["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    assert training["epoch"] == 3 and training["nothing"] is None and training["raw"] == b"\x00\xff"
    assert training["size"] == (2, 3) and training["device"] == ["cuda:1", "cpu"]
    assert "torch" not in sys.modules


def test_what_only_python_could_load_is_named(fixtures: Path) -> None:
    path = fixtures / "torch" / "refused.pt"
    with pytest.raises(regrow.errors.UnsupportedError, match=r"argparse\.Namespace") as raised:
        regrow.load(path)
    assert raised.value.leaf == "args" and raised.value.offset_bytes is not None
    assert "posix.system" in regrow.overview(path)
    assert_same(regrow.load(path, only=["w", "last"]), {"w": np.ones(2, np.float32), "last": 7})


def test_conversions_to_other_layouts(fixtures: Path, tmp_path: Path) -> None:
    source = fixtures / "torch" / "training.pt"
    regrow.convert(source, tmp_path / "step")
    assert_same(regrow.load(tmp_path / "step"), regrow.load(source))
    model = fixtures / "torch" / "pytorch_model.bin"
    regrow.convert(model, tmp_path / "model.safetensors", layout="safetensors")
    assert_same(regrow.load(tmp_path / "model.safetensors"), regrow.load(model))


def test_folders_of_pieces_are_read_in_parts(fixtures: Path) -> None:
    path = fixtures / "torch" / "dcp_sharded"
    whole = np.arange(30, dtype=np.float32).reshape(5, 6)
    np.testing.assert_array_equal(regrow.open(path)["model/w"][1:4, 2:5], whole[1:4, 2:5])
    state = regrow.load(path)
    np.testing.assert_array_equal(state["model"]["w"], whole)
    assert state["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    assert state["step"] == 7 and state["note"] == "text" and state["nothing"] is None
    assert regrow.verify(path).ok


WAYS: dict[str, Callable[[Path], object]] = {
    "open": lambda path: str(regrow.open(path)),
    "load": regrow.load,
    "mmap": lambda path: regrow.load(path, options=regrow.Options(mmap=True)),
    "leaves": lambda path: [leaf[...] for leaf in regrow.open(path).values()],
}


@pytest.mark.parametrize("case", CASES)
def test_no_archive_raises_anything_but_regrows_own(tmp_path: Path, case: str) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(CASES[case])
    for way in WAYS.values():
        with contextlib.suppress(regrow.RegrowError):
            way(path)
    if case == "as it should be":
        assert_same(regrow.load(path), {"w": np.zeros((2, 3), np.float32)})


def test_no_change_of_an_archive_raises_anything_but_regrows_own(tmp_path: Path) -> None:
    path, loaded = tmp_path / "x.pt", 0
    for data in changed(500, seed=34):
        path.write_bytes(data)
        with contextlib.suppress(regrow.RegrowError):
            regrow.open(path)
            loaded += 1
            # What is expanded to more than there is would be read for ever.
            if sum(leaf.nbytes for leaf in regrow.open(path).values()) < 2**20:
                regrow.load(path)
                regrow.verify(path)
    assert loaded > 25

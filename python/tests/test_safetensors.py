"""The default layout's data file is a safetensors file: the library reads it, and regrow reads
the library's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from conftest import assert_same, same_bits

import regrow

TREE = {
    "params": {"kernel": np.arange(600, dtype=np.float32).reshape(20, 30), "bias": np.ones(7, np.float16)},
    "layers": [np.arange(5), np.array([[True], [False]])],
    "empty": np.zeros((0, 3), np.int8),
    "name": "net",
    "opt": (None, 3),
}


@pytest.fixture
def file(path: Path) -> Path:
    regrow.save(path, TREE)
    return path / "model.safetensors"


def test_the_library_reads_ours(file: Path) -> None:
    with safetensors.safe_open(file, framework="numpy") as opened:
        assert {"params.kernel", "params.bias", "layers.0", "layers.1"} <= set(opened.keys())
        assert same_bits(opened.get_tensor("params.kernel"), TREE["params"]["kernel"])
        assert same_bits(opened.get_slice("params.kernel")[3:5, 2:], TREE["params"]["kernel"][3:5, 2:])
    loaded = safetensors.numpy.load_file(file)
    assert same_bits(loaded["layers.1"], TREE["layers"][1])


def test_one_file_alone_regrows_its_tree(file: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.safetensors"
    shutil.copy(file, alone)
    ckpt = regrow.open(alone)
    assert ckpt.layout == "safetensors"
    assert_same(regrow.load(alone), TREE)


def test_we_read_the_library_s(tmp_path: Path) -> None:
    tensors = {"a.b": np.arange(6, dtype=np.float32).reshape(2, 3), "c": np.int64([1, 2])}
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "np"})
    ckpt = regrow.open(tmp_path / "x.safetensors")
    for name, array in tensors.items():
        assert same_bits(ckpt[name][...], array)
        assert same_bits(ckpt[name][1:], array[1:])


def test_data_files_say_whose_tensors_they_hold(tmp_path: Path) -> None:
    tree = {"a": np.arange(4096), "b": np.ones((8, 8), np.float32)}
    for name in ("np", "pt", "flax"):
        regrow.save(tmp_path / name, tree, layout=regrow.layouts.Regrow(format=name))
        with safetensors.safe_open(tmp_path / name / "model.safetensors", framework="np") as file:
            assert file.metadata()["format"] == name
    # A file with another value is written again.
    linked = regrow.save(tmp_path / "next", tree, base=tmp_path / "pt", layout=regrow.layouts.Regrow(format="pt"))
    assert linked.reused_bytes > 0
    assert regrow.save(tmp_path / "other", tree, base=tmp_path / "np").reused_bytes == 0
    for name in ("plain", "x.safetensors"):
        regrow.save(tmp_path / name, tree)
        with safetensors.safe_open(next(tmp_path.glob(f"{name}/*.safetensors"), tmp_path / name), "np") as file:
            assert file.metadata()["format"] == "pt"
        assert regrow.open(tmp_path / name).metadata is None
    for metadata in ({"format": "pt"}, {"format": "mine", "a": "b"}, {"format": 1}):
        regrow.save(tmp_path / "x.safetensors", tree, metadata=metadata, overwrite=True)
        assert regrow.open(tmp_path / "x.safetensors").metadata == metadata
    assert regrow.verify(tmp_path / "next").ok

"""The default layout's data file is a safetensors file: the library reads it, and regrow reads
the library's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

import regrow


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

"""What an overwrite may replace: checkpoints, and for functions that stand in for others any
file, as they do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox
import numpy as np
import pytest
import safetensors.numpy

import regrow
import regrow.equinox
import regrow.pytree
import regrow.safetensors.numpy

TREE = {"w": np.arange(6, dtype=np.float32)}
THESIS = b"%PDF-1.7 years of work"


@pytest.mark.parametrize("layout", ["flax", "equinox"])
def test_what_is_no_checkpoint_stays(tmp_path: Path, layout: str) -> None:
    thesis = tmp_path / "thesis.pdf"
    thesis.write_bytes(THESIS)
    with pytest.raises(regrow.errors.InvalidArgumentError, match=r"not a checkpoint"):
        regrow.save(thesis, TREE, layout=layout, overwrite=True)
    regrow.save(tmp_path / "ckpt", TREE)
    manifest = tmp_path / "ckpt" / "regrow.json"
    before = manifest.read_bytes()
    with pytest.raises(regrow.errors.InvalidArgumentError, match=r"inside a checkpoint"):
        regrow.save(manifest, TREE, layout=layout, overwrite=True)
    assert thesis.read_bytes() == THESIS and manifest.read_bytes() == before


@pytest.mark.parametrize(
    "save",
    [
        lambda path: regrow.safetensors.numpy.save_file(TREE, path),
        lambda path: safetensors.numpy.save_file(TREE, path),
        lambda path: regrow.equinox.tree_serialise_leaves(path, TREE),
        lambda path: equinox.tree_serialise_leaves(path, TREE),
        lambda path: regrow.pytree.model_save(TREE, path.with_suffix(""), data_suffix=path.suffix),
    ],
)
def test_functions_of_others_replace_any_file(tmp_path: Path, save: Callable[[Path], Any]) -> None:
    regrow.save(tmp_path / "ckpt", TREE)
    for path in [tmp_path / "thesis.eqx", tmp_path / "ckpt" / "notes.eqx"]:
        path.write_bytes(THESIS)
        save(path)
        assert path.read_bytes() != THESIS

"""Rules of a conversion that are kept in a file: what they say, and what comes before them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import regrow

TREE = {"params": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(3, np.float32)}, "step": 7}
RULES = """
layout = "orbax"
[options]
zarr3 = true
[[rename]]
from = 'params/(.*)'
to = 'dense/$1'
[[transpose]]
leaves = "**/kernel"
axes = [1, 0]
[[reshape]]
leaves = "**/bias"
shape = [1, -1]
[[cast]]
leaves = "**/bias"
dtype = "float16"
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    regrow.save(tmp_path / "x", TREE)
    (tmp_path / "rules.toml").write_text(RULES)
    return tmp_path / "x", tmp_path / "rules.toml"


def test_a_file_does_what_the_same_keywords_do(files: tuple[Path, Path], tmp_path: Path) -> None:
    source, rules = files
    regrow.convert(source, tmp_path / "kept", rules=rules)
    regrow.convert(
        source,
        tmp_path / "said",
        rename={"params/(.*)": "dense/$1"},
        transpose={"**/kernel": (1, 0)},
        reshape={"**/bias": (1, -1)},
        cast={"**/bias": "float16"},
        layout=regrow.layouts.Orbax(zarr3=True),
    )
    kept, said = regrow.open(tmp_path / "kept"), regrow.open(tmp_path / "said")
    assert kept.variant == said.variant and "zarr v3" in kept.variant
    ours, theirs = kept.load(), said.load()
    assert ours["step"] == theirs["step"] == 7
    for name, shape in (("kernel", (3, 2)), ("bias", (1, 3))):
        assert ours["dense"][name].dtype == theirs["dense"][name].dtype
        assert ours["dense"][name].shape == shape
        np.testing.assert_array_equal(ours["dense"][name], theirs["dense"][name])


def test_keywords_come_first(files: tuple[Path, Path], tmp_path: Path) -> None:
    source, rules = files
    plan = regrow.convert(
        source,
        tmp_path / "y.npz",
        rules=str(rules),
        layout="npy",
        rename={"step": "n"},
        cast={"**/bias": "float64", "**/kernel": "float16"},
        transpose={"**/kernel": (0, 1)},
        dry_run=True,
    )
    found = {leaf.source_path: (leaf.target_path, leaf.target.dtype, leaf.target.shape) for leaf in plan.leaves}
    assert found["params/kernel"] == ("dense/kernel", "float16", (2, 3))
    assert found["params/bias"] == ("dense/bias", "float64", (1, 3))
    assert found["step"][0] == "n"
    # A dtype for all arrays goes before all casts of the file.
    plan = regrow.convert(source, tmp_path / "z", rules=rules, cast="bfloat16", dry_run=True)
    assert {leaf.target.dtype for leaf in plan.leaves if leaf.source.kind == "numpy_array"} == {"bfloat16"}


@pytest.mark.parametrize(
    ("written", "error", "named"),
    [
        (None, regrow.errors.NotFoundError, "rules.toml"),
        ("[options]\ndata_format = 'np'", regrow.errors.InvalidArgumentError, "the option is called `format`"),
    ],
)
def test_an_error_names_the_file_of_rules_or_its_option(
    files: tuple[Path, Path], tmp_path: Path, written: str | None, error: type[Exception], named: str
) -> None:
    source, rules = files
    rules.unlink()
    if written is not None:
        rules.write_text(written)
    with pytest.raises(error, match=named):
        regrow.convert(source, tmp_path / "new", rules=rules)

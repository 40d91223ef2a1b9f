"""Files with flat names, as dicts of dicts on request."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import regrow
import regrow.equinox

TREE = {
    "params": {"dense": {"kernel": np.ones((2, 3)), "bias": np.zeros(3)}, "scale": np.arange(4)},
    "step": np.array(7),
}
WRITERS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "x.npz": lambda path, names: np.savez(path, **names),
    "x.safetensors": lambda path, names: safetensors.numpy.save_file(names, path),
}


def names(separator: str) -> dict[str, Any]:
    flat = {f"params{separator}dense{separator}kernel": TREE["params"]["dense"]["kernel"]}
    flat |= {f"params{separator}dense{separator}bias": TREE["params"]["dense"]["bias"]}
    return flat | {f"params{separator}scale": TREE["params"]["scale"], "step": TREE["step"]}


@pytest.mark.parametrize("separator", ["/", "."])
@pytest.mark.parametrize("file", WRITERS)
def test_names_become_dicts_where_it_is_asked_for(tmp_path: Path, file: str, separator: str) -> None:
    path = tmp_path / file
    WRITERS[file](path, names(separator))
    assert sorted(regrow.load(path)) == sorted(names(separator))
    like = jax.tree.map(jnp.zeros_like, TREE)
    for found in (
        regrow.load(path, options=regrow.Options(nest=separator)),
        regrow.load(path, like=TREE, options=regrow.Options(nest=separator)),
    ):
        assert jax.tree.structure(found) == jax.tree.structure(TREE)
        assert all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(TREE)))
    regrow.convert(path, tmp_path / "nested", options=regrow.Options(nest=separator))
    found = regrow.load(tmp_path / "nested")
    assert {*regrow.open(tmp_path / "nested")} == {"params/dense/kernel", "params/dense/bias", "params/scale", "step"}
    assert np.array_equal(found["params"]["dense"]["kernel"], TREE["params"]["dense"]["kernel"])
    with pytest.raises(regrow.errors.MismatchError, match=rf"nest='{re.escape(separator)}'\) makes dicts"):
        regrow.load(path, like=TREE)
    with pytest.raises(regrow.errors.MismatchError) as raised:
        regrow.load(path, like={**like, "step": {"other": like["step"]}})
    assert "nest=" not in str(raised.value)


def test_a_name_within_another_is_refused(tmp_path: Path) -> None:
    for order in (["a", "a/b"], ["a/b", "a"]):
        np.savez(tmp_path / "x.npz", **{name: np.ones(1) for name in order})
        with pytest.raises(regrow.errors.NameCollisionError, match="cannot be nested"):
            regrow.load(tmp_path / "x.npz", options=regrow.Options(nest="/"))
    for nest in ("", 3):
        with pytest.raises(regrow.errors.InvalidArgumentError):
            regrow.load(tmp_path / "x.npz", options=regrow.Options(nest=nest))


def test_functions_of_a_model_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "x.eqx"
    model = equinox.nn.MLP(2, 3, 4, 2, key=jax.random.key(0), activation=jax.nn.gelu)
    regrow.equinox.tree_serialise_leaves(path, model)
    like = equinox.nn.MLP(2, 3, 4, 2, key=jax.random.key(1), activation=jax.nn.gelu)
    found = regrow.load(path, like=like)
    assert equinox.tree_equal(found, model) and found.activation is like.activation
    with pytest.raises(regrow.errors.MismatchError):
        regrow.load(path, like=equinox.nn.MLP(2, 3, 5, 2, key=jax.random.key(1)))

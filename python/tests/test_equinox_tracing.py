"""Loading while JAX traces: the arrays of `like` are tracers then, and stand for arrays."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regrow import equinox as ours

VALUES = np.arange(3, dtype=np.float32)


def _load(source: Path | bytes, like: Any) -> Any:
    return ours.tree_deserialise_leaves(io.BytesIO(source) if isinstance(source, bytes) else source, like)


@pytest.fixture(params=["path", "file"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path | bytes:
    path = tmp_path / "model.eqx"
    ours.tree_serialise_leaves(path, {"w": jnp.asarray(VALUES)}, strict=True)
    return path if request.param == "path" else path.read_bytes()


@pytest.mark.parametrize("tree_deserialise", [_load, None], ids=["ours", "theirs"])
def test_the_shapes_of_a_load_can_be_asked_for(source: Path | bytes, tree_deserialise: Any) -> None:
    def load(source: Path | bytes, like: Any) -> Any:
        if tree_deserialise is not None:
            return tree_deserialise(source, like)
        return eqx.tree_deserialise_leaves(io.BytesIO(source) if isinstance(source, bytes) else source, like)

    shapes = eqx.filter_eval_shape(lambda: load(source, {"w": jnp.zeros(3)}))
    assert shapes == {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}


def test_a_load_in_a_jitted_function_gives_the_values(source: Path | bytes) -> None:
    loaded = eqx.filter_jit(lambda like: _load(source, like))({"w": jnp.zeros(3)})
    assert np.array_equal(loaded["w"], VALUES)


@pytest.mark.parametrize(
    ("like", "what"), [(jnp.zeros(4), "shape"), (jnp.zeros(3, jnp.int32), "dtype")], ids=["shape", "dtype"]
)
def test_another_leaf_is_still_told(source: Path | bytes, like: jax.Array, what: str) -> None:
    with pytest.raises(RuntimeError, match=f"changed {what}"):
        eqx.filter_jit(lambda like: _load(source, like))({"w": like})

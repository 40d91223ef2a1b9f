"""What the checkpoint guides of Flax (nnx and linen) and of Equinox teach, with regrow in the
place of the original.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.training.train_state
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from training_states import assert_same_state

import regrow
import regrow.equinox
import regrow.flax.checkpoints

# ---- Flax nnx: "Save and load checkpoints" --------------------------------------------


class TwoLayers(nnx.Module):
    def __init__(self, size: int, rngs: nnx.Rngs, use_bias: bool = False) -> None:
        self.first = nnx.Linear(size, size, rngs=rngs, use_bias=use_bias)
        self.second = nnx.Linear(size, size, rngs=rngs, use_bias=use_bias)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(self.first(x))


X = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def model() -> TwoLayers:
    return TwoLayers(4, nnx.Rngs(0))


def test_nnx_a_state_is_saved_and_restored_into_a_module_that_was_never_made(path: Path, model: TwoLayers) -> None:
    _, state = nnx.split(model)
    regrow.save(path, state)
    graph, like = nnx.split(nnx.eval_shape(lambda: TwoLayers(4, nnx.Rngs(0))))
    restored = regrow.load(path, like=like)
    assert_same_state(restored, state)
    np.testing.assert_array_equal(nnx.merge(graph, restored)(X), model(X))


def test_nnx_a_pure_dict_needs_no_template(path: Path, model: TwoLayers) -> None:
    regrow.save(path, nnx.to_pure_dict(nnx.state(model)))
    pure = regrow.load(path)
    assert list(pure) == ["first", "second"]
    graph, state = nnx.split(nnx.eval_shape(lambda: TwoLayers(4, nnx.Rngs(0))))
    nnx.replace_by_pure_dict(state, pure)
    np.testing.assert_array_equal(nnx.merge(graph, state)(X), model(X))


def test_nnx_an_older_model_is_restored_into_a_newer_one(path: Path, model: TwoLayers) -> None:
    """The guide edits the pure dict; the leaves that are to be restored can also be named."""
    regrow.save(path, nnx.state(model))
    graph, state = nnx.split(TwoLayers(4, nnx.Rngs(1), use_bias=True))
    with pytest.raises(regrow.errors.MismatchError, match="first/bias"):
        regrow.load(path, like=state)
    restored = nnx.merge(graph, regrow.load(path, like=state, only="*/kernel"))
    np.testing.assert_array_equal(restored(X), model(X))
    assert restored.first.bias is not None


def test_nnx_shards_are_restored_onto_a_mesh(path: Path) -> None:
    def by_columns(kernel: Any) -> NamedSharding:
        axis = None if kernel.ndim < 2 else "model"
        return NamedSharding(Mesh(np.array(jax.devices()[:4]), ("model",)), PartitionSpec(axis))

    state = nnx.state(TwoLayers(8, nnx.Rngs(0)))
    state = jax.tree.map(lambda leaf: jax.device_put(leaf, by_columns(leaf)), state)
    regrow.save(path, state)
    shapes = nnx.state(nnx.eval_shape(lambda: TwoLayers(8, nnx.Rngs(0))))
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=by_columns(leaf)), shapes)
    assert_same_state(regrow.load(path, like=like), state)


# ---- Flax linen: "Save and load checkpoints" ------------------------------------------

DENSE = nn.Dense(3)
APPLY, SGD = DENSE.apply, optax.sgd(1e-3)


class WithStatistics(flax.training.train_state.TrainState):
    batch_stats: Any = None


def linen_checkpoint(seed: int, cls: Any = flax.training.train_state.TrainState, **more: Any) -> dict[str, Any]:
    """A train state, a configuration and data in one tree, after a step."""
    data = jax.random.normal(jax.random.key(seed), (5,))
    params = DENSE.init(jax.random.key(seed + 1), data)["params"]
    state = cls.create(apply_fn=APPLY, params=params, tx=SGD, **more)
    state = state.apply_gradients(grads=jax.tree.map(jnp.ones_like, params))
    return {"model": state, "config": {"dimensions": np.array([5, 3])}, "data": [data]}


def test_linen_a_bundle_is_restored_with_and_without_a_target(path: Path) -> None:
    bundle = linen_checkpoint(0)
    regrow.save(path, bundle)
    raw = regrow.load(path)
    np.testing.assert_array_equal(raw["model"].params["kernel"], bundle["model"].params["kernel"])
    np.testing.assert_array_equal(raw["config"]["dimensions"], [5, 3])
    assert_same_state(regrow.load(path, like=linen_checkpoint(7)), bundle)


def test_linen_steps_in_one_folder(tmp_path: Path) -> None:
    for step in range(3, 6):
        regrow.save(tmp_path / str(step), linen_checkpoint(step))
    opened = regrow.open(tmp_path)
    assert (opened.step, opened.steps) == (5, [3, 4, 5])
    assert_same_state(regrow.load(tmp_path, like=linen_checkpoint(0)), linen_checkpoint(5))
    assert_same_state(regrow.load(tmp_path, step=3, like=linen_checkpoint(0)), linen_checkpoint(3))


def test_linen_the_legacy_functions(tmp_path: Path) -> None:
    bundle = linen_checkpoint(0)
    regrow.flax.checkpoints.save_checkpoint(tmp_path, bundle, step=0, overwrite=True, keep=2)
    raw = regrow.flax.checkpoints.restore_checkpoint(tmp_path, target=None)
    np.testing.assert_array_equal(raw["model"]["params"]["kernel"], bundle["model"].params["kernel"])
    restored = regrow.flax.checkpoints.restore_checkpoint(tmp_path, target=linen_checkpoint(7))
    np.testing.assert_array_equal(restored["model"].params["kernel"], bundle["model"].params["kernel"])
    assert type(restored["model"]) is flax.training.train_state.TrainState


def test_linen_a_target_of_less_and_of_more_than_was_saved(tmp_path: Path) -> None:
    old, new = linen_checkpoint(0), linen_checkpoint(0, WithStatistics, batch_stats=np.arange(10))
    regrow.save(tmp_path / "old", old)
    regrow.save(tmp_path / "new", new)
    like = linen_checkpoint(7)
    with pytest.raises(regrow.errors.MismatchError, match="model/batch_stats"):
        regrow.load(tmp_path / "new", like=like)
    assert_same_state(regrow.load(tmp_path / "new", like=like, extra="drop"), old)
    like = linen_checkpoint(7, WithStatistics, batch_stats=np.ones(2))
    with pytest.raises(regrow.errors.MismatchError, match="model/batch_stats"):
        regrow.load(tmp_path / "old", like=like)
    restored = regrow.load(tmp_path / "old", like=like, only=["model/step", "model/params/**", "config/**", "data/**"])
    assert type(restored["model"]) is WithStatistics
    np.testing.assert_array_equal(restored["model"].batch_stats, np.ones(2))
    assert_same_state(restored["model"].params, old["model"].params)


def test_linen_saves_in_the_background(tmp_path: Path) -> None:
    bundle = linen_checkpoint(0)
    with regrow.jobs.AsyncSaver() as saver:
        for step in range(3):
            saver.save(tmp_path / str(step), bundle)
    assert_same_state(regrow.load(tmp_path, like=linen_checkpoint(7)), bundle)


# ---- Equinox: "Serialising both weights and hyperparameters" --------------------------


def make(seed: int, *, size: int, width: int, depth: int, use_tanh: bool) -> eqx.nn.MLP:
    activation = jnp.tanh if use_tanh else jax.nn.relu
    return eqx.nn.MLP(size, 1, width, depth, activation, key=jax.random.PRNGKey(seed))


HYPERPARAMETERS = {"size": 5, "width": 10, "depth": 3, "use_tanh": True}


def test_equinox_hyperparameters_in_the_line_before_the_leaves(tmp_path: Path) -> None:
    model, file = make(0, **HYPERPARAMETERS), tmp_path / "model.eqx"
    with open(file, "wb") as stream:
        stream.write((json.dumps(HYPERPARAMETERS) + "\n").encode())
        regrow.equinox.tree_serialise_leaves(stream, model)
    for library in (regrow.equinox, eqx):
        with open(file, "rb") as stream:
            skeleton = make(1, **json.loads(stream.readline()))
            restored = library.tree_deserialise_leaves(stream, skeleton)
        assert eqx.tree_equal(restored, model)


def test_equinox_hyperparameters_as_metadata(path: Path) -> None:
    """The same in regrow's own layout: one checkpoint has both, and says what it is without the
    program.
    """
    model = make(0, **HYPERPARAMETERS)
    regrow.save(path, eqx.filter(model, eqx.is_array), metadata=HYPERPARAMETERS)
    checkpoint = regrow.open(path)
    arrays, rest = eqx.partition(make(1, **checkpoint.metadata), eqx.is_array)
    restored = eqx.combine(checkpoint.load(like=arrays), rest)
    assert eqx.tree_equal(restored, model)
    np.testing.assert_array_equal(checkpoint["layers/1/weight"][2:3], model.layers[1].weight[2:3])

"""What the guides of Orbax and Flax show, written from their documented interfaces, with only
the import changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training import orbax_utils, train_state
from test_orbax_dropin import assert_same

import regrow.orbax as ocp


def test_standard_checkpointer_with_sharded_and_abstract_targets(tmp_path: Path) -> None:
    path = ocp.test_utils.erase_and_create_empty(tmp_path / "checkpoints")
    mesh = jax.sharding.Mesh(jax.devices(), ("model",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("model"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    state = jax.tree.map(lambda leaf: jax.device_put(leaf, spread), {"a": np.arange(16), "b": np.ones(16)})
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(path / "1", state)
    checkpointer.wait_until_finished()
    restored = checkpointer.restore(path / "1", jax.tree.map(ocp.utils.to_shape_dtype_struct, state))
    assert_same(restored, state)

    def replicated(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole)

    restored = checkpointer.restore(path / "1", jax.tree.map(replicated, state))
    assert restored["a"].sharding == whole
    checkpointer.close()


def test_a_manager_with_a_training_loop(tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(max_to_keep=3, save_interval_steps=2)
    state = {"w": np.zeros(3)}
    with ocp.CheckpointManager(tmp_path / "run", options=options, item_names=("state", "extra_metadata")) as manager:
        for step in range(11):
            state = {"w": state["w"] + 1}
            manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state), extra_metadata=ocp.args.JsonSave({"version": 1.0})
                ),
            )
        manager.wait_until_finished()
        assert manager.all_steps() == [6, 8, 10]
        restored = manager.restore(10)
        assert_same(restored.state, state)
        assert restored.extra_metadata == {"version": 1.0}


def test_flax_linen_with_save_args_and_a_raw_restore(tmp_path: Path) -> None:
    model = nn.Dense(features=3)
    variables = model.init(jax.random.key(0), jnp.ones((1, 2)))
    state = train_state.TrainState.create(apply_fn=model.apply, params=variables["params"], tx=optax.sgd(0.1, 0.9))
    bundle = {"model": state, "config": {"dimensions": np.array([5, 3])}, "data": [jnp.ones(2)]}
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(tmp_path / "single", bundle, save_args=orbax_utils.save_args_from_target(bundle))
    raw = checkpointer.restore(tmp_path / "single")
    assert_same(raw["model"]["params"], state.params)
    empty = {**bundle, "model": jax.tree.map(np.zeros_like, state)}
    restored = checkpointer.restore(tmp_path / "single", item=empty)
    assert type(restored["model"]) is train_state.TrainState
    assert_same(restored["model"].opt_state, state.opt_state)


def test_flax_linen_with_part_of_a_checkpoint(tmp_path: Path) -> None:
    ocp.PyTreeCheckpointer().save(tmp_path / "x", {"model1": {"w": np.ones(2)}, "model2": {"w": np.zeros(2)}})
    target = {"model1": {"w": np.zeros(2)}}
    restore_args = orbax_utils.restore_args_from_target(target)
    restored = ocp.PyTreeCheckpointer().restore(tmp_path / "x", item=target, transforms={}, restore_args=restore_args)
    assert_same(restored, {"model1": {"w": np.ones(2)}})


def test_flax_nnx_with_an_abstract_model(tmp_path: Path) -> None:
    class TwoLayers(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(2, 4, rngs=rngs)
            self.second = nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, inputs: jax.Array) -> jax.Array:
            return self.second(self.first(inputs))

    model = TwoLayers(nnx.Rngs(0))
    _, state = nnx.split(model)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        graph, abstract = nnx.split(nnx.eval_shape(lambda: TwoLayers(nnx.Rngs(0))))
        restored = nnx.merge(graph, checkpointer.restore(tmp_path / "state", abstract))
    inputs = jnp.ones((1, 2))
    assert restored(inputs) == model(inputs)

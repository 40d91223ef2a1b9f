"""Programs from the package registry that save checkpoints, each by its own public functions.

A program has a `save(folder)` and a `load(folder)`; both return the state as a pytree. `wrong`
names loads from such a folder with wrong input. Imports stand inside: each process imports one
program.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _largest(folder: Path) -> Path:
    # Of files of one size, that of the newest step.
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return max(reversed(files), key=lambda file: file.stat().st_size)


def _cut(folder: Path) -> None:
    file = _largest(folder)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _emptied(folder: Path) -> None:
    _largest(folder).write_bytes(b"")


def _lost(folder: Path) -> None:
    _largest(folder).unlink()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "file_cut": _cut,
    "file_empty": _emptied,
    "file_lost": _lost,
}
"""What happens to the largest file of a folder before a program loads from it."""


@dataclasses.dataclass(frozen=True)
class Program:
    save: Callable[[Path], Any]
    load: Callable[[Path], Any]
    wrong: dict[str, Callable[[Path], Any]] = dataclasses.field(default_factory=dict)


MORE, FEWER = "more", "fewer"
"""Which leaves a template has, beside those of the file."""


def _changed(params: dict[str, Any], leaves: str) -> dict[str, Any]:
    """Parameters in which one layer has one leaf more, or fewer."""
    import jax.numpy as jnp

    layer = next(iter(params))
    changed = {**params[layer], "more": jnp.ones(2)} if leaves == MORE else dict(list(params[layer].items())[1:])
    return {**params, layer: changed} if leaves else params


def _arrays(seed: int = 0, leaves: str = "") -> dict[str, Any]:
    """Parameters in nested dicts, in several dtypes."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(seed), 3)
    arrays = {
        "dense": {"kernel": jax.random.normal(keys[0], (4, 3)), "bias": jnp.zeros(3, jnp.bfloat16)},
        "embed": {"table": jax.random.normal(keys[1], (7, 2)).astype(jnp.float16)},
        "mask": jnp.array([True, False]),
        "count": jnp.int32(100_001),
    }
    return _changed(arrays, leaves)


# ---- tunix: an nnx model and its optimizer, with a Json item beside them


def _tunix_model(seed: int, leaves: str = "") -> tuple[Any, Any]:
    import jax.numpy as jnp
    import optax
    from flax import nnx

    last = nnx.Linear(3, 2, use_bias=leaves != FEWER, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(seed + 1))
    model = nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(seed)), last)
    if leaves == MORE:
        model.more = nnx.Param(jnp.zeros(2))
    return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


def _tunix_state(model: Any, optimizer: Any, told: Any) -> Any:
    from flax import nnx

    return {
        "model": nnx.to_pure_dict(nnx.state(model)),
        "optimizer": nnx.to_pure_dict(nnx.state(optimizer, nnx.optimizer.OptState)),
        "told": told,
    }


def _tunix_save(folder: Path) -> Any:
    from tunix.sft.checkpoint_manager import CheckpointManager

    model, optimizer = _tunix_model(0)
    manager = CheckpointManager(str(folder))
    assert manager.latest_step() is None
    for step in (1, 2, 3):
        manager.save(step, model, optimizer, custom_metadata={"at": step}, force=True)
    # The last save is in flight, and listed: tunix' trainer asks before it saves once more.
    assert manager.latest_step() == 3
    manager.close()
    return _tunix_state(model, optimizer, [3, {"at": 3}])


def _tunix_load(folder: Path, leaves: str = "") -> Any:
    from tunix.sft.checkpoint_manager import CheckpointManager

    model, optimizer = _tunix_model(9, leaves)
    manager = CheckpointManager(str(folder))
    told = list(manager.maybe_restore(model, optimizer))
    manager.close()
    return _tunix_state(model, optimizer, told)


def _tunix_another_shape(folder: Path) -> Any:
    from flax import nnx
    from tunix.sft.checkpoint_manager import CheckpointManager

    manager = CheckpointManager(str(folder))
    model = nnx.Sequential(nnx.Linear(4, 5, rngs=nnx.Rngs(0)), nnx.Linear(5, 2, rngs=nnx.Rngs(1)))
    return manager.maybe_restore(model)


# ---- kauldron: the Checkpointer of a trainer


def _kauldron_checkpointer(folder: Path) -> Any:
    from kauldron import kd

    return kd.ckpts.Checkpointer(workdir=folder, save_interval_steps=1, max_to_keep=2)


def _kauldron_state(seed: int, leaves: str = "") -> Any:
    import flax
    from kauldron import kd

    @flax.struct.dataclass
    class State(kd.ckpts.items.StandardCheckpointItem):
        step: Any
        params: Any

    import jax.numpy as jnp

    return State(step=jnp.int32(seed), params=_arrays(seed, leaves))


def _kauldron_save(folder: Path) -> Any:
    checkpointer = _kauldron_checkpointer(folder)
    for step in (1, 2, 3):
        checkpointer.save(_kauldron_state(step), step=step)
    checkpointer.wait_until_finished()
    assert list(checkpointer.all_steps) == [2, 3]
    checkpointer.close()
    state = _kauldron_state(3)
    return {"step": state.step, "params": state.params}


def _kauldron_load(folder: Path, leaves: str = "") -> Any:
    import jax

    template = _kauldron_state(0, leaves)
    if leaves:
        # kauldron deletes a template's arrays, which Orbax then prints in its error.
        template = jax.eval_shape(lambda: template)
    checkpointer = _kauldron_checkpointer(folder)
    state = checkpointer.restore(template)
    return {"step": state.step, "params": state.params}


# ---- brax: parameters of an agent, and its config beside them


def _brax_params() -> Any:
    import functools

    import jax
    from brax.training.acme import running_statistics, specs
    from brax.training.agents.ppo import losses, networks

    network = networks.make_ppo_networks(3, 2, running_statistics.normalize, policy_hidden_layer_sizes=(5, 4))
    init = functools.partial(losses.PPONetworkParams)
    keys = jax.random.split(jax.random.PRNGKey(0))
    params = init(policy=network.policy_network.init(keys[0]), value=network.value_network.init(keys[1]))
    normalizer = running_statistics.init_state(specs.Array((3,), jax.numpy.dtype("float32")))
    return normalizer, params.policy, params.value


def _brax_config() -> Any:
    import functools

    from brax.training.agents.ppo import checkpoint, networks

    factory = functools.partial(networks.make_ppo_networks, policy_hidden_layer_sizes=(5, 4))
    return checkpoint.network_config(
        observation_size=3, action_size=2, normalize_observations=True, network_factory=factory
    )


def _brax_as_dict(params: Any) -> Any:
    import dataclasses

    normalizer = {field.name: getattr(params[0], field.name) for field in dataclasses.fields(params[0])}
    count = normalizer["count"]
    if dataclasses.is_dataclass(count):
        normalizer["count"] = {field.name: getattr(count, field.name) for field in dataclasses.fields(count)}
    return [normalizer, params[1], params[2]]


def _brax_save(folder: Path) -> Any:
    from brax.training.agents.ppo import checkpoint

    params = _brax_params()
    # A second save goes over the first one, in which the program has put its config.
    for _ in range(2):
        checkpoint.save(folder, 7, params, _brax_config())
    return _brax_as_dict(params)


def _brax_load(folder: Path) -> Any:
    from brax.training.agents.ppo import checkpoint

    step = folder / f"{7:012d}"
    assert json.loads((step / "ppo_network_config.json").read_text())["action_size"] == 2
    return _brax_as_dict(checkpoint.load(step))


def _brax_another_normalizer(folder: Path, leaves: str) -> Any:
    """brax has no template: the class of its normalizer names the leaves. Here the file has others."""
    from brax.training.agents.ppo import checkpoint

    normalizer, *networks = _brax_as_dict(_brax_params())
    if leaves == MORE:
        del normalizer["std"]
    else:
        normalizer["more"] = normalizer["std"]
    try:
        checkpoint.save(folder, 8, (normalizer, *networks), _brax_config())
    except Exception as error:
        raise AssertionError("only the load may fail") from error
    return _brax_as_dict(checkpoint.load(folder / f"{8:012d}"))


def _brax_nothing_there(folder: Path) -> Any:
    from brax.training.agents.ppo import checkpoint

    return checkpoint.load(folder / "none")


# ---- gemma: parameters alone


def _gemma() -> Any:
    """gemma 3.3 names a class that kauldron 1.4 calls otherwise, and kauldron 1.3 needs an older
    JAX.
    """
    from kauldron import checkpoints

    checkpoints.AbstractPartialLoader = checkpoints.InitTransform
    from gemma import gm

    return gm


def _gemma_params() -> Any:
    import jax
    import jax.numpy as jnp

    def layer(seed: int) -> Any:
        keys = jax.random.split(jax.random.key(seed), 2)
        return {
            "attn": {"q_einsum": {"w": jax.random.normal(keys[0], (2, 4, 3)).astype(jnp.bfloat16)}},
            "mlp": {"linear": jax.random.normal(keys[1], (4, 6)).astype(jnp.bfloat16)},
        }

    return {
        "embedder": {"input_embedding": jnp.ones((5, 4), jnp.bfloat16)},
        "layer_0": layer(0),
        "layer_1": layer(1),
        "final_norm": {"scale": jnp.arange(4.0)},
    }


def _gemma_save(folder: Path) -> Any:
    gm = _gemma()
    params = _gemma_params()
    gm.ckpts.save_params(params, folder / "params", wait_until_finished=True)
    return params


def _gemma_load(folder: Path, leaves: str = "") -> Any:
    template = _changed(_gemma_params(), leaves) if leaves else None
    # Orbax prints the template's arrays in its error, so they stay.
    return _gemma().ckpts.load_params(folder / "params", params=template, donate=False)


# ---- apax: a train state in a manager, with an epoch


def _apax_state(seed: int, leaves: str = "") -> Any:
    import optax
    from apax.train import checkpoints

    params = {key: value for key, value in _arrays(seed, leaves).items() if key not in ("mask", "count")}
    return checkpoints.create_train_state(None, params, optax.adam(1e-3))


def _apax_save(folder: Path) -> Any:
    from apax.train.checkpoints import load_state
    from orbax import checkpoint as ocp

    state = _apax_state(0)
    options = ocp.CheckpointManagerOptions(max_to_keep=1, save_interval_steps=1)
    with ocp.CheckpointManager(folder / "best", options=options) as manager:
        for epoch in range(3):
            manager.save(epoch, args=ocp.args.StandardSave({"model": state, "epoch": epoch}))
    assert load_state(state, folder / "none") == (state, 0)
    return {"state": state, "start": 3, "params": state.params}


def _apax_load(folder: Path, leaves: str = "") -> Any:
    from apax.train.checkpoints import load_params, load_state

    state, start = load_state(_apax_state(5, leaves), folder / "best")
    return {"state": state, "start": start, "params": load_params(folder)}


def _apax_nothing_there(folder: Path) -> Any:
    from apax.train.checkpoints import load_params

    return load_params(folder / "none")


# ---- clu: Flax' serialization in files of TensorFlow's checkpoints


def _clu_save(folder: Path) -> Any:
    from clu.checkpoint import Checkpoint

    state = _arrays(1)
    checkpoint = Checkpoint(str(folder), max_to_keep=2)
    for _ in range(3):
        checkpoint.save(state)
    return state


def _clu_load(folder: Path, leaves: str = "") -> Any:
    from clu.checkpoint import Checkpoint

    checkpoint = Checkpoint(str(folder))
    state = checkpoint.restore(_arrays(2, leaves))
    assert set(checkpoint.load_state(None)) == set(state)
    return state


def _clu_another_tree(folder: Path) -> Any:
    from clu.checkpoint import Checkpoint

    return Checkpoint(str(folder)).restore({"other": 1})


# ---- evosax: the state of a strategy, by Flax' serialization


def _evosax_state(seed: int, leaves: str = "") -> Any:
    import flax.struct
    import jax
    import jax.numpy as jnp
    from evosax.algorithms import CMA_ES

    strategy = CMA_ES(population_size=6, solution=jnp.zeros(3))
    state = strategy.init(jax.random.key(seed), jnp.full(3, float(seed)), strategy.default_params)
    if not leaves:
        return state
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    of_state = _changed({"state": fields}, leaves)["state"]
    other_state = type("State", (), {"__annotations__": dict.fromkeys(of_state, Any)})
    return flax.struct.dataclass(other_state)(**of_state)


def _evosax_save(folder: Path) -> Any:
    import flax.serialization

    state = _evosax_state(3)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.msgpack").write_bytes(flax.serialization.to_bytes(state))
    return flax.serialization.to_state_dict(state)


def _evosax_load(folder: Path, leaves: str = "") -> Any:
    import flax.serialization

    state = flax.serialization.from_bytes(_evosax_state(4, leaves), (folder / "state.msgpack").read_bytes())
    return flax.serialization.to_state_dict(state)


# ---- flowjax: a flow, by Equinox


def _flowjax_flow(seed: int) -> Any:
    import jax
    from flowjax.distributions import Normal
    from flowjax.flows import masked_autoregressive_flow

    base = Normal(jax.numpy.zeros(2))
    return masked_autoregressive_flow(jax.random.key(seed), base_dist=base, flow_layers=2, nn_width=4)


def _flowjax_save(folder: Path) -> Any:
    import equinox

    flow = _flowjax_flow(0)
    folder.mkdir(parents=True, exist_ok=True)
    equinox.tree_serialise_leaves(folder / "flow.eqx", flow)
    return equinox.filter(flow, equinox.is_array)


def _flowjax_load(folder: Path, leaves: str = "") -> Any:
    import equinox
    import jax

    template = _flowjax_flow(1)
    if leaves:
        every = jax.tree.leaves(template)
        template = [*every, jax.numpy.ones(2)] if leaves == MORE else every[:-1]
    flow = equinox.tree_deserialise_leaves(folder / "flow.eqx", template)
    return equinox.filter(flow, equinox.is_array)


# ---- keras: Orbax checkpoints by a callback, through Orbax' v1


def _keras_model(seed: int, leaves: str = "") -> Any:
    import keras
    import numpy as np

    # Each model of a process begins with the same names.
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4)])
    model.add(keras.layers.Dense(1, use_bias=leaves != FEWER))
    if leaves == MORE:
        model.add(keras.layers.Dense(1, use_bias=False))
    model.compile(optimizer="adam", loss="mse")
    return model, np.ones((8, 3), np.float32), np.zeros((8, 1), np.float32)


def _keras_weights(model: Any) -> Any:
    import numpy as np

    return [np.asarray(variable) for variable in model.weights]


def _keras_save(folder: Path) -> Any:
    import keras

    model, x, y = _keras_model(0)
    callback = keras.callbacks.OrbaxCheckpoint(directory=str(folder), save_freq="epoch", save_on_background=False)
    model.fit(x, y, epochs=3, verbose=0, callbacks=[callback])
    return _keras_weights(model)


def _keras_load(folder: Path, leaves: str = "") -> Any:
    model, _, _ = _keras_model(1, leaves)
    model.load_weights(str(folder))
    return _keras_weights(model)


def _program(save: Callable[[Path], Any], load: Callable[..., Any], **wrong: Callable[[Path], Any]) -> Program:
    """A program whose `load` takes which leaves the template has."""
    every = {
        "nothing_there": lambda folder: load(folder / "none"),
        "missing_leaf": lambda folder: load(folder, MORE),
        "extra_leaf": lambda folder: load(folder, FEWER),
    }
    return Program(save, load, {**every, **wrong})


PROGRAMS = {
    "tunix": _program(_tunix_save, _tunix_load, another_shape=_tunix_another_shape),
    "kauldron": _program(_kauldron_save, _kauldron_load),
    "brax": _program(
        _brax_save,
        _brax_load,
        nothing_there=_brax_nothing_there,
        missing_leaf=lambda folder: _brax_another_normalizer(folder, MORE),
        extra_leaf=lambda folder: _brax_another_normalizer(folder, FEWER),
    ),
    "gemma": _program(_gemma_save, _gemma_load),
    "apax": _program(_apax_save, _apax_load, nothing_there=_apax_nothing_there),
    "clu": _program(_clu_save, _clu_load, another_tree=_clu_another_tree),
    "evosax": _program(_evosax_save, _evosax_load),
    "flowjax": _program(_flowjax_save, _flowjax_load),
    "keras": _program(_keras_save, _keras_load),
}

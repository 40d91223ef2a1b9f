"""Training states as programs have them, their values told apart, and how two of them are
compared: types first.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from flax.core import FrozenDict
from flax.training.dynamic_scale import DynamicScale
from flax.training.train_state import TrainState

import regrow

PARAMS = {
    "dense": {"kernel": jnp.zeros((3, 4), jnp.bfloat16), "bias": jnp.zeros(4)},
    "scale": jnp.zeros(()),
}
LABELS = {"dense": {"kernel": "a", "bias": "b"}, "scale": "a"}

OPTIMIZERS: dict[str, optax.GradientTransformation] = {
    "sgd": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(1e-3),
    "adamw": optax.adamw(optax.cosine_decay_schedule(1e-3, 10), mu_dtype=jnp.bfloat16),
    "amsgrad": optax.amsgrad(1e-3),
    "nadamw": optax.nadamw(1e-3),
    "adamax": optax.adamax(1e-3),
    "adan": optax.adan(1e-3),
    "adagrad": optax.adagrad(1e-3),
    "adadelta": optax.adadelta(1e-3),
    "adafactor": optax.adafactor(1e-3, min_dim_size_to_factor=2, momentum=0.9),
    "lion": optax.lion(1e-3),
    "lamb": optax.lamb(1e-3),
    "lars": optax.lars(1e-3),
    "rmsprop": optax.rmsprop(1e-3, momentum=0.9, centered=True),
    "radam": optax.radam(1e-3),
    "novograd": optax.novograd(1e-3),
    "yogi": optax.yogi(1e-3),
    "sm3": optax.sm3(1e-3),
    "rprop": optax.rprop(1e-3),
    "noisy sgd": optax.noisy_sgd(1e-3, key=jax.random.key(5)),
    "lbfgs": optax.lbfgs(),
    "muon": optax.contrib.muon(1e-3),
    "prodigy": optax.contrib.prodigy(),
    "sophia": optax.contrib.sophia(1e-3),
    "schedule free": optax.contrib.schedule_free_adamw(1e-3),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3), optax.ema(0.9)),
    "plateau": optax.chain(optax.adam(1e-3), optax.contrib.reduce_on_plateau()),
    "many steps": optax.MultiSteps(optax.adam(1e-3), 2, should_skip_update_fn=optax.skip_not_finite),
    "masked": optax.masked(optax.adam(1e-3), {"dense": {"kernel": True, "bias": False}, "scale": True}),
    "by labels": optax.multi_transform({"a": optax.adam(1e-3), "b": optax.sgd(0.1)}, LABELS),
    "if finite": optax.apply_if_finite(optax.adam(1e-3), 5),
    "hyperparameters": optax.inject_hyperparams(optax.adamw)(optax.linear_schedule(1e-3, 0, 10), weight_decay=1e-4),
}


def optax_states() -> Any:
    return {name: optimizer.init(PARAMS) for name, optimizer in OPTIMIZERS.items()}


class Net(nn.Module):
    """What a linen module may have beside parameters: statistics, and names of axes on a
    parameter.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dense(3, kernel_init=nn.with_partitioning(nn.initializers.zeros, ("in", "out")))(x)
        return nn.BatchNorm(use_running_average=False)(x)


class LinenState(TrainState):
    """A `TrainState` with more in it, as people make one."""

    batch_stats: Any
    rng: jax.Array
    scale: DynamicScale | None = None


APPLY, ADAM = Net().apply, optax.adam(1e-3)


def linen_state() -> Any:
    variables = Net().init(jax.random.key(0), jnp.ones((1, 2)))
    rng = jax.random.key(1)
    stats = variables["batch_stats"]
    state = LinenState.create(
        apply_fn=APPLY, params=variables["params"], tx=ADAM, batch_stats=stats, rng=rng, scale=DynamicScale()
    )
    # As after a step: a number of Python has become an array of a weak type.
    return state.replace(step=jnp.asarray(3))


class NnxNet(nnx.Module):
    """A module with state of every kind that nnx has."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(2, 2, rngs=rngs), nnx.Linear(2, 2, rngs=rngs)])
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.Variable(jnp.asarray(0))


def nnx_parts() -> Any:
    """Module and optimizer in one, as `nnx.state` has them."""
    model = NnxNet(nnx.Rngs(0, dropout=jax.random.key(1, impl="rbg")))
    return model, nnx.Optimizer(model, ADAM, wrt=nnx.Param)


def nnx_state() -> Any:
    model, optimizer = nnx_parts()
    _, params, rest = nnx.split(model, nnx.Param, ...)
    return {"whole": nnx.state((model, optimizer)), "params": params, "rest": rest, "module": model}


class EqxNet(eqx.Module):
    """A module with a static field, a number of Python, and a layer that has `State`."""

    weight: jax.Array
    norm: eqx.nn.BatchNorm
    cell: eqx.nn.GRUCell
    dropout: eqx.nn.Dropout
    activation: str = eqx.field(static=True)

    def __init__(self, key: jax.Array) -> None:
        self.weight = jnp.ones(3)
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="ema")
        self.cell = eqx.nn.GRUCell(2, 3, key=key)
        self.dropout = eqx.nn.Dropout(0.5)
        self.activation = "relu"


def equinox_state() -> Any:
    """Arrays alone, as `equinox.partition` gives them, a module that has no others, and optax
    over a module.
    """
    model, state = eqx.nn.make_with_state(EqxNet)(jax.random.key(0))
    arrays = eqx.filter(model, eqx.is_array)
    return {
        "model": arrays,
        "state": state,
        "opt": ADAM.init(eqx.filter(model, eqx.is_inexact_array)),
        "numbers": model.dropout,
        "cell": model.cell,
    }


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    """A dataclass that JAX knows, with a field that it does not look into."""

    array: Any
    name: str = dataclasses.field(default="n", metadata={"static": True})


@flax.struct.dataclass
class Struct:
    """A dataclass of Flax."""

    array: Any
    name: str = flax.struct.field(pytree_node=False, default="n")


class Pair(NamedTuple):
    """A named tuple of the program."""

    left: Any
    right: Any = None


KEYS = {name: jax.random.key(3, impl=name) for name in ("threefry2x32", "rbg", "unsafe_rbg")}


def plain_state() -> Any:
    """Containers, numbers, keys and arrays of odd dtypes, without any library's modules."""
    odd = ["int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float16", "complex64", "uint8", "bool_"]
    return {
        "keys": {**KEYS, "raw": jax.random.PRNGKey(1), "many": jax.random.split(jax.random.key(2), (2, 2))},
        "weak": [jnp.asarray(1), jnp.asarray(0.5), jnp.asarray(1j), jnp.broadcast_to(jnp.asarray(2.0), (3,))],
        "strong": [jnp.int32(1), jnp.float32(0.5), jnp.complex64(1j)],
        "numpy": (np.float64(1.5), np.int8(3), np.bool_(True), np.arange(3), np.ones((2, 0))),
        "numbers": Pair(1, Pair(2.5, (True, 3j, -0.0, 2**63 - 1, float("nan"), float("inf")))),
        "odd": {name: jnp.ones(3, getattr(jnp, name)) for name in odd},
        "dataclasses": [Registered(jnp.ones(2), "r"), Struct(jnp.ones(2), "s")],
        "frozen": FrozenDict({"a": jnp.ones(1)}),
        "ordered": collections.OrderedDict(z=1, a=jnp.ones(1)),
        "nothing": (None, (), {}, []),
    }


STATES: dict[str, Callable[[], Any]] = {
    "optax": optax_states,
    "linen": linen_state,
    "nnx": nnx_state,
    "equinox": equinox_state,
    "plain": plain_state,
}


def told_apart(tree: Any) -> Any:
    """The same types with other values, so that no leaf has those of another one."""
    count = iter(range(1, 1_000_000))

    def leaf(value: Any) -> Any:
        at = next(count)
        if is_key(value):
            return jax.random.split(jax.random.fold_in(jax.random.key(0, impl=impl_of(value)), at), value.shape)
        if isinstance(value, jax.Array) and value.weak_type:
            return value + at
        if isinstance(value, jax.Array):
            numbers = (np.arange(value.size) * 7 + at) % 11
            return jnp.asarray(numbers.reshape(value.shape).astype(value.dtype))
        return value + at if type(value) in (int, float, complex) and abs(value) < 2**60 else value

    return jax.tree.map(leaf, tree)


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def impl_of(key: Any) -> str:
    return str(jax.random.key_impl(key))


def described(leaf: Any) -> tuple[Any, ...]:
    """All that a program can tell of a leaf: its type, that of its numbers, and their bits."""
    if isinstance(leaf, jax.Array):
        data = np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        is_weak = not is_key(leaf) and leaf.weak_type
        return "jax", str(leaf.dtype), is_weak, leaf.shape, leaf.committed, leaf.sharding, data.tobytes()
    if isinstance(leaf, (np.ndarray, np.generic)):
        return type(leaf), leaf.dtype, leaf.shape, leaf.tobytes()
    if isinstance(leaf, (float, complex)):
        return type(leaf), np.asarray(leaf).tobytes()
    return type(leaf), leaf


def assert_same_state(found: Any, expected: Any) -> None:
    """Two pytrees of JAX are the same: containers, static fields, types of leaves, values to the
    bit.
    """
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    pairs = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True)
    differences = [
        f"{jax.tree_util.keystr(path)}: {described(one)} instead of {described(other)}"
        for (path, one), other in pairs
        if described(one) != described(other)
    ]
    assert not differences, "\n".join(differences)


def assert_same_plainly(found: Any, expected: Any) -> None:
    """What was loaded without a template has the leaves of `expected` under the same keys, as
    NumPy has them.
    """
    mine, theirs = dict(_plain_leaves(found)), dict(_plain_leaves(expected))
    assert mine.keys() == theirs.keys()
    differences = [f"{path}: {mine[path]} instead of {theirs[path]}" for path in theirs if mine[path] != theirs[path]]
    assert not differences, "\n".join(differences)


def _plain_leaves(tree: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        keys = tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
        if is_key(leaf):
            leaf = regrow.PrngKey(np.asarray(jax.random.key_data(leaf)), impl_of(leaf))
        elif isinstance(leaf, jax.Array):
            leaf = np.asarray(leaf)
        yield keys, (leaf.impl, described(leaf.data)) if isinstance(leaf, regrow.PrngKey) else described(leaf)

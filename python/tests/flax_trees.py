"""What people hand to `flax.serialization`: one tree of each kind, by name."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from conftest import same_bits
from flax import nnx, struct
from flax.core import FrozenDict
from flax.training.train_state import TrainState


class Moments(NamedTuple):
    """A named tuple with a leaf of each kind of array."""

    mean: Any
    var: Any


@struct.dataclass
class Stats:
    """A dataclass of Flax with a static field."""

    total: Any
    history: Any
    name: str = struct.field(pytree_node=False, default="loss")


class Net(struct.PyTreeNode):
    """The same by inheritance."""

    weight: Any
    stats: Any
    width: int = struct.field(pytree_node=False, default=3)


class Mlp(nn.Module):
    """Two layers and a batch norm."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Applies it."""
        x = nn.Dense(5)(x)
        x = nn.BatchNorm(use_running_average=True)(x)
        return nn.Dense(2)(x)


class Boxed(nn.Module):
    """A layer whose parameters say how they are laid out."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Applies it."""
        make = nn.with_partitioning(nn.initializers.ones, ("in", None))
        other = nn.with_logical_partitioning(nn.initializers.ones, ("embed", "mlp"))
        return x @ self.param("w", make, (3, 4)) @ self.param("v", other, (4, 2))


def variables() -> dict[str, Any]:
    """Parameters and batch statistics."""
    return Mlp().init(jax.random.key(0), jnp.ones((1, 4)))


def train_state(tx: optax.GradientTransformation) -> TrainState:
    """A state after one step, so that moments are no zeros."""
    params = variables()["params"]
    state = TrainState.create(apply_fn=Mlp().apply, params=params, tx=tx)
    return state.apply_gradients(grads=jax.tree.map(jnp.ones_like, params))


def labels(params: Any) -> Any:
    """Kernels and the rest."""
    return {layer: {name: "a" if name == "kernel" else "b" for name in leaves} for layer, leaves in params.items()}


def of_all_dtypes() -> dict[str, Any]:
    """An array of each dtype that Flax can write and read."""
    names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
    tree: dict[str, Any] = {name: np.arange(6).reshape(2, 3).astype(name) for name in names.split()}
    for name in (
        "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2"
        " float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn float6_e2m3fn float6_e3m2fn int2 int4 uint2 uint4"
    ).split():
        tree[name] = np.array([0, 1, 1], getattr(ml_dtypes, name))
    tree["datetime64"] = np.array(["2020-01-01", "NaT"], "datetime64[ns]")
    tree["timedelta64"] = np.array([1, -1], "timedelta64[3s]")
    return tree


def numpy_scalars() -> dict[str, Any]:
    """A scalar of each kind."""
    return {
        "float64": np.float64(1.5),
        "float32": np.float32(1.5),
        "bool": np.bool_(True),
        "int8": np.int8(-3),
        "complex64": np.complex64(1 + 2j),
        "bfloat16": ml_dtypes.bfloat16(0.5),
        "datetime": np.datetime64("2020-01-01", "s"),
    }


PLAIN = {
    "none": None,
    "bools": [True, False],
    "ints": [0, 127, 128, 255, 256, 2**16, 2**32, 2**64 - 1, -1, -32, -33, -128, -129, -(2**15) - 1, -(2**63)],
    "floats": [0.0, -0.0, 1.5, float("inf"), float("-inf"), 5e-324],
    "complex": 1 - 2j,
    "strs": ["", "x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 65536, "größe"],
    "bytes": [b"", b"y" * 255, b"y" * 256, b"y" * 65536],
}


def nested() -> dict[str, Any]:
    """Containers in containers."""
    return {
        "list": [np.arange(3), [np.ones(2), ()], {}],
        "tuple": (jnp.arange(4), (1,)),
        "moments": Moments(np.zeros(2), Moments(jnp.ones(1), None)),
        "ints": {1: {2: {"deep": np.float32(1)}}, 10: 0, 9: 1},
        "frozen": FrozenDict({"b": {"x": np.ones(2)}, "a": [1, 2]}),
    }


def layouts() -> dict[str, Any]:
    """Arrays whose items do not lie in C order."""
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    return {
        "fortran": np.asfortranarray(base),
        "transposed": base.T,
        "strided": base[:, ::2, ::-1],
        "broadcast": np.broadcast_to(np.float32(3), (4, 2)),
        "empty": np.zeros((0, 3)),
        "zero_dim": np.array(7, np.int16),
    }


def _nnx_model() -> nnx.Module:
    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(2, 3, rngs=rngs), nnx.BatchNorm(3, rngs=rngs), nnx.Linear(3, 1, rngs=rngs))


def nnx_model() -> nnx.Module:
    """A model without a source of randomness, so that it can be written."""
    return _nnx_model()


MAKERS: dict[str, Any] = {
    "linen": variables,
    "frozen_linen": lambda: FrozenDict(variables()),
    "boxed": lambda: Boxed().init(jax.random.key(0), jnp.ones((1, 3))),
    "sgd": lambda: train_state(optax.sgd(0.1)),
    "momentum": lambda: train_state(optax.sgd(0.1, momentum=0.9)),
    "adam": lambda: train_state(optax.adam(1e-3)),
    "adamw_clip": lambda: train_state(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))),
    "adafactor": lambda: train_state(optax.adafactor(1e-3)),
    "multi": lambda: train_state(optax.multi_transform({"a": optax.adam(1e-3), "b": optax.sgd(0.1)}, labels)),
    "multisteps": lambda: train_state(optax.MultiSteps(optax.adam(1e-3), 2).gradient_transformation()),
    "inject": lambda: train_state(optax.inject_hyperparams(optax.adam)(learning_rate=1e-3)),
    "masked": lambda: train_state(
        optax.masked(optax.adam(1e-3), lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params))
    ),
    "ema": lambda: optax.ema(0.9).init(variables()["params"]),
    "nnx_pure": lambda: nnx.to_pure_dict(nnx.state(nnx_model())),
    "partial": lambda: jax.tree_util.Partial(functools.reduce, jnp.ones(2), key=np.arange(2)),
    "struct": lambda: Stats(jnp.ones(2), [1, 2.5], name="x"),
    "pytree_node": lambda: Net({"w": np.ones((2, 2))}, Stats(1, ()), width=9),
    "named_tuple": lambda: Moments(np.ones(3, np.float16), {"x": Moments(1, 2)}),
    "nested": nested,
    "numpy_scalars": numpy_scalars,
    "plain": lambda: PLAIN,
    "dtypes": of_all_dtypes,
    "layouts": layouts,
    "jax_dtypes": lambda: {name: jnp.arange(4).astype(name) for name in ("bfloat16", "float8_e4m3fn", "int4", "bool")},
    "root_array": lambda: jnp.arange(5),
    "root_none": lambda: None,
    "root_number": lambda: 3,
    "root_text": lambda: "x",
    "empty": dict,
    "empty_list": list,
    "wide": lambda: {f"layer_{at}": np.full(1, at) for at in range(70_000)},
}


@functools.cache
def tree(name: str) -> Any:
    """The tree of that name; made once, and not to be changed."""
    return MAKERS[name]()


def assert_same_values(left: Any, right: Any, where: str = "") -> None:
    """Two trees are the same: types of containers, keys and leaves, order of keys, bits; arrays
    may be JAX's.
    """
    assert type(left) is type(right), f"{where}: {type(left)} is not {type(right)}"
    if isinstance(left, dict):
        assert list(map(repr, left)) == list(map(repr, right)), f"{where}: keys or their order"
        for key in left:
            assert_same_values(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), f"{where}: length"
        for at, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_same_values(one, other, f"{where}/{at}")
    elif hasattr(left, "dtype"):
        assert same_bits(left, right), f"{where}: {left!r} is not {right!r}"
    else:
        assert repr(left) == repr(right), f"{where}: {left!r} is not {right!r}"

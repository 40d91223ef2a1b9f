"""Trees that the tests of Equinox files share, and how they compare them and the errors."""

from __future__ import annotations

import collections
import enum
import io
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from conftest import same_bits


class Colour(enum.IntEnum):
    RED = 3


class Net(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    head: eqx.nn.MLP
    activation: Callable[[Any], Any]
    name: str
    depth: int = eqx.field(static=True)

    def __init__(self, key: Any) -> None:
        one, two = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(3, 4, 3, key=one)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.25)
        self.head = eqx.nn.MLP(4, 2, 8, 2, key=two)
        self.activation = jax.nn.relu
        self.name, self.depth = "net", 2


def net(seed: int) -> Any:
    """Model, its state and an optimizer's: what a training program saves."""
    model, state = eqx.nn.make_with_state(Net)(jax.random.PRNGKey(seed))
    optimizer = optax.chain(optax.clip(1.0), optax.adamw(1e-3))
    params = eqx.filter(model, eqx.is_inexact_array)
    _, opt_state = optimizer.update(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
    return model, state, opt_state, seed


def mixed(seed: int) -> Any:
    generator = np.random.default_rng(seed)
    return {
        "z": jnp.arange(6.0).reshape(2, 3) + seed,
        "a": [np.arange(4) * seed, None, (), {"": np.float32(seed / 7)}, {}],
        "numbers": (seed > 1, seed, seed / 3, complex(seed, -1), 2**64 - seed, Colour.RED),
        "ordered": collections.OrderedDict(z=np.int8(seed), a=jnp.array(seed)),
        "default": collections.defaultdict(list, {"b": 1.5 * seed, "a": True}),
        "skipped": ("text", b"bytes", len, object, ...),
        "scalars": [dtype(seed) for dtype in (np.bool_, np.int16, np.uint64, np.float16, np.complex64)],
        "bf16": (jnp.array([seed / 3], jnp.bfloat16), jnp.bfloat16(seed / 3)),
        "layouts": {
            "fortran": np.asfortranarray(generator.normal(size=(3, 4))),
            "strided": generator.normal(size=(6, 8))[::2, ::-3],
            "big": np.array([1.5, seed], ">f4"),
            "big_fortran": np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
            "no_axis": np.array(seed),
            "empty": np.zeros((3, 0, 2), np.float32),
            "read_only": np.broadcast_to(np.arange(3), (2, 3)),
        },
        "odd": [
            np.array(["ab", "ü☃c"]),
            np.array([b"x", b"yz"]),
            np.array(["2020-01-01", "NaT"], "M8[D]"),
            np.array([1, 2], "m8[ns]"),
            np.array([(1, 2.5)], [("a", "<i4"), ("b", ">f8", (2,))]),
            np.array([(1,)], [("n☃", "<f4")]),
            np.zeros(2, "V5"),
            np.array([1, 3], np.longdouble) / 3,
            np.str_("abc"),
        ],
    }


def without(tree: Any) -> Any:
    """The same tree with other values, for `like`."""

    def other(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return jnp.zeros_like(leaf)
        if isinstance(leaf, np.ndarray):
            return np.zeros_like(leaf, order="C")
        return type(leaf)(leaf * 0) if isinstance(leaf, (float, complex, np.number)) else leaf

    return jax.tree.map(other, tree)


TREES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "net": lambda: (net(1), net(2)),
    "mixed": lambda: (mixed(3), without(mixed(3))),
    "leaf": lambda: (jnp.arange(3), jnp.zeros(3, int)),
}
"""Makes each tree, and its like: only the tests that need one compile it."""


def assert_leaves(left: Any, right: Any) -> None:
    """Same structure, same types of leaves, same bits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for (path, one), other in zip(jax.tree.leaves_with_path(left), jax.tree.leaves(right), strict=True):
        assert type(one) is type(other), path
        if isinstance(one, (jax.Array, np.ndarray, np.generic, float, complex)):
            assert same_bits(one, other), path
        elif not callable(one):
            assert one == other, path


def written(function: Any, tree: Any, *arguments: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    function(file, tree, *arguments, **options)
    return file.getvalue()


def chain(error: BaseException | None) -> list[Any]:
    """Class names, first lines and paths, from the error down to its last cause."""
    out: list[Any] = []
    while error is not None:
        # Of what a record looks like instead, the first words are the same.
        words = str(error).split("\n")[0][: None if isinstance(error, RuntimeError) else 39]
        out.append((type(error).__name__, words, getattr(error, "path", None)))
        error = error.__cause__
    return out

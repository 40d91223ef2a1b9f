"""JAX, Flax, Equinox and optax: states go round with `like=`, and come back on their devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import assert_same, same_bits
from flax import nnx
from flax.core import FrozenDict
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import regrow


def assert_same_tree(left: Any, right: Any) -> None:
    """Two JAX pytrees of the same structure, bit for bit."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for (path, one), (_, other) in zip(jax.tree.leaves_with_path(left), jax.tree.leaves_with_path(right), strict=True):
        where = jax.tree_util.keystr(path)
        assert type(one) is type(other), where
        if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            assert one.dtype == other.dtype, where
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        if callable(one):
            assert one is other, where
        else:
            assert same_bits(one, other), where


def zeros_like(tree: Any) -> Any:
    """The same tree with other values in its arrays."""
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if isinstance(leaf, jax.Array) else leaf, tree)


@flax.struct.dataclass
class TrainState:
    step: jax.Array
    params: Any
    apply: Any = flax.struct.field(pytree_node=False)


PARAMS = {
    "dense": {"kernel": jnp.arange(12, dtype=jnp.bfloat16).reshape(3, 4), "bias": jnp.ones(4)},
    "scale": jnp.float32(0.5),
}


@pytest.mark.parametrize("layout", ["regrow", "orbax"])
@pytest.mark.parametrize(
    "tree",
    {
        "params": PARAMS,
        "adam": optax.adam(1e-3).init(PARAMS),
        "a chain": optax.chain(optax.clip(1.0), optax.adamw(1e-3), optax.ema(0.9)).init(PARAMS),
        "a train state": TrainState(jnp.int32(3), PARAMS, print),
        "a frozen dict": FrozenDict({"a": {"b": jnp.ones(2)}}),
    }.items(),
    ids=lambda item: item[0],
)
def test_states_go_round(path: Path, tree: tuple[str, Any], layout: str) -> None:
    state = tree[1]
    regrow.save(path, state, layout=layout)
    assert_same_tree(regrow.load(path, like=zeros_like(state)), state)
    shapes = jax.eval_shape(lambda: state) if not isinstance(state, TrainState) else state
    assert_same_tree(regrow.load(path, like=shapes), state)


def test_equinox_arrays_come_from_the_file_and_the_rest_from_like(path: Path) -> None:
    model = eqx.nn.MLP(2, 3, 8, 2, key=jax.random.key(0))
    with pytest.raises(regrow.errors.LeafTypeError, match=r"equinox\.filter") as caught:
        regrow.save(path, model)
    assert caught.value.leaf is not None
    assert "activation" in caught.value.leaf
    regrow.save(path, eqx.filter(model, eqx.is_array))
    other = eqx.nn.MLP(2, 3, 8, 2, key=jax.random.key(1))
    restored = regrow.load(path, like=other)
    assert_same_tree(restored, model)
    np.testing.assert_array_equal(restored(jnp.ones(2)), model(jnp.ones(2)))


def test_nnx_state(path: Path) -> None:
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    regrow.save(path, state)
    like = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(1)))
    restored = regrow.load(path, like=like)
    assert type(restored) is type(state)
    assert_same_tree(restored, state)
    nnx.update(model, restored)


def test_without_a_template_there_is_only_numpy(path: Path) -> None:
    regrow.save(path, PARAMS)
    loaded = regrow.load(path)
    dense = {name: np.asarray(array) for name, array in PARAMS["dense"].items()}
    assert_same(loaded, {"dense": dense, "scale": np.asarray(PARAMS["scale"])})
    assert regrow.open(path)["scale"].kind == "jax_array"


def test_dicts_keep_their_order_where_jax_would_sort(path: Path) -> None:
    regrow.save(path, {"b": jnp.ones(1), "a": jnp.zeros(1)})
    assert list(regrow.load(path)) == ["b", "a"]
    assert list(regrow.load(path, like={"b": jnp.ones(1), "a": jnp.ones(1)})) == ["b", "a"]


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_prng_keys(path: Path, tmp_path: Path, implementation: str, shape: tuple[int, ...]) -> None:
    key = jax.random.key(7, impl=implementation)
    keys = jax.random.split(key, shape) if shape else key
    regrow.save(path, {"rng": keys})
    loaded = regrow.load(path)["rng"]
    assert isinstance(loaded, regrow.PrngKey)
    assert loaded.impl == implementation
    np.testing.assert_array_equal(loaded.data, jax.random.key_data(keys))
    assert loaded.wrap().dtype == keys.dtype
    like = jax.random.key(0, impl=implementation)
    like = jnp.broadcast_to(like, shape)
    assert_same_tree(regrow.load(path, like={"rng": like}), {"rng": keys})
    regrow.save(tmp_path / "again", {"rng": loaded})
    assert regrow.load(tmp_path / "again") == {"rng": loaded}


def test_raw_keys_are_arrays(path: Path) -> None:
    regrow.save(path, {"rng": jax.random.PRNGKey(3)})
    np.testing.assert_array_equal(regrow.load(path)["rng"], jax.random.PRNGKey(3))


MESH = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))


def test_sharded_arrays_are_gathered_and_spread_again(path: Path) -> None:
    sharding = NamedSharding(MESH, PartitionSpec("x", "y"))
    array = jax.device_put(jnp.arange(32.0).reshape(4, 8), sharding)
    regrow.save(path, {"w": array})
    np.testing.assert_array_equal(regrow.load(path)["w"], np.arange(32.0).reshape(4, 8))
    restored = regrow.load(path, like={"w": array})["w"]
    assert restored.sharding == sharding
    np.testing.assert_array_equal(restored, array)
    described = regrow.open(path)["w"].sharding
    assert described["sharding_type"] == "NamedSharding"
    assert (described["shape"], described["axis_names"]) == ([2, 2], ["x", "y"])
    assert described["partition_spec"] == ["x", "y"]
    assert described["device_mesh"]["mesh"][0][1] == {"id": jax.devices()[1].id}


def test_shardings_by_glob_for_all_and_with_like(path: Path) -> None:
    by_x, second = NamedSharding(MESH, PartitionSpec("x")), SingleDeviceSharding(jax.devices()[1])
    regrow.save(path, {"p": {"w": np.zeros((4, 2)).astype(np.float32), "b": np.float32([1])}, "n": 3})
    loaded = regrow.load(path, shardings={"p/w": by_x})
    assert loaded["p"]["w"].sharding == by_x
    assert type(loaded["p"]["b"]) is np.ndarray
    everywhere = regrow.load(path, shardings=second)
    assert {everywhere["p"]["w"].sharding, everywhere["p"]["b"].sharding} == {second}
    assert everywhere["n"] == 3
    like = {"p": {"w": jnp.zeros((4, 2)), "b": jax.ShapeDtypeStruct((1,), jnp.float32, sharding=second)}, "n": 0}
    restored = regrow.load(path, like=like, shardings={"p": {"w": by_x}})
    assert restored["p"]["w"].sharding == by_x
    assert restored["p"]["b"].sharding == second
    with pytest.raises(regrow.errors.InvalidArgumentError, match=r"not a jax\.sharding\.Sharding"):
        regrow.load(path, shardings={"p": 3})


def test_like_decides_what_a_leaf_becomes(path: Path) -> None:
    values = {"a": np.float32([1, 2]), "b": np.float32([3]), "s": np.float32(4), "i": 5, "t": "text", "f": 0.5}
    regrow.save(path, values)
    restored = regrow.load(
        path, like={"a": jnp.zeros(2), "b": np.zeros(1, np.float32), "s": np.float32(0), "i": 0, "t": "", "f": 1.0}
    )
    assert isinstance(restored["a"], jax.Array)
    assert type(restored["b"]) is np.ndarray
    assert type(restored["s"]) is np.float32
    assert (restored["i"], restored["t"], restored["f"]) == (5, "text", 0.5)


def test_only_and_partial_with_like(path: Path) -> None:
    regrow.save(path, {"a": np.float32([1]), "b": np.float32([2])})
    like = {"a": jnp.zeros(1), "b": jnp.float32([9])}
    restored = regrow.load(path, like=like, only="a")
    assert restored["a"] == 1
    assert restored["b"] is like["b"]
    with pytest.raises(regrow.errors.MismatchError, match="extra"):
        regrow.load(path, like={"a": jnp.zeros(1)})
    assert regrow.load(path, like={"a": jnp.zeros(1)}, extra="drop")["a"] == 1
    assert regrow.load(path, like={"a": ..., "b": jnp.zeros(1)})["a"] is ...


def test_what_jax_would_narrow_is_refused(path: Path) -> None:
    assert not jax.config.jax_enable_x64
    regrow.save(path, {"w": np.arange(3)})
    with pytest.raises(regrow.errors.UnsupportedError, match="jax_enable_x64"):
        regrow.load(path, like={"w": jax.ShapeDtypeStruct((3,), np.int64)})
    with jax.enable_x64(True):
        assert regrow.load(path, like={"w": jax.ShapeDtypeStruct((3,), np.int64)})["w"].dtype == np.int64


def test_deleted_arrays_and_tracers_are_refused(path: Path) -> None:
    array = jnp.ones(3)
    array.delete()
    with pytest.raises(regrow.errors.InvalidArgumentError, match="donated") as caught:
        regrow.save(path, {"w": [array]})
    assert caught.value.leaf == "w/0"
    with pytest.raises(regrow.errors.LeafTypeError, match="tracer"):
        jax.jit(lambda x: regrow.save(path, {"w": x}))(jnp.ones(2))
    with pytest.raises(regrow.errors.LeafTypeError, match="no data"):
        regrow.save(path, {"w": jax.ShapeDtypeStruct((2,), jnp.float32)})
    assert not path.exists()


def test_classes_registered_by_hand(path: Path) -> None:
    class Pair:
        def __init__(self, left: Any, right: Any) -> None:
            self.left, self.right = left, right

    jax.tree_util.register_pytree_node(Pair, lambda p: ((p.left, p.right), None), lambda _, c: Pair(*c))
    regrow.save(path, {"p": Pair(jnp.ones(2), Pair(3, None))})
    loaded = regrow.load(path)["p"]
    assert isinstance(loaded, regrow.Node)
    assert loaded[1][0] == 3
    restored = regrow.load(path, like={"p": Pair(jnp.zeros(2), Pair(0, None))})["p"]
    assert type(restored) is Pair
    assert (restored.right.left, restored.right.right) == (3, None)


def test_nodes_are_pytrees_of_jax(path: Path) -> None:
    regrow.save(path, TrainState(jnp.int32(3), PARAMS, None))
    loaded = regrow.load(path)
    doubled = jax.tree.map(lambda leaf: leaf * 2, loaded)
    assert doubled.step == 6
    np.testing.assert_array_equal(doubled.params["dense"]["bias"], 2)


def test_loaded_views_can_be_donated_safely(path: Path) -> None:
    """JAX on CPU may take a NumPy view as it is; a donation must not write into the checkpoint."""
    regrow.save(path, {"w": np.ones((512, 512), np.float32)})
    restored = regrow.load(path, like={"w": jnp.zeros((512, 512))})["w"]
    jax.jit(lambda w: w + 1, donate_argnums=0)(restored).block_until_ready()
    assert regrow.verify(path).ok
    np.testing.assert_array_equal(regrow.load(path)["w"], 1)


def test_a_key_of_another_implementation_does_not_fit(path: Path) -> None:
    regrow.save(path, {"key": jax.random.key(3, impl="rbg")})
    same = regrow.load(path, like={"key": jax.random.key(4, impl="rbg")})
    assert jnp.array_equal(jax.random.key_data(same["key"]), jax.random.key_data(jax.random.key(3, impl="rbg")))
    with pytest.raises(regrow.errors.MismatchError, match="unsafe_rbg"):
        regrow.load(path, like={"key": jax.random.key(4, impl="unsafe_rbg")})


def test_a_selection_that_selects_nothing_of_a_template_is_an_error(path: Path) -> None:
    regrow.save(path, {"a": np.arange(3)})
    with pytest.raises(regrow.errors.NotFoundError, match="zz"):
        regrow.load(path, like={"a": np.zeros(3, np.int64)}, only="zz")


def test_what_is_stored_is_not_passed_over_for_what_cannot_be(path: Path) -> None:
    regrow.save(path, {"a": np.arange(3)})
    with pytest.raises(regrow.errors.MismatchError, match="function"):
        regrow.load(path, like={"a": lambda: None})
    assert regrow.load(path, like={"a": ...}) == {"a": ...}

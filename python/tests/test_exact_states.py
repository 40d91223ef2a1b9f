"""A restored training state is the saved one: types as well as values, for every kind of state that
programs have.

What differs in type alone goes on differently: JAX compiles another program for it, which may round
otherwise, and a dtype of a result may become another one.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import equinox as eqx
import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from training_states import (
    KEYS,
    STATES,
    Pair,
    Registered,
    Struct,
    TrainState,
    assert_same_plainly,
    assert_same_state,
    nnx_parts,
    told_apart,
)

import regrow

FOLDERS = itertools.count()


@pytest.fixture(scope="module", params=STATES)
def blank(request: pytest.FixtureRequest) -> Any:
    """A state as a program makes it before it restores."""
    return STATES[request.param]()


@pytest.fixture(scope="module")
def state(blank: Any) -> Any:
    """The same with other values."""
    return told_apart(blank)


def abstract(tree: Any) -> Any:
    """Descriptions in the places of JAX arrays; everything else as it is."""
    return jax.tree.map(lambda leaf: jax.eval_shape(lambda: leaf) if isinstance(leaf, jax.Array) else leaf, tree)


def saved(folder: Path, tree: Any, *, in_background: bool = False) -> Path:
    path = folder / str(next(FOLDERS))
    if in_background:
        regrow.save_async(path, tree, durable=False).result()
    else:
        regrow.save(path, tree, durable=False)
    return path


def test_into_a_state_and_into_descriptions_of_one(tmp_path: Path, blank: Any, state: Any) -> None:
    path = saved(tmp_path, state)
    assert_same_state(regrow.load(path, like=blank), state)
    assert_same_state(regrow.load(path, like=abstract(blank)), state)


def test_what_was_saved_in_the_background(tmp_path: Path, blank: Any, state: Any) -> None:
    assert_same_state(regrow.load(saved(tmp_path, state, in_background=True), like=blank), state)


def test_without_a_template_and_through_a_program_that_has_no_classes(tmp_path: Path, blank: Any, state: Any) -> None:
    plain = regrow.load(saved(tmp_path, state))
    assert_same_plainly(plain, state)
    assert_same_state(regrow.load(saved(tmp_path, plain), like=blank), state)


# ---- any tree of all that -------------------------------------------------------------

BITS = st.integers(0, 100)
ARRAYS = st.builds(
    lambda dtype, shape, at: jnp.asarray((np.arange(np.prod(shape, dtype=int)) + at).reshape(shape).astype(dtype)),
    st.sampled_from([np.float32, jnp.bfloat16, np.int32, np.uint8, np.complex64, np.bool_, jnp.float8_e4m3fn]),
    st.sampled_from([(), (1,), (0, 2), (2, 3)]),
    BITS,
)
WEAK = st.builds(lambda kind, at: jnp.asarray(kind(at)), st.sampled_from([int, float, complex]), BITS)
PRNG = st.builds(jax.random.fold_in, st.sampled_from(list(KEYS.values())), BITS)
NUMPY = st.builds(lambda kind, at: kind(at), st.sampled_from([np.float64, np.int64, np.float16, np.arange]), BITS)
NUMBERS = st.one_of(st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.complex_numbers())
LEAVES = st.one_of(ARRAYS, WEAK, PRNG, NUMPY, NUMBERS)
TREES = st.recursive(
    LEAVES,
    lambda below: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "c/d"]), below, min_size=1, max_size=3),
        st.lists(below, max_size=3),
        st.tuples(below, below),
        st.builds(Pair, below, st.one_of(below, st.none())),
        st.builds(Registered, below, st.text(max_size=2)),
        st.builds(Struct, below, st.text(max_size=2)),
        st.builds(nnx.Param, ARRAYS),
    ),
    max_leaves=6,
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tree=TREES, in_background=st.booleans())
def test_any_tree_is_a_template_for_itself(tmp_path: Path, tree: Any, in_background: bool) -> None:
    path = saved(tmp_path, tree, in_background=in_background)
    assert_same_state(regrow.load(path, like=tree), tree)
    assert_same_state(regrow.load(path, like=abstract(tree)), tree)
    assert_same_plainly(regrow.load(path), tree)


# ---- numbers that were Python's, and arrays that JAX has made of them -----------------


def train_state(step: Any) -> TrainState:
    return TrainState(step=step, apply_fn=None, params={"w": jnp.ones(2)}, tx=None, opt_state=())


def test_the_step_of_a_train_state_before_and_after_the_first_step(tmp_path: Path) -> None:
    """`TrainState.create` has the number 0 there, a step in `jax.jit` makes an array of a weak
    type of it.
    """
    fresh, begun = train_state(0), train_state(jnp.asarray(7))
    assert type(regrow.load(saved(tmp_path, begun), like=fresh).step) is int
    restored = regrow.load(saved(tmp_path, train_state(5)), like=jax.eval_shape(lambda: fresh))
    assert_same_state(restored, train_state(jnp.asarray(5)))
    assert_same_state(regrow.load(saved(tmp_path, train_state(5)), like=begun), train_state(jnp.asarray(5)))


@pytest.mark.parametrize(
    ("stored", "like"),
    [(2**40, jnp.asarray(0)), (1.5, jnp.asarray(0)), (1, jnp.asarray(0.5)), (1e300, jnp.asarray(0.5))],
)
def test_a_number_that_jax_could_not_hold_as_it_is(tmp_path: Path, stored: Any, like: Any) -> None:
    path = saved(tmp_path, {"opt": {"n": stored}})
    with pytest.raises(regrow.errors.MismatchError, match=rf"opt/n: template {like.dtype}, stored (int|float)64"):
        regrow.load(path, like={"opt": {"n": like}})


@pytest.mark.parametrize("stored", [np.int64(3), np.float32([1.5]), "text", jax.random.key(0)])
def test_what_is_no_number_of_python_does_not_become_one(tmp_path: Path, stored: Any) -> None:
    with pytest.raises(regrow.errors.MismatchError, match=r" n: "):
        regrow.load(saved(tmp_path, {"n": stored}), like={"n": jnp.asarray(0)})


def test_weak_types_decide_what_jax_computes(tmp_path: Path) -> None:
    """`jax.jit` has one program for a weak type and one for a strong one: the restored array
    gets its own.
    """
    weak, strong = jnp.asarray(0.5), jnp.float32(0.5)
    restored = regrow.load(saved(tmp_path, [weak, strong]), like=[jnp.asarray(0.0), jnp.float32(0)])
    times = jax.jit(lambda number: number * jnp.bfloat16(2))
    assert [times(each).dtype for each in (strong, weak)] == [jnp.float32, jnp.bfloat16]
    assert [times(each).dtype for each in restored] == [jnp.bfloat16, jnp.float32]


def test_weak_types_on_many_devices(tmp_path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    everywhere, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("x"))
    weak = {
        "step": jax.device_put(jnp.asarray(3), everywhere),
        "many": jax.device_put(jnp.broadcast_to(jnp.asarray(2.5), (8,)), spread),
    }
    path = saved(tmp_path, weak)
    assert_same_state(regrow.load(path, like=weak), weak)
    described = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=True)
        for name, leaf in weak.items()
    }
    assert_same_state(regrow.load(path, like=described), weak)
    assert_same_state(regrow.load(saved(tmp_path, {**weak, "step": 3}), like=weak), weak)
    here = SingleDeviceSharding(jax.devices()[1])
    moved = regrow.load(path, like=weak, shardings={"step": here})["step"]
    assert moved.weak_type and moved.sharding == here


# ---- 64 bits --------------------------------------------------------------------------


def test_states_of_64_bits(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        params = {"w": jnp.arange(3.0), "n": jnp.arange(3)}
        assert params["w"].dtype == np.float64
        state = {
            "params": params,
            "opt": optax.adam(1e-3).init({"w": params["w"]}),
            "weak": [jnp.asarray(1), jnp.asarray(0.1), jnp.asarray(1j)],
            "numbers": [1, 0.1, 1j, True],
            "key": jax.random.key(1),
        }
        blank = jax.tree.map(lambda leaf: leaf, state)
        state = told_apart(state)
        path = saved(tmp_path, state)
        assert_same_state(regrow.load(path, like=blank), state)
        assert_same_state(regrow.load(path, like=abstract(blank)), state)
        numbers = regrow.load(path, like=jax.eval_shape(lambda: blank))["numbers"]
        assert [(leaf.dtype, leaf.weak_type) for leaf in numbers[:3]] == [
            (np.int64, True),
            (np.float64, True),
            (np.complex128, True),
        ]
    # A program of 32 bits is told, and nothing is rounded.
    with pytest.raises(regrow.RegrowError, match="jax_enable_x64"):
        regrow.load(path, like=blank)
    assert_same_plainly(regrow.load(path), state)


# ---- modules --------------------------------------------------------------------------


def test_nnx_modules_that_were_never_made(tmp_path: Path) -> None:
    """`nnx.eval_shape` gives a module without arrays: the state goes into it, and it is the one
    that was saved.
    """
    model, optimizer = nnx_parts()
    state = told_apart(nnx.state((model, optimizer)))
    path = saved(tmp_path, state)
    graph, like = nnx.split(nnx.eval_shape(nnx_parts))
    restored = regrow.load(path, like=like)
    assert_same_state(restored, state)
    model, _ = nnx.merge(graph, restored)
    np.testing.assert_array_equal(model.layers[1].kernel[...], state[0]["layers"][1]["kernel"][...])


def test_an_equinox_module_with_functions_and_numbers(tmp_path: Path) -> None:
    """Arrays go to the file, the rest comes from the program: `equinox.partition` and `combine`."""

    def make(seed: int) -> Any:
        return eqx.nn.make_with_state(Classifier)(jax.random.key(seed))

    model, state = make(0)
    path = saved(tmp_path, eqx.filter((model, state), eqx.is_array))
    arrays, rest = eqx.partition(make(1), eqx.is_array)
    restored = eqx.combine(regrow.load(path, like=arrays), rest)
    assert_same_state(eqx.filter(restored, eqx.is_array), eqx.filter((model, state), eqx.is_array))
    shapes, rest = eqx.partition(eqx.filter_eval_shape(make, 1), lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    restored = eqx.combine(regrow.load(path, like=shapes), rest)
    assert_same_state(eqx.filter(restored, eqx.is_array), eqx.filter((model, state), eqx.is_array))
    assert restored[0].mlp.activation is model.mlp.activation and restored[0].dropout.p == 0.5


class Classifier(eqx.Module):
    mlp: eqx.nn.MLP
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout

    def __init__(self, key: jax.Array) -> None:
        self.mlp = eqx.nn.MLP(2, 3, 4, 1, key=key)
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.5)


# ---- data -----------------------------------------------------------------------------


def dataset() -> Any:
    return iter(grain.MapDataset.range(40).shuffle(seed=1).batch(2).to_iter_dataset())


def loader() -> Any:
    shards = grain.ShardOptions(0, 1)
    sampler = grain.IndexSampler(40, shards, shuffle=True, num_epochs=1, seed=1)
    return iter(grain.DataLoader(data_source=list(range(40)), sampler=sampler, worker_count=0))


@pytest.mark.parametrize("make", [dataset, loader])
def test_the_place_in_the_data(tmp_path: Path, make: Any) -> None:
    """grain's iterators say where they are in numbers (a dataset's) or in bytes (a loader's)."""
    rows = make()
    for _ in range(5):
        next(rows)
    place = rows.get_state()
    path = saved(tmp_path, {"step": 5, "data": place})
    for restored in (regrow.load(path), regrow.load(path, like={"step": 0, "data": make().get_state()})):
        assert type(restored["data"]) is type(place) and restored["data"] == place
        again = make()
        again.set_state(restored["data"])
        rows.set_state(place)
        assert [np.asarray(next(again)).tolist() for _ in range(5)] == [
            np.asarray(next(rows)).tolist() for _ in range(5)
        ]

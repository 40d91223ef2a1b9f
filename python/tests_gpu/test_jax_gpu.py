"""JAX arrays on a GPU, judged by Orbax, and by their own bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

import regrow

jax.config.update("jax_enable_x64", True)

GPU = jax.devices("gpu")[0]

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)
LAYOUTS = ("regrow", "orbax", "npy", "flax")


def bits(array: Any) -> bytes:
    return np.asarray(array).tobytes()


def random_array(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return jax.device_put(rng.integers(0, 2, shape).astype(bool), GPU)
    item = np.dtype(getattr(jnp, dtype)).itemsize
    raw = rng.integers(0, 120, (*shape, item), dtype=np.uint8)
    return jax.device_put(raw.view(getattr(jnp, dtype)).reshape(shape), GPU)


def tree() -> dict[str, Any]:
    arrays = {dtype: random_array(dtype, (3, 5)) for dtype in DTYPES}
    arrays["large"] = random_array("float32", (1000, 1003), 1)
    arrays["scalar"] = random_array("float32", (), 2)
    arrays["none"] = random_array("bfloat16", (0, 4), 3)
    return arrays


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert bits(found[name]) == bits(array), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_dtype_comes_back_on_the_gpu(layout: str, tmp_path: Path) -> None:
    # Orbax' own form has no arrays without elements.
    saved = {name: array for name, array in tree().items() if array.size or layout != "orbax"}
    path = tmp_path / ("x.msgpack" if layout == "flax" else "x")
    regrow.save(path, saved, layout=layout)
    loaded = regrow.load(path, like=saved)
    assert_same(loaded, saved)
    assert all(array.devices() == {GPU} for array in loaded.values())
    assert_same(regrow.load(path), saved)
    assert regrow.verify(path).ok


def test_orbax_reads_what_we_save_from_the_gpu(tmp_path: Path) -> None:
    # Orbax gives no array for one without elements.
    saved = {name: array for name, array in tree().items() if array.size}
    regrow.save(tmp_path / "x", saved)
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, saved)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        loaded = checkpointer.restore(tmp_path / "x", args=ocp.args.StandardRestore(like))
    assert_same(loaded, saved)


def test_we_read_what_orbax_saves_from_the_gpu(tmp_path: Path) -> None:
    saved = {name: array for name, array in tree().items() if array.size}
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "x", args=ocp.args.StandardSave(saved))
    loaded = regrow.load(tmp_path / "x", like=saved)
    assert_same(loaded, saved)
    assert all(array.devices() == {GPU} for array in loaded.values())


def test_memory_that_is_donated_behind_a_save_is_saved_as_it_was(tmp_path: Path) -> None:
    update = jax.jit(lambda state: jax.tree.map(lambda array: array * 2 + 1, state), donate_argnums=0)
    state = {"large": random_array("float32", (2000, 2000)), "small": random_array("float32", (7,), 1)}
    wanted = []
    savings = []
    for step in range(4):
        wanted.append(jax.tree.map(np.array, state))
        savings.append(regrow.save_async(tmp_path / str(step), state))
        state = update(state)
    for saving in savings:
        saving.wait()
    for step, arrays in enumerate(wanted):
        assert_same(regrow.load(tmp_path / str(step)), arrays)


def test_an_array_in_pinned_memory_of_the_host(tmp_path: Path) -> None:
    sharding = jax.sharding.SingleDeviceSharding(GPU, memory_kind="pinned_host")
    saved = {"x": jax.device_put(random_array("float32", (100, 100)), sharding)}
    regrow.save(tmp_path / "x", saved)
    loaded = regrow.load(tmp_path / "x", like=saved)
    assert_same(loaded, saved)
    assert loaded["x"].sharding.memory_kind == "pinned_host"


def test_keys_of_random_numbers(tmp_path: Path) -> None:
    saved = {"key": jax.random.key(7), "keys": jax.random.split(jax.random.key(8), 3)}
    regrow.save(tmp_path / "x", saved)
    loaded = regrow.load(tmp_path / "x", like=saved)
    assert all(jax.random.normal(loaded["key"], (5,)) == jax.random.normal(saved["key"], (5,)))
    assert bits(jax.random.key_data(loaded["keys"])) == bits(jax.random.key_data(saved["keys"]))


def test_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    optimizer = optax.adamw(1e-3)

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((jnp.tanh(batch @ params["a"]) @ params["b"]) ** 2)

    @jax.jit
    def train(state: Any, key: Any) -> Any:
        batch = jax.random.normal(key, (64, 32))
        updates, opt = optimizer.update(jax.grad(loss)(state["params"], batch), state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}

    params = {"a": random_array("float32", (32, 16)) * 0 + 0.1, "b": random_array("float32", (16, 1)) * 0 + 0.2}
    state: Any = {"params": params, "opt": optimizer.init(params)}
    for step in range(3):
        state = train(state, jax.random.key(step))
    regrow.save(tmp_path / "x", state)
    other = regrow.load(tmp_path / "x", like=state)
    for step in range(3, 8):
        state, other = train(state, jax.random.key(step)), train(other, jax.random.key(step))
    assert [bits(leaf) for leaf in jax.tree.leaves(other)] == [bits(leaf) for leaf in jax.tree.leaves(state)]


def test_steps_of_a_manager(tmp_path: Path) -> None:
    state = {"x": random_array("float32", (500, 500))}
    with regrow.Manager(tmp_path / "run", keep=2) as manager:
        for step in range(5):
            manager.save(step, jax.tree.map(lambda array, step=step: array + step, state))
        manager.wait()
        restored = manager.restore(like=state)
    assert bits(restored["x"]) == bits(state["x"] + 4)
    assert restored["x"].devices() == {GPU}

"""JAX arrays in background saves: what is in the checkpoint, and that JAX is neither hindered
nor raced.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout

import regrow
from regrow._leaves import _columns
from regrow.jobs import AsyncSaver

RANDOM = np.random.default_rng(0)
SLOW = {str(i): RANDOM.integers(0, 256, 1 << 20, np.uint8) for i in range(60)}
"""With `SLOW_OPTIONS`, a save of this takes many seconds; the test works in that time and then
cancels it.
"""
SLOW_OPTIONS: dict[str, Any] = {"layout": "orbax", "compression": ("zstd", 15), "durable": False}

EXACT = (
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "complex64"),
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
PACKED = ("int2", "int4", "uint2", "uint4", "float4_e2m1fn")
"""JAX packs several elements of these dtypes into a byte, or does not show them at all."""

donating = jax.jit(lambda tree: jax.tree.map(lambda x: -x, tree), donate_argnums=0)


@pytest.fixture
def saver() -> Iterator[AsyncSaver]:
    with AsyncSaver() as saver:
        yield saver


def array_of(dtype_name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Elements of any bits, so that an array of another dtype or order shows."""
    dtype = np.dtype(getattr(ml_dtypes, dtype_name, dtype_name))
    if dtype_name in PACKED or dtype_name == "bool":
        return RANDOM.integers(0, 2, shape).astype(dtype)
    if dtype_name == "complex64":
        return (RANDOM.normal(size=shape) + 1j * RANDOM.normal(size=shape)).astype(dtype)
    bits = RANDOM.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return np.ascontiguousarray(bits).view(dtype)[..., 0] if shape else bits.view(dtype).reshape(())


def bits_of(array: Any) -> tuple[Any, tuple[int, ...], bytes]:
    array = np.asarray(array)
    return array.dtype, array.shape, array.tobytes()


@pytest.mark.parametrize("copy", ["mutable", "all", "nothing"])
def test_every_dtype_small_and_large(tmp_path: Path, saver: AsyncSaver, copy: Any) -> None:
    shapes = {"large": (70, 1024), "small": (3, 5), "scalar": (), "empty": (0, 3)}
    held = {n: {s: array_of(n, shape) for s, shape in shapes.items()} for n in (*EXACT, *PACKED)}
    tree = jax.tree.map(jnp.asarray, held)
    save = saver.save(tmp_path / "x", tree, options=regrow.Options(copy=copy, check_source=True))
    regrow.save(tmp_path / "now", tree)
    save.result()
    for name in ("x", "now"):
        loaded = regrow.load(tmp_path / name)
        for dtype_name, arrays in held.items():
            for shape_name, array in arrays.items():
                assert bits_of(loaded[dtype_name][shape_name]) == bits_of(array), (dtype_name, shape_name)
    everything = sum(array.nbytes for arrays in held.values() for array in arrays.values())
    below = sum(array.nbytes for arrays in held.values() for array in arrays.values() if array.nbytes < 4 << 10)
    assert save.blocked.copied_bytes == {"mutable": below, "all": everything, "nothing": 0}[copy]


def test_arrays_that_lie_otherwise(tmp_path: Path, saver: AsyncSaver) -> None:
    plain = jnp.arange(24, dtype=jnp.bfloat16).reshape(2, 3, 4)
    columns = Format(Layout(major_to_minor=(2, 0, 1)), plain.sharding)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    spec = jax.sharding.PartitionSpec
    tree = {
        "in another order": jax.jit(lambda x: x, out_shardings=columns)(plain),
        "spread": jax.device_put(plain, jax.sharding.NamedSharding(mesh, spec("x"))),
        "everywhere": jax.device_put(plain, jax.sharding.NamedSharding(mesh, spec())),
        "on another device": jax.device_put(plain, jax.devices()[1]),
        "here": plain,
    }
    assert tree["in another order"].format.layout.major_to_minor == (2, 0, 1)
    saver.save(tmp_path / "x", tree, layout="orbax").result()
    loaded = regrow.open(tmp_path / "x")
    for name, array in tree.items():
        assert bits_of(loaded[name][...]) == bits_of(plain), name
        found = loaded[name].sharding
        assert isinstance(array.sharding, jax.sharding.NamedSharding) == (found["sharding_type"] == "NamedSharding")
    devices = [loaded[name].sharding["device_str"] for name in ("on another device", "here")]
    assert devices == [str(jax.devices()[1]), str(jax.devices()[0])]


def test_keys_are_kept(tmp_path: Path, saver: AsyncSaver) -> None:
    key = jax.random.key(7)
    saver.save(tmp_path / "x", {"key": key}).result()
    assert regrow.load(tmp_path / "x")["key"].data.tolist() == jax.random.key_data(key).tolist()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float8_e4m3fn])
def test_small_arrays_can_be_donated_at_once(tmp_path: Path, saver: AsyncSaver, dtype: Any) -> None:
    tree = {str(i): jnp.full((100, 7), 1 + i % 8, dtype) for i in range(100)}
    jax.block_until_ready(donating(jax.tree.map(jnp.copy, tree)))  # compiled
    slow = saver.save(tmp_path / "slow", SLOW, **SLOW_OPTIONS)
    save = saver.save(tmp_path / "x", tree, when_busy="queue")
    stepped = jax.block_until_ready(donating(tree))
    assert all(array.is_deleted() for array in tree.values())
    assert not save.done()
    stepped = donating(stepped)
    slow.cancel()
    save.result()
    for i, array in enumerate(regrow.load(tmp_path / "x").values()):
        assert (array == np.full((100, 7), 1 + i % 8, array.dtype)).all(), i


def test_large_arrays_that_are_referred_to_are_not_given_away(tmp_path: Path, saver: AsyncSaver) -> None:
    tree = {"w": jnp.full((300, 300), 3, jnp.bfloat16)}
    jax.block_until_ready(donating(jax.tree.map(jnp.copy, tree)))  # compiled
    slow = saver.save(tmp_path / "slow", SLOW, **SLOW_OPTIONS)
    save = saver.save(tmp_path / "x", tree, when_busy="queue")
    jax.block_until_ready(donating(tree))
    assert not tree["w"].is_deleted() and not save.done()
    slow.cancel()
    save.result()
    assert (regrow.load(tmp_path / "x")["w"] == 3).all()


def test_what_is_not_computed_yet_is_waited_for(tmp_path: Path, saver: AsyncSaver) -> None:
    @jax.jit
    def slow(x: Any) -> Any:
        product = jax.lax.fori_loop(0, 40, lambda _, y: jnp.tanh(y @ x), x)
        return [(product[:8, :8] * 0 + i).astype(jnp.bfloat16) for i in range(20)]

    x = jnp.ones((500, 500))
    jax.block_until_ready(slow(x))
    ticks = 0
    for _ in range(5):
        computed = slow(x)
        was_ready = computed[-1].is_ready()
        stop = threading.Event()

        def tick(stop: threading.Event = stop) -> None:
            nonlocal ticks
            while not stop.wait(0.001):
                ticks += 1

        other = threading.Thread(target=tick)
        other.start()
        saver.save(tmp_path / "x", computed, overwrite=True).result()
        stop.set()
        other.join()
        assert [float(array[0, 0]) for array in regrow.load(tmp_path / "x")] == list(range(20))
        if not was_ready:
            break
    assert not was_ready and ticks > 0, "the interpreter was not let go"


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.int4])
def test_a_deleted_array_is_named(tmp_path: Path, saver: AsyncSaver, dtype: Any) -> None:
    tree = {"a": [jnp.ones(3, dtype) for _ in range(3)]}
    donating(tree["a"][1]).block_until_ready()
    tree["a"][1].delete()
    with pytest.raises(regrow.errors.InvalidArgumentError, match="deleted") as caught:
        saver.save(tmp_path / "x", tree)
    assert caught.value.leaf == "a/1" and not (tmp_path / "x").exists()


FAILS = """
import contextlib, sys
import jax
import jax.numpy as jnp
import regrow

def fail(_):
    raise ValueError("no such value")

# JAX computes in the background only what waits for something else; the rest fails at once.
slow = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: jnp.tanh(y @ x), x))
failing = jax.jit(lambda x: jax.pure_callback(fail, jax.ShapeDtypeStruct((3,), jnp.float32), x[:3, 0]))
x = jnp.ones((500, 500))
jax.block_until_ready(slow(x))
for _ in range(10):
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        failed = failing(slow(x))
        break
try:
    regrow.save_async(sys.argv[1], {"a": failed})
except Exception as error:
    print("told:", "no such value" in str(error))
"""


def test_a_failed_computation_is_told(tmp_path: Path) -> None:
    # In a process of its own: at the end of it JAX complains once more.
    run = subprocess.run([sys.executable, "-c", FAILS, tmp_path / "x"], capture_output=True, text=True)
    assert run.stdout == "told: True\n", run.stderr
    assert not (tmp_path / "x").exists()


def test_another_thread_that_donates_changes_nothing(tmp_path: Path, saver: AsyncSaver) -> None:
    outcomes = set()
    for round in range(25):
        tree = [jnp.full((40, 50), 1 + i % 100, jnp.bfloat16) for i in range(400)]
        jax.block_until_ready(tree)
        begin = threading.Barrier(2)

        def donate(tree: list[Any] = tree, begin: threading.Barrier = begin) -> None:
            begin.wait()
            for part in range(0, 400, 40):
                jax.block_until_ready(donating(tree[part : part + 40]))

        other = threading.Thread(target=donate)
        other.start()
        begin.wait()
        try:
            saver.save(tmp_path / str(round), tree, durable=False).result()
        except regrow.errors.InvalidArgumentError as error:
            assert "deleted" in str(error)
            assert not (tmp_path / str(round)).exists()
            outcomes.add("refused")
        else:
            for i, array in enumerate(regrow.load(tmp_path / str(round))):
                assert (array == array.dtype.type(1 + i % 100)).all(), (round, i)
            outcomes.add("saved")
        other.join()
    assert outcomes


def test_what_is_donated_while_the_call_waits_is_saved_as_it_was(tmp_path: Path, saver: AsyncSaver) -> None:
    tree = {str(i): jnp.full((100, 7), 1 + i % 8, jnp.bfloat16) for i in range(100)}
    jax.block_until_ready(donating(jax.tree.map(jnp.copy, tree)))  # compiled
    slow = saver.save(tmp_path / "slow", SLOW, **SLOW_OPTIONS)
    was_running: list[bool] = []

    def donate() -> None:
        time.sleep(0.1)
        jax.block_until_ready(donating(tree))
        was_running.append(not slow.done())
        slow.cancel()

    other = threading.Thread(target=donate)
    other.start()
    save = saver.save(tmp_path / "x", tree)
    other.join()
    save.result()
    assert was_running == [True]
    for i, array in enumerate(regrow.load(tmp_path / "x").values()):
        assert (array == array.dtype.type(1 + i % 8)).all(), i


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("in_background", [False, True])
def test_arrays_are_let_go_when_the_save_has_ended(
    tmp_path: Path, saver: AsyncSaver, dtype: Any, in_background: bool
) -> None:
    arrays = [jax.block_until_ready(jnp.ones(n, dtype)) for n in (10, 1 << 18)]
    alive = [weakref.ref(array) for array in arrays]
    if in_background:
        saver.save(tmp_path / "x", arrays)
        saver.wait()
    else:
        regrow.save(tmp_path / "x", arrays)
    del arrays
    assert [array() for array in alive] == [None, None]


@pytest.mark.parametrize("answer", ["no such function", "an error", "another device"])
def test_without_dlpack_it_only_takes_longer(
    tmp_path: Path, saver: AsyncSaver, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    def export(_: Any) -> Any:
        if answer == "an error":
            raise BufferError("not today")
        return object()

    hooks = None if answer == "no such function" else (jax.sharding.SingleDeviceSharding, export)
    monkeypatch.setattr(_columns, "_jax_hooks", lambda: hooks)
    tree = {name: jnp.asarray(array_of(name, (4, 3))) for name in EXACT}
    tree["in shards"] = on_two_devices(np.arange(8, dtype=np.float32))
    saver.save(tmp_path / "x", tree).result()
    for name, array in regrow.load(tmp_path / "x").items():
        assert bits_of(array) == bits_of(tree[name])


def on_two_devices(array: np.ndarray[Any, Any]) -> jax.Array:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    return jax.device_put(array, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))


def test_jax_has_what_makes_it_quick() -> None:
    hooks = _columns._jax_hooks()
    assert hooks is not None
    columns = _columns.to_native(regrow._tree._flatten.flatten([jnp.ones(3, jnp.bfloat16)] * 3))
    assert {type(value).__name__ for value in columns.values} == {"PyCapsule"}
    columns = _columns.to_native(regrow._tree._flatten.flatten([on_two_devices(np.zeros(4, np.float32))] * 3))
    assert {type(value).__name__ for value in columns.values} == {"HeldShards"}

"""One training state through three tools: Orbax, safetensors and regrow.

Trains a small Flax model on scikit-learn's handwritten digits, saves the training state with Orbax
and opens that with regrow; saves it with regrow and restores it with Orbax, with safetensors and
with regrow; proves all of them bit-identical; and goes on training from the restored state to the
very loss of an uninterrupted run.

    make demo          # writes demo-output/, replacing what an earlier run left there
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import linen as nn
from safetensors.numpy import load_file
from safetensors.numpy import save_file as save_safetensors
from sklearn.datasets import load_digits

import regrow

OUTPUT = Path("demo-output").resolve()
STEPS = 200  # before the checkpoint, and again after it
BATCH = 128
HIDDEN = 512
REPEATS = 5  # of every timed step; the table shows medians

State = dict[str, Any]


class Classifier(nn.Module):
    """Two hidden layers, the first in bfloat16: not every tool knows that dtype by nature."""

    @nn.compact
    def __call__(self, pixels: jax.Array) -> jax.Array:
        hidden = nn.relu(nn.Dense(HIDDEN, param_dtype=jnp.bfloat16, name="first")(pixels))
        hidden = nn.relu(nn.Dense(HIDDEN, name="second")(hidden.astype(jnp.float32)))
        return nn.Dense(10, name="digit")(hidden)


MODEL = Classifier()
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def new_state() -> State:
    """What a training run has to remember: parameters, the optimizer's named tuples, the step, a
    PRNG key.
    """
    params = MODEL.init(jax.random.PRNGKey(0), jnp.zeros((1, 64)))["params"]
    return {
        "params": params,
        "opt_state": OPTIMIZER.init(params),
        "step": jnp.zeros((), jnp.int32),
        "rng": jax.random.PRNGKey(1),
    }


def loss_of(params: Any, pixels: jax.Array, digits: jax.Array) -> jax.Array:
    logits = MODEL.apply({"params": params}, pixels)
    return optax.softmax_cross_entropy_with_integer_labels(logits, digits).mean()


@jax.jit
def train_step(state: State, pixels: jax.Array, digits: jax.Array) -> State:
    """One step on a batch that the state's own key draws: equal states go on equally."""
    rng, draw = jax.random.split(state["rng"])
    batch = jax.random.randint(draw, (BATCH,), 0, len(digits))
    gradient = jax.grad(loss_of)(state["params"], pixels[batch], digits[batch])
    updates, opt_state = OPTIMIZER.update(gradient, state["opt_state"], state["params"])
    return {
        "params": optax.apply_updates(state["params"], updates),
        "opt_state": opt_state,
        "step": state["step"] + 1,
        "rng": rng,
    }


def train(state: State, pixels: jax.Array, digits: jax.Array) -> State:
    for _ in range(STEPS):
        state = train_step(state, pixels, digits)
    return jax.block_until_ready(state)


def assert_identical(name: str, found: Any, expected: Any) -> None:
    """Both pytrees hold the same dtypes, shapes and bits under the same key paths."""
    found_leaves = jax.tree_util.tree_flatten_with_path(found)[0]
    expected_leaves = jax.tree_util.tree_flatten_with_path(expected)[0]
    if len(found_leaves) != len(expected_leaves):
        sys.exit(f"{name}: {len(found_leaves)} leaves instead of {len(expected_leaves)}")
    for (path, mine), (other_path, theirs) in zip(found_leaves, expected_leaves, strict=True):
        a, b = np.asarray(mine), np.asarray(theirs)
        if path != other_path or a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            sys.exit(f"{name}: {jax.tree_util.keystr(path)} differs")
    print(f"  {name:48} {len(found_leaves)} leaves, bit-identical")


def dotted_name(path: tuple[Any, ...]) -> str:
    """A leaf's name in a safetensors file, the one that Orbax uses too: `params.first.kernel`."""
    return ".".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def to_named_arrays(state: State) -> dict[str, np.ndarray]:
    return {dotted_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def from_named_arrays(arrays: dict[str, np.ndarray], like: State) -> State:
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree_util.tree_unflatten(structure, [arrays[dotted_name(path)] for path, _ in leaves])


def milliseconds(action: Callable[[], Any]) -> float:
    """The median of some runs; the first, which warms everything up, is not among them."""
    action()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(action())
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def on_disk(path: Path) -> tuple[int, int]:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files), len(files)


def restore_with_orbax(path: Path, like: State) -> State:
    arguments = ocp.checkpoint_utils.construct_restore_args(like)
    return ocp.PyTreeCheckpointer().restore(path, item=like, restore_args=arguments)


def heading(text: str) -> None:
    print(f"\n== {text}")


def main() -> None:
    if OUTPUT.exists():
        shutil.rmtree(OUTPUT)
    OUTPUT.mkdir()

    heading(f"training a classifier of handwritten digits for {STEPS} steps")
    bunch = load_digits()
    pixels, digits = jnp.asarray(bunch.data / 16.0, jnp.float32), jnp.asarray(bunch.target, jnp.int32)
    began = time.perf_counter()
    state = train(new_state(), pixels, digits)
    loss = float(loss_of(state["params"], pixels, digits))
    print(f"  loss {loss:.6f} after {time.perf_counter() - began:.1f} s")

    heading("saved with Orbax, opened with regrow")
    orbax_path = OUTPUT / "by_orbax"
    ocp.PyTreeCheckpointer().save(orbax_path, state)
    print(regrow.open(orbax_path).overview())
    assert_identical("saved by Orbax, loaded by regrow", regrow.load(orbax_path, like=state), state)

    heading("saved with regrow, restored with Orbax, with safetensors and with regrow")
    regrow_path = OUTPUT / "by_regrow"
    regrow.save(regrow_path, state)
    restored = regrow.load(regrow_path, like=state)
    assert_identical("saved by regrow, loaded by regrow", restored, state)
    assert_identical("saved by regrow, restored by Orbax", restore_with_orbax(regrow_path, state), state)
    named = load_file(regrow_path / "model.safetensors")
    assert_identical("saved by regrow, read by safetensors", from_named_arrays(named, state), state)
    report = regrow.verify(regrow_path)
    print(f"  verify: {report}")

    heading(f"training on for {STEPS} steps, from the restored state and without an interruption")
    uninterrupted = train(state, pixels, digits)
    resumed = train(restored, pixels, digits)
    assert_identical("resumed and uninterrupted run", resumed, uninterrupted)
    losses = [float(loss_of(run["params"], pixels, digits)) for run in (uninterrupted, resumed)]
    if losses[0] != losses[1]:
        sys.exit(f"the losses differ: {losses}")
    print(f"  loss {losses[1]:.6f} in both")

    heading(f"times and sizes (medians of {REPEATS}; loading with a warm page cache)")
    print_table(state)
    print(f"\nall checkpoints are in {OUTPUT}")


def print_table(state: State) -> None:
    """Each tool saves and loads the same state in its own default way, into arrays of JAX."""
    orbax = ocp.PyTreeCheckpointer()
    paths = {name: OUTPUT / f"timed_{name}" for name in ("orbax", "regrow", "regrow_as_orbax")}
    file = OUTPUT / "timed.safetensors"

    def to_jax(tree: State) -> State:
        return jax.tree.map(jnp.asarray, tree)

    def save_as_orbax() -> None:
        regrow.save(paths["regrow_as_orbax"], state, layout="orbax", overwrite=True)

    rows: list[tuple[str, float, float, Path]] = [
        (
            "Orbax (its defaults)",
            milliseconds(lambda: orbax.save(paths["orbax"], state, force=True)),
            milliseconds(lambda: restore_with_orbax(paths["orbax"], state)),
            paths["orbax"],
        ),
        (
            "safetensors (not synced, no checksums)",
            milliseconds(lambda: save_safetensors(to_named_arrays(state), file)),
            milliseconds(lambda: to_jax(from_named_arrays(load_file(file), state))),
            file,
        ),
        (
            "regrow (its defaults: synced, checksums)",
            milliseconds(lambda: regrow.save(paths["regrow"], state, overwrite=True)),
            milliseconds(lambda: regrow.load(paths["regrow"], like=state)),
            paths["regrow"],
        ),
        (
            "regrow (Orbax's layout)",
            milliseconds(lambda: regrow.save(paths["regrow_as_orbax"], state, layout="orbax", overwrite=True)),
            milliseconds(lambda: regrow.load(paths["regrow_as_orbax"], like=state)),
            paths["regrow_as_orbax"],
        ),
    ]
    print(f"  {'tool':42} {'save ms':>9} {'load ms':>9} {'MB on disk':>11} {'files':>6}")
    for tool, save_ms, load_ms, path in rows:
        size, files = on_disk(path)
        print(f"  {tool:42} {save_ms:9.1f} {load_ms:9.1f} {size / 1e6:11.2f} {files:6}")


if __name__ == "__main__":
    main()

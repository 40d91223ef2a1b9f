"""An Equinox model that goes on where it was when it is started again.

    python examples/resume_equinox.py runs/equinox --steps 400

Stop it whenever you like, also in the middle of a save, and start it again: it goes on from the
newest checkpoint, and ends with the very bits of a run that was never stopped. A module also holds
what no checkpoint can (functions) and what belongs to the program (numbers, static fields): arrays
are saved, and meet the rest again when they are loaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import regrow


class Model(eqx.Module):
    into: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    out: eqx.nn.Linear
    activation: Any = eqx.field(static=True)

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.into = eqx.nn.Linear(64, 64, key=first)
        self.norm = eqx.nn.BatchNorm(64, axis_name="batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.1)
        self.out = eqx.nn.Linear(64, 10, key=second)
        self.activation = jax.nn.relu

    def __call__(self, x: jax.Array, state: eqx.nn.State, key: jax.Array) -> tuple[jax.Array, eqx.nn.State]:
        x, state = self.norm(self.into(x), state)
        return self.out(self.dropout(self.activation(x), key=key)), state


class Training(NamedTuple):
    """All that the next step depends on, but for the data, which follows from the step."""

    step: jax.Array
    model: Model
    state: eqx.nn.State
    opt_state: optax.OptState
    key: jax.Array


DIGITS = load_digits()
OPTIMIZER = optax.adamw(optax.cosine_decay_schedule(1e-2, decay_steps=1000))


def new_training() -> Training:
    model, state = eqx.nn.make_with_state(Model)(jax.random.key(0))
    opt_state = OPTIMIZER.init(eqx.filter(model, eqx.is_inexact_array))
    return Training(jnp.int32(0), model, state, opt_state, jax.random.key(1))


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, or the description of one."""
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def begin_or_resume(manager: regrow.Manager) -> Training:
    """The newest checkpoint, or a new training where there is none. Never both at once: `like`
    is a description.
    """
    if manager.latest is None:
        return new_training()
    like, rest = eqx.partition(eqx.filter_eval_shape(new_training), is_array)
    return eqx.combine(manager.restore(like=like), rest)


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """The data of a step, 32 handwritten digits: the same for each call."""
    chosen = np.random.default_rng(step).integers(len(DIGITS.target), size=32)
    return (DIGITS.data[chosen] / 16).astype(np.float32), DIGITS.target[chosen].astype(np.int32)


@eqx.filter_jit(donate="all")
def train_step(training: Training, x: jax.Array, y: jax.Array) -> tuple[Training, jax.Array]:
    keys = jax.random.split(jax.random.fold_in(training.key, training.step), len(x))

    def loss(model: Model) -> tuple[jax.Array, eqx.nn.State]:
        each = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
        found, state = each(x, training.state, keys)
        return optax.softmax_cross_entropy_with_integer_labels(found, y).mean(), state

    (value, state), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(training.model)
    updates, opt_state = OPTIMIZER.update(
        gradient, training.opt_state, eqx.filter(training.model, eqx.is_inexact_array)
    )
    model = eqx.apply_updates(training.model, updates)
    return Training(training.step + 1, model, state, opt_state, training.key), value


def train(folder: Path, steps: int, every: int) -> Training:
    # Saves in the background. SIGTERM saves the next step, with any number.
    with regrow.Manager(folder, save_every=every, preemption_timeout=30.0, keep=3) as manager:
        training = begin_or_resume(manager)
        begun, loss = int(training.step), jnp.nan
        print(f"step {begun}: {'goes on' if begun else 'begins'}")
        for step in range(begun, steps):
            training, loss = train_step(training, *batch(step))
            is_to_end = manager.preempted  # asked before the save, so that none is left out
            if manager.should_save(step + 1):
                manager.save(step + 1, eqx.filter(training, eqx.is_array))
            if is_to_end:
                break
    print(f"step {int(training.step)}: loss {loss:.6f}")
    return training


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the checkpoints are")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    given = parser.parse_args()
    train(given.folder, given.steps, given.every)

"""A Flax linen model that goes on where it was when it is started again.

    python examples/resume_linen.py runs/linen --steps 400

Stop it whenever you like, also in the middle of a save, and start it again: it goes on from the
newest checkpoint, and ends with the very bits of a run that was never stopped. For that, all that
the next step depends on is in the state (parameters, statistics, the optimizer's state, the key of
dropout, the step), and the data follows from the step.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training import train_state
from sklearn.datasets import load_digits

import regrow


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(64)(x))
        x = nn.Dropout(0.1, deterministic=not train)(nn.relu(x))
        return nn.Dense(10)(x)


class TrainState(train_state.TrainState):
    batch_stats: Any
    dropout_key: jax.Array


DIGITS = load_digits()
MODEL = Model()
OPTIMIZER = optax.adamw(optax.cosine_decay_schedule(1e-2, decay_steps=1000))


def new_state() -> TrainState:
    variables = MODEL.init(jax.random.key(0), jnp.zeros((1, 64)), train=False)
    return TrainState.create(
        apply_fn=MODEL.apply,
        params=variables["params"],
        tx=OPTIMIZER,
        batch_stats=variables["batch_stats"],
        dropout_key=jax.random.key(1),
    )


def begin_or_resume(manager: regrow.Manager) -> TrainState:
    """The newest checkpoint, or a new state where there is none. Never both at once: `like` is a
    description.
    """
    if manager.latest is None:
        return new_state()
    return manager.restore(like=jax.eval_shape(new_state))


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """The data of a step, 32 handwritten digits: the same for each call."""
    chosen = np.random.default_rng(step).integers(len(DIGITS.target), size=32)
    return (DIGITS.data[chosen] / 16).astype(np.float32), DIGITS.target[chosen].astype(np.int32)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss(params: Any) -> tuple[jax.Array, Any]:
        found, updates = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            x,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.fold_in(state.dropout_key, state.step)},
        )
        return optax.softmax_cross_entropy_with_integer_labels(found, y).mean(), updates["batch_stats"]

    (value, batch_stats), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradient, batch_stats=batch_stats), value


def train(folder: Path, steps: int, every: int) -> TrainState:
    # Saves in the background. SIGTERM saves the next step, with any number.
    with regrow.Manager(folder, save_every=every, preemption_timeout=30.0, keep=3) as manager:
        state = begin_or_resume(manager)
        begun, loss = int(state.step), jnp.nan
        print(f"step {begun}: {'goes on' if begun else 'begins'}")
        for step in range(begun, steps):
            state, loss = train_step(state, *batch(step))
            is_to_end = manager.preempted  # asked before the save, so that none is left out
            manager.save(step + 1, state)
            if is_to_end:
                break
    print(f"step {int(state.step)}: loss {loss:.6f}")
    return state


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the checkpoints are")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    given = parser.parse_args()
    train(given.folder, given.steps, given.every)

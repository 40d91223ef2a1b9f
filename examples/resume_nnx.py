"""A Flax nnx model that goes on where it was when it is started again.

    python examples/resume_nnx.py runs/nnx --steps 400

Stop it whenever you like, also in the middle of a save, and start it again: it goes on from the
newest checkpoint, and ends with the very bits of a run that was never stopped. Model and optimizer
are saved as one state; the keys and counts of `nnx.Rngs` are in it, so that dropout goes on as
well. The data follows from the step.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import regrow

DIGITS = load_digits()


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.into = nnx.Linear(64, 64, rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.dropout(nnx.relu(self.norm(self.into(x)))))


Training = tuple[Model, nnx.Optimizer]


def new_training() -> Training:
    model = Model(nnx.Rngs(0, dropout=1))
    return model, nnx.Optimizer(model, optax.adamw(optax.cosine_decay_schedule(1e-2, 1000)), wrt=nnx.Param)


def begin_or_resume(manager: regrow.Manager) -> Training:
    """The newest checkpoint, or a new training where there is none. Never both at once: `like`
    is a description.
    """
    if manager.latest is None:
        return new_training()
    graph, like = nnx.split(nnx.eval_shape(new_training))
    return nnx.merge(graph, manager.restore(like=like))


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """The data of a step, 32 handwritten digits: the same for each call."""
    chosen = np.random.default_rng(step).integers(len(DIGITS.target), size=32)
    return (DIGITS.data[chosen] / 16).astype(np.float32), DIGITS.target[chosen].astype(np.int32)


def loss_of(model: Model, x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@nnx.jit
def train_step(model: Model, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    loss, gradient = nnx.value_and_grad(loss_of)(model, x, y)
    optimizer.update(model, gradient)
    return loss


def train(folder: Path, steps: int, every: int) -> Training:
    # Saves in the background. SIGTERM saves the next step, with any number.
    with regrow.Manager(folder, save_every=every, preemption_timeout=30.0, keep=3) as manager:
        model, optimizer = begin_or_resume(manager)
        begun, loss = int(optimizer.step[...]), jnp.nan
        print(f"step {begun}: {'goes on' if begun else 'begins'}")
        for step in range(begun, steps):
            loss = train_step(model, optimizer, *batch(step))
            is_to_end = manager.preempted  # asked before the save, so that none is left out
            if manager.should_save(step + 1):
                manager.save(step + 1, nnx.state((model, optimizer)))
            if is_to_end:
                break
    print(f"step {int(optimizer.step[...])}: loss {loss:.6f}")
    return model, optimizer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the checkpoints are")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    given = parser.parse_args()
    train(given.folder, given.steps, given.every)

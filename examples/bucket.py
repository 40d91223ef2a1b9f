"""A training that keeps its checkpoints in a bucket, and is looked at there without fetching them.

    python examples/bucket.py s3://my-bucket/runs/digits    # or gs://..., az://...; credentials as the cloud's tools
    python examples/bucket.py                               # objects in this process' memory, to see that it runs

Started again, it goes on from the newest step.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import regrow

DIGITS = load_digits()
OPTIMIZER = optax.adam(1e-2)
STEPS, EVERY = 60, 20


def new_state() -> dict[str, Any]:
    """Parameters of one layer, and the optimizer's state."""
    params = {"kernel": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
    return {"params": params, "optimizer": OPTIMIZER.init(params)}


@jax.jit
def train_step(state: dict[str, Any], x: jax.Array, y: jax.Array) -> dict[str, Any]:
    """One step of Adam."""

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        found = x @ params["kernel"] + params["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(found, y).mean()

    updates, optimizer = OPTIMIZER.update(jax.grad(loss)(state["params"]), state["optimizer"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}


def main() -> None:
    """Trains, and then looks at the bucket."""
    bucket = sys.argv[1] if len(sys.argv) > 1 else "memory://example/runs/digits"
    with regrow.Manager(bucket, save_every=EVERY, keep=2) as manager:
        begun = manager.latest or 0
        state = new_state() if begun == 0 else manager.restore(like=jax.eval_shape(new_state))
        print(f"step {begun}: {'goes on' if begun else 'begins'}")
        for step in range(begun, STEPS):
            chosen = np.random.default_rng(step).integers(len(DIGITS.target), size=64)
            state = train_step(state, jnp.asarray(DIGITS.data[chosen] / 16, jnp.float32), DIGITS.target[chosen])
            manager.save(step + 1, state)  # in the background, at every twentieth step

    for found in regrow.list_checkpoints(bucket):
        print(f"{found.name}: {found.state}")
    newest = regrow.open(bucket)
    # Only the bytes of these ten numbers are fetched.
    print("bias of the digits:", [f"{value:.3f}" for value in newest["params/bias"][:]])
    assert regrow.verify(bucket).ok


if __name__ == "__main__":
    main()

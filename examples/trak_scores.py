"""Which training examples have made a model what it is: TRAK's scores, in a store that survives a
kill.

    python examples/trak_scores.py [FOLDER]

TRAK itself needs PyTorch; its store and its formulas do not. Here JAX makes the gradients: of a
linear classifier of handwritten digits, projected to 256 numbers each. Killed and started again,
the program goes on with the rows that are missing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from regrow.trak import MmapSaver, finalize_features, finalize_scores

DIGITS = load_digits()
X = jnp.asarray(DIGITS.data / 16, jnp.float32)
Y = jnp.asarray(DIGITS.target)
TRAINED, TARGETS, DIMENSION = 1000, 50, 256
METADATA = {"JL dimension": DIMENSION, "JL matrix type": "normal", "train set size": TRAINED}


def outputs(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The logits of one image."""
    return x @ params["kernel"] + params["bias"]


def margin(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """What TRAK differentiates: the logit of the right digit against all others."""
    logits = outputs(params, x)
    return logits[y] - jax.nn.logsumexp(jnp.where(jnp.arange(10) == y, -jnp.inf, logits))


def trained() -> dict[str, jax.Array]:
    """The classifier."""
    params = {"kernel": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
    optimizer = optax.adam(5e-2)

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(outputs(params, X[:TRAINED]), Y[:TRAINED]).mean()

    @jax.jit
    def step(params: dict[str, jax.Array], state: optax.OptState) -> tuple[dict[str, jax.Array], optax.OptState]:
        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for _ in range(100):
        params, state = step(params, state)
    return params


@jax.jit
def projected(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Gradients of the margins of some images, projected at random."""
    gradients = jax.vmap(jax.grad(margin), in_axes=(None, 0, 0))(params, x, y)
    flat = jnp.concatenate([leaf.reshape(len(x), -1) for leaf in jax.tree.leaves(gradients)], axis=1)
    directions = jax.random.normal(jax.random.key(0), (flat.shape[1], DIMENSION))
    return flat @ directions / DIMENSION**0.5


def main() -> None:
    """Gradients of all training examples, features, scores of some targets."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch) / "trak"
        params = trained()
        with MmapSaver(folder, METADATA, train_set_size=TRAINED, proj_dim=DIMENSION) as saver:
            if 0 not in saver.model_ids:
                saver.register_model_id(0)
            saver.load_current_store(0)
            missing = np.array(saver.missing_rows(0), int)
            print(f"{TRAINED - len(missing)} rows were done before")
            for begin in range(0, len(missing), 250):
                rows = missing[begin : begin + 250]
                saver.current_store["grads"][rows] = np.asarray(projected(params, X[rows], Y[rows]))
                certainty = jax.nn.sigmoid(jax.vmap(margin, in_axes=(None, 0, 0))(params, X[rows], Y[rows]))
                saver.current_store["out_to_loss"][rows] = np.asarray(1 - certainty)[:, None]
                saver.current_store["is_featurized"][rows] = 1
            saver.serialize_current_model_id_metadata()
            finalize_features(saver, lambda_reg=30.0)

            targets = np.arange(TRAINED, TRAINED + TARGETS)
            saver.init_experiment("validation", TARGETS, 0)
            saver.current_store["validation_grads"][:] = np.asarray(projected(params, X[targets], Y[targets]))
            scores = finalize_scores(saver, "validation")
    best = scores.argmax(axis=0)
    same = np.mean(DIGITS.target[best] == DIGITS.target[targets])
    print(f"scores of {scores.shape[0]} examples for {scores.shape[1]} targets")
    print(f"the example that helped most shows the same digit for {same:.0%} of them")
    assert same > 0.5


if __name__ == "__main__":
    main()

"""A checkpoint of Orbax, as Gemma's weights come, to the data and manifest files that gemma.cpp's
tools read.

    python examples/gemma_to_data.py ORBAX_CHECKPOINT TARGET     # writes TARGET.data and TARGET.manifest
    python examples/gemma_to_data.py                             # a small model with Gemma's names and shapes

The same from the shell: regrow convert gemma-2b gemma-2b-data --layout pytree_data
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import regrow
from regrow import pytree

LAYERS, WIDTH, HEADS, HEAD, INNER, WORDS = 2, 32, 4, 8, 64, 128


def small_gemma(path: Path) -> None:
    """A checkpoint as Orbax writes it."""
    keys = iter(jax.random.split(jax.random.key(0), 64))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, jnp.bfloat16)

    def layer() -> dict[str, Any]:
        return {
            "attn": {
                "attn_vec_einsum": {"w": normal(HEADS, HEAD, WIDTH)},
                "kv_einsum": {"w": normal(2, 1, WIDTH, HEAD)},
                "q_einsum": {"w": normal(HEADS, WIDTH, HEAD)},
            },
            "mlp": {"gating_einsum": normal(2, WIDTH, INNER), "linear": normal(INNER, WIDTH)},
            "pre_attention_norm": {"scale": normal(WIDTH)},
            "pre_ffw_norm": {"scale": normal(WIDTH)},
        }

    layers = {f"layer_{number}": layer() for number in range(LAYERS)}
    model = {"embedder": {"input_embedding": normal(WORDS, WIDTH)}, "final_norm": {"scale": normal(WIDTH)}, **layers}
    ocp.PyTreeCheckpointer().save(path, {"transformer": model})


def main() -> None:
    """Converts, and proves that every array is the one that Orbax restores."""
    with tempfile.TemporaryDirectory() as scratch:
        if len(sys.argv) > 2:
            source, target = Path(sys.argv[1]), Path(sys.argv[2])
        else:
            source, target = Path(scratch) / "gemma", Path(scratch) / "gemma-data"
            small_gemma(source)
        report = regrow.convert(source, target, layout=regrow.layouts.PytreeData(native_dtypes=True))
        for what, count in Counter((loss.kind, loss.what) for loss in report.losses).items():
            print(f"{': '.join(what)} ({count} leaves)")
        print(f"{report.leaf_count} arrays, {report.stored_bytes:,} bytes")

        model = pytree.model_load(target)
        restored = ocp.PyTreeCheckpointer().restore(source.absolute())
        pairs = list(zip(jax.tree.leaves(restored), jax.tree.leaves(model), strict=True))
        assert all(np.asarray(ours).tobytes() == np.asarray(theirs).tobytes() for theirs, ours in pairs)
        print(f"the same bits as Orbax restores, in all {len(pairs)}")


if __name__ == "__main__":
    main()

"""A safetensors folder as Hugging Face has them to Orbax and back, by two files of rules that a
team keeps.

    python examples/rules_llama.py FOLDER        # any Llama folder; without one, a small one is made

The names and transposes are in examples/rules/llama_to_flax.toml and flax_to_llama.toml. The same
from the shell:

    regrow convert llama-hf llama-flax --rules examples/rules/llama_to_flax.toml
    regrow convert llama-flax llama-again --rules examples/rules/flax_to_llama.toml
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
from safetensors import safe_open
from safetensors.numpy import save_file

import regrow

RULES = Path(__file__).parent / "rules"
LAYERS, WIDTH, INNER, WORDS = 2, 16, 40, 64


def a_small_llama(folder: Path) -> None:
    """A folder of two files and an index, with the names and shapes of a Llama."""
    random = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (WORDS, WIDTH), "model.norm": (WIDTH,), "lm_head": (WORDS, WIDTH)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"}
        shapes |= {f"{at}.mlp.{name}_proj": (INNER, WIDTH) for name in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj": (WIDTH, INNER)}
        shapes |= {f"{at}.{name}_layernorm": (WIDTH,) for name in ("input", "post_attention")}
    tensors = {f"{name}.weight": random.normal(size=shape).astype(ml_dtypes.bfloat16) for name, shape in shapes.items()}
    folder.mkdir()
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, chosen in files.items():
        save_file({name: tensors[name] for name in chosen}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, chosen in files.items() for name in chosen}
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file or a folder of files, as safetensors itself reads them."""
    found: dict[str, np.ndarray] = {}
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with safe_open(file, "numpy") as opened:
            found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping
    return found


def main() -> None:
    """There and back, judged by Orbax and safetensors."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "llama-hf"
        if len(sys.argv) == 1:
            a_small_llama(given)
        flax, again = Path(folder) / "llama-flax", Path(folder) / "llama-again.safetensors"

        regrow.convert(given, flax, rules=RULES / "llama_to_flax.toml")
        print(regrow.overview(flax))
        restored = ocp.PyTreeCheckpointer().restore(flax)
        first = tensors_of(given)["model.layers.0.self_attn.q_proj.weight"]
        kernel = np.asarray(restored["params"]["layers_0"]["attention"]["q"]["kernel"])
        assert kernel.tobytes() == np.ascontiguousarray(first.T).tobytes()
        print("Orbax restores it: kernels are the weights, transposed")

        regrow.convert(flax, again, rules=RULES / "flax_to_llama.toml")
        before, after = tensors_of(given), tensors_of(again)
        assert before.keys() == after.keys()
        assert all(before[name].tobytes() == after[name].tobytes() for name in before)
        print(f"back again: {len(after)} tensors, the same names and the same bits")


if __name__ == "__main__":
    main()

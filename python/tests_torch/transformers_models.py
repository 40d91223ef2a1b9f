"""What regrow writes of a model's tensors, opened by `from_pretrained`. Run by each judged version
of transformers.

python transformers_models.py FOLDER
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import safetensors
import torch
import transformers
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import regrow
import regrow.torch

RULES = Path(__file__).parents[2] / "examples" / "rules"
FORMS: dict[str, dict[str, object]] = {
    "default": {},
    "safetensors": {"layout": "safetensors"},
    "shards": {"layout": regrow.layouts.Safetensors(max_shard_bytes="10KB")},
    "plain": {"layout": regrow.layouts.Safetensors(structure=False)},
}


def models() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 50,
    }
    return {
        "bert": BertModel(BertConfig(**small)),
        "gpt2": GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=16)),
        "llama": LlamaForCausalLM(LlamaConfig(**small)).to(torch.bfloat16),
    }


def check(folder: Path, model: torch.nn.Module, how: str) -> None:
    model.config.save_pretrained(folder)
    again, told = type(model).from_pretrained(folder, dtype=model.dtype, output_loading_info=True)
    assert not any(told.values()), f"{how}: {told}"
    left, right = model.state_dict(), again.state_dict()
    assert left.keys() == right.keys(), how
    assert all(torch.equal(left[name], right[name]) for name in left), how
    print(how)


def nested(tensors: dict[str, np.ndarray]) -> dict[str, object]:
    """As a program of JAX has them: dicts of dicts."""
    tree: dict[str, object] = {}
    for name, tensor in tensors.items():
        *above, last = name.split(".")
        inside: dict[str, object] = tree
        for key in above:
            inside = inside.setdefault(key, {})  # type: ignore[assignment]
        inside[last] = tensor
    return tree


def main(root: Path) -> None:
    """Saves, converts, and opens each."""
    for (name, model), (form, options) in itertools.product(models().items(), FORMS.items()):
        folder = root / f"{name}-{form}"
        regrow.torch.save(folder / "of_torch", model.state_dict(), **options)
        check(folder / "of_torch", model, f"{name}, {form}, regrow.torch.save")
        tied = set() if name != "gpt2" else {"lm_head.weight"}
        state = {key: value for key, value in model.state_dict().items() if key not in tied}
        tree = nested({key: value.float().numpy() for key, value in state.items()})
        if model.dtype == torch.float32:
            regrow.save(folder / "of_numpy", tree, **options)
            check(folder / "of_numpy", model, f"{name}, {form}, regrow.save")
            regrow.save(folder / "orbax", tree, layout="orbax")
            regrow.convert(folder / "orbax", folder / "converted", lossy=form == "plain", **options)
            check(folder / "converted", model, f"{name}, {form}, regrow.convert")
            regrow.convert(folder / "orbax", folder / "one" / "model.safetensors")
            check(folder / "one", model, f"{name}, one file, regrow.convert")
    llama = models()["llama"]
    llama.save_pretrained(root / "hf")
    regrow.convert(root / "hf", root / "flax", rules=RULES / "llama_to_flax.toml")
    regrow.convert(root / "flax", root / "again", rules=RULES / "flax_to_llama.toml")
    check(root / "again", llama, "the shipped rules")
    with safetensors.safe_open(root / "again" / "model.safetensors", "np") as file:
        assert file.metadata()["format"] == "pt"
    print(json.dumps({"transformers": transformers.__version__}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

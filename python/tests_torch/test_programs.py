"""transformers, accelerate and huggingface_hub with `regrow.safetensors` in the place of safetensors.

Tiny models with random weights; nothing is fetched. What they write is then read by safetensors itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from dropin import run

pytestmark = pytest.mark.timeout(600)

MODELS = """
import torch
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, GPT2Config

def same(left, right):
    left, right = left.state_dict(), right.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)

torch.manual_seed(0)
bert = BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50)
gpt2 = GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=16)
"""


def is_read_by_safetensors(folder: Path) -> int:
    """Reads every file with the original; the number of tensors."""
    files = sorted(folder.rglob("*.safetensors"))
    assert files
    return sum(len(safetensors.torch.load_file(file)) for file in files)


def test_transformers_save_and_load_models(tmp_path: Path) -> None:
    run(
        MODELS
        + """
for make, config, name in ((AutoModel, bert, "bert"), (AutoModelForCausalLM, gpt2, "gpt2")):
    model = make.from_config(config)
    model.save_pretrained(name)
    again = make.from_pretrained(name)
    same(model, again)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.add_(1)  # in the map: the file stays as it is
    same(model, make.from_pretrained(name))
    again.save_pretrained(name)  # over the file that it lies in
    same(again, make.from_pretrained(name))
    model.to(torch.bfloat16).save_pretrained(name + "-shards", max_shard_size="10KB")
    same(model, make.from_pretrained(name + "-shards", dtype=torch.bfloat16))
""",
        tmp_path,
    )
    assert is_read_by_safetensors(tmp_path) > 100
    assert (tmp_path / "gpt2-shards" / "model.safetensors.index.json").exists()


def test_models_are_loaded_from_what_regrow_has_saved(tmp_path: Path) -> None:
    """`from_pretrained` with safetensors itself: shards with an index, and the default layout."""
    (tmp_path / "program.py").write_text(
        "import regrow.torch, safetensors\n"
        + MODELS
        + """
for make, config in ((AutoModel, bert), (AutoModelForCausalLM, gpt2)):
    model = make.from_config(config)
    shards, one = f"{config.model_type}-shards", f"{config.model_type}-one"
    regrow.torch.save(shards, model.state_dict(), layout="safetensors", max_shard_size="10KB")
    regrow.torch.save(one, model.state_dict())
    for folder in (shards, one):
        config.save_pretrained(folder)
        again, told = make.from_pretrained(folder, output_loading_info=True)
        assert not any(told.values()), told
        same(model, again)
        # What from_pretrained has read, regrow reads too.
        again.save_pretrained(folder + "-theirs")
        loaded = regrow.torch.load(folder + "-theirs/model.safetensors")
        state = model.state_dict()
        assert loaded and all(torch.equal(tensor, state[name]) for name, tensor in loaded.items())
"""
    )
    ended = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "gpt2-shards" / "model.safetensors.index.json").exists()


def test_a_trainer_stops_and_goes_on(tmp_path: Path) -> None:
    run(
        MODELS
        + """
from transformers import Trainer, TrainingArguments

data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 50, (16, 8))]

def trained(folder, steps, resume=None):
    torch.manual_seed(1)
    arguments = TrainingArguments(
        folder, max_steps=steps, save_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True, seed=3,
        disable_tqdm=True, save_total_limit=None, lr_scheduler_type="constant",
    )
    model = AutoModelForCausalLM.from_config(gpt2)
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return model

at_once = trained("at-once", 4)
trained("twice", 2)
same(at_once, trained("twice", 4, resume="twice/checkpoint-2"))
""",
        tmp_path,
    )
    assert (tmp_path / "twice" / "checkpoint-4" / "model.safetensors").exists()
    assert is_read_by_safetensors(tmp_path) > 100


def test_accelerate_saves_and_loads_models_and_states(tmp_path: Path) -> None:
    run(
        MODELS
        + """
from accelerate import Accelerator, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.utils import load_checkpoint_in_model, load_offloaded_weights, offload_state_dict

accelerator = Accelerator(cpu=True)
model = AutoModelForCausalLM.from_config(gpt2)
for size, name in (("1GB", "one"), ("10KB", "many")):
    accelerator.save_model(model, name, max_shard_size=size)
    again = AutoModelForCausalLM.from_config(gpt2)
    load_checkpoint_in_model(again, name)
    again.tie_weights()
    same(model, again)
    with init_empty_weights():
        empty = AutoModelForCausalLM.from_config(gpt2)
    empty.tie_weights()
    same(model, load_checkpoint_and_dispatch(empty, name, device_map={"": "cpu"}))
prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
before = {name: tensor.clone() for name, tensor in prepared.state_dict().items()}
accelerator.save_state("state", safe_serialization=True)
with torch.no_grad():
    for parameter in prepared.parameters():
        parameter.zero_()
accelerator.load_state("state")
assert all(torch.equal(tensor, before[name]) for name, tensor in prepared.state_dict().items())
""",
        tmp_path,
    )
    assert is_read_by_safetensors(tmp_path) > 50


def test_the_hub_saves_and_loads_modules(tmp_path: Path) -> None:
    run(
        """
import os
import torch
from huggingface_hub import PyTorchModelHubMixin, load_torch_model, save_torch_model, save_torch_state_dict

class Tied(torch.nn.Module, PyTorchModelHubMixin):
    def __init__(self, width: int = 3):
        super().__init__()
        self.embed = torch.nn.Embedding(4, width)
        self.head = torch.nn.Linear(width, 4)
        self.head.weight = self.embed.weight
        self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).T)

def same(left, right):
    left, right = left.state_dict(), right.state_dict()
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)

model = Tied()
for size, name in (("1GB", "one"), (60, "many")):
    os.mkdir(name)
    save_torch_model(model, name, max_shard_size=size, metadata={"a": "b"})
    again = Tied()
    load_torch_model(again, name)
    same(model, again)
os.mkdir("state")
save_torch_state_dict(model.state_dict(), "state")
model.save_pretrained("mixin")
same(model, Tied.from_pretrained("mixin"))
""",
        tmp_path,
    )
    for name in ("one", "many", "state", "mixin"):
        assert is_read_by_safetensors(tmp_path / name) in (3, 4)


def test_torch_s_own_checkpoints_of_safetensors_files(tmp_path: Path) -> None:
    run(
        """
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
names = {"a": 1, "b": 1}
dcp.save(tensors, storage_writer=HuggingFaceStorageWriter("out", names), no_dist=True)
into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
dcp.load(into, storage_reader=HuggingFaceStorageReader("out"), no_dist=True)
assert all(torch.equal(into[name], tensors[name]) for name in tensors)
""",
        tmp_path,
    )
    (file,) = (tmp_path / "out").glob("*.safetensors")
    assert np.array_equal(safetensors.torch.load_file(file)["a"].numpy(), torch.arange(6.0).reshape(2, 3).numpy())

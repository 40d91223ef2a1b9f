"""transformers, accelerate and huggingface_hub with `regrow.safetensors` in the place of
safetensors.

Tiny models with random weights; nothing is fetched. What they write is then read by safetensors
itself.
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
    regrow.torch.save(shards, model.state_dict(), layout=regrow.layouts.Safetensors(max_shard_bytes="10KB"))
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


def test_peft_saves_and_loads_adapters(tmp_path: Path) -> None:
    run(
        MODELS
        + """
from peft import LoraConfig, PeftModel, get_peft_model, load_peft_weights

base = AutoModelForCausalLM.from_config(gpt2)
base.save_pretrained("base")
model = get_peft_model(base, LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True))
model.save_pretrained("adapter")
again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("base"), "adapter")
same(model, again)
assert len(load_peft_weights("adapter")) > 0
try:
    load_peft_weights("none")
except Exception as error:
    assert not type(error).__module__.startswith("regrow"), error
else:
    raise AssertionError("an adapter that is not there was loaded")
""",
        tmp_path,
    )
    assert is_read_by_safetensors(tmp_path / "adapter") > 0


def test_diffusers_saves_and_loads_models(tmp_path: Path) -> None:
    run(
        MODELS
        + """
from diffusers import UNet2DModel

model = UNet2DModel(
    sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 8),
    norm_num_groups=4, down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
)
for size, name in (("1GB", "one"), ("20KB", "many")):
    model.save_pretrained(name, max_shard_size=size)
    same(model, UNet2DModel.from_pretrained(name))
""",
        tmp_path,
    )
    assert is_read_by_safetensors(tmp_path / "one") > 20
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1


def test_sentence_transformers_save_and_load_models(tmp_path: Path) -> None:
    run(
        MODELS
        + """
from sentence_transformers import SentenceTransformer, models
from transformers import BertTokenizer

with open("vocab.txt", "w") as file:
    file.write("\\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "tree", "grows"]))
BertTokenizer("vocab.txt").save_pretrained("bert")
AutoModel.from_config(BertConfig(
    vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
)).save_pretrained("bert")
words = models.Transformer("bert", max_seq_length=8)
model = SentenceTransformer(modules=[words, models.Pooling(words.get_word_embedding_dimension()), models.Dense(8, 4)])
model.save("sentences", create_model_card=False)
again = SentenceTransformer("sentences")
same(model, again)
assert (model.encode(["a tree grows"]) == again.encode(["a tree grows"])).all()
""",
        tmp_path,
    )
    assert is_read_by_safetensors(tmp_path / "sentences") > 10


def test_lightning_trains_on_with_regrow_for_its_files(tmp_path: Path) -> None:
    run(
        """
import torch
import lightning
import regrow.torch
from lightning.fabric.plugins import CheckpointIO

class Files(CheckpointIO):
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        regrow.torch.save(path, checkpoint, overwrite=True)

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        return regrow.torch.load(path)

    def remove_checkpoint(self, path):
        regrow.remove(path)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.1)

def trained(epochs, plugins, resume=None):
    lightning.seed_everything(0)
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", plugins=plugins, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    data = torch.utils.data.DataLoader(torch.arange(24.0).reshape(8, 3), batch_size=4)
    trainer.fit(model, data, ckpt_path=resume)
    return trainer, model

trainer, first = trained(2, [Files()])
trainer.save_checkpoint("two")
_, whole = trained(4, [Files()])
_, resumed = trained(4, [Files()], "two")
for left, right in zip(whole.parameters(), resumed.parameters()):
    assert torch.equal(left, right)
""",
        tmp_path,
    )

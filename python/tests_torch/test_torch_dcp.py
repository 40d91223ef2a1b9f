"""`regrow.torch.StorageWriter` and `StorageReader` under `torch.distributed.checkpoint`, whose
own are the judges.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import torch.distributed.checkpoint as dcp
from torch_objects import bits, same, tensors_of, training

sys.path.append(str(Path(__file__).parent.parent / "tests"))
import processes

import regrow
import regrow.torch


def state(seed: int = 0) -> dict[str, Any]:
    """What DCP takes: dicts with text as keys, lists."""
    made = training(seed)
    made["optimizer"]["state"] = {str(number): each for number, each in made["optimizer"]["state"].items()}
    # Both names of the tied weight, as DCP stores them.
    made["model"] = {name: tensor.clone() for name, tensor in made["model"].items()}
    made["dtype"] = torch.ones(3, dtype=torch.bfloat16)
    made["empty"] = torch.empty(0, 3)
    return made


def test_the_state_of_an_optimizer_comes_back_as_load_state_dict_takes_it(tmp_path: Path) -> None:
    """DCP makes text of the integers among the keys; `load_state_dict` takes nothing of those,
    without a word.
    """
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "ema": {7: torch.ones(2)}}
    dcp.save(saved, checkpoint_id=tmp_path / "theirs", no_dist=True)
    dcp.save(saved, storage_writer=regrow.torch.StorageWriter(tmp_path / "ours"), no_dist=True)
    regrow.convert(tmp_path / "theirs", tmp_path / "converted")
    like = {**saved, "optimizer": {**saved["optimizer"]}}
    for name in ("theirs", "ours", "converted"):
        for template in (None, like) if name != "ours" else (None,):
            loaded = regrow.torch.load(tmp_path / name, like=template)
            again = torch.optim.AdamW(model.parameters())
            again.load_state_dict(loaded["optimizer"])
            assert len(again.state) == 4, (name, template is None)
            for parameter in model.parameters():
                for key, value in optimizer.state[parameter].items():
                    assert torch.equal(again.state[parameter][key], value), (name, key)
            assert list(loaded["ema"]) == ([7] if template else ["7"])
        if name != "ours":
            assert list(regrow.load(tmp_path / name)["optimizer"]["state"]) == [0, 1, 2, 3]


def test_a_reader_takes_no_other_dtype_unless_it_is_told_to(tmp_path: Path) -> None:
    obj = {"w": torch.arange(4, dtype=torch.float32) + 0.5, "step": torch.tensor(300)}
    dcp.save(obj, storage_writer=regrow.torch.StorageWriter(tmp_path / "c"), no_dist=True)
    into = {"w": torch.zeros(4, dtype=torch.float16), "step": torch.tensor(0, dtype=torch.int8)}
    with pytest.raises(dcp.CheckpointException, match=r"w: expected torch.float32, found torch.float16") as error:
        dcp.load(into, storage_reader=regrow.torch.StorageReader(tmp_path / "c"), no_dist=True)
    assert "step: expected torch.int64" in str(error.value) and "cast=True" in str(error.value)
    assert torch.equal(into["w"], torch.zeros(4, dtype=torch.float16))
    dcp.load(into, storage_reader=regrow.torch.StorageReader(tmp_path / "c", cast=True), no_dist=True)
    assert torch.equal(into["w"], obj["w"].half()) and into["step"] == 44


OBJECTS = ("scheduler", "scaler", "losses", "best", "step")


def zeroed(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: zeroed(child) for key, child in tree.items()}
    if isinstance(tree, list) and any(isinstance(each, (torch.Tensor, dict)) for each in tree):
        return [zeroed(child) for child in tree]
    return torch.zeros_like(tree) if isinstance(tree, torch.Tensor) else None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_saved_is_loaded_as_dcps_own_writer_has_it(tmp_path: Path, is_async: bool) -> None:
    obj = state()
    writer = regrow.torch.StorageWriter(tmp_path / "ours", metadata={"run": "a"})
    if is_async:
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            # This makes a tuple of torch.Size on its way.
            dcp.async_save(obj, checkpoint_id=str(tmp_path / "theirs")).result()
            dcp.async_save(obj, storage_writer=writer).result()
        finally:
            torch.distributed.destroy_process_group()
    else:
        dcp.save(obj, checkpoint_id=tmp_path / "theirs", no_dist=True)
        dcp.save(obj, storage_writer=writer, no_dist=True)
    theirs, ours = zeroed(obj), zeroed(obj)
    dcp.load(theirs, checkpoint_id=tmp_path / "theirs", no_dist=True)
    dcp.load(ours, storage_reader=regrow.torch.StorageReader(tmp_path / "ours"), no_dist=True)
    same(theirs, ours)
    assert writer.report is not None and regrow.verify(tmp_path / "ours").ok
    assert regrow.open(tmp_path / "ours").metadata["run"] == "a"
    # The data are safetensors by DCP's names, and the whole is what was given to DCP.
    with safetensors.safe_open(tmp_path / "ours" / "model.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("model.conv.weight"), obj["model"]["conv.weight"])
    loaded = regrow.torch.load(tmp_path / "ours")
    assert list(loaded) == list(obj) or set(loaded) == set(obj)
    same({name: obj[name] for name in OBJECTS}, {name: loaded[name] for name in OBJECTS})
    assert torch.equal(loaded["rng"]["cuda"][0], obj["rng"]["cuda"][0])


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_regrow_torch_is_loaded_by_dcp(tmp_path: Path) -> None:
    obj = training()["model"]
    regrow.torch.save(tmp_path / "a", {"model": obj, "step": 7, "p": (1, 2)})
    made = {
        "model": {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in obj.items()},
        "step": 0,
        "p": 0,
    }
    reader = regrow.torch.StorageReader(cast=True)
    dcp.load(made, checkpoint_id=str(tmp_path / "a"), storage_reader=reader, no_dist=True)
    assert made["step"] == 7 and made["p"] == (1, 2)
    for name, tensor in obj.items():
        assert torch.equal(made["model"][name], tensor.double()), name


@pytest.mark.filterwarnings("ignore")
def test_what_dcps_own_writer_has_saved_is_read(tmp_path: Path) -> None:
    obj = state()
    dcp.save(obj, checkpoint_id=tmp_path / "theirs", no_dist=True)
    loaded = regrow.torch.load(tmp_path / "theirs")
    assert [bits(tensor) for tensor in tensors_of(loaded["model"])] == [
        bits(loaded_as) for loaded_as in (obj["model"][name] for name in loaded["model"])
    ]
    assert set(loaded["model"]) == set(obj["model"])
    same(obj["scaler"], loaded["scaler"])
    same(obj["optimizer"]["param_groups"], loaded["optimizer"]["param_groups"])
    # Both of them give DCP the same, also of what regrow.torch.save has saved.
    regrow.torch.save(tmp_path / "ours", obj)
    expected = zeroed(obj)
    dcp.load(expected, checkpoint_id=tmp_path / "theirs", no_dist=True)
    made = zeroed(obj)
    dcp.load(made, storage_reader=regrow.torch.StorageReader(tmp_path / "ours"), no_dist=True)
    same(expected, made)


@pytest.mark.filterwarnings("ignore")
def test_errors(tmp_path: Path) -> None:
    def save(obj: Any, **options: Any) -> None:
        dcp.save(obj, storage_writer=regrow.torch.StorageWriter(tmp_path / "a", **options), no_dist=True)

    save({"w": torch.ones(3)})
    for obj, options, message in (
        ({"w": torch.ones(3)}, {}, "already"),
        ({"m": {"f": len}}, {"overwrite": True}, r"builtin_function.*\n *leaf m\.f\n"),
        ({"w": torch.ones(3, dtype=torch.complex32)}, {"overwrite": True}, "complex32"),
    ):
        with pytest.raises(dcp.CheckpointException) as raised:
            save(obj, **options)
        assert re.search(message, str(raised.value.failures[0][0]))
    with pytest.raises(TypeError, match="overwrit"):
        regrow.torch.StorageWriter("x", overwrit=True)
    with pytest.raises(dcp.CheckpointException) as raised:
        dcp.load({"v": torch.ones(3)}, storage_reader=regrow.torch.StorageReader(tmp_path / "a"), no_dist=True)
    assert "Missing key" in str(raised.value.failures[0][0])
    with pytest.raises(dcp.CheckpointException) as raised:
        dcp.load({"v": torch.ones(3)}, storage_reader=regrow.torch.StorageReader(tmp_path / "none"), no_dist=True)
    assert isinstance(raised.value.failures[0][0], regrow.errors.NotFoundError)
    assert regrow.verify(tmp_path / "a").ok


JOB = """
    import torch, regrow.torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    path = arguments["path"]
    dist.init_process_group("gloo", init_method=arguments["init"], rank=rank, world_size=size)

    def local(leaf):
        return leaf._local_tensor if isinstance(leaf, DTensor) else leaf

    def leaves(tree, at=""):
        if isinstance(tree, dict):
            return [leaf for key in tree for leaf in leaves(tree[key], f"{at}/{key}")]
        return [(at, tree)]

    def same(one, other):
        ones, others = leaves(one), leaves(other)
        assert [at for at, _ in ones] == [at for at, _ in others]
        for (at, a), (_, b) in zip(ones, others):
            assert type(a) is type(b), (at, type(a), type(b))
            if isinstance(a, torch.Tensor):
                assert local(a).dtype == local(b).dtype and torch.equal(local(a), local(b)), at
            else:
                assert a == b, (at, a, b)
        return len(ones)

    def state(seed):
        torch.manual_seed(seed)
        layers = torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3), torch.nn.LayerNorm(3)
        model = torch.nn.Sequential(*layers)
        if size > 1:
            mesh = init_device_mesh("cpu", (size,))
            for layer in model:
                if list(layer.parameters()):
                    fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * (seed + 1))
        for _ in range(2):
            model(torch.randn(4, 5)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": optimizer_state, "step": seed, "names": ("a", "b")}
"""

SAVE = (
    JOB
    + """
    saved = state(0)
    dcp.save(saved, checkpoint_id=path + "/dcp")
    writer = regrow.torch.StorageWriter(path + "/writer")
    dcp.save({**saved, f"only/{rank}": {"rank": rank, "set": {1, rank}}}, storage_writer=writer)
    dcp.async_save(saved, storage_writer=regrow.torch.StorageWriter(path + "/async")).result()
    regrow.torch.save(path + "/plain", saved)
    saving = regrow.torch.async_save(path + "/staged", saved)
    saving.wait_for_staging()
    saving.result()
    # An error of one is an error of all, at once.
    try:
        dcp.save({"m": torch.ones(2), f"r{rank}": lambda: 1} if rank else {"m": torch.ones(2)},
                 storage_writer=regrow.torch.StorageWriter(path + "/refused", job=regrow.jobs.Job(timeout=30)))
        raise AssertionError("a function was saved")
    except dcp.CheckpointException as error:
        failures = {at: type(each[0]).__name__ for at, each in error.failures.items()}
    dist.barrier()
    dist.destroy_process_group()
    done([len(leaves(saved)), failures])
"""
)

LOAD = (
    JOB
    + """
    theirs = state(1)
    dcp.load(theirs, checkpoint_id=path + "/dcp")
    for name in ("writer", "async", "plain"):
        ours = state(2)
        dcp.load(ours, storage_reader=regrow.torch.StorageReader(path + "/" + name))
        count = same(ours, theirs)
    if size == 1:
        theirs["names"] = ("a", "b")
    for name in ("plain", "staged"):
        loaded = regrow.torch.load(path + "/" + name, like=state(2))
        assert same(loaded, {**theirs, "step": 0}) == count
        for (at, a), (_, b) in zip(leaves(loaded), leaves(theirs)):
            if isinstance(a, DTensor):
                assert (a.placements, a.device_mesh) == (b.placements, b.device_mesh), at
                assert a.requires_grad == b.requires_grad, at
    dist.barrier()
    dist.destroy_process_group()
    done(count)
"""
)


@pytest.mark.timeout(400)  # half a minute where nothing else runs
def test_processes_save_and_others_load(tmp_path: Path) -> None:
    """FSDP2's state of two processes with that of its optimizer: by DCP's own storage, by ours,
    and without DCP.
    """
    path = tmp_path / "saved"
    path.mkdir()

    def run(size: int, worker: str) -> list[Any]:
        arguments = {"init": f"tcp://127.0.0.1:{processes.free_port()}", "path": str(path)}
        return [each.value for each in processes.run(size, worker, tmp_path / f"{size}", arguments=arguments)]

    ((count, failures), _) = run(2, SAVE)
    assert set(failures) == {"0", "1"} and failures["1"] == "LeafTypeError" and failures["0"] == "UnsupportedError"
    assert not (path / "refused").exists()
    for size in (3, 1):
        assert run(size, LOAD) == [count] * size
    for name in ("writer", "async", "plain", "staged"):
        assert regrow.verify(path / name).ok
    loaded = regrow.torch.load(path / "writer")
    assert loaded["only/0"] == {"rank": 0, "set": {0, 1}} and loaded["only/1"] == {"rank": 1, "set": {1}}
    assert loaded["names"] == ("a", "b") and loaded["step"] == 0
    whole = regrow.torch.load(path / "plain")
    assert torch.equal(loaded["model"]["0.weight"], whole["model"]["0.weight"])
    assert loaded["model"]["0.weight"].shape == (7, 5)

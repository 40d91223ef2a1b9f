"""Tensors on a GPU, judged by torch and safetensors, and by their own bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

import regrow.safetensors as ours
import regrow.safetensors.torch as ours_torch
import regrow.torch

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(torch.bool).cuda()
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 120, (*shape, size), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape).cuda()


def bits(tensor: torch.Tensor) -> bytes:
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return flat.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes() if tensor.numel() else b""


def assert_same(found: dict[Any, Any], wanted: dict[Any, Any], device: str = "cuda") -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert found[name].device.type == device, name
        assert bits(found[name]) == bits(tensor), name


def tensors() -> dict[str, torch.Tensor]:
    every = {str(dtype).removeprefix("torch."): random_tensor(dtype, (3, 5)) for dtype in DTYPES}
    every["large"] = random_tensor(torch.float32, (1000, 1003), 1)
    every["scalar"] = random_tensor(torch.float32, (), 2)
    every["none"] = torch.empty((0, 4), device="cuda")
    return every


def test_every_dtype_comes_back_where_it_was(tmp_path: Path) -> None:
    saved = tensors()
    regrow.torch.save(tmp_path / "x", saved)
    assert_same(regrow.torch.load(tmp_path / "x"), saved)
    assert_same(regrow.torch.load(tmp_path / "x", map_location="cpu"), saved, "cpu")
    assert_same(regrow.torch.load(tmp_path / "x", map_location="cpu", options=regrow.Options(mmap=True)), saved, "cpu")
    assert_same(regrow.torch.load(tmp_path / "x", map_location={"cuda:0": "cuda:0"}), saved)
    assert regrow.verify(tmp_path / "x").ok


def test_views_ties_and_strides(tmp_path: Path) -> None:
    weight = random_tensor(torch.float32, (4, 8, 8, 3)).to(memory_format=torch.channels_last)
    parameter = torch.nn.Parameter(random_tensor(torch.bfloat16, (10, 10), 1))
    saved = {
        "weight": weight,
        "tied": weight,
        "parameter": parameter,
        "row": parameter.detach()[3],
        "turned": parameter.detach().T,
    }
    regrow.torch.save(tmp_path / "x", saved)
    loaded = regrow.torch.load(tmp_path / "x")
    assert_same(loaded, saved)
    assert loaded["weight"] is loaded["tied"] or loaded["weight"].data_ptr() == loaded["tied"].data_ptr()
    assert loaded["weight"].stride() == weight.stride()
    assert isinstance(loaded["parameter"], torch.nn.Parameter) and loaded["parameter"].requires_grad
    loaded["parameter"].detach()[3].fill_(7)
    assert bool((loaded["row"] == 7).all())


def test_files_of_torch_save(tmp_path: Path) -> None:
    saved = tensors()
    torch.save(saved, tmp_path / "x.pt")
    assert_same(regrow.torch.load(tmp_path / "x.pt"), saved)
    assert_same(regrow.torch.load(tmp_path / "x.pt", map_location="cpu"), saved, "cpu")


def test_what_changes_behind_a_save_is_saved_as_it_was(tmp_path: Path) -> None:
    saved = {"large": random_tensor(torch.float32, (3000, 3000)), "small": random_tensor(torch.float32, (7,), 1)}
    wanted, savings = [], []
    for step in range(4):
        wanted.append({name: tensor.cpu().clone() for name, tensor in saved.items()})
        saving = regrow.torch.async_save(tmp_path / str(step), saved)
        saving.wait_for_staging()
        savings.append(saving)
        for tensor in saved.values():
            tensor.mul_(2).add_(1)
    for saving in savings:
        saving.result()
    for step, before in enumerate(wanted):
        assert_same(regrow.torch.load(tmp_path / str(step), map_location="cpu"), before, "cpu")


@pytest.mark.parametrize("side_stream", [False, True])
def test_work_that_is_still_under_way_is_waited_for(side_stream: bool, tmp_path: Path) -> None:
    """What the caller's stream has been told to compute is in the checkpoint, though it has not
    been computed yet.
    """
    stream = torch.cuda.Stream() if side_stream else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        x = torch.ones((6000, 6000), device="cuda")
        for _ in range(30):
            x = torch.tanh(x @ x)
        saved = {"x": x}
        saving = regrow.torch.async_save(tmp_path / "a", saved)
        regrow.torch.save(tmp_path / "b", saved)
    saving.result()
    torch.cuda.synchronize()
    assert_same(regrow.torch.load(tmp_path / "a"), saved)
    assert_same(regrow.torch.load(tmp_path / "b"), saved)


def test_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    torch.use_deterministic_algorithms(True)

    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1)).cuda()
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(16, 32, device="cuda")).square().mean().backward()
            optimizer.step()

    model, optimizer = make()
    train(model, optimizer, 3)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.cuda.get_rng_state()}
    regrow.torch.save(tmp_path / "x", state)
    train(model, optimizer, 5)
    other, other_optimizer = make()
    loaded = regrow.torch.load(tmp_path / "x")
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    torch.cuda.set_rng_state(loaded["rng"])
    train(other, other_optimizer, 5)
    assert_same(other.state_dict(), model.state_dict())


def test_safetensors_on_the_gpu(tmp_path: Path) -> None:
    saved = {name: tensor for name, tensor in tensors().items() if name != "complex128"}
    ours_torch.save_file(saved, tmp_path / "ours.safetensors")
    safetensors.torch.save_file(saved, tmp_path / "theirs.safetensors")
    for name in ("ours", "theirs"):
        file = tmp_path / f"{name}.safetensors"
        assert_same(safetensors.torch.load_file(file, device="cuda"), saved)
        assert_same(ours_torch.load_file(file, device="cuda"), saved)
        assert_same(ours_torch.load_file(file, device="cuda:0"), saved)
        with ours.safe_open(file, framework="pt", device="cuda") as opened:
            assert_same({key: opened.get_tensor(key) for key in opened.keys()}, saved)  # noqa: SIM118
            part = opened.get_slice("large")[10:20, 3:]
        assert part.device.type == "cuda"
        assert bits(part) == bits(saved["large"][10:20, 3:])

"""Plain tensors of PyTorch as leaves, in one process: of every dtype, however they lie in
memory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import regrow
from regrow import _native
from regrow._torch import _tensors

DTYPES = [
    dtype for dtype in {each for each in vars(torch).values() if isinstance(each, torch.dtype)} if "q" not in str(dtype)
]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = (each.detach().resolve_conj().resolve_neg().contiguous() for each in (one, other))
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return not one.numel() or torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def some(dtype: torch.dtype) -> torch.Tensor:
    raw = torch.arange(48, dtype=torch.uint8) % (2 if dtype == torch.bool else 255)
    return raw.view(dtype).reshape(1, -1)


STORABLE = sorted((dtype for dtype in DTYPES if dtype in _tensors._dtypes()), key=str)


@pytest.mark.parametrize("dtype", STORABLE, ids=str)
def test_every_dtype_comes_back_with_the_same_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = some(dtype)
    regrow.save(tmp_path / "x", {"w": tensor, "turned": tensor.T})
    name = str(dtype).split(".")[-1]
    loaded = regrow.load(tmp_path / "x")["w"]
    assert loaded.dtype == np.dtype(getattr(ml_dtypes, name, None) or name)
    assert loaded.tobytes() == tensor.view(torch.uint8).numpy().tobytes()
    like = regrow.load(tmp_path / "x", like={"w": torch.empty_like(tensor), "turned": tensor.T})
    assert same_bits(like["w"], tensor) and same_bits(like["turned"], tensor.T)
    out = {"w": torch.zeros_like(tensor), "turned": torch.zeros_like(tensor).T}
    assert regrow.load_into(tmp_path / "x", out) is out
    assert same_bits(out["w"], tensor) and same_bits(out["turned"], tensor.T)


def test_the_dtypes_that_models_have_are_among_them() -> None:
    names = {str(dtype).split(".")[-1] for dtype in STORABLE}
    assert {"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "complex64", "bool", "uint16"} <= names
    assert names <= set(_native.DTYPES)


LAYOUTS: dict[str, Any] = {
    "a slice": lambda: torch.arange(60.0).reshape(6, 10)[1:5, 2:9:3],
    "turned": lambda: torch.arange(12.0).reshape(3, 4).T,
    "channels last": lambda: torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.arange(3.0).expand(4, 3),
    "conjugated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "no axes": lambda: torch.tensor(2.5),
    "no elements": lambda: torch.zeros(0, 3),
    "with a gradient": lambda: torch.ones(3, requires_grad=True) * 2,
    "bfloat16, a slice": lambda: torch.arange(60).to(torch.bfloat16).reshape(6, 10)[::2, ::3],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_are_saved_and_filled_however_they_lie(tmp_path: Path, name: str) -> None:
    tensor = LAYOUTS[name]()
    regrow.save(tmp_path / "x", [tensor])
    (loaded,) = regrow.load(tmp_path / "x", like=[tensor])
    assert same_bits(loaded, tensor)
    assert loaded.data_ptr() != tensor.data_ptr() or not tensor.numel()
    if name == "expanded":
        with pytest.raises(regrow.errors.LeafTypeError, match="expanded"):
            regrow.load_into(tmp_path / "x", [tensor])
        return
    regrow.save(tmp_path / "y", [torch.full_like(tensor, 7)])
    regrow.load_into(tmp_path / "y", [tensor])
    assert bool((tensor == 7).all())


def test_tied_weights_are_filled_once_each_and_stay_tied(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(7, 4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("rows", torch.arange(4.0))

    model, other = Tied(), Tied()
    regrow.save(tmp_path / "x", model.state_dict())
    assert set(regrow.load(tmp_path / "x")) == {"embed.weight", "head.weight", "rows"}
    regrow.load_into(tmp_path / "x", other.state_dict())
    assert torch.equal(other.embed.weight, model.embed.weight)
    assert other.head.weight is other.embed.weight
    third = Tied()
    third.load_state_dict(regrow.load(tmp_path / "x", like=third.state_dict()))
    assert torch.equal(third.head.weight, model.embed.weight) and third.head.weight is third.embed.weight


def test_a_module_and_its_optimizer_go_on_where_they_were(tmp_path: Path) -> None:
    def made() -> tuple[Any, Any]:
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten())
        return model, torch.optim.Adam(model.parameters())

    def step(model: Any, optimizer: Any) -> None:
        model(torch.ones(2, 1, 5, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer = made()
    step(model, optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    regrow.save(tmp_path / "x", state)
    other, other_optimizer = made()
    loaded = regrow.load(tmp_path / "x", like=state)
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    for each in ((model, optimizer), (other, other_optimizer)):
        step(*each)
    for name, value in model.state_dict().items():
        assert same_bits(value, other.state_dict()[name]), name


def test_a_template_gives_its_kind_of_tensor(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", {"w": torch.arange(3.0), "b": torch.arange(2.0), "m": np.arange(4.0)})
    parameter = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    like = {"w": parameter, "b": torch.zeros(2, requires_grad=True), "m": torch.empty(4, device="meta").double()}
    loaded = regrow.load(tmp_path / "x", like=like)
    assert type(loaded["w"]) is torch.nn.Parameter and not loaded["w"].requires_grad
    assert type(loaded["b"]) is torch.Tensor and loaded["b"].requires_grad
    assert loaded["m"].device.type == "cpu" and loaded["m"].tolist() == [0, 1, 2, 3]
    assert parameter.tolist() == [0, 0, 0]
    assert isinstance(regrow.load(tmp_path / "x", like={"w": np.zeros(3, np.float32)}, extra="drop")["w"], np.ndarray)


def test_what_is_filled_has_numbers_and_arrays_beside_it(tmp_path: Path) -> None:
    saved = {"w": torch.arange(3.0), "lr": 0.5, "n": None, "name": "net", "host": np.arange(4)}
    regrow.save(tmp_path / "x", saved)
    out = {"w": torch.zeros(3), "lr": 0.0, "n": None, "name": "", "host": np.zeros(4, int)}
    filled = regrow.load_into(tmp_path / "x", out)
    assert (filled["lr"], filled["name"], out["lr"]) == (0.5, "net", 0.0)
    assert filled["w"] is out["w"] and filled["host"] is out["host"]
    assert out["w"].tolist() == [0, 1, 2] and out["host"].tolist() == [0, 1, 2, 3]
    kept = {"w": torch.zeros(3), "host": np.zeros(4, int)}
    assert regrow.load_into(tmp_path / "x", kept, only="host") is kept
    assert kept["w"].tolist() == [0, 0, 0] and kept["host"].tolist() == [0, 1, 2, 3]
    with pytest.raises(regrow.errors.InvalidArgumentError, match="tensors, writable NumPy arrays"):
        regrow.load_into(tmp_path / "x", {"w": torch.zeros(3), "f": print})


def test_a_graph_that_holds_what_was_there_does_not_go_on(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", {"w": torch.ones(3)})
    weight = torch.full((3,), 2.0, requires_grad=True)
    result = (weight * weight).sum()
    regrow.load_into(tmp_path / "x", {"w": weight})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_nothing_is_filled_if_anything_does_not_fit(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", {"a": torch.ones(3), "b": torch.ones(4)})
    for wrong in (torch.zeros(5), torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.bfloat16)):
        out = {"a": torch.zeros(3), "b": wrong}
        with pytest.raises(regrow.errors.MismatchError, match="b"):
            regrow.load_into(tmp_path / "x", out)
        assert out["a"].tolist() == [0, 0, 0]
    with pytest.raises(regrow.errors.MismatchError):
        regrow.load(tmp_path / "x", like={"a": torch.zeros(3), "b": torch.zeros(4), "c": torch.zeros(1)})


class Wrapped(torch.Tensor):
    """A tensor that is made of another one."""

    @staticmethod
    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (2,))

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


REFUSED: dict[str, tuple[Any, str]] = {
    "sparse": (lambda: torch.eye(2).to_sparse(), "sparse_coo"),
    "compressed": (lambda: torch.eye(2).to_sparse_csr(), "sparse_csr"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantized"),
    "without data": (lambda: torch.empty(2, device="meta"), "no data"),
    "of halves that are complex": (lambda: torch.zeros(2, dtype=torch.complex32), "complex32"),
    "made of other tensors": (Wrapped, "made of other tensors"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_stored_is_refused_with_its_key_path(tmp_path: Path, name: str) -> None:
    make, says = REFUSED[name]
    with pytest.raises(regrow.errors.LeafTypeError, match=says) as caught:
        regrow.save(tmp_path / "x", {"model": {"w": make()}})
    assert caught.value.leaf == "model/w" and "help" in str(caught.value)
    assert not (tmp_path / "x").exists()
    regrow.save(tmp_path / "y", {"model": {"w": np.zeros(2, np.float32)}})
    with pytest.raises(regrow.RegrowError) as caught:
        regrow.load_into(tmp_path / "y", {"model": {"w": make()}})
    assert "model/w" in str(caught.value)


def test_a_background_save_has_the_tensors_as_they_were(tmp_path: Path) -> None:
    weight = torch.ones(300_000)
    saving = regrow.save_async(tmp_path / "x", {"w": weight})
    weight.zero_()
    saving.result()
    assert bool((regrow.load(tmp_path / "x")["w"] == 1).all())


@pytest.mark.parametrize("layout", ["regrow", "orbax", "safetensors", "npy"])
def test_tensors_go_into_every_layout(tmp_path: Path, layout: str) -> None:
    path = tmp_path / ("x.safetensors" if layout == "safetensors" else "x.npz" if layout == "npy" else "x")
    tree = {"w": torch.arange(6.0).reshape(2, 3).T, "n": torch.arange(3)}
    regrow.save(path, tree, layout=layout)
    loaded = regrow.load(path, like=tree)
    assert all(same_bits(loaded[name], tree[name]) for name in tree)


def test_regrow_does_not_import_torch() -> None:
    program = (
        "import sys, numpy, regrow\n"
        "regrow.save(sys.argv[1], {'w': numpy.zeros(3)})\n"
        "regrow.load(sys.argv[1], like={'w': numpy.zeros(3)})\n"
        "assert 'torch' not in sys.modules\n"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", program, f"{folder}/x"], check=True, timeout=100)

"""Each tensor that regrow.torch writes, opened with the tool of the layout: its own numbers, bit
for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.serialization
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors
import safetensors.torch
import torch
from torch_objects import bits

import regrow
import regrow.torch


def tensors() -> dict[str, torch.Tensor]:
    """Tensors that share memory in every way, and each dtype."""
    base, other = torch.arange(24.0), torch.arange(10)
    pairs = torch.tensor([1 + 2j, 3 - 4j])
    embed = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3))
    dtypes = [dtype for dtype in regrow._torch._tensors._dtypes() if isinstance(dtype, torch.dtype)]
    return {
        "embed": embed, "tied": embed, "transposed": embed.T, "rows": embed[:2], "column": embed[:, 1],
        "base": base, "view": base[2:9], "other dtype": base.view(torch.int32), "step": base[1::2],
        "matrix": base.view(4, 6).t(), "number": base[5], "diagonal": base.view(4, 6).diagonal(),
        "lower": other[:7], "upper": other[3:],
        "conj": pairs.conj(), "negative": pairs.conj().imag, "real": pairs.real,
        "expanded": torch.ones(1).expand(4), "expanded rows": torch.arange(3).expand(2, 3),
        "windows": torch.arange(6).unfold(0, 3, 1), "channels last": torch.rand(1, 3, 2, 2).to(
            memory_format=torch.channels_last
        ), "empty": torch.empty(0, 3),
        **{str(dtype): torch.arange(16, dtype=torch.uint8).remainder(2).view(dtype) for dtype in dtypes},
    }  # fmt: skip


Tensors = dict[str, torch.Tensor]


def by_orbax(path: Path, _obj: Tensors) -> dict[str, Any]:
    with ocp.PyTreeCheckpointer() as checkpointer:
        return dict(checkpointer.restore(path))


def by_safetensors(path: Path, _obj: Tensors) -> dict[str, Any]:
    file = path / "model.safetensors" if path.is_dir() else path
    with safetensors.safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def by_flax(path: Path, _obj: Tensors) -> dict[str, Any]:
    return dict(flax.serialization.msgpack_restore(path.read_bytes()))


def by_numpy(path: Path, _obj: Tensors) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as opened:
        return {name: opened[name] for name in opened.files}


def by_equinox(path: Path, obj: Tensors) -> dict[str, Any]:
    like = {name: np.zeros_like(numpy_of(tensor)) for name, tensor in obj.items()}
    return dict(eqx.tree_deserialise_leaves(path, like))


def numpy_of(tensor: torch.Tensor) -> Any:
    name = str(tensor.dtype).removeprefix("torch.")
    return np.frombuffer(bits(tensor), np.dtype(getattr(ml_dtypes, name, name))).reshape(tuple(tensor.shape))


TARGETS: dict[str, tuple[str, str, Callable[[Path, Tensors], dict[str, Any]]]] = {
    "regrow by Orbax": ("regrow", "x", by_orbax),
    "regrow by safetensors": ("regrow", "x", by_safetensors),
    "orbax": ("orbax", "x", by_orbax),
    "safetensors": ("safetensors", "x.safetensors", by_safetensors),
    "flax": ("flax", "x.msgpack", by_flax),
    "npz": ("npy", "x.npz", by_numpy),
    "equinox": ("equinox", "x.eqx", by_equinox),
}
# What safetensors and Orbax have no place for; the default layout, which has, shows the first to
# Orbax and the second to safetensors.
LACKING = {"safetensors": {"torch.complex128"}, "orbax": {"empty"}, "regrow by Orbax": {"empty"}}
LACKING["regrow by safetensors"] = LACKING["safetensors"]
# Of these only the default record says which memory they share: torch.save refuses the first, and
# regrow the files of the others.
COMPUTED = {"other dtype", "conj", "negative", "real"}


def unlike(found: dict[str, Any], wanted: dict[str, torch.Tensor]) -> list[str]:
    """Tensors that another tool does not give back."""
    different = []
    for name, tensor in wanted.items():
        got = found.get(name)
        if isinstance(got, torch.Tensor):
            is_same = (got.dtype, got.shape) == (tensor.dtype, tensor.shape) and bits(got) == bits(tensor)
        else:
            array, want = np.asarray(got), numpy_of(tensor)
            is_same = (array.dtype, array.shape) == (want.dtype, want.shape) and array.tobytes() == want.tobytes()
        if not is_same:
            different.append(f"{name}: {got!r:.60}")
    return different


def chosen(name: str, but: set[str] = frozenset()) -> Tensors:  # type: ignore[assignment]
    """The tensors that a target has a place for."""
    return {at: tensor for at, tensor in tensors().items() if at not in but | LACKING.get(name, set())}


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "flax"])
def test_what_is_saved_is_there_in_full(tmp_path: Path, name: str) -> None:
    layout, file, read = TARGETS[name]
    obj = chosen(name)
    regrow.torch.save(tmp_path / file, obj, layout=layout)
    assert unlike(read(tmp_path / file, obj), obj) == []
    assert unlike(regrow.load(tmp_path / file), obj) == []
    again = regrow.torch.load(tmp_path / file)
    assert unlike(again, obj) == [] and again["tied"] is again["embed"]
    again["embed"].data.zero_()
    assert not again["transposed"].any()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("by", ["regrow", "torch"])
def test_what_is_converted_is_there_in_full(tmp_path: Path, name: str, by: str) -> None:
    layout, file, read = TARGETS[name]
    obj = chosen(name, COMPUTED if by == "torch" else set())
    source, target = tmp_path / "source", tmp_path / file
    regrow.torch.save(source, obj) if by == "regrow" else torch.save(obj, source)
    has_no_place = layout == "flax" and by == "regrow"
    report = regrow.convert(source, target, layout=layout, lossy=has_no_place)
    lost = [(loss.key_path, loss.what) for loss in report.losses if loss.kind != "note"]
    assert lost == ([(".", "the checkpoint's own metadata is left out")] if has_no_place else [])
    assert unlike(read(target, obj), obj) == []
    for path in (source, target):
        assert unlike(regrow.load(path), obj) == []
        assert regrow.verify(path).ok
    assert regrow.diff(source, target).equal
    if not has_no_place and layout != "flax":
        again = regrow.torch.load(target)
        assert unlike(again, obj) == [] and again["tied"] is again["embed"]


RULES: list[dict[str, Any]] = [
    {"only": ["tied", "transposed", "view"]},
    {"only": ["lower", "upper", "matrix"]},
    {"rename": {"embed": "base", "base": "embed"}},
    {"rename": {"(.*)": "model/$1"}},
    {"rename": {"upper": "lower", "lower": "upper"}},
    {"transpose": {"embed": (1, 0)}},
    {"transpose": {"matrix": (1, 0)}, "reshape": {"base": (4, 6)}},
    {"cast": {"embed": "bfloat16"}},
    {"cast": {"tied": "float64", "upper": "float32"}},
]


@pytest.mark.parametrize("by", ["regrow", "torch"])
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_ties_follow_their_tensors(tmp_path: Path, rules: dict[str, Any], by: str) -> None:
    """Leaves that are renamed, changed or left out: `regrow.torch.load` gives the numbers of
    `regrow.load`.
    """
    obj = chosen("regrow by Orbax", COMPUTED)
    source, target = tmp_path / "source", tmp_path / "x"
    regrow.torch.save(source, obj) if by == "regrow" else torch.save(obj, source)
    regrow.convert(source, target, **rules)
    arrays, found = regrow.load(target), regrow.torch.load(target)
    arrays, found = arrays.get("model", arrays), found.get("model", found)
    assert set(arrays) == set(found)
    for name, array in arrays.items():
        assert tuple(found[name].shape) == array.shape and bits(found[name]) == array.tobytes(), name

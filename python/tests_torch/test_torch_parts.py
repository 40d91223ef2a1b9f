"""Parts of checkpoints (`only=`), and tensors in maps of the files: of regrow's, of
torch.save's, of DCP's.
"""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch_objects import bits, same, tensors_of, training

import regrow
import regrow.torch


def mapped_file(tensor: torch.Tensor) -> str | None:
    """The file whose map holds the memory of a tensor, as the system reports it."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split()
        start, end = (int(each, 16) for each in span.split("-"))
        if start <= address < end:
            return name if name.startswith("/") else None
    return None


def views() -> dict[str, Any]:
    base = torch.arange(24.0)
    image = torch.arange(72.0).reshape(2, 3, 3, 4).to(memory_format=torch.channels_last)
    return {
        "base": base, "view": base[4:8], "again": base, "matrix": base.view(4, 6).t(), "step": base[1::2],
        "alone": torch.arange(8).reshape(2, 4)[:, 1], "part": torch.arange(10)[3:6], "image": image,
        "half": torch.arange(4).to(torch.bfloat16), "empty": torch.empty(0, 3), "scalar": torch.tensor(3),
        "parameter": torch.nn.Parameter(torch.ones(2)), "flags": torch.tensor([True, False]), "number": 7,
    }  # fmt: skip


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_tensors_of_torch_save_in_maps(tmp_path: Path, is_zip: bool) -> None:
    path, obj = tmp_path / "x.pt", views()
    torch.save(obj, path, _use_new_zipfile_serialization=is_zip)
    before = path.read_bytes()
    for options in ({}, {"checksums": False}):
        loaded = regrow.torch.load(path, options=regrow.Options(mmap=True, **options))
        same(torch.load(path, weights_only=False), loaded)
        assert loaded["again"] is loaded["base"]
        in_maps = {name for name, tensor in loaded.items() if name != "number" and mapped_file(tensor) == str(path)}
        if is_zip:
            assert in_maps == set(obj) - {"number", "empty"}
        else:
            # Storages lie where they happen to: numbers that lie askew are read.
            assert in_maps
        # Tensors share the storages that they shared, and no others.
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors_of(loaded)}) == len(
            {tensor.untyped_storage().data_ptr() for tensor in tensors_of(obj)}
        )
        loaded["base"].fill_(7)
        assert loaded["view"].eq(7).all()
    assert path.read_bytes() == before


def test_damage_is_found_before_a_map_is_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(1000), "b": torch.arange(1000).reshape(10, 100).t()}, path)
    data = bytearray(path.read_bytes())
    at = data.rindex(torch.tensor(777).numpy().tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    for mmap in (True, False):
        with pytest.raises(regrow.errors.CorruptError, match=r"CRC-32"):
            regrow.torch.load(path, options=regrow.Options(mmap=mmap))
    # The other leaf is whole.
    assert regrow.torch.load(path, only="a", options=regrow.Options(mmap=True))["a"].eq(torch.arange(1000)).all()
    assert (
        not regrow.torch.load(path, options=regrow.Options(mmap=True, checksums=False))["b"]
        .eq(torch.arange(1000).reshape(10, 100).t())
        .all()
    )


def test_what_is_compressed_or_in_pieces_is_read(tmp_path: Path) -> None:
    obj = {"a": torch.arange(1000.0), "b": torch.ones(3)}
    regrow.torch.save(tmp_path / "packed", obj, compression="zstd")
    same(obj, regrow.torch.load(tmp_path / "packed", options=regrow.Options(mmap=True)))
    dcp.save(obj, checkpoint_id=tmp_path / "dcp", no_dist=True)
    loaded = regrow.torch.load(tmp_path / "dcp", options=regrow.Options(mmap=True))
    same(obj, loaded)
    assert mapped_file(loaded["a"]) == str(tmp_path / "dcp" / "__0_0.distcp")


def checkpoint(path: Path, kind: str) -> dict[str, Any]:
    obj = training()
    if kind == "regrow":
        regrow.torch.save(path, obj)
    elif kind == "pt":
        torch.save(obj, path)
    else:
        obj["optimizer"]["state"] = {str(number): each for number, each in obj["optimizer"]["state"].items()}
        writer = regrow.torch.StorageWriter(path)
        dcp.save(obj, storage_writer=writer, no_dist=True)
    return obj


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("kind", ["regrow", "pt", "dcp"])
def test_parts_by_their_key_paths(tmp_path: Path, kind: str, mmap: bool) -> None:
    obj = checkpoint(tmp_path / "x", kind)

    def part(*only: str) -> Any:
        return regrow.torch.load(tmp_path / "x", only=only, options=regrow.Options(mmap=mmap))

    model = part("model")
    assert list(model) == ["model"] and set(model["model"]) == set(obj["model"])
    assert all(bits(model["model"][name]) == bits(tensor) for name, tensor in obj["model"].items())
    if kind != "dcp":
        same({"model": obj["model"]}, model)
        assert model["model"]._metadata == obj["model"]._metadata
    # The second name of a tied weight, alone.
    head = part("model/head.weight")
    assert list(head["model"]) == ["head.weight"]
    assert bits(head["model"]["head.weight"]) == bits(obj["model"]["head.weight"])
    same({"scaler": obj["scaler"], "config": {"compile": None}, "step": 7}, part("step", "scaler", "config/compile"))
    group = part("optimizer/param_groups/0/lr")
    same({"optimizer": {"param_groups": [{"lr": obj["optimizer"]["param_groups"][0]["lr"]}]}}, group)
    # A set is chosen whole; in a tuple positions stay what they are.
    same({"loader": {"seen": {1, 2, 3}}}, part("loader/seen/0"))
    assert part("config/layers/1")["config"]["layers"] == (..., 2)
    same({"config": {"shape": torch.Size([2, 3])}}, part("config/shape/*"))
    with pytest.raises(regrow.errors.NotFoundError, match=r'no leaf matches "modle", "x/\*\*"(?s:.*)help: key paths'):
        part("modle", "x/**", "step")


def test_only_that_is_read_which_is_asked_for(tmp_path: Path) -> None:
    """What is refused or damaged elsewhere does no harm."""
    torch.save({"m": torch.nn.Linear(1, 1), "w": torch.ones(1), "n": {"deep": [1, torch.zeros(2)]}}, tmp_path / "x.pt")
    with pytest.raises(regrow.errors.UnsupportedError, match=r"torch\.nn\.modules\.linear\.Linear"):
        regrow.torch.load(tmp_path / "x.pt")
    same({"w": torch.ones(1), "n": {"deep": [..., torch.zeros(2)]}}, regrow.torch.load(
        tmp_path / "x.pt", only=["w", "n/deep/1"]
    ))  # fmt: skip
    regrow.torch.save(tmp_path / "a", {"x": torch.arange(10_000), "y": torch.arange(10_000) * 2})
    file = tmp_path / "a" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    for mmap in (False, True):
        assert (
            regrow.torch.load(tmp_path / "a", only="x", options=regrow.Options(mmap=mmap))["x"]
            .eq(torch.arange(10_000))
            .all()
        )
        with pytest.raises(regrow.errors.CorruptError, match="leaf y"):
            regrow.torch.load(tmp_path / "a", only="y", options=regrow.Options(mmap=mmap))


def test_a_part_whose_memory_is_another_ones(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    obj = collections.OrderedDict(
        base=base, view=base[2:], again=base, one=base[:4].view(2, 2).t(), odd=torch.ones(2, dtype=torch.complex64),
        pairs={(1, 2): torch.ones(3), None: base[1:]},
    )  # fmt: skip
    regrow.torch.save(tmp_path / "a", obj)
    for name in ("view", "again", "one", "odd"):
        same(collections.OrderedDict({name: obj[name]}), regrow.torch.load(tmp_path / "a", only=name))
    tied = regrow.torch.load(tmp_path / "a", only=["view", "again"])
    same(collections.OrderedDict(view=obj["view"], again=base), tied)
    same(collections.OrderedDict(pairs=obj["pairs"]), regrow.torch.load(tmp_path / "a", only="pairs/0/*"))
    like = {"view": torch.ones(4)}
    with pytest.raises(regrow.errors.InvalidArgumentError, match="`only`"):
        regrow.torch.load(tmp_path / "a", only="view", like=like)


@pytest.mark.parametrize("record", [{"/b": {"same": "/b"}}, {"/b": {"same": "/c"}, "/c": {"same": "/b"}},
                                    {"/b": {"of": "/c"}, "/c": {"of": "/b"}}])  # fmt: skip
def test_a_record_that_goes_round_is_refused(tmp_path: Path, record: dict[str, Any]) -> None:
    import json

    text = json.dumps({"version": 1, "at": record})
    regrow.save(tmp_path / "a", {"b": [1], "c": 2, "d": 3} | {"b": 1}, metadata={"regrow.torch": text})
    for only in (None, "b"):
        with pytest.raises(regrow.errors.CorruptError, match=r"regrow\.torch"):
            regrow.torch.load(tmp_path / "a", only=only)

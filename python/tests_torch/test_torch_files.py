"""`regrow.torch.load` of what `torch.save` has written, beside `torch.load`."""

from __future__ import annotations

import collections
import contextlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_objects import bits, same, tensors_of, training

import regrow
import regrow.torch

_spec = importlib.util.spec_from_file_location("torch_zips", Path(__file__).parents[1] / "tests" / "torch_zips.py")
assert _spec is not None and _spec.loader is not None
zips = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(zips)

FIXTURES = Path(__file__).parent.parent.parent / "fixtures" / "torch"


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def is_zip(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def through_file(obj: Any, path: Path, is_zip: bool) -> tuple[Any, Any]:
    """What torch and regrow load of it."""
    torch.save(obj, path, _use_new_zipfile_serialization=is_zip)
    return torch.load(path, weights_only=False), regrow.torch.load(path)


def test_a_training_dict_is_what_torch_loads(tmp_path: Path, is_zip: bool) -> None:
    theirs, ours = through_file(training(), tmp_path / "x.pt", is_zip)
    same(theirs, ours)
    ours["model"]["embed.weight"].fill_(7)
    assert ours["model"]["head.weight"].eq(7).all()


def test_storages_are_shared_again(tmp_path: Path, is_zip: bool) -> None:
    base, other = torch.arange(24.0), torch.arange(10)
    obj = {
        "view": base[4:8], "base": base, "again": base, "matrix": base.view(4, 6).t(), "step": base[1::2],
        "parameter": torch.nn.Parameter(base), "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "grad": torch.ones(2, requires_grad=True), "parts": (other[:7], other[3:], other[5]),
        "expanded": torch.arange(3).reshape(3, 1).expand(3, 4), "scalar": base[3], "empty": torch.empty(0, 3),
        "alone": torch.arange(8).reshape(2, 4)[:, 1], "window": torch.arange(6).as_strided((3, 3), (1, 1)),
        "half": torch.arange(4).to(torch.bfloat16),
    }  # fmt: skip
    theirs, ours = through_file(obj, tmp_path / "x.pt", is_zip)
    same(theirs, ours)
    assert ours["again"] is ours["base"]
    # One storage, also of what does not touch: as torch has it.
    for one, other in zip(tensors_of(theirs), tensors_of(ours), strict=True):
        is_in_base = one.untyped_storage().data_ptr() == address(theirs)
        assert (other.untyped_storage().data_ptr() == address(ours)) == is_in_base


def address(obj: Any) -> int:
    return int(obj["base"].untyped_storage().data_ptr())


def test_containers(tmp_path: Path, is_zip: bool) -> None:
    obj = {
        "ordered": collections.OrderedDict(b=1, a=2), "defaults": collections.defaultdict(list, a=[1]),
        "counts": collections.Counter([2, 4, 4]),
        0: {"0": 1, 0: 2},
        "a/b~": {"c": torch.ones(1)}, "big": [2**63, -(2**80), 10**30], "set": {1, "a"}, "size": torch.Size([2, 3]),
        "torch": [torch.float16, torch.device("cpu"), torch.strided], "text": ["", "ü"], "none": None,
    }  # fmt: skip
    same(*through_file(obj, tmp_path / "x.pt", is_zip))


def test_map_location_moves_storages(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    torch.save({"a": base, "b": base[2:]}, tmp_path / "x.pt")
    moved = regrow.torch.load(tmp_path / "x.pt", map_location=lambda storage, location: storage.clone())
    same({"a": base, "b": base[2:]}, moved)
    assert regrow.torch.load(tmp_path / "x.pt", map_location="meta")["b"].device.type == "meta"
    # A device that is not there.
    data = (tmp_path / "x.pt").read_bytes()
    assert regrow.torch.load(tmp_path / "x.pt", options=regrow.Options(mmap=True))["b"].eq(base[2:]).all() and data


def test_what_only_python_can_make_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"m": torch.nn.Linear(1, 1), "w": torch.ones(1)}, tmp_path / "x.pt")
    with pytest.raises(regrow.errors.UnsupportedError, match=r"torch\.nn\.modules\.linear\.Linear"):
        regrow.torch.load(tmp_path / "x.pt")


WRITTEN = ["training.pt", "dtypes.pt", "legacy_training.pt", "pytorch_model.bin", "tensor.pt", "protocol5.pth"]


@pytest.mark.parametrize("name", WRITTEN)
def test_the_fixtures_are_what_torch_loads(name: str) -> None:
    theirs = torch.load(FIXTURES / name, weights_only=False)
    ours = regrow.torch.load(FIXTURES / name)
    mine, others = tensors_of(ours), tensors_of(theirs)
    assert [(each.dtype, each.shape, bits(each)) for each in mine] == [
        (each.dtype, each.shape, bits(each)) for each in others
    ]


def test_a_file_becomes_a_checkpoint(tmp_path: Path) -> None:
    obj = training()
    torch.save(obj, tmp_path / "x.pt")
    regrow.torch.save(tmp_path / "checkpoint", regrow.torch.load(tmp_path / "x.pt"))
    same(obj, regrow.torch.load(tmp_path / "checkpoint"))


@pytest.mark.parametrize("case", zips.CASES)
def test_no_archive_raises_anything_but_regrows_own(tmp_path: Path, case: str) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(zips.CASES[case])
    for options in ({}, {"mmap": True}, {"map_location": "cpu"}):
        with contextlib.suppress(regrow.RegrowError):
            regrow.torch.load(path, **options)


def test_no_change_of_an_archive_raises_anything_but_regrows_own(tmp_path: Path) -> None:
    path, loaded = tmp_path / "x.pt", 0
    for data in zips.changed(1000, seed=34):
        path.write_bytes(data)
        with contextlib.suppress(regrow.RegrowError):
            if sum(leaf.nbytes for leaf in regrow.open(path).values()) < 2**20:
                regrow.torch.load(path)
                loaded += 1
    assert loaded > 50

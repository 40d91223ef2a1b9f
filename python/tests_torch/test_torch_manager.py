"""`regrow.torch.Manager`: numbered steps of what training scripts have."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regrow
import regrow.torch


def train(steps: int, model: Any, optimizer: Any, scheduler: Any) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        scheduler.step()


def state_of(model: Any, optimizer: Any, scheduler: Any) -> dict[str, Any]:
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "random": (torch.get_rng_state(), np.random.get_state(), random.getstate()),
        "shapes": {(3, 2): torch.Size([3, 2])},
    }


def parts() -> tuple[Any, Any, Any]:
    torch.manual_seed(7)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])


def same(one: Any, other: Any) -> bool:
    """Equal in types and values, bit for bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_steps_are_resumed_to_the_bit(tmp_path: Path) -> None:
    whole = parts()
    train(6, *whole)
    model, optimizer, scheduler = parts()
    with regrow.torch.Manager(tmp_path / "run", keep=2) as steps:
        for step in range(3):
            train(1, model, optimizer, scheduler)
            saved = state_of(model, optimizer, scheduler)
            assert steps.save(step, saved, items={"config": regrow.Json({"width": 2})}, metrics={"loss": 1.0 - step})
            if step < 2:
                steps.wait()
        # Changes after the call are not in the step.
        saved = copy.deepcopy(saved)
        with torch.no_grad():
            model.weight.zero_()
    model, optimizer, scheduler = parts()
    with regrow.torch.Manager(tmp_path / "run", keep=2) as steps:
        assert steps.steps == [1, 2]
        found = steps.restore(map_location="cpu")
        assert steps.restored == 2 and same(found["model"], saved["model"])
        assert found["shapes"] == {(3, 2): torch.Size([3, 2])} and same(found["scheduler"], saved["scheduler"])
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        scheduler.load_state_dict(found["scheduler"])
        torch.set_rng_state(found["random"][0])
        np.random.set_state(found["random"][1])
        random.setstate(found["random"][2])
        several = steps.restore(items=["default", "config"])
        assert several["config"] == {"width": 2} and same(several["default"]["model"], saved["model"])
        alone = steps.restore(only="model/**", options=regrow.Options(mmap=True))
        assert same(alone["model"], saved["model"]) and "optimizer" not in alone
    train(3, model, optimizer, scheduler)
    assert same(model.state_dict(), whole[0].state_dict()) and same(optimizer.state_dict(), whole[1].state_dict())


def test_other_readers_of_a_step(tmp_path: Path) -> None:
    with regrow.torch.Manager(tmp_path / "run", background=False) as steps:
        steps.save(5, {"w": torch.arange(4.0), "tied": torch.ones(2)}, metadata={"by": "me"})
        assert steps.step(5).metadata == {"by": "me"}
    assert torch.equal(regrow.torch.load(tmp_path / "run", at="default")["w"], torch.arange(4.0))
    assert regrow.load(tmp_path / "run" / "5", at="default")["w"].tolist() == [0, 1, 2, 3]
    with regrow.Manager(tmp_path / "run") as steps:
        assert steps.restore()["w"].tolist() == [0, 1, 2, 3]


def test_what_a_manager_of_torch_refuses(tmp_path: Path) -> None:
    with regrow.torch.Manager(tmp_path / "run") as steps:
        with pytest.raises(regrow.errors.LeafTypeError, match="hook"):
            steps.save(0, {"hook": print})
        assert steps.steps == []
        steps.save(0, {"w": torch.ones(2)})
        steps.wait()
        with pytest.raises(regrow.errors.InvalidArgumentError, match="'cast'"):
            steps.restore(cast="float16")

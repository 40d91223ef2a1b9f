"""States of every optimizer and every scheduler that torch has, through checkpoints and through
files of torch.save.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedulers
from torch_objects import same

import regrow.torch

OPTIMIZERS = [
    made
    for made in vars(torch.optim).values()
    if inspect.isclass(made) and issubclass(made, torch.optim.Optimizer) and made is not torch.optim.Optimizer
]


def through(obj: Any, folder: Path) -> None:
    """Asserts that it comes back."""
    regrow.torch.save(folder / "x", obj)
    same(obj, regrow.torch.load(folder / "x"))
    torch.save(obj, folder / "x.pt")
    for mmap in (False, True):
        same(
            torch.load(folder / "x.pt", weights_only=False),
            regrow.torch.load(folder / "x.pt", options=regrow.Options(mmap=mmap)),
        )


@pytest.mark.parametrize("made", OPTIMIZERS, ids=[each.__name__ for each in OPTIMIZERS])
def test_optimizers(tmp_path: Path, made: Any) -> None:
    torch.manual_seed(0)
    is_sparse = made is torch.optim.SparseAdam
    model: Any = torch.nn.Embedding(5, 3, sparse=True) if is_sparse else torch.nn.Linear(4, 3)
    inputs = torch.tensor([1, 2]) if is_sparse else torch.randn(2, 4)
    optimizer = made([each for each in model.parameters() if each.ndim == 2], lr=0.1)

    def loss() -> Any:
        optimizer.zero_grad()
        found = model(inputs).square().sum()
        found.backward()
        return found

    for _ in range(2):
        optimizer.step(loss)
    state = optimizer.state_dict()
    assert state["param_groups"]
    through(state, tmp_path)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)


def sequence(one: torch.optim.Optimizer) -> Any:
    parts = [schedulers.ConstantLR(one), schedulers.ExponentialLR(one, 0.9)]
    return schedulers.SequentialLR(one, parts, [3])


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda one: schedulers.StepLR(one, 2),
    "MultiStepLR": lambda one: schedulers.MultiStepLR(one, [2, 4, 4]),
    "ConstantLR": schedulers.ConstantLR,
    "LinearLR": schedulers.LinearLR,
    "ExponentialLR": lambda one: schedulers.ExponentialLR(one, 0.9),
    "PolynomialLR": schedulers.PolynomialLR,
    "LambdaLR": lambda one: schedulers.LambdaLR(one, lambda step: 0.9**step),
    "MultiplicativeLR": lambda one: schedulers.MultiplicativeLR(one, lambda step: 0.9),
    "CosineAnnealingLR": lambda one: schedulers.CosineAnnealingLR(one, 10),
    "CosineAnnealingWarmRestarts": lambda one: schedulers.CosineAnnealingWarmRestarts(one, 3),
    "CyclicLR": lambda one: schedulers.CyclicLR(one, 0.01, 0.1, mode="exp_range"),
    "OneCycleLR": lambda one: schedulers.OneCycleLR(one, 0.1, total_steps=10),
    "ReduceLROnPlateau": schedulers.ReduceLROnPlateau,
    "SequentialLR": sequence,
    "ChainedScheduler": lambda one: schedulers.ChainedScheduler([schedulers.ConstantLR(one)]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(tmp_path: Path, name: str) -> None:
    scheduler = SCHEDULERS[name](optimizer())
    for _ in range(3):
        scheduler.step(1.0) if name == "ReduceLROnPlateau" else scheduler.step()
    through(scheduler.state_dict(), tmp_path)


def test_the_list_of_schedulers_is_whole() -> None:
    known = {
        name
        for name, each in vars(schedulers).items()
        if inspect.isclass(each) and issubclass(each, schedulers.LRScheduler) and each is not schedulers.LRScheduler
    }
    assert {name for name in known if not name.startswith("_")} == set(SCHEDULERS)

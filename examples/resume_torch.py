"""A PyTorch model that goes on where it was when it is started again.

    python examples/resume_torch.py runs/torch --steps 400

Stop it whenever you like, also in the middle of a save, and start it again: it goes on from the
newest checkpoint, and ends with the very bits of a run that was never stopped. Model, optimizer and
scheduler say what they need in their `state_dict()`. Dropout draws from torch's own generator,
whose state is saved beside them; the data follows from the step.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import regrow
import regrow.torch

DIGITS = load_digits()


class Training:
    """All that the next step depends on."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.step = 0
        self.model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=1000)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"])


def begin_or_resume(folder: Path) -> Training:
    """The newest checkpoint, or a new training where there is none."""
    training = Training()
    if folder.exists() and any(found.state == "committed" for found in regrow.list_checkpoints(folder)):
        training.load_state_dict(regrow.torch.load(folder))
    return training


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The data of a step, 32 handwritten digits: the same for each call."""
    chosen = torch.randint(len(DIGITS.target), (32,), generator=torch.Generator().manual_seed(step))
    return torch.from_numpy(DIGITS.data[chosen] / 16).float(), torch.from_numpy(DIGITS.target[chosen])


def train_step(training: Training) -> float:
    x, y = batch(training.step)
    loss = nn.functional.cross_entropy(training.model(x), y)
    training.optimizer.zero_grad()
    loss.backward()
    training.optimizer.step()
    training.scheduler.step()
    training.step += 1
    return loss.item()


def train(folder: Path, steps: int, every: int) -> Training:
    training, loss = begin_or_resume(folder), float("nan")
    print(f"step {training.step}: {'goes on' if training.step else 'begins'}")
    saving = None
    while training.step < steps:
        loss = train_step(training)
        if training.step % every == 0:
            saving = regrow.torch.async_save(folder / str(training.step), training.state_dict())
            saving.wait_for_staging()  # from here on the tensors may change; the rest goes on beside the next step
    if saving is not None:
        saving.result()
    print(f"step {steps}: loss {loss:.6f}")
    return training


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the checkpoints are")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    given = parser.parse_args()
    train(given.folder, given.steps, given.every)

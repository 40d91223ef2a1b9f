"""`regrow.orbax.CheckpointManager` and the original through the same random runs, compared after
each call.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as original
import pytest

import regrow.orbax as ours

RUNS = 40
CALLS = 25


def any_options(dice: random.Random, *, has_best: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_to_keep": dice.choice([None, 1, 2, 3]),
        "keep_period": dice.choice([None, None, 3]),
        "enable_async_checkpointing": dice.random() < 0.5,
    }
    if has_best:
        options |= {
            "best_fn": lambda metrics: metrics["loss"],
            "best_mode": dice.choice(["min", "max"]),
            "keep_checkpoints_without_metrics": dice.random() < 0.5,
        }
    return options


class Judged:
    """A manager in a folder of its own."""

    def __init__(self, module: Any, folder: Path) -> None:
        self.module, self.folder = module, folder
        self.manager: Any = None

    def open(self, options: dict[str, Any]) -> list[Any]:
        if self.manager is not None:
            self.told(self.manager.close)
        self.manager = self.module.CheckpointManager(
            self.folder, options=self.module.CheckpointManagerOptions(**options)
        )
        return self.state()

    def told(self, call: Any) -> Any:
        """What a call gives, or the kind of its error."""
        try:
            return call()
        except (KeyError, ValueError, FileNotFoundError) as error:
            return next(kind.__name__ for kind in (KeyError, FileNotFoundError, ValueError) if isinstance(error, kind))

    def state(self) -> list[Any]:
        manager = self.manager
        steps = self.told(lambda: sorted(manager.all_steps(read=True)))
        on_disk = sorted(name for name in os.listdir(self.folder) if name.isdigit())
        return [steps, manager.latest_step(), self.told(manager.best_step), on_disk]

    def save(self, step: int, metrics: Any, force: bool) -> list[Any]:
        tree = {"w": np.full(3, step, np.float32)}
        args = self.module.args.StandardSave(tree)
        saved = self.told(lambda: self.manager.save(step, args=args, metrics=metrics, force=force))
        waited = self.told(self.manager.wait_until_finished)
        # The original raises for a step that cannot be ranked in `save`; this one raises in the
        # wait.
        told = "KeyError" if "KeyError" in (saved, waited) else saved
        ends = time.monotonic() + 10
        while any("tmp" in name for name in os.listdir(self.folder)) and time.monotonic() < ends:
            time.sleep(0.01)
        return [told, *self.state()]

    def restore(self, step: int | None) -> list[Any]:
        like = {"w": np.zeros(3, np.float32)}
        restored = self.told(lambda: self.manager.restore(step, args=self.module.args.StandardRestore(like)))
        # Of a step that is not there the original says one thing or another: all are refusals.
        return [restored["w"].tolist() if isinstance(restored, dict) else "refused", *self.state()]

    def delete(self, step: int) -> list[Any]:
        return [self.told(lambda: self.manager.delete(step)), *self.state()]


@pytest.mark.parametrize("seed", range(RUNS))
def test_random_runs_go_as_with_orbax(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    both = [Judged(module, tmp_path / module.__name__) for module in (original, ours)]
    # Of a run without `best_fn` the original keeps no metrics, and this one does.
    has_best = dice.random() < 0.7
    options = any_options(dice, has_best=has_best)
    calls: list[Any] = [("open", options)]
    theirs, own = (judged.open(options) for judged in both)
    for _ in range(CALLS):
        assert own == theirs, calls
        what = dice.choices(["save", "restore", "delete", "open"], [8, 2, 1, 1])[0]
        last = max([0, *both[0].manager.all_steps()])
        number = dice.choice([last + 1, last + 2, dice.randint(0, last + 1)])
        if what == "save":
            metrics = dice.choice(
                [None, {"loss": float("nan")}, {"los": 1.0}, *({"loss": dice.random()} for _ in "12345")]
            )
            force = dice.random() < 0.2
            calls.append((what, number, metrics, force))
            theirs, own = (judged.save(number, metrics, force) for judged in both)
            if "KeyError" in (theirs[0], own[0]):
                # From here on what the original lists depends on its threads.
                assert theirs[0] == own[0], calls
                break
        elif what == "restore":
            step = dice.choice([None, *both[0].manager.all_steps()])
            calls.append((what, step))
            theirs, own = (judged.restore(step) for judged in both)
        elif what == "delete":
            calls.append((what, number))
            theirs, own = (judged.delete(number) for judged in both)
        else:
            options = any_options(dice, has_best=has_best)
            calls.append((what, options))
            theirs, own = (judged.open(options) for judged in both)
    else:
        assert own == theirs, calls
    # Nothing was deleted for want of a metric: what the original has, this one has.
    assert set(theirs[-1]) <= set(own[-1]), calls

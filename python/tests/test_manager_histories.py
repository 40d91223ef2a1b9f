"""Which steps of `regrow.Manager` are current, which count, which are deleted: random runs
against a specification.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow


def tree(step: int) -> dict[str, Any]:
    return {"w": np.full(3, step, np.float32)}


def manager(path: Path, **options: Any) -> regrow.Manager:
    return regrow.Manager(path, background=False, options=regrow.SaveOptions(durable=False), **options)


def damage(step: Path) -> None:
    """Changes the last byte of the data of a step, or changes it back."""
    (file,) = step.rglob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_the_steps_after_a_restore_are_current_and_the_abandoned_stay(path: Path) -> None:
    with manager(path, keep=5) as steps:
        for step in range(100, 501, 100):
            steps.save(step, tree(step))
    with manager(path, keep=2) as steps:
        steps.restore(200)
        assert (steps.latest, steps.next) == (200, 201)
        for step in (250, 260, 270):
            steps.save(step, tree(step))
        assert steps.steps == [260, 270, 300, 400, 500]
        assert (steps.latest, steps.abandoned) == (270, [300, 400, 500])
    assert regrow.load(path)["w"][0] == 270, "what takes the newest step of a folder agrees"
    reader = regrow.Manager(path, read_only=True)
    assert (reader.latest, reader.restore()["w"][0]) == (270, 270)
    # A job that has seen 500 hears of 270, once.
    assert reader.wait_for_new(500, timeout=0) == 270
    assert reader.wait_for_new(270, timeout=0) is None
    reader.close()
    with manager(path, keep=2) as steps:
        assert steps.latest == 270
        assert steps.delete_abandoned() == [300, 400, 500]
        assert (steps.steps, steps.abandoned) == ([260, 270], [])
        steps.save(280, tree(280))
        assert steps.steps == [270, 280]


def test_an_abandoned_step_can_be_gone_back_to(path: Path) -> None:
    with manager(path) as steps:
        for step in (1, 2, 3):
            steps.save(step, tree(step))
        steps.restore(1)
        steps.save(4, tree(4))
        assert (steps.latest, steps.abandoned) == (4, [2, 3])
        steps.restore(3)
        steps.save(5, tree(5))
        assert (steps.latest, steps.abandoned) == (5, [4])
        assert not steps.save(2, tree(2)), "it is current again"


def test_a_manager_deletes_no_step_that_it_has_not_saved(path: Path) -> None:
    for step in (7, 8, 9):
        regrow.save(path / f"step_{step}", tree(step))
    with manager(path, keep=1) as steps:
        for step in (10, 11):
            steps.save(step, tree(step))
        assert steps.steps == [7, 8, 9, 11]
    shutil.copytree(path / "step_11", path.parent / "other" / "step_11")
    with manager(path, keep=regrow.Keep(last=1, adopt=True)) as steps:
        steps.save(12, tree(12))
        assert steps.steps == [12]
    # A step of another run is no step of this one.
    with manager(path.parent / "other", keep=1) as steps:
        steps.save(20, tree(20))
        assert steps.steps == [20], "it goes on from the run that it found"


def test_damaged_steps_neither_count_nor_go(path: Path) -> None:
    with manager(path, keep=3) as steps:
        for step in (1, 2, 3):
            steps.save(step, tree(step))
        damage(path / "3")
        assert steps.restore()["w"][0] == 2
        for step in (4, 5):
            steps.save(step, tree(step))
        assert steps.steps == [2, 3, 4, 5], "2, 4 and 5 are three good ones"
    # Its marker or an item is gone: that is seen without a look at the data.
    (path / "4" / "commit_success.txt").unlink()
    with manager(path, keep=2) as steps:
        steps.save(6, tree(6))
        assert steps.steps == [3, 4, 5, 6]


def test_a_step_that_fails_its_check_pushes_no_other_out(path: Path) -> None:
    damaged: list[int] = []

    def where(step: regrow.reports.Step) -> bool:
        # It is asked before the new step is read again.
        if step.number == 2 and not damaged:
            damaged.append(2)
            damage(path / "2")
        return False

    with manager(path, keep=regrow.Keep(last=1, verify_first=True, where=where)) as steps:
        steps.save(1, tree(1))
        with pytest.raises(regrow.errors.CorruptError, match="differs from what was saved"):
            steps.save(2, tree(2))
        steps.save(3, tree(3))
        assert steps.steps == [2, 3]


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", "Desktop.ini", "._model.safetensors", "._2"])
def test_files_of_desktops_are_nothing_of_a_step(path: Path, name: str) -> None:
    with manager(path, keep=1) as steps:
        steps.save(2, tree(2))
        for folder in (path, path / "2", path / "2" / "default"):
            (folder / name).write_bytes(b"\0\5\26\7")
        assert regrow.verify(path / "2").ok and steps.restore(2)["w"][0] == 2
        assert regrow.diff(path / "2", path / "2").equal
        steps.save(2, tree(3), overwrite=True)
        assert not (path / "2" / name).exists()
        (path / "2" / name).write_bytes(b"x")
        steps.save(3, tree(3))
        assert steps.steps == [3]


def test_an_empty_folder_and_a_number_too_high_are_no_steps(path: Path) -> None:
    with manager(path) as steps:
        steps.save(2, tree(2))
        (path / "3").mkdir()
        regrow.save(path / str(2**64 - 1), tree(0))
        assert (steps.steps, steps.next) == ([2], 3)
        steps.save(steps.next, tree(3))
        assert steps.latest == 3
    with pytest.raises(regrow.errors.InvalidArgumentError):
        regrow.Manager(path, read_only=True).restore(2**64 - 1)


def test_the_last_save_of_a_program_needs_no_metric(path: Path) -> None:
    with manager(
        path, save_every=regrow.SaveWhen(every=None), preemption_timeout=30.0, keep=regrow.Keep(by="loss:min", best=1)
    ) as steps:
        steps._flag.set()
        assert steps.save(1, tree(1)) and steps.steps == [1]


def test_the_record_has_its_place_among_the_metadata(path: Path) -> None:
    with manager(path) as steps:
        steps.save(1, tree(1), metadata={"mine": 1})
        assert steps.step(1).metadata == {"mine": 1}
        with pytest.raises(regrow.errors.InvalidArgumentError, match="regrow_step"):
            steps.save(2, tree(2), metadata={"regrow_step": 1})
    told = json.loads((path / "1" / "_CHECKPOINT_METADATA").read_text())["custom_metadata"]
    assert told["mine"] == 1 and told["regrow_step"]["turn"] == 0


@dataclasses.dataclass(eq=False)
class Saved:
    """A save, as the specification remembers it: with what was current when it was made."""

    number: int
    metric: float | None
    is_own: bool
    current: set[Saved]
    is_damaged: bool = False


@dataclasses.dataclass
class Run:
    """THE SPECIFICATION of what a manager deletes."""

    saves: list[Saved] = dataclasses.field(default_factory=list)
    there: dict[int, Saved] = dataclasses.field(default_factory=dict)
    current: set[Saved] = dataclasses.field(default_factory=set)
    known_damaged: set[Saved] = dataclasses.field(default_factory=set)

    def numbers(self) -> list[int]:
        return sorted(number for number, saved in self.there.items() if saved in self.current)

    def turn_to(self, number: int) -> None:
        saved = self.there[number]
        of = self.current if saved in self.current else saved.current
        self.current = {each for each in of if each.number <= number}
        self.known_damaged.discard(saved)

    def save(self, number: int, metric: float | None, *, is_own: bool = True) -> None:
        saved = Saved(number, metric, is_own, set())
        self.current = {each for each in self.current if each.number < number} | {saved}
        saved.current = set(self.current)
        self.there[number] = saved
        self.saves.append(saved)

    def restart(self) -> None:
        """A new program goes by the last save, and what others have saved since."""
        there = [saved for saved in self.saves if self.there.get(saved.number) is saved]
        last = max((at for at, saved in enumerate(there) if saved.is_own), default=-1)
        self.current = set(there[last].current if last >= 0 else ()) | set(there[last + 1 :])
        self.known_damaged = set()

    def delete(self, *, keep: int | None, keep_best: int | None, adopt: bool) -> None:
        if keep is None and keep_best is None:
            return
        counted = [
            saved
            for _, saved in sorted(self.there.items())
            if saved in self.current and (saved.is_own or adopt) and saved not in self.known_damaged
        ]
        ranked = [saved for saved in counted if keep_best is None or saved.metric is not None]
        best = sorted(ranked, key=lambda saved: (saved.metric or 0, -saved.number))[: keep_best or 0]
        kept = counted[-(keep or 1) :] + best
        self.there = {number: saved for number, saved in self.there.items() if saved not in ranked or saved in kept}


@pytest.mark.parametrize("seed", range(6))
def test_random_runs_delete_what_the_specification_says(path: Path, seed: int) -> None:
    dice = random.Random(seed)
    run = Run()
    policy: dict[str, Any] = {"keep": 2, "keep_best": None, "adopt": False}

    def opened() -> regrow.Manager:
        by = "loss:min" if policy["keep_best"] else None
        keep = regrow.Keep(last=policy["keep"], best=policy["keep_best"], by=by, adopt=policy["adopt"])
        return manager(path, keep=keep)

    steps = opened()
    for _ in range(30):
        what = dice.choices(["save", "restore", "newest", "damage", "foreign", "restart"], [6, 2, 1, 1, 1, 1])[0]
        said = [number for number, saved in run.there.items() if saved.is_own or saved in run.current]
        if what == "save":
            last = max(run.numbers(), default=0)
            number = dice.choice([last + 1, last + 2, last + 3, dice.randint(0, last)])
            metric = dice.choice([{}, {"loss": math.nan}, {"loss": 1.0}, {"loss": dice.random()}])
            if policy["keep_best"] and not metric and steps.should_save(number):
                with pytest.raises(regrow.errors.InvalidArgumentError, match="loss"):
                    steps.save(number, tree(number), metrics=metric)
            elif steps.save(number, tree(number), metrics=metric):
                loss = metric.get("loss")
                run.save(number, None if loss is None or math.isnan(loss) else loss)
                run.delete(**policy)
        elif what == "restore" and said:
            number = dice.choice(said)
            if run.there[number].is_damaged:
                run.known_damaged.add(run.there[number])
                with pytest.raises(regrow.errors.CorruptError):
                    steps.restore(number)
            else:
                steps.restore(number)
                run.turn_to(number)
        elif what == "newest":
            good = [number for number in run.numbers() if not run.there[number].is_damaged]
            found = max(good, default=None)
            run.known_damaged |= {run.there[each] for each in run.numbers() if found is None or each > found}
            if found is None:
                with pytest.raises((regrow.errors.CorruptError, regrow.errors.NotFoundError)):
                    steps.restore()
            else:
                assert steps.restore()["w"][0] == found
                run.turn_to(found)
        elif what == "damage" and run.there:
            number = dice.choice(list(run.there))
            damage(path / str(number))
            run.there[number].is_damaged = not run.there[number].is_damaged
        elif what in ("foreign", "restart"):
            steps.close()
            policy = {
                "keep": dice.choice([None, 1, 2, 3]),
                "keep_best": dice.choice([None, 1, 2]),
                "adopt": dice.random() < 0.2,
            }
            if what == "foreign":
                number = max(run.there, default=0) + 2
                regrow.save(path / str(number), tree(number), durable=False)
                run.save(number, None, is_own=False)
            run.restart()
            steps = opened()
        assert steps.steps == sorted(run.there)
        assert steps.latest == max(run.numbers(), default=None)
    steps.close()

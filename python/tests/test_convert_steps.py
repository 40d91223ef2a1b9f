"""Folders of steps, converted as a whole; checkpoints of items, which stay such."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import regrow


def tree(step: int) -> dict[str, Any]:
    return {"w": np.full((3, 2), step, np.float32), "step": step}


def run(folder: Path) -> Path:
    """Steps of a manager with metrics; two of them are of an abandoned history."""
    with regrow.Manager(folder) as manager:
        for step in (1, 2, 3, 4):
            manager.save(step, tree(step), metrics={"loss": 1 / step})
    with regrow.Manager(folder) as manager:
        manager.restore(2)
        manager.save(5, tree(5), metrics={"loss": 0.5})
    assert manager_of(folder) == (5, [3, 4], 0.5)
    return folder


def manager_of(folder: Path) -> tuple[int, list[int], float]:
    with regrow.Manager(folder, read_only=True) as manager:
        return manager.restore()["step"], list(manager.abandoned), manager.metrics(5)["loss"]


def command(*args: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "regrow", *map(str, args)], capture_output=True, text=True)


@pytest.mark.parametrize("layout", ["regrow", "orbax"])
def test_all_steps_become_steps_with_metrics_and_histories(tmp_path: Path, layout: str) -> None:
    source, target = run(tmp_path / "run"), tmp_path / "converted"
    reports = regrow.convert(source, target, all_steps=True, layout=layout)
    assert {step: report.path for step, report in reports.items()} == {
        step: str(target / str(step)) for step in range(1, 6)
    }
    assert all(loss.kind == "note" for report in reports.values() for loss in report.losses)
    assert manager_of(target) == manager_of(source)
    for step in range(1, 6):
        assert regrow.diff(source / str(step), target / str(step)).equal
    with ocp.CheckpointManager(target, item_handlers=ocp.PyTreeCheckpointHandler()) as manager:
        assert manager.all_steps() == [1, 2, 3, 4, 5] and manager.metrics(4) == {"loss": 0.25}
        assert manager.restore(3)["w"].tolist() == tree(3)["w"].tolist()


def test_other_layouts_make_a_file_of_each_step(tmp_path: Path) -> None:
    steps = tmp_path / "run"
    for step in (10, 20):
        regrow.save(steps / f"step_{step}", tree(step))
    names = {
        "flax": "checkpoint_{}",
        "safetensors": "step_{}.safetensors",
        "npy": "step_{}.npz",
    }
    for layout, name in names.items():
        regrow.convert(steps, tmp_path / layout, all_steps=True, layout=layout, lossy=True)
        assert sorted(path.name for path in (tmp_path / layout).iterdir()) == [name.format(10), name.format(20)]
        assert regrow.load(tmp_path / layout / name.format(20))["step"] == 20
    regrow.convert(tmp_path / "flax", tmp_path / "back", all_steps=True, lossy=True)
    assert [regrow.load(tmp_path / "back", step=step)["step"] for step in (10, 20)] == [10, 20]


def test_nothing_is_written_where_one_step_cannot_be_converted(tmp_path: Path) -> None:
    regrow.save(tmp_path / "run" / "1", {"w": np.ones(2)})
    regrow.save(tmp_path / "run" / "2", {"w": np.ones(2), "name": "a text"})
    for options in ({}, {"dry_run": True}):
        plans: Any = None
        try:
            plans = regrow.convert(tmp_path / "run", tmp_path / "x", all_steps=True, layout="safetensors", **options)
        except regrow.errors.UnsupportedError as error:
            assert "step 2: " in str(error) and "name" in str(error)
        assert not (tmp_path / "x").exists()
        assert plans is None or [plan.lossless for plan in plans.values()] == [True, False]
    reports = regrow.convert(tmp_path / "run", tmp_path / "x", all_steps=True, layout="safetensors", lossy=True)
    assert [[loss.key_path for loss in report.losses] for report in reports.values()] == [[], ["name"]]


def test_an_interrupted_run_is_refused_unless_it_may_overwrite(tmp_path: Path) -> None:
    source, target = tmp_path / "run", tmp_path / "x"
    for step in (1, 2):
        regrow.save(source / str(step), {"w": np.full(1_000_000, step)})
    seen = []

    def stop(done: int, total: int) -> None:
        seen.append(total)
        if (target / "1").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regrow.convert(source, target, all_steps=True, progress=stop)
    assert [path.name for path in target.iterdir() if path.name.isdigit()] == ["1"] and seen
    with pytest.raises(regrow.errors.AlreadyExistsError, match="step 1: "):
        regrow.convert(source, target, all_steps=True)
    regrow.convert(source, target, all_steps=True, overwrite=True)
    assert [regrow.load(target, step=step)["w"][0] for step in (1, 2)] == [1, 2]
    regrow.save(target / "7", {"w": np.ones(1)})
    with pytest.raises(regrow.errors.AlreadyExistsError, match="a step that the source lacks"):
        regrow.convert(source, target, all_steps=True, overwrite=True)


def test_one_checkpoint_is_no_folder_of_steps(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", {"w": np.ones(2)})
    for act in (lambda: regrow.convert(tmp_path / "x", tmp_path / "y", all_steps=True),
                lambda: regrow.verify(tmp_path / "x", all_steps=True)):  # fmt: skip
        with pytest.raises(regrow.errors.InvalidArgumentError, match="not a folder of steps"):
            act()
    for name, args in {"convert": ("y",), "cp": ("y",), "verify": ()}.items():
        done = command(name, tmp_path / "x", *(tmp_path / arg for arg in args), "--all-steps", "--step", "1")
        assert done.returncode == 2 and "leave out one of the two" in done.stderr, (name, done)
    assert not (tmp_path / "y").exists()


def test_commands_say_which_steps_they_take(tmp_path: Path) -> None:
    source = tmp_path / "run"
    for step in (1, 2, 3):
        regrow.save(source / f"step_{step}", tree(step))
    done = command("convert", source, tmp_path / "a", "--all-steps", "--layout", "orbax")
    assert [line.split(": ")[1] for line in done.stdout.splitlines()] == ["step 1", "step 2", "step 3"], done
    done = command("cp", source, tmp_path / "b")
    assert done.stdout.rstrip().endswith("steps 1, 2, 3"), done
    done = command("cp", source, tmp_path / "c", "--step", 2)
    assert done.stdout.rstrip().endswith("step 2") and regrow.load(tmp_path / "c")["step"] == 2, done
    assert command("cp", source, tmp_path / "d", "--step", 9).returncode == 3
    done = command("verify", source)
    assert "step 3: sound" in done.stdout and "step 3 of 3 steps" in done.stderr, done
    (source / "step_2" / "regrow.json").write_text("{")
    done = command("verify", source, "--all-steps")
    assert done.returncode != 0 and "step 1: sound" in done.stdout and "step 3: sound" in done.stdout, done
    assert "step 2: " in done.stdout and "step 2: sound" not in done.stdout, done
    told = json.loads(command("--json", "verify", source, "--all-steps").stdout)
    assert [(one["step"], one["sound"]) for one in told] == [(1, True), (2, False), (3, True)]
    reports = regrow.verify(source, all_steps=True)
    assert {step: report.ok for step, report in reports.items()} == {1: True, 2: False, 3: True}


def test_json_stays_json_unless_a_rule_changes_it(tmp_path: Path) -> None:
    config = {"width": 2**70, "name": "x", "none": None, "rate": float("nan")}
    items = {"state": {"w": np.ones(2)}, "config": regrow.Json(config), "files": regrow.Files({})}
    regrow.save_items(tmp_path / "source", items)
    for layout in ("regrow", "orbax"):
        regrow.convert(tmp_path / "source", tmp_path / layout, layout=layout)
        loaded = regrow.load_items(tmp_path / layout)
        assert repr(loaded["config"]) == repr(config) and loaded["state"].keys() == {"w"}
        assert loaded["files"].source == {}
    regrow.convert(tmp_path / "source", tmp_path / "cast", cast={"state/w": "float32"})
    assert regrow.load(tmp_path / "cast", at="state")["w"].dtype == np.float32
    only = regrow.convert(tmp_path / "source", tmp_path / "only", only="config/name")
    assert only.losses == [] and regrow.load(tmp_path / "only", at="config") == {"name": "x"}

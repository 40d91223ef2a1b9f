"""What a byte, a leaf and a step cost as their number grows: flat, if nothing grows faster than
data. Memory is measured in a process of its own.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from limits import Limit
from measure import LIMIT, OURS, Clock, Turn, bring_into_page_cache, interleave
from processes import CHILD, extra_memory
from setting import MIB, Setting, remove
from workloads import Tree, like, of_bytes, of_leaves

BYTES, LEAVES, STEPS = "growth in bytes", "growth in leaves", "growth in steps"
SAVE, INTO, LOAD, OPEN = "save", "load into", "load", "open"
START, NEXT = "start of a manager", "next step"
MEMORY = "extra memory"


def growing(setting: Setting) -> None:
    """All sizes in every round. A sample is in seconds a GiB, and in microseconds a leaf or step."""
    with setting.room("growth") as room:
        turns = []
        for len_bytes in setting.scale.growth_bytes:
            turns += _bytes(room, of_bytes(len_bytes), len_bytes)
        _run(setting, BYTES, turns)
        turns = []
        for leaf_count in setting.scale.growth_leaves:
            turns.append(Turn(f"{leaf_count}", _leaves(room, of_leaves(leaf_count), leaf_count)))
        _run(setting, LEAVES, turns)
        turns = []
        for step_count in setting.scale.growth_steps:
            _write_steps(room / f"steps-{step_count}", step_count)
            turns.append(Turn(f"{step_count}", _steps(room / f"steps-{step_count}", step_count)))
        _run(setting, STEPS, turns)
        for len_bytes in setting.scale.growth_bytes:
            _memory(setting, room, BYTES, f"bytes {len_bytes}", f"{len_bytes // MIB}")
        for leaf_count in setting.scale.growth_leaves:
            _memory(setting, room, LEAVES, f"leaves {leaf_count}", f"{leaf_count}")


def _run(setting: Setting, name: str, turns: list[Turn]) -> None:
    gc.collect()
    gc.freeze()
    try:
        interleave(setting.samples, name, turns, setting.rounds)
    finally:
        gc.unfreeze()


def _bytes(room: Path, tree: Tree, len_bytes: int) -> list[Turn]:
    import regrow

    path, limit, into = room / OURS, Limit(room, len_bytes), like(tree)
    scale = len_bytes / (1 << 30)
    size = f"{len_bytes // MIB}"

    def ours(clock: Clock) -> None:
        remove(path)
        _per(clock, SAVE, size, "s/GiB", scale, lambda: regrow.save(path, tree))
        bring_into_page_cache(path)
        _per(clock, INTO, size, "s/GiB", scale, lambda: regrow.load_into(path, into))
        remove(path)

    def limits(clock: Clock) -> None:
        _per(clock, SAVE, f"{LIMIT} {size}", "s/GiB", scale, limit.save)
        _per(clock, INTO, f"{LIMIT} {size}", "s/GiB", scale, limit.memcpy)
        limit.remove()

    return [Turn(size, ours), Turn(f"{LIMIT} {size}", limits)]


def _leaves(room: Path, tree: Tree, leaf_count: int) -> Callable[[Clock], None]:
    import regrow

    path = room / OURS
    scale = leaf_count / 1e6

    def run(clock: Clock) -> None:
        remove(path)
        who = f"{leaf_count}"
        _per(clock, SAVE, who, "us/leaf", scale, lambda: regrow.save(path, tree))
        bring_into_page_cache(path)
        _per(clock, LOAD, who, "us/leaf", scale, lambda: regrow.load(path))
        _per(clock, OPEN, who, "us/leaf", scale, lambda: regrow.open(path))
        remove(path)

    return run


def _per(clock: Clock, operation: str, who: str, unit: str, scale: float, action: Callable[[], object]) -> None:
    begin = time.perf_counter()
    result = action()
    seconds = time.perf_counter() - begin
    del result
    clock.keep(operation, seconds / scale, unit, who)


def _write_steps(root: Path, step_count: int) -> None:
    """Steps of one small leaf with metrics, made as links to the files of the first one."""
    import regrow

    with regrow.Manager(root) as manager:
        manager.save(0, {"w": np.zeros(4)}, metrics={"loss": 1.0})
    first = root / "0"
    for step in range(1, step_count):
        for file in (file for file in first.rglob("*") if file.is_file()):
            link = root / str(step) / file.relative_to(first)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.hardlink_to(file)


def _steps(root: Path, step_count: int) -> Callable[[Clock], None]:
    import regrow

    scale = step_count / 1e6

    def run(clock: Clock) -> None:
        who = f"{step_count}"
        managers = []
        _per(clock, START, who, "us/step", scale, lambda: managers.append(regrow.Manager(root)))
        with managers[0] as manager:
            assert manager.latest == step_count - 1
            clock.time(NEXT, lambda: manager.save(step_count, {"w": np.zeros(4)}, metrics={"loss": 1.0}), who)
        remove(root / f"{step_count}")

    return run


def _memory(setting: Setting, room: Path, name: str, workload: str, size: str) -> None:
    """What a save and a load need beyond the tree: once each, because it does not vary."""
    for task in (SAVE, LOAD):
        found = extra_memory([sys.executable, str(CHILD), str(room / OURS), workload, OURS, task])
        if found is not None:
            Clock(setting.samples, name, size, 1).keep(f"{MEMORY}, {task}", found[0], "bytes", who=size)
    remove(room / OURS)

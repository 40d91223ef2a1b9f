"""What a byte and what a leaf costs at 1x, 4x and 16x the size: flat, if nothing grows faster
than data.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

from limits import Limit
from measure import LIMIT, OURS, Clock, Turn, bring_into_page_cache, interleave
from setting import MIB, Setting, remove
from workloads import Tree, like, of_bytes, of_leaves

BYTES, LEAVES = "growth in bytes", "growth in leaves"
SAVE, INTO, LOAD, OPEN = "save", "load into", "load", "open"


def growing(setting: Setting) -> None:
    """All three sizes in every round. A sample is in seconds a GiB, and in microseconds a leaf."""
    with setting.room("growth") as room:
        turns = []
        for len_bytes in setting.scale.growth_bytes:
            turns += _bytes(room, of_bytes(len_bytes), len_bytes)
        _run(setting, BYTES, turns)
        turns = []
        for leaf_count in setting.scale.growth_leaves:
            turns.append(Turn(f"{leaf_count}", _leaves(room, of_leaves(leaf_count), leaf_count)))
        _run(setting, LEAVES, turns)


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

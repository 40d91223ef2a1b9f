"""Saves and loads of each tool, and what is measured beside them: open, verify, one slice, saves
that reuse files.

A turn is the whole life of a checkpoint: save, cold load, warm load, load into given arrays, open,
verify, removal. So two copies at most are on the disk, and what is compared within a round was
written minutes apart at most.

Loaded means usable as NumPy arrays, a byte of every page of every large leaf read, so that a lazy
map pays for what it put off.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from limits import CopyAndHash, Limit, helper
from measure import (
    LIMIT,
    OURS,
    Clock,
    Turn,
    bring_into_page_cache,
    drop_from_page_cache,
    interleave,
    size_on_disk,
)
from setting import MIB, Setting, remove
from tools import Regrow, Safetensors, Tool
from workloads import Tree, build, changed, like, touch

SAVE, COLD, WARM, INTO = "save", "load cold", "load warm", "load into"
OPEN, MAP, VERIFY, SLICE, BASE = "open", "map", "verify", "slice", "save with base"
OPEN_ALONE = "open alone"
MEMCPY, MEMCPY_CRC = "memcpy", "memcpy + crc32c"
MILLION = "many_small_0.25KiB_1M"
SLICE_BYTES = 64 << 10
HASHED_BYTES = 256 * MIB


def storing(setting: Setting) -> None:
    """Save, load, open and verify, with every workload."""
    for workload in setting.workloads:
        with setting.tree(workload) as (tree, leaf_count, len_bytes), setting.room(workload) as room:
            into = like(tree)
            tools = setting.tools(workload, leaf_count)
            turns = [Turn(LIMIT, limits(Limit(room, len_bytes)))]
            if helper_is_built():
                turns.append(Turn(MEMCPY_CRC, hashing(len_bytes)))
            else:
                setting.samples.note(f"{MEMCPY_CRC} is left out: {helper()} is not built; make bench builds it")
            for tool in tools:
                rounds = 1 if tool.slow_from is not None and leaf_count >= tool.slow_from else None
                if rounds is not None:
                    setting.samples.note(
                        f"{tool.name} runs only one round of {workload}, without warm-up, because a round takes minutes"
                    )
                turns.append(Turn(tool.name, life(tool, room / tool.name, tree, into), rounds))
            interleave(setting.samples, workload, turns, setting.rounds)


def limits(limit: Limit) -> Callable[[Clock], None]:
    """The limits take their turn like every tool."""

    def run(clock: Clock) -> None:
        clock.time(SAVE, limit.save)
        drop_from_page_cache(limit.file)
        clock.time(COLD, limit.load_cold)
        clock.time(WARM, limit.memcpy)
        clock.time(INTO, limit.memcpy, who=MEMCPY)
        limit.remove()

    return run


def hashing(len_bytes: int) -> Callable[[Clock], None]:
    """Memcpy with crc32c, of a part where there is much."""
    part_bytes = min(len_bytes, HASHED_BYTES)
    program = CopyAndHash(part_bytes)

    def run(clock: Clock) -> None:
        clock.keep(INTO, program.seconds("copy-crc32c") * len_bytes / part_bytes, who=MEMCPY_CRC)

    return run


def life(tool: Tool, path: Path, tree: Tree, into: Tree) -> Callable[[Clock], None]:
    """From the save of a checkpoint to its removal."""

    def run(clock: Clock) -> None:
        remove(path)
        try:
            clock.time(SAVE, lambda: tool.save(path, tree))
            clock.keep("stored", size_on_disk(path), "bytes")
            drop_from_page_cache(path)
            clock.time(COLD, lambda: touch(tool.load(path)))
            bring_into_page_cache(path)
            clock.time(WARM, lambda: touch(tool.load(path)))
            if tool.load_into is not None:
                fill = tool.load_into
                clock.time(INTO, lambda: fill(path, into))
            if tool.open is not None:
                look = tool.open
                clock.time(OPEN, lambda: look(path))
            if tool.verify is not None:
                check = tool.verify
                drop_from_page_cache(path)
                clock.time(VERIFY, lambda: check(path))
        finally:
            remove(path)

    return run


def opening(setting: Setting) -> None:
    """Opening with few leaves, many, and (but for a quick run) a million; files in the page
    cache, as after a save.
    """
    most = () if setting.scale.is_quick else (MILLION,)
    for workload in (setting.scale.main, "many_small", *most):
        with setting.room("open") as room:
            turns, tree = [], build(workload)
            for tool in (Regrow(), Safetensors()):
                if tool.name not in setting.tool_names:
                    continue
                path = room / tool.name
                tool.save(path, tree)
                bring_into_page_cache(path)
                turns.append(Turn(tool.name, _opening(tool, path)))
            del tree
            interleave(setting.samples, workload, turns, setting.rounds, OPEN)


def _opening(tool: Regrow | Safetensors, path: Path) -> Callable[[Clock], None]:
    def run(clock: Clock) -> None:
        clock.time(OPEN_ALONE, lambda: tool.open(path))
        if tool.name == OURS:
            import regrow

            clock.time(MAP, lambda: regrow.load(path, options=regrow.Options(checksums=False)))

    return run


def slicing(setting: Setting) -> None:
    """64 KiB of one large leaf, cold: the time, and what came from the disk for it."""
    from safetensors import safe_open

    import regrow

    rows = setting.scale.slice_bytes >> 17  # rows of 128 KiB; half a row is read
    workload = f"a leaf of {setting.scale.slice_bytes // MIB} MiB"
    with setting.room("slice") as room:
        path = room / "regrow"
        regrow.save(path, {"w": np.ones((rows, 1 << 15), np.float32)})
        file = max((file for file in path.rglob("*.safetensors")), key=lambda file: file.stat().st_size)
        places = np.random.default_rng(2).integers(0, rows, 64)

        def ours(clock: Clock) -> None:
            drop_from_page_cache(path)
            checkpoint = clock.time("open cold", lambda: regrow.open(path))
            row = int(places[clock.turn])
            clock.time(SLICE, lambda: np.asarray(checkpoint["w"][row, : 1 << 14]).sum())

        def safetensors(clock: Clock) -> None:
            drop_from_page_cache(path)
            row = int(places[clock.turn])
            with safe_open(file, framework="np") as opened:
                clock.time(SLICE, lambda: opened.get_slice("w")[row : row + 1, : 1 << 14].sum())

        def memmap(clock: Clock) -> None:
            drop_from_page_cache(path)
            row = int(places[clock.turn])
            mapped = np.memmap(file, np.uint8, "r")
            at = mapped.size - (rows - row) * (1 << 17)
            clock.time(SLICE, lambda: mapped[at : at + SLICE_BYTES].sum())

        turns = [Turn(OURS, ours), Turn("safetensors", safetensors), Turn("numpy memmap", memmap)]
        interleave(setting.samples, workload, turns, setting.rounds, SLICE)


def reusing(setting: Setting) -> None:
    """Saves with `base=`: after a step that has changed an adapter, and left the model below it
    alone.
    """
    import regrow

    suffix = "0.25GiB" if setting.scale.name == "quick" else "1GiB"
    workload = f"lora@{suffix}"
    with setting.tree(workload) as (tree, _, _), setting.room("base") as room:
        after = changed(tree, workload)
        first, base, whole, part = room / "first", room / "base", room / "whole", room / "part"
        # The second save knows what stands still, and gathers it: from the third on it is linked.
        regrow.save(first, after)
        regrow.save(base, tree, base=first)
        remove(first)

        def alone(clock: Clock) -> None:
            remove(whole)
            clock.time(BASE, lambda: regrow.save(whole, after))
            remove(whole)

        def with_base(clock: Clock) -> None:
            remove(part)
            clock.time(BASE, lambda: regrow.save(part, after, base=base))
            remove(part)

        def trusting(clock: Clock) -> None:
            remove(part)
            clock.time(BASE, lambda: regrow.save(part, after, base=base, options=regrow.Options(trust_base=True)))
            remove(part)

        turns = [Turn(OURS, with_base), Turn("regrow, trust_base", trusting), Turn("regrow without base", alone)]
        interleave(setting.samples, workload, turns, setting.rounds, BASE)


def helper_is_built() -> bool:
    """Whether the program that measures memcpy with crc32c is there."""
    return helper().is_file()

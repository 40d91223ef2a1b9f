"""Sharded arrays, saved and restored by several processes of `jax.distributed`: regrow beside
Orbax, and direct I/O.

    python benches/sharded.py --out bench-output/processes --processes 1 2 4 --workloads gpt2_adam@0.25GiB

A mesh of 8 devices of the CPU in all, spread over 1, 2 or 4 processes of one machine, with one
disk. Every array is cut into 8 along its longest axis of a length that 8 divides; one without such
an axis is on all devices.

With `--restored-by`, each checkpoint is then restored by these other numbers of processes.

The processes meet before each turn. A turn takes from the moment at which the first one begins to
the moment at which the last one has ended: barriers and the commit are in it. Contestants take
turns within a round, as in the other benchmarks. The limit of a process writes and reads its own
share, with direct I/O and no names.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jobs import Meeting, join_job, run_job
from limits import Limit
from measure import LIMIT, OURS, bring_into_page_cache, drop_from_page_cache, say
from workloads import build, size

DEVICES = 8
SAVE, COLD, WARM = "save", "restore cold", "restore warm"
ORBAX = "orbax"
Row = dict[str, Any]


def main() -> None:
    """Starts the processes of each run, and reports."""
    asks = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asks.add_argument("--out", type=Path, default=Path("bench-output/processes"))
    asks.add_argument("--folder", type=Path, help="which disk is measured; it is left as it was")
    asks.add_argument("--workloads", nargs="+", default=["gpt2_adam@0.25GiB", "moe_128x48@0.25GiB"])
    asks.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    asks.add_argument("--restored-by", nargs="*", type=int, default=[], help="other numbers of processes")
    asks.add_argument("--rounds", type=int, default=5)
    asks.add_argument("--orbax-rounds", type=int, help="in how many rounds Orbax takes part, where it takes minutes")
    asks.add_argument("--seconds", type=float, default=1200, help="a run that takes longer is ended")
    asks.add_argument("--worker", help=argparse.SUPPRESS)
    asked = asks.parse_args()
    if asked.worker is not None:
        work(json.loads(asked.worker))
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    results = asked.out / "results.json"
    rows: list[Row] = json.loads(results.read_text()) if results.is_file() else []
    folder = (asked.folder or asked.out).resolve() / "room"
    for workload in asked.workloads:
        for processes in asked.processes:
            say(f"{workload}, {processes} processes")
            rows = [
                row for row in rows if (row["workload"], row.get("saved_by", row["processes"])) != (workload, processes)
            ]
            try:
                rows += run(workload, processes, folder, asked)
                for other in asked.restored_by:
                    if other != processes:
                        say(f"{workload}, {processes} processes: restored by {other}")
                        rows += run(workload, other, folder, asked, saved_by=processes)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            results.write_text(json.dumps(rows, indent=1))
            (asked.out / "results.md").write_text(table(rows))
    print(table(rows))


def run(
    workload: str, processes: int, folder: Path, asked: argparse.Namespace, saved_by: int | None = None
) -> list[Row]:
    """One run: `processes` of them until all have ended. With `saved_by`, they restore what that
    many processes have left in the folder.
    """
    if saved_by is None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    orbax_rounds = asked.rounds if asked.orbax_rounds is None else asked.orbax_rounds
    job = {"workload": workload, "folder": str(folder), "rounds": asked.rounds, "orbax_rounds": orbax_rounds}
    job |= {"saved_by": saved_by, "keeps": bool(asked.restored_by)}
    command = [sys.executable, __file__, "--worker"]
    if not run_job(command, job, processes, DEVICES // processes, asked.seconds):
        say(f"{workload}, {processes} processes: ended after {asked.seconds:.0f} s, with what was measured until then")
    times: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for rank in range(processes):
        for who, operation, number, begin, end in json.loads((folder / f"times-{rank}.json").read_text()):
            times.setdefault((who, operation, number), []).append((begin, end))
    run_of = {"workload": workload, "processes": processes} | ({} if saved_by is None else {"saved_by": saved_by})
    return [
        {**run_of, "who": who, "operation": operation, "round": number, "seconds": _slowest(each)}
        for (who, operation, number), each in times.items()
        if len(each) == processes
    ]


def _slowest(each: list[tuple[float, float]]) -> float:
    """From when the first one begins to when the last one has ended."""
    return max(end for _, end in each) - min(begin for begin, _ in each)


# ---- one process ----------------------------------------------------------------------


def work(job: dict[str, Any]) -> None:
    """What each process does."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    rank, processes = job["rank"], job["processes"]
    meeting = join_job(job)
    tree, len_bytes = on_mesh(job["workload"])
    folder = Path(job["folder"])
    contestants = [
        Direct(folder / f"direct-{rank}", len_bytes // processes),
        Ours(folder / OURS, tree),
        Orbax(folder / ORBAX, tree),
    ]
    times: list[tuple[str, str, int, float, float]] = []
    # One more round at the beginning warms up.
    for number in range(job["rounds"] + 1):
        at = number % len(contestants)
        for one in contestants[at:] + contestants[:at]:
            # Where it takes minutes it has no warm-up.
            if one.who == ORBAX and not job["rounds"] - number < job["orbax_rounds"]:
                continue
            is_last = number == job["rounds"]
            for operation, begin, end in turn(one, meeting, rank, job["saved_by"], keeps=job["keeps"] and is_last):
                if number > 0:
                    times.append((one.who, operation, number, begin, end))
                    (folder / f"times-{rank}.json").write_text(json.dumps(times))
                if rank == 0:
                    say(f"  round {number}: {one.who}, {operation}: {end - begin:.3f} s")
    meeting.end()


def on_mesh(workload: str) -> tuple[Any, int]:
    """The workload as arrays on 8 devices, and how many bytes it has."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("x",))
    assert mesh.size == DEVICES

    def put(value: np.ndarray) -> jax.Array:
        fits = [axis for axis, length in enumerate(value.shape) if length > 0 and length % DEVICES == 0]
        longest = max(fits, key=lambda axis: value.shape[axis], default=None)
        spec = PartitionSpec() if longest is None else PartitionSpec(*[None] * longest, "x")
        # A copy: what is cut along the first axis would else lie in the memory of the whole.
        return jax.make_array_from_callback(
            value.shape, NamedSharding(mesh, spec), lambda cut: np.array(value[cut], order="C")
        )

    tree = build(workload)
    _, len_bytes = size(tree)
    placed = jax.tree.map(put, tree)
    jax.block_until_ready(placed)
    gc.collect()
    gc.freeze()
    return placed, len_bytes


class Contestant:
    """Who saves and restores."""

    who: str
    path: Path

    save: Callable[[], None]
    load: Callable[[], Any]
    load_warm: Callable[[], Any] | None = None
    is_shared = True
    """Whether all processes write to one path."""


class Direct(Contestant):
    """The limit: this process' share of the bytes."""

    who = LIMIT
    is_shared = False

    def __init__(self, path: Path, len_bytes: int) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.limit = Limit(path, len_bytes)
        self.save, self.load = self.limit.save, self.limit.load_cold


class Ours(Contestant):
    """regrow with its defaults: synced, checked."""

    who = OURS

    def __init__(self, path: Path, tree: Any) -> None:
        self.path, self.tree, self.like = path, tree, abstract(tree)

    def save(self) -> None:
        import regrow

        regrow.save(self.path, self.tree, progress=False)

    def load(self) -> Any:
        import regrow

        return regrow.load(self.path, like=self.like, progress=False)

    load_warm = load


class Orbax(Contestant):
    """Orbax with its defaults: OCDBT, zarr v2, zstd; a save is over when it is committed."""

    who = ORBAX

    def __init__(self, path: Path, tree: Any) -> None:
        import orbax.checkpoint as ocp

        self.path, self.tree, self.like = path, tree, abstract(tree)
        self.checkpointer = ocp.StandardCheckpointer()

    def save(self) -> None:
        self.checkpointer.save(self.path, self.tree)
        self.checkpointer.wait_until_finished()

    def load(self) -> Any:
        return self.checkpointer.restore(self.path, self.like)

    load_warm = load


def abstract(tree: Any) -> Any:
    """Shapes, dtypes and shardings."""
    import jax

    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree)


def turn(
    one: Contestant, meeting: Meeting, rank: int, saved_by: int | None, *, keeps: bool
) -> Iterator[tuple[str, float, float]]:
    """Save, cold restore, warm restore, removal: what each took in this process. With `saved_by`,
    only the cold restore.
    """
    if saved_by is None:
        yield SAVE, *_timed(one.save, meeting)
    elif not one.is_shared:
        one.save()
    is_first = rank == 0 or not one.is_shared
    if is_first:
        drop_from_page_cache(one.path)
    yield COLD if saved_by is None else f"{COLD}, saved by {saved_by}", *_timed(one.load, meeting)
    if saved_by is not None:
        return
    if one.load_warm is not None:
        if is_first:
            bring_into_page_cache(one.path)
        yield WARM, *_timed(one.load_warm, meeting)
    meeting.meet()
    if one.is_shared and is_first and not keeps:
        shutil.rmtree(one.path)


def _timed(action: Callable[[], Any], meeting: Meeting) -> tuple[float, float]:
    """When it began and ended, by the clock that all processes of the machine share."""
    import jax

    gc.collect()
    meeting.meet()
    begin = time.monotonic()
    result = action()
    jax.block_until_ready(result)
    end = time.monotonic()
    del result
    return begin, end


# ---- the report -----------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    """Medians, and the medians of the ratios within rounds."""
    lines = [
        "| workload | processes | operation | regrow | Orbax | direct | Orbax / regrow | regrow / direct | rounds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    runs = dict.fromkeys((row["workload"], row["processes"], row["operation"]) for row in rows)
    for workload, processes, operation in runs:
        of: dict[str, dict[int, float]] = {}
        for row in rows:
            if (row["workload"], row["processes"], row["operation"]) == (workload, processes, operation):
                of.setdefault(row["who"], {})[row["round"]] = row["seconds"]
        cells = [_seconds(of.get(who)) for who in (OURS, ORBAX, LIMIT)]
        cells += [_ratio(of.get(ORBAX), of.get(OURS)), _ratio(of.get(OURS), of.get(LIMIT))]
        counts = [str(len(of.get(who, {}))) for who in (OURS, ORBAX)]
        lines.append(f"| {workload} | {processes} | {operation} | {' | '.join(cells)} | {', '.join(counts)} |")
    return "\n".join(lines) + "\n"


def _seconds(values: dict[int, float] | None) -> str:
    if not values:
        return "-"
    least, most = min(values.values()), max(values.values())
    return f"{statistics.median(values.values()):.3f} s ({least:.3f} to {most:.3f})"


def _ratio(above: dict[int, float] | None, below: dict[int, float] | None) -> str:
    shared = (above or {}).keys() & (below or {}).keys()
    if not above or not below or not shared:
        return "-"
    return f"{statistics.median(above[number] / below[number] for number in shared):.1f}x"


if __name__ == "__main__":
    main()

"""A restore in which one replica reads for all, beside one in which every replica reads: bytes
read, and time.

    python benches/replicas.py --out bench-output/replicas --processes 2 4 --workload gpt2_adam@0.25GiB

Each process of `jax.distributed` is a replica: a mesh ``(data, model)`` of as many processes as
there are, with 8 devices of the CPU each. Every array is cut into 8 along `model`, and replicated
along `data`. All processes are on one machine with one disk; before each turn the files are dropped
from the page cache.

Bytes read are those that the reports name, and those that the system has counted for each process
(`rchar` of `/proc/self/io`): what a storage with no cache for all would have to give. The two kinds
of restore take turns.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from jobs import join_job, run_job
from measure import drop_from_page_cache, say
from workloads import build, size

DEVICES = 8
PLAIN, SINGLE = "every replica reads", "one replica reads"


def main() -> None:
    """Starts the processes of each run, and reports."""
    asks = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asks.add_argument("--out", type=Path, default=Path("bench-output/replicas"))
    asks.add_argument("--workload", default="gpt2_adam@0.25GiB")
    asks.add_argument("--processes", nargs="+", type=int, default=[2, 4])
    asks.add_argument("--rounds", type=int, default=5)
    asks.add_argument("--worker", help=argparse.SUPPRESS)
    asked = asks.parse_args()
    if asked.worker is not None:
        work(json.loads(asked.worker))
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    lines = [
        "| processes | | seconds | bytes read (from the reports) | bytes read (from the system) | bytes received |",
        "|---|---|---|---|---|---|",
    ]
    for processes in asked.processes:
        folder = (asked.out / "room").resolve()
        try:
            lines += run(asked.workload, processes, folder, asked.rounds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    text = "\n".join(lines) + "\n"
    (asked.out / "results.md").write_text(text)
    print(text)


def run(workload: str, processes: int, folder: Path, rounds: int) -> list[str]:
    """One run: lines of the table."""
    import regrow

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tree = build(workload)
    _, len_bytes = size(tree)
    regrow.save(folder / "checkpoint", tree)
    del tree
    job = {"folder": str(folder), "rounds": rounds}
    if not run_job([sys.executable, __file__, "--worker"], job, processes, DEVICES, 1200):
        raise SystemExit("the processes did not end in time")
    rows = [row for rank in range(processes) for row in json.loads((folder / f"rows-{rank}.json").read_text())]
    lines = []
    for who in (PLAIN, SINGLE):
        by_round = [
            [row for row in rows if (row["who"], row["round"]) == (who, number)] for number in range(1, rounds + 1)
        ]
        seconds = [max(row["end"] for row in each) - min(row["begin"] for row in each) for each in by_round]
        sums = {
            name: statistics.median(sum(row[name] for row in each) / len_bytes for each in by_round)
            for name in ("read", "system", "received")
        }
        spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        cells = [str(processes), who, spread, *(f"{sums[name]:.2f}" for name in ("read", "system", "received"))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def work(job: dict[str, Any]) -> None:
    """What each process does."""
    import jax

    import regrow

    meeting = join_job(job)
    folder = Path(job["folder"])
    path = folder / "checkpoint"
    like = template(path)
    rows = []
    # One more round at the beginning warms up.
    for number in range(job["rounds"] + 1):
        for who in (PLAIN, SINGLE) if number % 2 else (SINGLE, PLAIN):
            single_replica = regrow.jobs.SingleReplica("data") if who == SINGLE else None
            if job["rank"] == 0:
                drop_from_page_cache(path)
            reports: list[regrow.reports.LoadReport] = []
            meeting.meet()
            before, begin = rchar(), time.time()
            loaded = regrow.load(
                path,
                like=like,
                progress=False,
                options=regrow.Options(single_replica=single_replica, on_report=reports.append),
            )
            jax.block_until_ready(loaded)
            end, after = time.time(), rchar()
            meeting.meet()
            del loaded
            gc.collect()
            row = {"who": who, "round": number, "begin": begin, "end": end, "system": after - before}
            rows.append(row | {"read": reports[0].read_bytes, "received": reports[0].received_bytes})
            if job["rank"] == 0:
                say(f"  round {number}: {who}: {end - begin:.3f} s\n{reports[0]}")
    (folder / f"rows-{job['rank']}.json").write_text(json.dumps(rows))
    meeting.end()


def template(path: Path) -> Any:
    """What to restore: every array of the checkpoint, cut over `model` along its longest axis
    that 8 divides.
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import regrow

    mesh = Mesh(np.array(jax.devices()).reshape(-1, DEVICES), ("data", "model"))

    def described(leaf: Any) -> jax.ShapeDtypeStruct:
        fits = [axis for axis, length in enumerate(leaf.shape) if length > 0 and length % DEVICES == 0]
        longest = max(fits, key=lambda axis: leaf.shape[axis], default=None)
        spec = PartitionSpec() if longest is None else PartitionSpec(*[None] * longest, "model")
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(described, regrow.open(path).tree)


def rchar() -> int:
    """Bytes that this process has asked the system to read."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


if __name__ == "__main__":
    main()

"""What it costs process 0 of a thousand to hear from all others: a session of as many phases as a save has.

    python benches/coordination.py --ranks 1024 --services jax folder

The service is real: that of `jax.distributed`, or a folder on a disk. The processes are not: rank 0 has a process of
its own, all others are threads of a few more, on one machine. Each round is twice the same: as it is, and with a
coordinator that lacks `get_many`, so that rank 0 asks for one key after the other. What is said is the time of rank 0,
from before the session begins to when it has ended.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OTHERS = 3
"""Processes beside that of rank 0."""

AGREED, GATHERED = ("check", "structure", "join", "write", "commit"), ("tree", "bytes")
"""Phases of a save; with the beginning, the probe and the end there are eleven in which rank 0 hears from all."""


def main() -> None:
    """Starts the processes, and reports."""
    asks = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asks.add_argument("--ranks", type=int, default=1024)
    asks.add_argument("--rounds", type=int, default=5)
    asks.add_argument("--services", nargs="+", choices=["jax", "folder"], default=["jax", "folder"])
    asks.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on which disk")
    asks.add_argument("--worker", help=argparse.SUPPRESS)
    asked = asks.parse_args()
    if asked.worker is not None:
        work(json.loads(asked.worker))
        return
    print("| service | ranks | as it is | key by key | ratio |\n|---|---|---|---|---|")
    for service in asked.services:
        room = Path(tempfile.mkdtemp(prefix="regrow-coordination-", dir=asked.folder))
        try:
            times = run(service, asked.ranks, asked.rounds, room)
        finally:
            shutil.rmtree(room)
        ours, singly = (statistics.median(each[which] for each in times) for which in (0, 1))
        ratio = statistics.median(singly / ours for ours, singly in times)
        print(f"| {service} | {asked.ranks} | {ours:.3f} s | {singly:.3f} s | {ratio:.1f} |", flush=True)


def run(service: str, ranks: int, rounds: int, room: Path) -> list[list[float]]:
    """Of each round the time as it is, and key by key."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    job = {"service": service, "ranks": ranks, "rounds": rounds, "room": str(room), "port": port}
    started = [
        subprocess.Popen([sys.executable, __file__, "--worker", json.dumps({**job, "process": process})])
        for process in range(OTHERS + 1)
    ]
    try:
        statuses = [process.wait(1200) for process in started]
    finally:
        for process in started:
            process.kill()
    if any(statuses):
        raise SystemExit(f"processes ended with {statuses}")
    times: list[list[float]] = json.loads((room / "times.json").read_text())
    return times


def work(job: dict[str, Any]) -> None:
    """One process: rank 0, or a part of the others as threads."""
    make = coordinators(job)
    process, ranks = job["process"], job["ranks"]
    if process > 0:
        threading.stack_size(256 << 10)
        each = [threading.Thread(target=take_part, args=(job, make, rank)) for rank in range(process, ranks, OTHERS)]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
        return
    times = take_part(job, make, 0)
    # The first round warms up.
    pairs = [times[at : at + 2] for at in range(2, len(times), 2)]
    (Path(job["room"]) / "times.json").write_text(json.dumps(pairs))


def coordinators(job: dict[str, Any]) -> Callable[[int], Any]:
    """What makes the coordinator of a rank."""
    import regrow

    if job["service"] == "folder":
        return lambda rank: regrow.Folder(Path(job["room"]) / "meet", rank=rank, size=job["ranks"])
    import jax
    from jax._src import distributed

    from regrow._coordination_jax import JaxCoordinator

    address = f"127.0.0.1:{job['port']}"
    jax.distributed.initialize(address, num_processes=OTHERS + 1, process_id=job["process"])
    client = distributed.global_state.client
    return lambda rank: JaxCoordinator(client, rank, job["ranks"], False)


def take_part(job: dict[str, Any], make: Callable[[int], Any], rank: int) -> list[float]:
    """All sessions of a rank, and how long each took."""
    from regrow._coordination import Session

    as_it_is = make(rank)
    times = []
    for number in range(2 * (job["rounds"] + 1)):
        coordinator = Singly(as_it_is) if number % 2 else as_it_is
        # Rank 0 comes when all others wait: this is about what it has to do, and not about when they come.
        time.sleep(3.0 if rank == 0 else 0.0)
        begin = time.monotonic()
        with Session(coordinator, f"/data/step_{number}", "save", timeout=300) as session:
            session.gather("probe-seen", b"\1")
            for phase in GATHERED:
                session.gather(phase, b"x" * 150)
            for phase in AGREED:
                session.agree(phase)
        times.append(time.monotonic() - begin)
    return times


class Singly:
    """A coordinator without `get_many`."""

    def __init__(self, coordinator: Any) -> None:
        self.rank, self.size = coordinator.rank, coordinator.size
        self.value_len_max_bytes = coordinator.value_len_max_bytes
        self.put_if_absent, self.get = coordinator.put_if_absent, coordinator.get
        self.remove, self.live = coordinator.remove, coordinator.live


if __name__ == "__main__":
    main()

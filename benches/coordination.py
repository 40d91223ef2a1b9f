"""What it costs process 0 of a thousand to hear from all others: a session of as many phases as a
save has.

    python benches/coordination.py --ranks 1024 --services jax folder

The service is real: that of `jax.distributed`, or a folder on a disk. The others are not: as soon
as rank 0 has begun, all that they would put in any phase is put, by its own process, and that time
is left out. So what is said is what rank 0 does itself when all others wait for it. In each round
twice: as it is, and with a coordinator that lacks `get_many`, so that it asks for one key after the
other.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

AGREED = ("check", "probe-result", "structure", "join", "digests", "write", "commit")
GATHERED = ("probe-seen", "tree", "bytes")
"""Phases in which rank 0 of a save hears from all others, beside the beginning and the end."""

GATHERED_LEN_BYTES = 150


def main() -> None:
    """Measures each service, and reports."""
    asks = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asks.add_argument("--ranks", type=int, default=1024)
    asks.add_argument("--rounds", type=int, default=5)
    asks.add_argument("--services", nargs="+", choices=["jax", "folder"], default=["jax", "folder"])
    asks.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on which disk")
    asked = asks.parse_args()
    print("| service | ranks | as it is | key by key | ratio |\n|---|---|---|---|---|")
    for service in asked.services:
        room = Path(tempfile.mkdtemp(prefix="regrow-coordination-", dir=asked.folder))
        try:
            coordinator = in_folder(room, asked.ranks) if service == "folder" else of_jax(asked.ranks)
            # The first round warms up.
            rounds = [(run(coordinator, True), run(coordinator, False)) for _ in range(asked.rounds + 1)][1:]
        finally:
            shutil.rmtree(room)
        ours, singly = (statistics.median(each[which] for each in rounds) for which in (0, 1))
        ratio = statistics.median(singly / ours for ours, singly in rounds)
        print(f"| {service} | {asked.ranks} | {ours:.3f} s | {singly:.3f} s | {ratio:.1f} |", flush=True)


def in_folder(room: Path, ranks: int) -> Any:
    """A folder that all processes would see."""
    import regrow

    return regrow.jobs.Folder(room, rank=0, size=ranks)


def of_jax(ranks: int) -> Any:
    """The service of JAX, which this process runs."""
    import jax
    from jax._src import distributed

    from regrow._jobs._coordination_jax import JaxCoordinator

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)
    return JaxCoordinator(distributed.global_state.client, 0, ranks, False)


def run(coordinator: Any, gets_many: bool) -> float:
    """Seconds of one session."""
    from regrow._jobs._coordination import Session

    given = Rank0(coordinator)
    if gets_many:
        given.get_many = coordinator.get_many
    begin = time.perf_counter()
    with Session(given, "/data/run/step_100", "save", timeout=300) as session:
        for phase in AGREED:
            session.agree(phase)
        for phase in GATHERED:
            gathered = session.gather(phase, bytes(GATHERED_LEN_BYTES))
            assert gathered is not None and set(map(len, gathered)) == {GATHERED_LEN_BYTES}
    return time.perf_counter() - begin - given.others_seconds


class Rank0:
    """A coordinator that puts what all others will have put as soon as rank 0 has begun; without
    `get_many`.
    """

    get_many: Any

    def __init__(self, coordinator: Any) -> None:
        self.rank, self.size = coordinator.rank, coordinator.size
        self.value_len_max_bytes = coordinator.value_len_max_bytes
        self.get, self.remove, self.live = coordinator.get, coordinator.remove, coordinator.live
        self.others_seconds = 0.0
        self._put = coordinator.put_if_absent

    def put_if_absent(self, key: str, value: bytes) -> bool:
        is_put: bool = self._put(key, value)
        place, _, name = key.rpartition("/")
        if name == "current":
            begin = time.perf_counter()
            attempt = f"{place}/{value.decode().split()[0]}"
            long = struct.pack("<Q", GATHERED_LEN_BYTES) + bytes(GATHERED_LEN_BYTES)
            for rank in range(1, self.size):
                for folder in ("here", "end", *(f"{phase}/from" for phase in AGREED)):
                    self._put(f"{attempt}/{folder}/{rank}/0", struct.pack("<Q", 0))
                for phase in GATHERED:
                    self._put(f"{attempt}/{phase}/from/{rank}/0", long)
            self.others_seconds += time.perf_counter() - begin
        return is_put


if __name__ == "__main__":
    main()

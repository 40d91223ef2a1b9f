"""How things are measured: contestants take turns, and only what happened in the same round is
compared.

Wall times on a shared machine swing by half from run to run. So each round gives every contestant
one turn, in an order that rotates, and the limit (what disk and memory give when nothing else is
done) has its turn among them. A ratio is the median of the ratios of the rounds. The first round
warms up and is not counted: first writes to files and first touches of memory are another story.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 8 << 20
LIMIT = "limit"
"""The contestant that the others cannot beat."""
OURS = "regrow"


@dataclass(frozen=True)
class Sample:
    """One measurement: who did what with which data, in which round."""

    operation: str
    workload: str
    who: str
    round: int
    value: float
    unit: str = "s"
    cpu_seconds: float | None = None
    read_bytes: int | None = None
    """What the kernel has fetched from the disk for this process."""


@dataclass
class Samples:
    """All measurements, and what is to be said about those that are missing."""

    rows: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """Keeps one."""
        self.rows.append(sample)

    def note(self, text: str) -> None:
        """Says something about the run, once."""
        if text not in self.notes:
            self.notes.append(text)
            say(f"note: {text}")

    def of(self, operation: str, workload: str, who: str) -> dict[int, float]:
        """Values by round."""
        found = (operation, workload, who)
        return {row.round: row.value for row in self.rows if (row.operation, row.workload, row.who) == found}

    def pairs(self) -> list[tuple[str, str]]:
        """Operations and workloads, in the order of their first measurement."""
        return list(dict.fromkeys((row.operation, row.workload) for row in self.rows))

    def contestants(self, operation: str, workload: str) -> list[str]:
        """Who did it."""
        return list(
            dict.fromkeys(row.who for row in self.rows if (row.operation, row.workload) == (operation, workload))
        )

    def median(self, operation: str, workload: str, who: str) -> float | None:
        """The middle of what one of them needed."""
        values = self.of(operation, workload, who)
        return statistics.median(values.values()) if values else None

    def ratio(self, operation: str, workload: str, who: str, to: str = OURS) -> float | None:
        """How many times as long `who` takes as `to`: the median over the rounds that both were
        in.
        """
        return self.ratio_between((operation, workload, who), (operation, workload, to))

    def ratio_between(self, above: tuple[str, str, str], below: tuple[str, str, str]) -> float | None:
        """The same for any two rows: operation, workload, who."""
        over, under = self.of(*above), self.of(*below)
        ratios = [over[turn] / under[turn] for turn in over.keys() & under.keys() if under[turn] > 0]
        return statistics.median(ratios) if ratios else None

    def spread(self, operation: str, workload: str, who: str) -> tuple[float, float] | None:
        """The least and the most."""
        values = self.of(operation, workload, who).values()
        return (min(values), max(values)) if values else None

    def json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {"notes": self.notes, "samples": [asdict(row) for row in self.rows]}


class Clock:
    """What a contestant measures with, in one of its turns."""

    def __init__(self, samples: Samples, workload: str, who: str, turn: int) -> None:
        self.samples, self.workload, self.who, self.turn = samples, workload, who, turn

    def time(self, operation: str, action: Callable[[], Any], who: str | None = None) -> Any:
        """Runs `action`, and keeps how long that took; gives what it returned."""
        gc.collect()
        read, cpu, begin = read_bytes(), time.process_time(), time.perf_counter()
        result = action()
        seconds, cpu, read = time.perf_counter() - begin, time.process_time() - cpu, read_bytes() - read
        self.keep(operation, seconds, who=who, cpu_seconds=cpu, read_bytes=read)
        return result

    def keep(self, operation: str, value: float, unit: str = "s", who: str | None = None, **more: Any) -> None:
        """Keeps a value that was measured in another way."""
        if self.turn > 0:
            self.samples.add(Sample(operation, self.workload, who or self.who, self.turn, value, unit, **more))


@dataclass
class Turn:
    """A contestant: what it does in each round."""

    who: str
    run: Callable[[Clock], None]
    rounds: int | None = None
    """In how many rounds it takes part, if not in all; one that is called in for a single one
    has no warm-up.
    """


def interleave(samples: Samples, workload: str, turns: list[Turn], rounds: int, operation: str = "") -> None:
    """Gives every contestant its turn in every round. One that fails is left out from there on,
    and a note says so.
    """
    able = list(turns)
    for number in range(rounds + 1):
        say(f"  {workload}{': ' if operation else ''}{operation}, round {number} of {rounds}")
        at = number % max(len(able), 1)
        for turn in able[at:] + able[:at]:
            if turn.rounds is not None and not number <= turn.rounds:
                continue
            if turn.rounds == 1 and number == 0:
                continue
            try:
                turn.run(Clock(samples, workload, turn.who, number))
            except Exception as error:
                if turn.who == OURS:
                    raise
                reason = (str(error).splitlines() or [""])[0][:160]
                samples.note(f"{turn.who} is left out of {workload}: {type(error).__name__}: {reason}")
                able.remove(turn)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


# ---- files and the page cache ---------------------------------------------------------


def sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def files_of(path: Path) -> Iterator[Path]:
    """The files at or below a path."""
    if path.is_file():
        yield path
        return
    yield from (file for file in path.rglob("*") if file.is_file())


def drop_from_page_cache(path: Path) -> None:
    """Makes the next read of these files come from the disk."""
    for file in files_of(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def bring_into_page_cache(path: Path) -> None:
    """Makes the next read of these files come from memory."""
    buffer = bytearray(1 << 20)
    for file in files_of(path):
        with open(file, "rb", buffering=0) as source:
            while source.readinto(buffer):
                pass


def size_on_disk(path: Path) -> int:
    """Bytes of all files."""
    return sum(file.stat().st_size for file in files_of(path))


# ---- what the kernel says about a process ---------------------------------------------


def read_bytes() -> int:
    """Bytes that were fetched from the disk for this process so far, page faults of maps
    included.
    """
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:  # not Linux, or hidden in a container
        return 0
    return int(text.partition("\nread_bytes:")[2].split()[0])


def memory(process: int | str = "self") -> dict[str, int]:
    """Resident bytes: the peak, all, anonymous, of files, shared."""
    names = {"VmHWM": "peak", "VmRSS": "all", "RssAnon": "anonymous", "RssFile": "files", "RssShmem": "shared"}
    out = dict.fromkeys(names.values(), 0)
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in names:
            out[names[name]] = int(value.split()[0]) * 1024
    return out

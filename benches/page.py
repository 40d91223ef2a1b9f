"""The page of results in the documentation, from the files of one or more benchmarks.

    python benches/page.py 2026-11-28 "Save and load=bench-output/results.json" \\
        "Several processes=bench-output/processes/results.md" > docs/results.md

Each file follows under its title: the samples of `bench.py` (`.json`), or the tables that another
benchmark writes (`.md`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from measure import LIMIT, OURS, Sample, Samples
from plots import NAMES, WORKLOADS
from report import figure

HEAD = """# Results

Measured on {date}.

- **Machine**: {cpu}, {cpus} CPUs, {memory} GiB of memory, a virtual disk, {system}.
- **Versions**: commit {commits}; Python {python}; {versions}.

Each cell has the median of {rounds} interleaved rounds. The number in brackets is the time of the
tool divided by the time of regrow: the median over the rounds in which both ran. The column
"limit" has the time of the machine itself: direct I/O by one thread, or a copy in memory. Saves are
synced. Cold loads read from the disk. [Method, and how to repeat the runs](performance.md).

- `load into` fills given arrays; `stored` is the size on the disk; `map` loads without checksums.
- `ocp` operations are calls of Orbax' API, made with `regrow.orbax` (files of Orbax; in "regrow
  layout" the default layout) and with Orbax.
- `blocked` is the time until the call returns; `until durable` is the time until the data is safe.

![Seconds of a durable save and of a cold load](performance/front.png)
"""
SHOWN = ("jax", "flax", "equinox", "orbax-checkpoint", "tensorstore", "safetensors")


def main() -> None:
    """Prints the page."""
    date, *sections = sys.argv[1:]
    files = [(title, Path(file)) for title, _, file in (section.partition("=") for section in sections)]
    read = {file: json.loads(file.read_text()) for _, file in files if file.suffix == ".json"}
    runs = [run for run in read.values() if "machine" in run]
    about = runs[0]["machine"]
    commits = ", ".join(dict.fromkeys(f"`{run['machine']['commit']}`" for run in runs))
    versions = ", ".join(f"{name} {about['versions'][name]}" for name in SHOWN)
    head = HEAD.format_map(
        {**about, "date": date, "commits": commits, "versions": versions, "memory": about["memory_gib"]}
    )
    print(head)
    for title, file in files:
        print(f"## {title}\n")
        if file.suffix == ".md":
            print("\n".join(line for line in file.read_text().splitlines() if not line.startswith("#")).strip() + "\n")
            continue
        samples = Samples()
        for row in read[file]["samples"]:
            samples.add(Sample(**row))
        for workload in dict.fromkeys(workload for _, workload in samples.pairs()):
            print("\n".join(table(samples, workload)))
    notes = [note for run in runs for note in run["notes"] if "not installed" not in note]
    if notes:
        print("## Notes\n")
        print("\n".join(f"- {note}" for note in dict.fromkeys(notes)))


def table(samples: Samples, workload: str) -> list[str]:
    """The operations on one workload, with a line for each tool beside regrow."""
    kind, _, size = workload.partition("@")
    title = ", ".join(part for part in (WORKLOADS.get(kind, kind), size) if part)
    lines = [f"### {title}", "", "| operation | regrow | limit | others |", "|---|---|---|---|"]
    for operation in (operation for operation, of in samples.pairs() if of == workload):
        names = samples.contestants(operation, workload)
        others = [who for who in names if who not in (OURS, LIMIT)]
        cells = [cell(samples, operation, workload, who) for who in (OURS, LIMIT)]
        named = "; ".join(f"{NAMES.get(who, who)}: {cell(samples, operation, workload, who)}" for who in others)
        lines.append(f"| {operation} | {cells[0]} | {cells[1]} | {named} |")
    return [*lines, ""]


def cell(samples: Samples, operation: str, workload: str, who: str) -> str:
    """A median, and its ratio to regrow's if both are times."""
    median = samples.median(operation, workload, who)
    if median is None:
        return ""
    unit = next(row.unit for row in samples.rows if (row.operation, row.workload) == (operation, workload))
    ratio = None if who == OURS or unit == "bytes" else samples.ratio(operation, workload, who)
    return figure(median, unit) + ("" if ratio is None else f" ({ratio:.2f})")


main()

"""Counts instructions of the Python package's fixed costs, and compares them with guard_front.json.

    make guard                                # after the paths of the engine
    benches/guard_front.py --update           # writes guard_front.json: after a change that was meant

Each program below does one thing more than the program before it, so the difference of their counts
is the cost of that thing. The counts hold for the versions of Python and NumPy in the file; with
other versions nothing is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

FILE = Path(__file__).resolve().parent / "guard_front.json"
TOLERANCE = 0.05
COLLECTED = re.compile(r"Collected *: *(\d+)")
MEMORY = Path("/dev/shm")
SAVE = "regrow.save('a', tree, overwrite=True)"
LOAD = "regrow.load('a')"
STEPS = {
    "": "import numpy as np; tree = {f'w{at}': np.zeros((4, 4), np.float32) for at in range(10)}",
    "import": "import regrow",
    "first save of 10 leaves": SAVE,
    "second save": SAVE,
    "first load of 10 leaves": LOAD,
    "second load": LOAD,
}


def main() -> None:
    """Counts, compares, says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--update", action="store_true", help="write what was counted into guard_front.json")
    arguments = parser.parse_args()
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        sys.exit("guard: valgrind is not on PATH; on Debian and Ubuntu: apt install valgrind")
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}"
    expected = json.loads(FILE.read_text()) if FILE.is_file() else {"versions": "no run"}
    if not arguments.update and expected["versions"] != versions:
        print(f"guard: the counts of the Python package are of {expected['versions']}; this is {versions}")
        return
    counts = count_all(valgrind)
    if arguments.update:
        FILE.write_text(json.dumps({"versions": versions, "instructions": counts}, indent=1) + "\n")
        print(f"guard: wrote {FILE}")
        return
    sys.exit(compare(expected["instructions"], counts))


def count_all(valgrind: str) -> dict[str, int]:
    """The instructions of each step."""
    counts: dict[str, int] = {}
    program, before = "", 0
    # The first run of a fresh clone compiles the modules.
    run([], "\n".join(STEPS.values()))
    for name, step in STEPS.items():
        program += step + "\n"
        now = count(valgrind, program)
        if name:
            counts[name] = now - before
            print(f"{counts[name]:>14,}  {name}", flush=True)
        before = now
    return counts


def count(valgrind: str, program: str) -> int:
    """Instructions of a program, on all of its threads."""
    told = run([valgrind, "--tool=callgrind", "--callgrind-out-file=callgrind.out"], program)
    found = COLLECTED.search(told)
    if found is None:
        sys.exit(f"guard: callgrind has counted nothing\n{told}")
    return int(found[1])


def run(under: list[str], program: str) -> str:
    """Runs a program in a folder in memory; what it has printed to standard error."""
    where = MEMORY if os.access(MEMORY, os.W_OK) else None
    # The same hashes in each run, and compiled modules as users have them.
    fixed = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="regrow-guard-", dir=where) as folder:
        command = [*under, sys.executable, "-c", program]
        done = subprocess.run(command, cwd=folder, env=os.environ | fixed, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"guard: this program has failed\n{program}\n{done.stderr}")
    return done.stderr


def compare(before: dict[str, int], counts: dict[str, int]) -> int:
    """The exit code; the lines say which step changed by how much."""
    worse = before.keys() ^ counts.keys()
    for name in sorted(worse):
        print(f"guard: {name} is in {'guard_front.json' if name in before else 'the program'} only")
    for name in before.keys() & counts.keys():
        change = counts[name] / before[name] - 1
        if abs(change) > TOLERANCE:
            print(f"guard: {name}: {before[name]:,} -> {counts[name]:,} instructions ({change:+.1%})")
        if change > TOLERANCE:
            worse.add(name)
    if worse:
        print(f"guard: {len(worse)} steps cost more; was it meant: guard_front.py --update")
        return 1
    print(f"guard: {len(counts)} steps within {TOLERANCE:.0%}")
    return 0


if __name__ == "__main__":
    main()

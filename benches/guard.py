"""Counts instructions of the fixed-cost paths, and compares them with what they were.

    make guard                          # fails if a path takes over 5 % more instructions than guard.json says
    benches/guard.py --update           # writes guard.json: after a change that was meant

Times swing on shared machines, counts do not. `crates/regrow/examples/guard.rs` is run under
callgrind, a path at a time; only what it marks is counted, on its thread, in a folder in memory.
Seeds of hash maps and the order of threads change a count by one percent, in one path by five.

The counts are of the `dev` profile, whose build the tests need anyway, and of the compiler and the
processor's instruction sets that callgrind knows. A count that fell by more than the tolerance is
told too, but does not fail. Chance must not fail a check: a path over the tolerance is counted
twice more and its smallest count holds, and `--update --rounds 3` records the largest of three.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILE = HERE / "guard.json"
TOLERANCE = 0.05
ROUNDS = 1
MOST_ROUNDS = 3  # for a path that is over the tolerance
COLLECTED = re.compile(r"Collected *: *(\d+)")
MEMORY = Path("/dev/shm")


def main() -> None:
    """Counts, compares, says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--update", action="store_true", help="write what was counted into guard.json")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="count each path so often and show the spread")
    parser.add_argument("--program", type=Path, default=program(), help="the example `guard`, built")
    arguments = parser.parse_args()
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        sys.exit("guard: valgrind is not on PATH; on Debian and Ubuntu: apt install valgrind")
    if not arguments.program.is_file():
        sys.exit(f"guard: {arguments.program} is not built; run: cargo build -p regrow --example guard")
    names = subprocess.run(
        [arguments.program, "--list"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    expected = json.loads(FILE.read_text()) if FILE.is_file() else {"compiler": compiler(), "instructions": {}}
    counts = {}
    for name in names:
        found = [count(valgrind, arguments.program, name) for _ in range(arguments.rounds)]
        limit = expected["instructions"].get(name, 0) * (1 + TOLERANCE)
        while 0 < limit < min(found) and len(found) < MOST_ROUNDS:
            found.append(count(valgrind, arguments.program, name))
        counts[name] = max(found) if arguments.update else min(found)
        spread = f"  (spread {max(found) / min(found) - 1:.2%})" if len(found) > 1 else ""
        print(f"{counts[name]:>14,}  {name}{spread}", flush=True)
    if arguments.update:
        FILE.write_text(json.dumps({"compiler": compiler(), "instructions": counts}, indent=1) + "\n")
        print(f"guard: wrote {FILE}")
        return
    if not FILE.is_file():
        sys.exit(f"guard: there is no {FILE} to compare with; write it with --update")
    sys.exit(compare(expected, counts))


def program() -> Path:
    """Where cargo puts it."""
    return Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")) / "debug" / "examples" / "guard"


def compiler() -> str:
    """The compiler that the counts are of."""
    return subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.strip()


def count(valgrind: str, guard: Path, name: str) -> int:
    """Instructions of one path."""
    where = MEMORY if os.access(MEMORY, os.W_OK) else None
    # Names of one length, so that paths in messages and keys are of one length too.
    with tempfile.TemporaryDirectory(prefix="regrow-guard-", dir=where) as folder:
        command = [
            valgrind,
            "--tool=callgrind",
            "--toggle-collect=guard::measured*",
            f"--callgrind-out-file={folder}/callgrind.out",
            str(guard),
            name,
            folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
    found = COLLECTED.search(done.stderr)
    if done.returncode != 0 or found is None:
        sys.exit(f"guard: {name} has failed\n{done.stderr}")
    instructions = int(found[1])
    if instructions == 0:
        sys.exit(f"guard: {name}: callgrind has not met guard::measured; is the program stripped?")
    return instructions


def compare(expected: dict[str, object], counts: dict[str, int]) -> int:
    """The exit code; the lines say which path changed by how much."""
    before = expected["instructions"]
    assert isinstance(before, dict)
    if expected["compiler"] != compiler():
        print(f"guard: counted with {compiler()}, compared with {expected['compiler']}: rather use the same")
    worse = 0
    for name in sorted(before.keys() | counts.keys()):
        if name not in before or name not in counts:
            print(f"guard: {name} is in {'guard.json' if name in before else 'the program'} only; run with --update")
            worse += 1
            continue
        change = counts[name] / before[name] - 1
        if abs(change) > TOLERANCE:
            print(f"guard: {name}: {before[name]:,} -> {counts[name]:,} instructions ({change:+.1%})")
            worse += change > 0
    if worse:
        print(f"guard: {worse} paths cost more than {TOLERANCE:.0%} above guard.json; was it meant: guard.py --update")
        return 1
    print(f"guard: {len(counts)} paths within {TOLERANCE:.0%}")
    return 0


if __name__ == "__main__":
    main()

"""Runs the tests of v1 of a checkout of Orbax' repository, and compares what fails with
``checkout_v1.toml``.

    python v1_checkout.py PATH                 all of them
    python v1_checkout.py PATH --only load     files whose name has this in it
    python v1_checkout.py PATH --original      against the checkout itself: what fails there is no judge

The tests read checkpoints that are beside them, so they run in a copy of the checkout. A failure
that is not expected, and an expected one that passes, end the run with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from judge import Expected, table

HERE = Path(__file__).parent
WORK = HERE.parents[1] / "target" / "orbax-suite"
V1 = Path("orbax/checkpoint/experimental/v1")


def files_of(copy: Path, expected: Expected, only: str) -> list[Path]:
    """The tests, by their files: those of base classes in the repository are in ``v1_bases.py``."""
    tests = sorted((copy / V1).rglob("*_test.py"))
    names = {file.relative_to(copy / V1).as_posix(): file for file in tests}
    names["v1_bases.py"] = HERE / "v1_bases.py"
    return [file for name, file in names.items() if only in name and name not in expected.left_out]


def run_file(file: Path, copy: Path, temporary: Path, original: bool, *arguments: str) -> dict[str, str]:
    """What became of the tests of one file."""
    name = file.relative_to(copy / V1).as_posix() if file.is_relative_to(copy) else file.name
    flat = name.replace("/", "__").removesuffix(".py")
    outcomes, log = WORK / "v1_outcomes" / f"{flat}.json", WORK / "logs" / f"v1__{flat}.txt"
    outcomes.unlink(missing_ok=True)
    settings = {
        "ORBAX_V1_SUITE_ORIGINAL": "1" if original else "",
        "ORBAX_V1_SUITE_OUTCOMES": str(outcomes),
        "ORBAX_V1_SUITE_CHECKOUT": str(copy),
        "PYTHONPATH": os.pathsep.join(map(str, [copy, HERE, HERE.parent, WORK / "packages"])),
        "TEST_TMPDIR": tempfile.mkdtemp(dir=temporary),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "v1_in_place", "-p", "no:cacheprovider", "--noconftest"]
    command += ["--import-mode=importlib", "-c", os.devnull, "--rootdir", str(file.parent), "--timeout", "120"]
    command += ["--tb", "short", "-W", "ignore", str(file), *arguments]
    with log.open("w") as told:
        done = subprocess.run(command, cwd=WORK, env=os.environ | settings, stdout=told, stderr=told, check=False)
    if not outcomes.exists():
        return {f"{name}::crashed with {done.returncode}": "failed"}
    return {f"{name}::{test}": outcome for test, outcome in json.loads(outcomes.read_text()).items()}


def main() -> None:
    """Runs them, prints a table, and ends with an error where something was not expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--original", action="store_true", help="against the checkout itself")
    parser.add_argument("--only", default="", help="files whose name has this in it")
    parser.add_argument("-k", default="", help="tests, as pytest chooses them; nothing is compared")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    expected = Expected(HERE / "checkout_v1.toml", options.only)
    for folder in ("logs", "v1_outcomes"):
        (WORK / folder).mkdir(parents=True, exist_ok=True)
    copy = WORK / "checkout"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(options.checkout / "checkpoint" / "orbax", copy / "orbax")
    arguments = ["-k", options.k] if options.k else []
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.processes) as pool:
        files = files_of(copy, expected, options.only)
        for found in pool.map(lambda file: run_file(file, copy, Path(temporary), options.original, *arguments), files):
            outcomes |= found
    failed = sorted(name for name, outcome in outcomes.items() if outcome == "failed")
    (WORK / f"v1_failed{'_original' if options.original else ''}.txt").write_text("\n".join(failed))
    print(table(outcomes, expected))
    if options.original or options.k:
        return
    if wrong := expected.wrong(outcomes):
        raise SystemExit("\n".join([*wrong, f"{len(wrong)} not as expected: see {WORK / 'logs'}"]))


if __name__ == "__main__":
    main()

"""Runs Orbax' own tests against `regrow.orbax`, and compares what fails with ``expected.toml``.

    python run.py                    all of them
    python run.py --original         the same against the original: what fails there is no judge
    python run.py --only json        files whose name has this in it
    python run.py --checkout PATH    those of a checkout of Orbax' repository, with ``checkout_v0.toml``

The newest source distribution of Orbax that has its tests is fetched from the package registry, and
the base classes of tests from the Orbax that is installed. Nothing of them is part of this
repository. A failure that is not expected, and an expected one that passes, end the run with an
error. Tests of private parts, and those that the original fails, are not judged. The table is in
``target/orbax-suite/table.txt``, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path

from judge import Expected
from judge import table as table_of

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
WORK = REPOSITORY / "target" / "orbax-suite"

VERSION = "0.11.3"
SHA256 = "661607bb9444920c80d51a78b29a52ec3a035b7154c1c6006c92d679536e3008"
PACKAGES = ("chex==0.1.92", "toolz==1.2.0")
"""What the tests need besides."""

FROM_INSTALLED = ("test_utils", "_src/checkpointers/checkpointer_test_utils", "_src/testing/test_tree_utils")
FROM_SOURCE = (
    "_src/handlers/pytree_checkpoint_handler_test_utils",
    "_src/handlers/standard_checkpoint_handler_test_utils",
    "_src/testing/multiprocess_test",
)


def fetch() -> Path:
    """The source distribution, unpacked."""
    source = WORK / f"orbax_checkpoint-{VERSION}"
    if not source.exists():
        archive = WORK / f"{source.name}.tar.gz"
        pip("download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(WORK),
            f"orbax-checkpoint=={VERSION}")  # fmt: skip
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            raise SystemExit(f"{archive}: expected the SHA-256 {SHA256}, found {found}")
        with tarfile.open(archive) as packed:
            packed.extractall(WORK, filter="data")
    fetch_packages()
    return source / "orbax" / "checkpoint"


def fetch_packages() -> None:
    """What the tests need besides, in a folder of its own."""
    packages = WORK / "packages"
    if not packages.exists():
        pip("install", "--no-deps", "--target", str(packages), *PACKAGES)


def pip(*arguments: str) -> None:
    """Runs pip. Reading a source distribution's metadata takes its build backend, which goes
    beside the tests.
    """
    backend = WORK / "backend"
    if arguments[0] == "download" and not backend.exists():
        pip("install", "--target", str(backend), "flit_core==3.12.0")
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", *arguments], check=True, env=os.environ | {"PYTHONPATH": str(backend)}
    )


HELPERS_OF_CHECKOUT = (
    "test_utils",
    "_src/checkpointers/checkpointer_test_utils",
    "_src/handlers/pytree_checkpoint_handler_test_utils",
    "_src/handlers/standard_checkpoint_handler_test_utils",
    "_src/testing/multiprocess_test",
    "_src/testing/oss/multiprocess_test",
    "_src/testing/test_tree_utils",
)
OF_CHECKOUT = (
    "checkpoint_manager_test",
    "checkpoint_manager_options_test",
    "checkpoint_utils_test",
    "single_host_test",
    "transform_utils_test",
    "_src/checkpoint_managers/preservation_policy_test",
    "_src/checkpointers/async_checkpointer_test",
    "_src/checkpointers/checkpointer_test",
    "_src/handlers/array_checkpoint_handler_test",
    "_src/handlers/composite_checkpoint_handler_test",
    "_src/handlers/handler_registration_test",
    "_src/handlers/json_checkpoint_handler_test",
    "_src/handlers/pytree_checkpoint_handler_test",
    "_src/handlers/random_key_checkpoint_handler_test",
    "_src/handlers/standard_checkpoint_handler_test",
    "_src/metadata/tree_test",
    "_src/path/format_utils_test",
    "_src/path/step_test",
    "_src/tree/parts_of_test",
    "_src/tree/structure_utils_test",
    "_src/tree/utils_test",
)
"""The files of a checkout whose tests are of what callers see."""


def lay_out_checkout(source: Path, only: str) -> Path:
    """As `lay_out`, of a checkout."""
    suite = WORK / "suite"
    shutil.rmtree(suite, ignore_errors=True)
    (suite / "helpers").mkdir(parents=True)
    for name in HELPERS_OF_CHECKOUT:
        if (source / f"{name}.py").exists():
            module = ".".join(("orbax", "checkpoint", *name.split("/")))
            shutil.copyfile(source / f"{name}.py", suite / "helpers" / f"{module}.py")
    for name in OF_CHECKOUT:
        flat = "__".join(f"{name}.py".split("/"))
        if only in flat:
            shutil.copyfile(source / f"{name}.py", suite / flat)
    return suite


def lay_out(source: Path, left_out: set[str], only: str) -> Path:
    """One flat folder of tests, with the source of their helpers beside them."""
    suite = WORK / "suite"
    shutil.rmtree(suite, ignore_errors=True)
    (suite / "helpers").mkdir(parents=True)
    installed = Path(str(distribution("orbax-checkpoint").locate_file("orbax/checkpoint")))
    for root, names in ((installed, FROM_INSTALLED), (source, FROM_SOURCE)):
        for name in names:
            module = ".".join(("orbax", "checkpoint", *name.split("/")))
            shutil.copyfile(root / f"{name}.py", suite / "helpers" / f"{module}.py")
    tests = {"__".join(file.relative_to(source).parts): file for file in sorted(source.rglob("*_test.py"))}
    tests["bases_test.py"] = HERE / "bases_test.py"
    for name, file in tests.items():
        if name not in left_out and "experimental" not in name and only in name:
            shutil.copyfile(file, suite / name)
    return suite


def run(suite: Path, original: bool, processes: int) -> dict[str, str]:
    """What became of each test. Each file has a process of its own: a crash ends its file only."""
    files = sorted(suite.glob("*_test.py"))
    # Some tests make thousands of folders: in memory, where that is to be had.
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as temporary,
        ThreadPoolExecutor(processes) as pool,
    ):
        done = pool.map(lambda file: run_file(file, original, Path(temporary)), files)
        return {name: outcome for found in done for name, outcome in found}


def run_file(file: Path, original: bool, temporary: Path) -> list[tuple[str, str]]:
    """What became of the tests of one file."""
    outcomes = file.with_suffix(".json")
    settings = {
        "ORBAX_SUITE": str(file.parent),
        "ORBAX_SUITE_OUTCOMES": str(outcomes),
        "ORBAX_SUITE_ORIGINAL": "1" if original else "",
        "PYTHONPATH": os.pathsep.join(
            [str(HERE), str(WORK / "packages"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "TEST_TMPDIR": str(temporary),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if "multiprocess_test" in file.read_text():
        settings["ORBAX_SUITE_JOB"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "in_place", "--import-mode=importlib", "-c", os.devnull]
    command += ["--rootdir", str(file.parent), "--timeout", "300", "--tb", "short", "-W", "ignore"]
    with open(log_of(file.name), "w") as log:
        done = subprocess.run(
            [*command, str(file)], cwd=file.parent, env=os.environ | settings, stdout=log, stderr=log, check=False
        )
    if not outcomes.exists():
        return [(f"{file.name}::crashed with {done.returncode}", "failed")]
    return list(json.loads(outcomes.read_text()).items())


def log_of(file: str) -> Path:
    """What pytest has printed for a file."""
    return WORK / "logs" / f"{file}.txt"


def main() -> None:
    """Runs the tests, prints a table, and ends with an error where something was not expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--original", action="store_true", help="against the original")
    parser.add_argument("--checkout", type=Path, help="a checkout of Orbax' repository, whose tests are run")
    parser.add_argument("--only", default="", help="files whose name has this in it")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    expected = Expected(HERE / ("checkout_v0.toml" if options.checkout else "expected.toml"), options.only)
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "logs").mkdir(exist_ok=True)
    if options.checkout is None:
        suite = lay_out(fetch(), set(expected.left_out), options.only)
    else:
        fetch_packages()
        suite = lay_out_checkout(options.checkout / "checkpoint" / "orbax" / "checkpoint", options.only)
    outcomes = run(suite, options.original, options.processes)
    table = table_of(outcomes, expected)
    print(table)
    (WORK / "table.txt").write_text(f"{table}\n")
    failed = sorted(name for name, outcome in outcomes.items() if outcome == "failed")
    (WORK / "failed.txt").write_text("\n".join(failed))
    if options.original:
        return
    wrong = expected.wrong(outcomes)
    if wrong:
        raise SystemExit("\n".join([*wrong, f"{len(wrong)} not as expected: see {WORK / 'logs'}"]))


if __name__ == "__main__":
    main()

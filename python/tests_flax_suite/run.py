"""Runs Flax' own tests of what `regrow.flax` replaces and of its users, and compares failures with
``expected.toml``.

    python run.py CHECKOUT               the tests of a checkout of Flax' repository
    python run.py CHECKOUT --original    the same against Flax: what fails there is no judge
    python run.py CHECKOUT -k overwrite  some of them: what pytest takes

Flax is the installed one. Nothing of the checkout is part of this repository. A failure that is not
expected, and an expected one that passes, end the run with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
FILES = (
    "checkpoints_test.py",
    "serialization_test.py",
    "traverse_util_test.py",
    "struct_test.py",
    "core/core_frozen_dict_test.py",
    "nnx/integration_test.py",
    "nnx/bridge/wrappers_test.py",
)
"""The tests that use the modules that are replaced; one slow file of transformations is left
out.
"""


def run(checkout: Path, original: bool, arguments: list[str]) -> dict[str, str]:
    """What became of each test."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        settings = {
            "FLAX_SUITE_ORIGINAL": "1" if original else "",
            "FLAX_SUITE_OUTCOMES": str(outcomes),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
            "TEST_TMPDIR": folder,
            "JAX_PLATFORMS": "cpu",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "in_place", "--import-mode=importlib", "-c", os.devnull]
        command += ["--rootdir", str(checkout / "tests"), "-p", "no:cacheprovider", "--timeout", "120"]
        command += ["--tb", "short", "-W", "ignore", *(str(checkout / "tests" / file) for file in FILES), *arguments]
        subprocess.run(command, cwd=folder, env=os.environ | settings, check=False)
        if not outcomes.exists():
            raise SystemExit("the tests could not be run")
        became: dict[str, str] = json.loads(outcomes.read_text())
        return became


def main() -> None:
    """Runs the tests, prints a table, and ends with an error where something was not expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of Flax' repository, whose tests are run")
    parser.add_argument("--original", action="store_true", help="against Flax")
    options, arguments = parser.parse_known_args()
    became = run(options.checkout.resolve(), options.original, arguments)
    expected: dict[str, str] = {
        name: reason for reason, names in tomllib.loads((HERE / "expected.toml").read_text()).items() for name in names
    }
    for file in FILES:
        counts = Counter(kind for name, kind in became.items() if name.startswith(f"{file}::"))
        print(f"{file:32} {dict(counts)}")
    if options.original:
        return
    wrong = [f"fails: {name}" for name, kind in became.items() if kind == "failed" and name not in expected]
    wrong += [f"passes, and is expected to fail: {name}" for name in expected if became.get(name) == "passed"]
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()

"""Runs Orbax' own tests of v1 against `regrow.orbax.v1`, and compares what fails with
``v1_expected.toml``.

    python v1_suite.py                  all of them
    python v1_suite.py -k test_reload   some of them: what pytest takes
    python v1_suite.py --original       against the original: what fails there is no judge

The tests are base classes within the Orbax that is installed, with helpers beside them. A failure
that is not expected, and an expected one that passes, end the run with an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Runs them in a process of their own."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--original"]
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        settings = {
            "ORBAX_V1_SUITE_ORIGINAL": "1" if "--original" in sys.argv else "",
            "ORBAX_V1_SUITE_OUTCOMES": str(outcomes),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "v1_in_place", "--import-mode=importlib"]
        command += ["-c", os.devnull, "--rootdir", folder, "--timeout", "120", "--tb", "short", "-W", "ignore"]
        subprocess.run([*command, str(HERE / "v1_bases.py"), *arguments], env=os.environ | settings, check=False)
        if not outcomes.exists():
            raise SystemExit("the tests could not be run")
        became: dict[str, str] = json.loads(outcomes.read_text())
    if "--original" in sys.argv:
        return
    told = tomllib.loads((HERE / "v1_expected.toml").read_text())
    fails = {name: reason for reason, names in told["fails"].items() for name in names}
    either = set(told["either"])
    wrong = [f"fails: {name}" for name, kind in became.items() if kind == "failed" and name not in {*fails, *either}]
    wrong += [f"passes, and is expected to fail: {name}" for name in fails if became.get(name) == "passed"]
    counts = {kind: list(became.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    print(f"{counts}, of these expected to fail: {sum(name in fails for name in became)}")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()

"""A plugin of pytest: tests of Orbax, with `regrow.orbax` in the place of what they test.

The original is imported first and taken out of `sys.modules`; `install()` then puts this front
there. What a test imports besides is of three kinds. Public modules and the private ones that have
a place here come from `regrow.orbax`. Helpers of tests are run again from the original's source, so
that they use this front. All other private modules are the original's.

With ``ORBAX_SUITE_ORIGINAL=1`` the same tests run against the original: what fails there is no
judge.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from lent import lend

SUITE = Path(os.environ["ORBAX_SUITE"])
"""Where the runner has put the tests, and the source of their helpers below ``helpers/``."""
ORIGINAL = os.environ.get("ORBAX_SUITE_ORIGINAL") == "1"

HELPERS = {file.stem for file in (SUITE / "helpers").glob("*.py")}


class Helpers(importlib.abc.MetaPathFinder):
    """Helpers of tests from their source, and the original's other private modules as they are."""

    def __init__(self, original: dict[str, ModuleType]) -> None:
        self.original = original

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name in HELPERS:
            return importlib.util.spec_from_file_location(name, SUITE / "helpers" / f"{name}.py")
        if name in self.original and name.startswith("orbax.checkpoint._src."):
            return importlib.util.spec_from_loader(name, _AsItIs(self.original[name]))
        return None


class _AsItIs(importlib.abc.Loader):
    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def create_module(self, spec: Any) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        pass


def put_in_place() -> None:
    """Imports the original, puts `regrow.orbax` in its place, and makes the helpers known."""
    import orbax.checkpoint

    root = Path(orbax.checkpoint.__file__).parent
    for file in sorted((root / "_src").rglob("*.py")):
        name = ".".join(("orbax", "checkpoint", *file.relative_to(root).with_suffix("").parts))
        if name not in HELPERS and "testing" not in name and "pathways" not in name:
            with contextlib.suppress(ImportError):
                importlib.import_module(name.removesuffix(".__init__"))
    original = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "orbax"}
    if ORIGINAL:
        sys.modules.pop("orbax.checkpoint.test_utils")
    else:
        for name in original:
            del sys.modules[name]
        import regrow.orbax

        regrow.orbax.install()
        sys.modules.pop("orbax.checkpoint.test_utils")
        # The original's reader and writer of a step's metadata make objects of this front's class.
        for module in original.values():
            for attribute in ("SaveStepStatistics", "StepStatistics"):
                if attribute in vars(module):
                    setattr(module, attribute, regrow.orbax.logging.SaveStepStatistics)
        lend(original)
    testing = sys.modules["orbax.checkpoint._src.testing"] = ModuleType("orbax.checkpoint._src.testing")
    testing.__path__ = []
    for name in sorted({helper.rpartition(".")[0] for helper in HELPERS if ".testing." in helper} - {testing.__name__}):
        made = sys.modules[name] = ModuleType(name)
        made.__path__ = []
    sys.meta_path.insert(0, Helpers({} if ORIGINAL else original))
    sys.modules["orbax.checkpoint"].test_utils = importlib.import_module("orbax.checkpoint.test_utils")


def pytest_configure(config: Any) -> None:
    """Before any test is imported."""
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    name_as_before()
    if os.environ.get("ORBAX_SUITE_JOB") == "1":
        be_a_job()
    put_in_place()


def be_a_job() -> None:
    """JAX' service of a job, of this one process: the tests meet there."""
    import jax

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    jax.distributed.initialize(f"localhost:{port}", num_processes=1, process_id=0)


def name_as_before() -> None:
    """Names that JAX had when the tests were written."""
    from jax.experimental import layout

    if not hasattr(layout, "DeviceLocalLayout"):
        layout.DeviceLocalLayout, layout.Layout = layout.Layout, layout.Format


_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Notes what became of a test: the worst of its phases."""
    if report.failed:
        _outcomes[report.nodeid] = "failed"
    elif report.skipped:
        _outcomes.setdefault(report.nodeid, "skipped")
    elif report.when == "call":
        _outcomes.setdefault(report.nodeid, "passed")


def pytest_collectreport(report: Any) -> None:
    """Notes files that cannot be imported."""
    if report.failed:
        _outcomes[report.nodeid] = "failed"


def pytest_sessionfinish(session: Any) -> None:
    """Leaves the outcomes for the runner."""
    Path(os.environ["ORBAX_SUITE_OUTCOMES"]).write_text(json.dumps(_outcomes, indent=1, sort_keys=True))

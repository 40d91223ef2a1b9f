"""A plugin of pytest: Flax with the modules of `regrow.flax` in the place of its own.

With ``FLAX_SUITE_ORIGINAL=1`` the same tests run against Flax itself: what fails there is no judge.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_outcomes: dict[str, str] = {}


def pytest_configure(config: Any) -> None:
    """Before any test is imported."""
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    if os.environ.get("FLAX_SUITE_ORIGINAL") != "1":
        import regrow.flax

        regrow.flax.install()


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
    Path(os.environ["FLAX_SUITE_OUTCOMES"]).write_text(json.dumps(_outcomes, indent=1, sort_keys=True))

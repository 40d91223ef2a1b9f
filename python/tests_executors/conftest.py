"""What the tests of foreign executors share."""

from __future__ import annotations

import os

# Workers are machines of their own: they import what the tests import.
HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [HERE, os.path.join(os.path.dirname(HERE), "tests"), os.environ.get("PYTHONPATH")])
)
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

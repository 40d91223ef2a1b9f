"""torch itself. By name: regrow works without torch, and its types are not checked against it."""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")

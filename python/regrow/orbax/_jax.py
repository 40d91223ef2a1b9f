"""JAX, without its types: half of them are not for others to see."""

from __future__ import annotations

import importlib
from typing import Any

jax: Any = importlib.import_module("jax")

"""JAX without its types: many of its types are private."""

from __future__ import annotations

import importlib
from typing import Any

jax: Any = importlib.import_module("jax")

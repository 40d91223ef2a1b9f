"""torch itself, imported by name: regrow works without torch, so type checks do not cover it."""

from __future__ import annotations

import importlib
from typing import Any

from .._core import _packages
from .._errors import failure

try:
    torch: Any = importlib.import_module("torch")
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise failure(
        ModuleNotFoundError,
        "regrow.torch needs torch, which is not installed",
        name="torch",
        help=f"{_packages.INSTALL.format(extra='torch')}; `regrow.load` reads .pt files without it",
    ) from None

"""The packages that regrow works with, for `regrow doctor`. This module imports none of them."""

from __future__ import annotations

import importlib.metadata
import platform

INSTALL = "pip install './python[{extra}]' in a clone of regrow"
"""How to install the package with an extra: it is on no index yet."""

_USED_FOR = {
    "numpy": "all of regrow in Python",
    "ml_dtypes": "bfloat16, float8 and int4 arrays",
    "jax": f"jax.Array, shardings and PRNG keys: {INSTALL.format(extra='jax')}",
    "flax": "programs that use regrow.flax: states of Flax's own classes",
    "equinox": "programs that use regrow.equinox: modules of Equinox",
    "orbax-checkpoint": "comparing with Orbax; regrow.orbax works without it",
    "torch": f"regrow.torch: {INSTALL.format(extra='torch')}",
}


def packages() -> list[tuple[str, str | None, str]]:
    """The name, the version (`None` if not installed) and the use of each package. Python comes
    first.
    """
    return [
        ("Python", platform.python_version(), "the package"),
        *((name, _version(name), use) for name, use in _USED_FOR.items()),
    ]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

"""The version of Orbax whose interfaces these are."""

from __future__ import annotations

__all__ = ["__version__", "get_details"]

__version__ = "0.12.8"


def get_details() -> str:
    """What answers, and as which version."""
    return f"regrow.orbax, with the interfaces of orbax-checkpoint {__version__}"

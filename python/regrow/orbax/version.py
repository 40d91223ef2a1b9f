"""The version of Orbax whose interfaces this package has."""

from __future__ import annotations

__version__ = "0.12.8"


def get_details() -> str:
    """The name of this implementation and the version of its interfaces."""
    return f"regrow.orbax, with the interfaces of orbax-checkpoint {__version__}"

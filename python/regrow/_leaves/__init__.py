"""Leaves: a user's arrays and scalars to the engine's columns, and back."""

from .._core._dtypes import DTYPES as DTYPES  # the engine asks for it here

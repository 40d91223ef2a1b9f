"""Converts leaves: a user's arrays and scalars to the engine's columns, and back."""

from .._core._dtypes import DTYPES as DTYPES  # the native half imports it here

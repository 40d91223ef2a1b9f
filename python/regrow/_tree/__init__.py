"""Pytrees: takes them apart into leaves, and builds them again from a checkpoint."""

"""The tests of v1 that come as base classes within Orbax."""

from __future__ import annotations

from orbax.checkpoint.experimental.v1._src.testing.compatibility import manager_compatibility_test_base
from orbax.checkpoint.experimental.v1._src.training import checkpointer_test_base


class CheckpointerTest(checkpointer_test_base.CheckpointerTestBase.Test):
    """`training.Checkpointer`."""


class DeprecationsTest(checkpointer_test_base.CheckpointerTestBase.DeprecationsTest):
    """Its old names."""


class ManagerCompatibilityTest(manager_compatibility_test_base.ManagerCompatibilityTestBase):
    """Steps that the original has written."""

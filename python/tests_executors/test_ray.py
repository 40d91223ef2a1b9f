"""Ray: its tasks behind `regrow.jobs.ray_executor`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import ray
from executor_suite import ExecutorSuite

import regrow


@pytest.fixture(scope="module")
def executor() -> Iterator[regrow.jobs.Executor]:
    """Two workers."""
    environment = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield regrow.jobs.ray_executor()
    ray.shutdown()


class TestRay(ExecutorSuite):
    """`regrow.jobs.ray_executor`."""

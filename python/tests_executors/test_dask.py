"""Dask: a client is an executor, and gives what a dead worker was at to another one by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster
from executor_suite import ExecutorSuite


@pytest.fixture(scope="module")
def executor() -> Iterator[Client]:
    """Two processes."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


class TestDask(ExecutorSuite):
    """A `distributed.Client`."""

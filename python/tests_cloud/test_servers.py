"""The store conformance suite against s3s-fs, SeaweedFS and Azurite, and TensorStore and Orbax
against those of S3.

`make test-cloud` installs the servers; each is started here on a free port, in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import cast

import pytest
from bucket_exchange import TensorStoreExchange
from bucket_servers import CLOUD_SERVERS, Bucket, S3Bucket
from bucket_suite import AtomicConformance, StoreConformance

Started = Callable[[str], Bucket]


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Each server from its first use to the end of the run."""
    running: dict[str, Bucket] = {}
    with ExitStack() as stack:

        def start(name: str) -> Bucket:
            if name not in running:
                running[name] = stack.enter_context(CLOUD_SERVERS[name](tmp_path_factory.mktemp(name)))
            return running[name]

        yield start


@pytest.fixture(scope="module", params=CLOUD_SERVERS)
def bucket(request: pytest.FixtureRequest, started: Started) -> Bucket:
    return started(request.param)


@pytest.fixture(scope="module", params=["s3s-fs", "seaweedfs"])
def s3(request: pytest.FixtureRequest, started: Started) -> S3Bucket:
    return cast(S3Bucket, started(request.param))


class TestStore(StoreConformance):
    pass


# s3s-fs lets several conditional writes through, and shows objects half copied: so it does for
# boto3 alone.
@pytest.mark.parametrize("bucket", ["seaweedfs", "azurite"], indirect=True)
class TestAtomic(AtomicConformance):
    pass


class TestTensorStore(TensorStoreExchange):
    pass

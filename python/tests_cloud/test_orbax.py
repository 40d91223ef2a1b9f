"""`regrow.orbax` on `gs://`: by URL, by `regrow.Location`, and by paths of etils.

No server of others that can be had here speaks the XML API of Google Cloud Storage with its
preconditions: this one is the test kit's, which `make test-cloud` builds.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from bucket_orbax import At, OrbaxInBuckets
from bucket_servers import NAME, gcs
from etils import epath

import regrow


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gcs(tmp_path_factory.mktemp("gcs")) as started:
        yield started


@pytest.fixture
def url() -> str:
    return f"gs://{NAME}/{uuid4().hex}"


class TestByUrl(OrbaxInBuckets):
    @pytest.fixture
    def at(self, url: str, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> At:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
        return lambda name: f"{url}/{name}"


class TestByPathsOfEtils(OrbaxInBuckets):
    @pytest.fixture
    def at(self, url: str, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> At:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
        return lambda name: epath.Path(url) / name


class TestByLocation(OrbaxInBuckets):
    @pytest.fixture
    def at(self, url: str, endpoint: str) -> At:
        return lambda name: regrow.Location(f"{url}/{name}", endpoint_url=endpoint, token="anon")

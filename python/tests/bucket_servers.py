"""Servers of object stores that others wrote, each on a port and in a folder of its own, and a
client of theirs.

    with moto(folder) as bucket:
        regrow.save(f"{bucket.url}/x", tree, storage_options=bucket.options)
        bucket.keys("x/")

moto comes with `requirements-dev.txt`; `make test-cloud` installs the others. What is done to
objects behind regrow's back goes through boto3 or Azure's own client, never through regrow.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).parents[2] / ".tools"
KEY_ID = "test"
SECRET = "a-secret-to-hide"
REGION = "us-east-1"
NAME = "runs"
ACCOUNT = "regrow"
ACCOUNT_KEY = base64.b64encode(SECRET.encode().ljust(64, b".")).decode()
START_SECONDS = 60


@dataclass(frozen=True)
class WrongSecret:
    """Storage options with a secret that does not belong to the key."""

    options: dict[str, str]
    secret: str


class Bucket(ABC):
    """One bucket of a running server, and how regrow and others reach it."""

    server: str
    """Who serves it."""
    url: str
    endpoint: str
    options: dict[str, str]
    """The storage options of regrow."""
    secrets: tuple[str, ...]
    """What no message may show."""
    refuses_wrong_secrets: bool = True
    can_abort_uploads: bool = True

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Writes an object, or replaces it."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """The bytes of an object."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Removes an object."""

    @abstractmethod
    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with this."""

    @abstractmethod
    def unfinished(self, prefix: str) -> list[str]:
        """The keys of unfinished uploads in parts, or of blocks."""

    def clear(self, prefix: str) -> None:
        """Removes all objects that begin with this: lists of some servers take the longer the
        more there is.
        """
        for key in self.keys(prefix):
            self.delete(key)

    @property
    @abstractmethod
    def wrong_secret(self) -> WrongSecret:
        """A secret that is not that of the key."""


class S3Bucket(Bucket):
    """Through boto3."""

    def __init__(self, server: str, endpoint: str, *, refuses_wrong_secrets: bool = True) -> None:
        import boto3
        from botocore.config import Config

        self.server, self.endpoint = server, endpoint
        self.name = NAME
        self.url = f"s3://{NAME}"
        self.options = {"endpoint_url": endpoint, "region": REGION, "key": KEY_ID, "secret": SECRET}
        self.secrets = (SECRET,)
        self.refuses_wrong_secrets = refuses_wrong_secrets
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            config=Config(s3={"addressing_style": "path"}),
        )

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=NAME, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=NAME, Key=key)["Body"].read()

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=NAME, Key=key)

    def keys(self, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=NAME, Prefix=prefix)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))

    def clear(self, prefix: str) -> None:
        keys = [{"Key": key} for key in self.keys(prefix)]
        for at in range(0, len(keys), 1000):
            self.client.delete_objects(Bucket=NAME, Delete={"Objects": keys[at : at + 1000]})

    def unfinished(self, prefix: str) -> list[str]:
        uploads = self.client.list_multipart_uploads(Bucket=NAME).get("Uploads", [])
        return [upload["Key"] for upload in uploads if upload["Key"].startswith(prefix)]

    @property
    def wrong_secret(self) -> WrongSecret:
        secret = "another-secret-to-hide"
        return WrongSecret({**self.options, "secret": secret}, secret)


class S3sFsBucket(S3Bucket):
    """It looks whether a file is there, and then writes it, and copies into files that are being
    read.

    It does not list uploads: each is a file beside the buckets. A part that was on its way when an
    upload was aborted may stay, as a file that belongs to none."""

    def __init__(self, endpoint: str, data: Path) -> None:
        super().__init__("s3s-fs", endpoint)
        self.data = data

    def clear(self, prefix: str) -> None:
        super().clear(prefix)
        shutil.rmtree(self.data / NAME / prefix, ignore_errors=True)  # it keeps the folders

    def unfinished(self, prefix: str) -> list[str]:
        files = (file.name.split(".") for file in self.data.glob(".bucket-*.object-*.upload-*.metadata.json"))
        coded = (part.removeprefix("object-") for name in files for part in name if part.startswith("object-"))
        keys = (base64.urlsafe_b64decode(key + "=" * (-len(key) % 4)).decode() for key in coded)
        return sorted(key for key in keys if key.startswith(prefix))


class AzureContainer(Bucket):
    """Through azure-storage-blob."""

    # A block that arrives after its upload was given up stays until Azure deletes it.
    can_abort_uploads = False

    def __init__(self, server: str, endpoint: str) -> None:
        from azure.storage.blob import ContainerClient

        self.server, self.endpoint = server, endpoint
        self.url = f"az://{NAME}"
        text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={endpoint};"
        self.options = {"connection_string": text}
        self.secrets = (ACCOUNT_KEY, SECRET)
        self.client = ContainerClient.from_connection_string(text, NAME)

    def put(self, key: str, data: bytes) -> None:
        self.client.upload_blob(key, data, overwrite=True)

    def get(self, key: str) -> bytes:
        return bytes(self.client.download_blob(key).readall())

    def delete(self, key: str) -> None:
        self.client.delete_blob(key)

    def keys(self, prefix: str) -> list[str]:
        return sorted(self.client.list_blob_names(name_starts_with=prefix))

    def unfinished(self, prefix: str) -> list[str]:
        blobs = self.client.list_blobs(name_starts_with=prefix, include=["uncommittedblobs"])
        return sorted({blob.name for blob in blobs} - set(self.keys(prefix)))

    @property
    def wrong_secret(self) -> WrongSecret:
        secret = base64.b64encode(b"another".ljust(64, b".")).decode()
        options = {"account_name": ACCOUNT, "account_key": secret, "endpoint_url": self.endpoint}
        return WrongSecret(options, secret)


# ---- servers --------------------------------------------------------------------------

Server = Callable[[Path], AbstractContextManager[Bucket]]


@contextmanager
def moto(folder: Path) -> Iterator[Bucket]:
    """S3, in memory, in Python. Takes any secret."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with Process("moto", command, folder, port):
        bucket = S3Bucket("moto", f"http://127.0.0.1:{port}", refuses_wrong_secrets=False)
        bucket.client.create_bucket(Bucket=NAME)
        yield bucket


@contextmanager
def s3s_fs(folder: Path) -> Iterator[Bucket]:
    """S3 over a folder, in Rust."""
    port = free_port()
    (folder / "data" / NAME).mkdir(parents=True)
    command = [installed(TOOLS / "bin" / "s3s-fs"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--access-key", KEY_ID, "--secret-key", SECRET, str(folder / "data")]
    with Process("s3s-fs", command, folder, port):
        yield S3sFsBucket(f"http://127.0.0.1:{port}", folder / "data")


@contextmanager
def seaweedfs(folder: Path) -> Iterator[Bucket]:
    """S3 over a distributed store, in Go. Says nothing to its makers."""
    ports = {name: free_port(room_above=10_000) for name in ("s3", "master", "volume", "filer", "admin")}
    (folder / "data").mkdir()
    command = [
        installed(Path(sys.executable).with_name("weed")),
        *("mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={NAME}"),
        *("-master.telemetry=false", "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *("-master.volumeSizeLimitMB=64", "-volume.max=8"),
        *(f"-{name}.port={port}" for name, port in ports.items()),
    ]
    credentials = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
    with Process("seaweedfs", command, folder, ports["s3"], credentials) as process:
        bucket = S3Bucket("seaweedfs", f"http://127.0.0.1:{ports['s3']}")
        # The port is open before the volumes behind it are there, and the bucket is made after
        # that.
        process.wait_until(lambda: bucket.put("started", b""))
        bucket.delete("started")
        yield bucket


@contextmanager
def azurite(folder: Path) -> Iterator[Bucket]:
    """Azure Blob Storage, in JavaScript. Says nothing to its makers."""
    port = free_port()
    node = shutil.which("node")
    assert node is not None, "node is not on PATH: make test-cloud says how to get it"
    program = installed(TOOLS / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js")
    command = [node, program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder / "data")]
    command += ["--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    with Process("azurite", command, folder, port, {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}):
        container = AzureContainer("azurite", f"http://127.0.0.1:{port}/{ACCOUNT}")
        container.client.create_container()
        yield container


@contextmanager
def gcs(folder: Path) -> Iterator[str]:
    """The test kit's own server, which speaks as Google Cloud Storage does; its endpoint, where
    `gs://runs` is.
    """
    port = free_port()
    target = Path(os.environ.get("CARGO_TARGET_DIR", TOOLS.parent / "target"))
    command = [installed(target / "debug" / "object_server"), "--port", str(port), "--bucket", NAME]
    with Process("object_server", command, folder, port):
        yield f"http://127.0.0.1:{port}"


CLOUD_SERVERS: dict[str, Server] = {"s3s-fs": s3s_fs, "seaweedfs": seaweedfs, "azurite": azurite}
"""Those of `make test-cloud`."""


# ---- processes ------------------------------------------------------------------------


@dataclass
class Process(AbstractContextManager["Process"]):
    """A server, from the moment it listens until the end of the block."""

    name: str
    command: list[str]
    folder: Path
    port: int
    environment: dict[str, str] | None = None

    def __enter__(self) -> Process:
        self.log = self.folder / f"{self.name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **(self.environment or {})},
            )
        try:
            self.wait_until(lambda: socket.create_connection(("127.0.0.1", self.port), 1).close())
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until(self, works: Callable[[], Any]) -> None:
        """Tries until it works; if it never does, fails with the end of the log."""
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                works()
                return
            except Exception as error:
                if self.process.poll() is None and time.monotonic() < end:
                    time.sleep(0.1)
                    continue
                told = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                raise AssertionError(f"{self.name} did not start: {error}\n{told}") from error

    def stop(self) -> None:
        """Ends it, asked first."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def installed(program: Path) -> str:
    """A program of `make test-cloud`."""
    assert program.is_file(), f"{program} is not there: make test-cloud installs it"
    return str(program)


def free_port(room_above: int = 0) -> int:
    """An unused port; with room, the port so far above it is also free: SeaweedFS takes both."""
    for _ in range(100):
        port = random.randrange(20_000, 30_000)
        if all(_is_free(each) for each in {port, port + room_above}):
            return port
    raise AssertionError("no free port between 20000 and 30000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

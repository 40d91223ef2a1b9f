"""Buckets through a server of others (moto): what regrow saves there, boto3, TensorStore and Orbax read, and back."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
import tensorstore as ts
from botocore.config import Config

import regrow

SECRET = "a-secret-nobody-may-see"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """moto's server, for all tests of this file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None, "moto did not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def s3(endpoint: str) -> Any:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key=SECRET,
        config=Config(s3={"addressing_style": "path"}),
    )
    client.create_bucket(Bucket="runs")
    return client


@pytest.fixture
def options(endpoint: str, s3: Any) -> dict[str, str]:
    return {"endpoint_url": endpoint, "region": "us-east-1", "key": "test", "secret": SECRET}


def tree(fill: float = 1.0) -> dict[str, Any]:
    return {
        "params": {"kernel": np.arange(600, dtype=np.float32).reshape(20, 30) * fill, "bias": np.ones(7, np.float16)},
        "step": np.array(3, np.int64),
    }


def same(a: Any, b: Any) -> bool:
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(left, right, strict=True))


def keys(s3: Any, prefix: str) -> list[str]:
    found = s3.list_objects_v2(Bucket="runs", Prefix=prefix).get("Contents", [])
    return [entry["Key"] for entry in found]


@pytest.mark.parametrize(
    ("layout", "suffix"),
    [
        ("regrow", ""),
        ("orbax", ""),
        ("flax", ".msgpack"),
        ("equinox", ".eqx"),
        ("pytree_data", ""),
        ("safetensors", ".safetensors"),
        ("npy", ".npz"),
        ("npy", ""),
    ],
)
def test_every_layout_comes_back_from_a_bucket(options: dict[str, str], layout: str, suffix: str) -> None:
    url = f"s3://runs/layouts/{layout}{len(suffix)}{suffix}"
    report = regrow.save(url, tree(), layout=layout, storage_options=options)
    assert str(report.path) == url
    loaded = regrow.load(url, storage_options=options)
    kernel = loaded["params"]["kernel"] if isinstance(loaded, dict) else jax.tree.leaves(loaded)[1]
    assert np.array_equal(kernel, tree()["params"]["kernel"])
    assert regrow.verify(url, storage_options=options).ok
    with pytest.raises(regrow.AlreadyExistsError):
        regrow.save(url, tree(), layout=layout, storage_options=options)


def test_slices_async_saves_and_overwrites(options: dict[str, str], s3: Any) -> None:
    url = "s3://runs/use/step_1"
    regrow.save_async(url, tree(), storage_options=options).wait()
    checkpoint = regrow.open(url, storage_options=options)
    assert np.array_equal(checkpoint["params/kernel"][3:5], tree()["params"]["kernel"][3:5])
    regrow.save(url, tree(2.0), overwrite=True, storage_options=options)
    assert same(regrow.load(url, storage_options=options), tree(2.0))
    assert not [key for key in keys(s3, "use/") if "tmp" in key or "regrow-" in key]
    base = regrow.Location(url, **options)
    based = regrow.save("s3://runs/use/step_2", tree(2.0), base=base, storage_options=options)
    assert based.reused_bytes > 0
    for key in keys(s3, "use/step_1/"):
        s3.delete_object(Bucket="runs", Key=key)
    assert same(regrow.load("s3://runs/use/step_2", storage_options=options), tree(2.0))


def test_convert_to_a_disk_and_back(options: dict[str, str], tmp_path: Path) -> None:
    url = "s3://runs/convert/a"
    regrow.save(url, tree(), storage_options=options)
    regrow.convert(url, tmp_path / "b.safetensors", layout="safetensors", lossy=True, storage_options=options)
    assert np.array_equal(
        safetensors.numpy.load_file(tmp_path / "b.safetensors")["params.kernel"], tree()["params"]["kernel"]
    )
    regrow.convert(tmp_path / "b.safetensors", "s3://runs/convert/c", storage_options=options)
    assert len(regrow.open("s3://runs/convert/c", storage_options=options)) == 3


def kvstore(endpoint: str, path: str) -> dict[str, Any]:
    return {
        "driver": "s3",
        "bucket": "runs",
        "path": path,
        "endpoint": endpoint,
        "aws_region": "us-east-1",
        "aws_credentials": {"type": "environment"},
    }


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def test_tensorstore_reads_from_the_bucket_what_regrow_saved_there(
    endpoint: str, options: dict[str, str], credentials: None
) -> None:
    regrow.save("s3://runs/theirs/a", tree(), storage_options=options)
    base = kvstore(endpoint, "theirs/a/")
    array = ts.open(
        {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": base, "path": "params.kernel/"}}, open=True
    ).result()
    assert np.array_equal(array.read().result(), tree()["params"]["kernel"])


def test_regrow_reads_what_tensorstore_wrote_into_the_bucket(
    endpoint: str, options: dict[str, str], credentials: None
) -> None:
    kernel = tree()["params"]["kernel"]
    spec = {
        "driver": "zarr3",
        "kvstore": kvstore(endpoint, "ours/a/kernel/"),
        "metadata": {"shape": list(kernel.shape), "data_type": "float32"},
    }
    ts.open(spec, create=True).result().write(kernel).result()
    # No Orbax checkpoint: arrays alone.
    assert np.array_equal(regrow.load("s3://runs/ours/a", storage_options=options)["kernel"], kernel)


def test_orbax_and_regrow_exchange_checkpoints_through_the_bucket(
    options: dict[str, str], s3: Any, tmp_path: Path
) -> None:
    state = {"w": jnp.arange(12.0).reshape(3, 4), "b": jnp.ones(5, jnp.bfloat16)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "orbax", state)
    for file in (tmp_path / "orbax").rglob("*"):
        if file.is_file():
            s3.upload_file(str(file), "runs", f"orbax/1/{file.relative_to(tmp_path / 'orbax')}")
    assert same(regrow.load("s3://runs/orbax/1", storage_options=options), jax.tree.map(np.asarray, state))
    assert same(regrow.load("s3://runs/orbax", storage_options=options), jax.tree.map(np.asarray, state))

    regrow.save("s3://runs/back/1", state, storage_options=options)
    for key in keys(s3, "back/1/"):
        file = tmp_path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        s3.download_file("runs", key, str(file))
    with ocp.StandardCheckpointer() as checkpointer:
        assert same(checkpointer.restore(tmp_path / "back/1"), state)


def test_what_was_never_committed_is_no_checkpoint(options: dict[str, str], s3: Any) -> None:
    regrow.save("s3://runs/steps/1", tree(1.0), storage_options=options)
    regrow.save("s3://runs/steps/2", tree(2.0), storage_options=options)
    s3.delete_object(Bucket="runs", Key="steps/2/commit_success.txt")
    assert same(regrow.load("s3://runs/steps", storage_options=options), tree(1.0))
    with pytest.raises(regrow.UncommittedError):
        regrow.load("s3://runs/steps/2", storage_options=options)


def test_errors_say_what_is_wrong_and_no_secret(options: dict[str, str]) -> None:
    wrong = [
        ("s3://no-such-bucket/x", options, "bucket"),
        ("s3://runs/nothing", options, "nothing"),
        ("s3://runs/x", {**options, "endpoint_url": "http://127.0.0.1:9"}, "127.0.0.1:9"),
        ("s3://runs/x", {**options, "regoin": "x"}, "region"),
        ("hdfs://runs/x", options, "s3://"),
    ]
    for url, given, said in wrong:
        with pytest.raises(regrow.RegrowError) as caught:
            regrow.load(url, storage_options={**given, "max_retries": "1", "retry_timeout": "2"})
        assert said in str(caught.value), caught.value
        assert SECRET not in str(caught.value) and SECRET not in repr(caught.value)
    assert SECRET not in repr(regrow.Location("s3://runs/x", **options))


def test_a_forked_child_reads_with_connections_of_its_own(options: dict[str, str]) -> None:
    url = "s3://runs/fork/a"
    regrow.save(url, tree(), storage_options=options)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if same(regrow.load(url, storage_options=options), tree()) else 2
        finally:
            os._exit(status)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0
    assert same(regrow.load(url, storage_options=options), tree())


def test_importing_regrow_starts_no_thread() -> None:
    code = "import regrow, os; print(len(os.listdir('/proc/self/task')))"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert ran.stdout.strip() == "1"

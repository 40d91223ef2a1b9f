"""Buckets through a server of others (moto): what regrow saves there, boto3, TensorStore and
Orbax read, and back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from bucket_exchange import TensorStoreExchange
from bucket_servers import SECRET, Bucket, S3Bucket, moto
from bucket_suite import AtomicConformance, StoreConformance, tree

import regrow


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """moto's, for all tests of this file."""
    with moto(tmp_path_factory.mktemp("moto")) as started:
        yield started


@pytest.fixture(scope="module")
def s3(bucket: Bucket) -> S3Bucket:
    assert isinstance(bucket, S3Bucket)
    return bucket


@pytest.fixture
def options(bucket: Bucket) -> dict[str, str]:
    return bucket.options


class TestStore(StoreConformance):
    pass


class TestAtomic(AtomicConformance):
    pass


class TestTensorStore(TensorStoreExchange):
    pass


def same(a: Any, b: Any) -> bool:
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(left, right, strict=True))


def test_orbax_and_regrow_exchange_checkpoints_through_the_bucket(
    options: dict[str, str], s3: S3Bucket, tmp_path: Path
) -> None:
    state = {"w": jnp.arange(12.0).reshape(3, 4), "b": jnp.ones(5, jnp.bfloat16)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "orbax", state)
    for file in (tmp_path / "orbax").rglob("*"):
        if file.is_file():
            s3.put(f"orbax/1/{file.relative_to(tmp_path / 'orbax')}", file.read_bytes())
    assert same(regrow.load("s3://runs/orbax/1", storage_options=options), jax.tree.map(np.asarray, state))
    assert same(regrow.load("s3://runs/orbax", storage_options=options), jax.tree.map(np.asarray, state))

    regrow.save("s3://runs/back/1", state, storage_options=options)
    for key in s3.keys("back/1/"):
        file = tmp_path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(s3.get(key))
    with ocp.StandardCheckpointer() as checkpointer:
        assert same(checkpointer.restore(tmp_path / "back/1"), state)


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


def test_a_manager_saves_keeps_waits_and_refuses(options: dict[str, str], s3: S3Bucket) -> None:
    root = regrow.Location("s3://runs/manager", **options)
    with regrow.Manager(root, background=False, keep=regrow.Keep(last=2, by="loss:min")) as steps:
        with regrow.Manager(root, read_only=True) as reader:
            for step in (1, 2, 3, 4):
                assert steps.save(step, tree(), metrics={"loss": abs(step - 2)})
                assert reader.wait_for_new(step - 1, timeout=30) == step
                # The step before was being read when it was to go.
            assert (steps.latest, steps.best) == (4, 2)
        assert steps.steps == [2, 3, 4]
        assert not s3.keys("manager/1/"), "nothing of it is left"
        assert json.loads(s3.get("manager/.regrow/latest.json")) == {
            "step": 4,
            "name": "4",
            "step_count": 3,
            "turn": 0,
        }
        with pytest.raises(regrow.errors.AlreadyExistsError, match="another writer"):
            regrow.Manager(root)
        (data,) = [key for key in s3.keys("manager/4/default/") if key.endswith(".safetensors")]
        found = s3.get(data)
        s3.put(data, found[:-1] + bytes([found[-1] ^ 1]))
        assert same(steps.restore(), tree())
        assert (steps.restored, [passed.step for passed in steps.passed_over]) == (3, [4])
        # Another process has taken its place: it writes no more.
        s3.put("manager/.regrow/writer.json", b'{"nonce": "other", "until": 4e9, "holder": "elsewhere:1"}')
        with pytest.raises(regrow.errors.AlreadyExistsError, match="elsewhere:1"):
            steps.save(5, tree())
        assert not s3.keys("manager/5/")
    assert json.loads(s3.get("manager/.regrow/writer.json"))["nonce"] == "other"
    with pytest.raises(regrow.errors.AlreadyExistsError, match="elsewhere:1"):
        regrow.Manager(root)


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

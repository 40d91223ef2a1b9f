"""Models with several writers, and models too deep to be loaded again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow
from regrow import pytree
from regrow.errors import LimitError, NotFoundError

WRITER = """
import sys
import numpy as np
from regrow import pytree

for number in range(10**9):
    pytree.model_save({"a": np.full(20, number), "b": np.full(30, number)}, sys.argv[1], durable=False)
    if number == 0:
        print("ready", flush=True)
"""


def test_a_model_that_always_exists_is_always_found(tmp_path: Path) -> None:
    stem = tmp_path / "model"
    env = {**os.environ, "PYTHONPATH": str(Path(regrow.__file__).parent.parent)}
    command = [sys.executable, "-c", WRITER, str(stem)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, env=env) for _ in range(3)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        end = time.monotonic() + 4
        loads = 0
        while loads < 100 and time.monotonic() < end:
            for model in (pytree.model_load(stem), regrow.load(stem)):
                assert len(set(np.concatenate([model["a"], model["b"]]).tolist())) == 1
            loads += 1
        assert loads > 5
        assert all(writer.poll() is None for writer in writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


def test_a_model_that_is_not_there_is_said_to_be_missing_at_once(tmp_path: Path) -> None:
    since = time.monotonic()
    with pytest.raises(NotFoundError):
        pytree.model_load(tmp_path / "model")
    with pytest.raises(NotFoundError):
        regrow.load(tmp_path / "model")
    assert time.monotonic() - since < 5


def _nested(depth: int, inner: Any) -> Any:
    for _ in range(depth):
        inner = {"a": inner}
    return inner


@pytest.mark.parametrize("inner", [np.arange(3), {}], ids=["array", "empty"])
def test_a_model_too_deep_to_be_loaded_replaces_nothing(tmp_path: Path, inner: Any) -> None:
    stem = tmp_path / "model"
    pytree.model_save({"good": np.arange(3)}, stem)
    deep = _nested(100_002, inner)
    with pytest.raises(LimitError, match="100000"):
        pytree.model_save({"deep": deep, "shallow": np.arange(2)}, stem)
    assert list(pytree.model_load(stem)) == ["good"]


def test_the_deepest_model_that_is_saved_is_loaded(tmp_path: Path) -> None:
    stem = tmp_path / "model"
    pytree.model_save(_nested(100_000, np.arange(3)), stem)
    node = pytree.model_load(stem)
    while isinstance(node, dict):
        (node,) = node.values()
    assert np.array_equal(node, np.arange(3))

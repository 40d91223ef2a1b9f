"""What every executor owes, written once: a class of tests that find their executor as a fixture.

`executor` runs calls in processes of its own; `lose` makes one of a function that ends the process
which runs it, the first time that it is called.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying_workers import Killing, die_when_done, die_while_writing

import regrow

TREE = {
    "params": {
        "dense": {"kernel": np.arange(48_000, dtype=np.float32).reshape(200, 240), "bias": np.ones(240, np.float16)}
    },
    "rest": [np.full((3, 5), index, np.int16) for index in range(5)],
    "step": 7,
    "name": "run",
}


def bytes_of(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    opened = regrow.open(path)
    leaves = {key_path: np.asarray(opened[key_path]) for key_path in opened if key_path not in {"name"}}
    return {path: (array.dtype.name, array.shape, array.tobytes()) for path, array in leaves.items()}


class ExecutorSuite:
    """Conversions and verifications by the executor's workers."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        """What is converted: of a layout that another program writes."""
        regrow.save(tmp_path / "source.msgpack", TREE, layout="flax")
        return tmp_path / "source.msgpack"

    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        """What is verified."""
        regrow.save(tmp_path / "checkpoint", TREE)
        return tmp_path / "checkpoint"

    def test_what_they_convert_is_the_same(self, source: Path, tmp_path: Path, executor: Any) -> None:
        options: dict[str, Any] = {"rename": {"params/(.*)": "model/$1"}, "cast": {"**/kernel": "bfloat16"}}
        regrow.convert(source, tmp_path / "plain", **options)
        for workers in (None, 5):
            path = tmp_path / f"shared_{workers}"
            regrow.convert(source, path, executor=executor, workers=workers, **options)
            assert bytes_of(path) == bytes_of(tmp_path / "plain")
            assert regrow.verify(path).ok

    def test_it_is_known_how_many_there_are(self, source: Path, tmp_path: Path, executor: Any) -> None:
        regrow.convert(source, tmp_path / "shared", executor=executor)
        assert len(list((tmp_path / "shared").glob("regrow.process_*.json"))) == 2

    def test_what_they_find_is_the_same(self, checkpoint: Path, executor: Any) -> None:
        assert regrow.verify(checkpoint, executor=executor) == regrow.verify(checkpoint)
        file = checkpoint / "model.safetensors"
        damaged = bytearray(file.read_bytes())
        damaged[-10] ^= 1
        damaged[damaged.index(TREE["rest"][3].tobytes())] ^= 1  # type: ignore[index]
        file.write_bytes(damaged)
        plain = regrow.verify(checkpoint)
        assert len(plain.findings) >= 1
        assert regrow.verify(checkpoint, executor=executor, workers=3) == plain

    def test_an_error_of_a_worker_ends_it(self, checkpoint: Path, tmp_path: Path, executor: Any) -> None:
        file = checkpoint / "model.safetensors"
        damaged = bytearray(file.read_bytes())
        damaged[-10] ^= 1
        file.write_bytes(damaged)
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(regrow.errors.CorruptError) as plain:
            regrow.convert(checkpoint, tmp_path / "plain")
        with pytest.raises(regrow.errors.CorruptError) as shared:
            regrow.convert(checkpoint, tmp_path / "shared", executor=executor)
        assert (shared.value.leaf, shared.value.kind) == (plain.value.leaf, plain.value.kind)
        assert sorted(os.listdir(tmp_path)) == before

    @pytest.mark.parametrize("how", [die_while_writing, die_when_done])
    def test_a_worker_that_dies_costs_its_share_alone(
        self, how: Any, source: Path, tmp_path: Path, executor: Any
    ) -> None:
        regrow.convert(source, tmp_path / "plain")
        flag = tmp_path / "died"
        killing = Killing(executor, 1, how, flag=str(flag))
        regrow.convert(source, tmp_path / "shared", executor=killing, workers=2)
        assert flag.exists()
        assert bytes_of(tmp_path / "shared") == bytes_of(tmp_path / "plain")
        assert regrow.verify(tmp_path / "shared").ok
        parts = sorted(path.name for path in (tmp_path / "shared").glob("regrow.process_*"))
        assert len(parts) == 2
        assert "regrow.process_0.json" not in parts
        assert len(list((tmp_path / "shared").glob("model-*.safetensors"))) == 2

"""Steps of Flax checkpoints: what counts as the same one, what is none; and what else saves and
restores take.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import flax.serialization
import msgpack
import numpy as np
import pytest

import regrow
from regrow import flax as serialization
from regrow.flax import _folder
from regrow.flax import checkpoints as ours

pytestmark = pytest.mark.usefixtures("legacy_flax_files")


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


SPELLINGS = [(1.0, 1), (1, 1.0), ("01", 1), (1, "01"), ("1e0", np.int64(1)), (0, -0.0), (100, 1e2)]


@pytest.mark.parametrize(("first", "second"), SPELLINGS)
def test_an_equal_step_is_outdated_however_it_is_spelled(first: Any, second: Any, tmp_path: Path) -> None:
    ours.save_checkpoint(tmp_path, {"v": "old"}, first)
    for save in (ours.save_checkpoint, ours.save_checkpoint_multiprocess):
        with pytest.raises(ours.InvalidCheckpointError):
            save(tmp_path, {"v": "new"}, second)
    assert names(tmp_path) == [f"checkpoint_{first}"]


@pytest.mark.parametrize(("first", "second"), SPELLINGS)
@pytest.mark.parametrize("keep", [0, 1, 3])
def test_an_overwrite_replaces_an_equal_step(first: Any, second: Any, keep: int, tmp_path: Path) -> None:
    ours.save_checkpoint(tmp_path, {"v": "old"}, first)
    path = ours.save_checkpoint(tmp_path, {"v": "new"}, second, keep=keep, overwrite=True)
    assert names(tmp_path) == [f"checkpoint_{second}"]
    assert ours.latest_checkpoint(tmp_path) == path
    assert ours.restore_checkpoint(tmp_path, None) == {"v": "new"}


def test_an_overwrite_replaces_a_folder_of_an_equal_step(tmp_path: Path) -> None:
    regrow.save(tmp_path / "checkpoint_1.0", {"a": np.ones(2)})
    ours.save_checkpoint(tmp_path, {"v": "new"}, 1, overwrite=True)
    assert names(tmp_path) == ["checkpoint_1"]


def test_of_equal_steps_the_one_written_last_is_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Path(ours.save_checkpoint(tmp_path, {"v": "old"}, 1.0))
    os.utime(old, ns=(1, 1))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_folder, "_remove", killed)
        ours.save_checkpoint(tmp_path, {"v": "new"}, 1, overwrite=True)
    assert names(tmp_path) == ["checkpoint_1", "checkpoint_1.0"]
    assert ours.restore_checkpoint(tmp_path, None) == {"v": "new"}
    ours.save_checkpoint(tmp_path, {"v": "next"}, 2, keep=2)
    assert names(tmp_path) == ["checkpoint_1", "checkpoint_2"]


NO_STEPS = [
    float("nan"),
    float("inf"),
    -np.inf,
    True,
    None,
    "a",
    "1_000",
    "",
    " 1",
    "1/2",
    "1e999",
    "٣",
    10**400,
    10**5000,
]


@pytest.mark.parametrize("step", NO_STEPS, ids=lambda step: f"{type(step).__name__}")
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_would_not_be_found_again_is_refused(step: Any, overwrite: bool, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    for save in (ours.save_checkpoint, ours.save_checkpoint_multiprocess):
        with pytest.raises(
            regrow.errors.InvalidArgumentError, match=r"is not a valid step.*\n  help: give an integer"
        ) as raised:
            save(folder, {"v": 1}, step, overwrite=overwrite, keep_every_n_steps=5)
        assert len(str(raised.value)) < 250
    assert not folder.exists()


@pytest.mark.parametrize("step", [0, -3, 1.5, 1e-7, "+5", np.int32(4), np.float32(0.5), 10**200])
def test_every_step_that_is_saved_is_found(step: Any, tmp_path: Path) -> None:
    for every in (None, 5):
        path = ours.save_checkpoint(tmp_path, {"v": 1}, step, keep_every_n_steps=every, overwrite=True)
        assert ours.latest_checkpoint(tmp_path) == path
        assert ours.restore_checkpoint(tmp_path, None, step=step) == {"v": 1}


def test_folders_may_be_bytes(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    path = ours.save_checkpoint(folder, {"v": 1}, 1)
    assert path == str(tmp_path / "checkpoint_1") == ours.latest_checkpoint(folder)
    assert ours.available_steps(folder) == [1]
    assert ours.restore_checkpoint(folder, None) == ours.restore_checkpoint(folder, None, step=1) == {"v": 1}


def test_extensions_and_timestamps_are_msgpacks_own() -> None:
    value = {
        "a": msgpack.ExtType(99, b"xyz"),
        "b": [1, {"c": msgpack.Timestamp(-5, 999_999_999)}, [msgpack.Timestamp(2**34, 5)]],
    }
    packed = serialization.msgpack_serialize(value)
    assert packed == flax.serialization.msgpack_serialize(value)
    found = serialization.msgpack_restore(packed)
    assert found == value and type(found["a"]) is msgpack.ExtType
    assert serialization.msgpack_serialize(found) == packed
    alone = serialization.msgpack_restore(msgpack.packb(msgpack.Timestamp(1, 0)))
    assert type(alone) is msgpack.Timestamp and alone == msgpack.Timestamp(1, 0)
    for code in (-2, -128):
        # msgpack keeps these codes for itself, and its decoder refuses them.
        reserved = b"\xd4" + code.to_bytes(1, signed=True) + b"\x01"
        for module in (flax.serialization, serialization):
            with pytest.raises(ValueError, match="code"):
                module.msgpack_restore(reserved)


def test_extensions_are_read_without_msgpack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "msgpack")
    assert serialization.msgpack_restore(b"\x91\xd4\x63\x01") == [(99, b"\x01")]


@pytest.mark.parametrize("size", [80.5, 1.5e9, 8, 2.0, float("inf"), 2**70, np.int64(80)])
def test_the_size_of_pieces_may_be_any_number(size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"a": np.arange(30.0), "b": np.arange(5.0)}
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", size)
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", size)
    assert serialization.to_bytes(value) == flax.serialization.to_bytes(value)


@pytest.mark.parametrize("size", [-1, -0.5, float("nan")])
def test_a_negative_size_of_pieces_is_refused(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", size)
    with pytest.raises(ValueError, match="MAX_CHUNK_SIZE is"):
        serialization.to_bytes({"a": np.arange(3)})

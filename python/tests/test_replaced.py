"""A checkpoint that is replaced while it is open, or while it is loaded: never parts of two."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow

OPTIONS: list[dict[str, Any]] = [{}, {"compression": "zstd"}, {"layout": "orbax"}]


def stamped(stamp: int) -> dict[str, Any]:
    """Each value says which save it is of."""
    return {
        "ids": np.full(64, stamp),
        "long": np.full(50_000, stamp, np.float32),
        "note": str(stamp),
        "step": stamp,
        "z": np.full(3, stamp, np.int16),
    }


def stamps(tree: dict[str, Any]) -> set[int]:
    return {int(value) for leaf in tree.values() for value in np.unique(np.asarray(leaf))}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_was_opened_stays_what_it_was(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "ckpt"
    regrow.save(path, {"lr": np.full(64, 0.1), "ids": np.arange(64)}, **options)
    opened = regrow.open(path)
    assert opened["lr"][0:1] == 0.1
    regrow.save(path, {"lr": np.arange(64), "ids": np.full(64, 0.1)}, overwrite=True, **options)
    for read in (lambda: opened["ids"][...], lambda: opened["ids"].read(), lambda: opened.load()["ids"]):
        try:
            np.testing.assert_array_equal(read(), np.arange(64))
        except regrow.errors.ReplacedError as error:
            assert "open it again" in str(error)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_loads_beside_a_writer_are_of_one_save(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "ckpt"
    regrow.save(path, stamped(0), **options)
    is_over = threading.Event()

    def write() -> None:
        try:
            for stamp in range(1, 30):
                regrow.save(path, stamped(stamp), overwrite=True, durable=False, **options)
        finally:
            is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    out = {key: np.empty_like(value) for key, value in stamped(0).items() if isinstance(value, np.ndarray)}
    loads = 0
    while loads < 2 or not is_over.is_set():
        assert len(stamps(regrow.load(path))) == 1
        assert len(stamps(regrow.load(path, options=regrow.Options(mmap=True)))) == 1
        assert len(stamps(regrow.load_into(path, out, extra="drop"))) == 1
        assert regrow.verify(path).ok
        loads += 1
    writer.join()
    assert stamps(regrow.load(path)) == {29}


@pytest.mark.parametrize("options", [*OPTIONS, {"layout": regrow.layouts.Orbax(ocdbt=False)}], ids=str)
def test_a_step_that_is_replaced_is_not_mixed_either(tmp_path: Path, options: dict[str, Any]) -> None:
    regrow.save(tmp_path / "runs" / "5", stamped(1), **options)
    opened = regrow.open(tmp_path / "runs")
    assert set(np.unique(opened["ids"][...])) == {1}
    regrow.save(tmp_path / "runs" / "5", stamped(2), overwrite=True, **options)
    for key in ("long", "z"):
        try:
            assert set(np.unique(opened[key][...])) == {1}
        except regrow.errors.ReplacedError as error:
            assert "open it again" in str(error)
    assert stamps(regrow.load(tmp_path / "runs")) == {2}

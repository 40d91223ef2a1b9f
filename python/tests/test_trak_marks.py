"""Marks of rows in TRAK stores: every change that NumPy makes to a mask reaches the file, or is
refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trak_stores import METADATA, Saver, make, mask_on_disk

import regrow
from regrow import trak


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def started(folder: Path, mark: int = 0) -> Saver:
    saver = make(folder)
    saver.register_model_id(0, False)
    saver.current_store["grads"][...] = 1
    saver.current_store["out_to_loss"][...] = 1
    if mark:
        saver.current_store["is_featurized"][...] = 1
    return saver


def in_memory(saver: Saver) -> list[int]:
    return [int(mark) for mark in np.asarray(saver.current_store["is_featurized"]).reshape(-1)]


INDICES: list[Any] = [
    (np.arange(5), 0),
    (0, 0),
    (slice(0, 2), 0),
    (slice(1, 4), slice(None)),
    (slice(1, 4), ...),
    (..., 0),
    (..., slice(1, 3), slice(None)),
    (np.array([True, False, True, False, False, True]), 0),
    np.array([[True], [False], [False], [True], [False], [True]]),
    (slice(None, None, -2), [0]),
    (None, slice(0, 2)),
    ([-1, 2], -1),
    (),
    2,
    [4, 4, 0],
]


@pytest.mark.parametrize("index", INDICES, ids=[repr(index) for index in INDICES])
@pytest.mark.parametrize("mark", [0, 1])
def test_every_index_reaches_the_file(folder: Path, index: Any, mark: int) -> None:
    saver = started(folder, 1 - mark)
    expected = np.full((6, 1), 1 - mark, np.int32)
    expected[index] = mark
    saver.current_store["is_featurized"][index] = mark
    assert in_memory(saver) == mask_on_disk(folder) == expected.reshape(-1).tolist()
    assert saver.missing_rows(0) == np.flatnonzero(expected == 0).tolist()


def assign_to_a_view(mask: Any) -> None:
    view = mask[2:4]
    view[0] = 1


def add_to_a_view(mask: Any) -> None:
    view = mask[:]
    view += 1


def assign_past_the_class(mask: Any) -> None:
    np.asarray(mask)[1:3] = 1


def add(mask: Any) -> None:
    mask += 1


def put_into_a_reshaped_view(mask: Any) -> None:
    mask.reshape(-1)[[0, 5]] = 1


WAYS: list[Callable[[Any], None]] = [
    lambda mask: mask.fill(1),
    lambda mask: mask[1:3].fill(1),
    lambda mask: np.copyto(mask, 1),
    lambda mask: np.put(mask, [1, 2], 1),
    lambda mask: mask.T.__setitem__((0, 3), 1),
    assign_to_a_view,
    add_to_a_view,
    assign_past_the_class,
    add,
    put_into_a_reshaped_view,
]


@pytest.mark.parametrize("change", WAYS)
@pytest.mark.parametrize("end", ["flush", "serialize", "close", "next model"])
def test_other_ways_reach_the_file(folder: Path, change: Callable[[Any], None], end: str) -> None:
    saver = started(folder)
    change(saver.current_store["is_featurized"])
    expected = in_memory(saver)
    assert any(expected)
    if end == "flush":
        saver.flush()
    elif end == "serialize":
        saver.serialize_current_model_id_metadata()
    elif end == "close":
        saver.close()
    else:
        saver.register_model_id(1)
    assert mask_on_disk(folder) == expected


def test_operators_reach_the_file_at_once(folder: Path) -> None:
    saver = started(folder)
    saver.current_store["is_featurized"] |= 1
    assert mask_on_disk(folder) == [1] * 6
    saver.current_store["is_featurized"][0:2] -= 1
    assert mask_on_disk(folder) == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("value", [0.7, 2, -1, np.nan, [[1], [3]], "1"])
def test_a_mask_holds_nothing_but_0_and_1(folder: Path, value: Any) -> None:
    saver = started(folder)
    mask = saver.current_store["is_featurized"]
    for index in (0, slice(0, 2), (slice(0, 2), slice(None)), (slice(0, 2), 0)):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="only 0 and 1"):
            mask[index] = value
    assert in_memory(saver) == [0] * 6
    with pytest.raises(regrow.errors.InvalidArgumentError, match="only 0 and 1"):
        mask += 2
    assert in_memory(saver) == mask_on_disk(folder) == [0] * 6


@pytest.mark.parametrize("end", ["close", "register", "load"])
def test_arrays_that_the_saver_let_go_of_refuse(folder: Path, end: str) -> None:
    saver = started(folder)
    held = {key: saver.current_store[key] for key in ("grads", "out_to_loss", "features", "is_featurized")}
    view = held["is_featurized"][0:2]
    if end == "close":
        saver.close()
    elif end == "register":
        saver.register_model_id(1)
    else:
        saver.load_current_store(0)
    for array in held.values():
        for index in (0, (0, 0), slice(None)):
            with pytest.raises(regrow.errors.InvalidArgumentError, match="released"):
                array[index] = 1
        with pytest.raises(regrow.errors.InvalidArgumentError, match="released"):
            array.fill(1)
        with pytest.raises(ValueError, match="read-only"):
            array += 1
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_scores_refuse_once_the_saver_is_closed(folder: Path) -> None:
    saver = started(folder)
    saver.init_experiment("val", 3, 0)
    scores, grads = saver.current_store["val_scores"], saver.current_store["val_grads"]
    saver.init_experiment("val", 3, 0)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="released"):
        grads[0] = 1
    scores[:] = 2
    saver.close()
    with pytest.raises(regrow.errors.InvalidArgumentError, match="released"):
        scores[:] = 3


@pytest.mark.parametrize(
    ("index", "missing"),
    [
        ((slice(0, 2), slice(None)), [2, 3]),
        ((slice(0, 2), ...), [2, 3]),
        ((..., slice(None)), []),
        (([3, 0], slice(0, 4)), [1, 2]),
        (([3, 0], [[0], [1]]), [0, 1, 2, 3]),
        (np.repeat([[True], [False], [True], [False]], 4, axis=1), [1, 3]),
        ((slice(0, 2), slice(0, 3)), [0, 1, 2, 3]),
    ],
)
def test_targets_that_are_written_whole_are_done(folder: Path, index: Any, missing: list[int]) -> None:
    saver = started(folder)
    saver.init_experiment("val", 4, 0)
    saver.current_store["val_grads"][index] = 3
    assert saver.missing_targets("val", 0) == missing
    expected = np.zeros((4, 4), np.float16)
    expected[index] = 3
    assert (folder / "0/val_grads.mmap").read_bytes()[128:] == expected.tobytes()


@pytest.mark.parametrize("index", [0, (0, 0), (slice(0, 1), ...)])
def test_a_row_that_is_not_done_takes_the_flags_back(folder: Path, index: Any) -> None:
    saver = started(folder, 1)
    saver.serialize_current_model_id_metadata()
    saver.current_store["features"][...] = 1
    saver.model_ids[0]["is_finalized"] = 1
    saver.serialize_current_model_id_metadata()
    flags = folder / "id_0.json"
    assert json.loads(flags.read_text()) == {"0": {"is_featurized": 1, "is_finalized": 1}}
    saver.current_store["is_featurized"][index] = 0
    assert json.loads(flags.read_text()) == {"0": {"is_featurized": 0, "is_finalized": 0}}
    assert saver.model_ids[0] == {"is_featurized": 0, "is_finalized": 0}


def test_single_scores_are_not_final_either(folder: Path) -> None:
    saver = started(folder)
    saver.init_experiment("val", 3, 0)
    saver.save_scores("val")
    saver.current_store["val_scores"][0, 0] = 1
    assert json.loads((folder / "experiments.json").read_text())["val"]["scores_finalized"] == 0


@pytest.mark.parametrize("size", [-4, 2**63, 1.5, "6"])
def test_sizes_are_counts(folder: Path, size: Any) -> None:
    for sizes in ((size, 4), (6, size)):
        with pytest.raises(regrow.errors.InvalidArgumentError):
            Saver(folder, METADATA, *sizes, True, logging.CRITICAL, True)
    saver = started(folder)
    with pytest.raises(regrow.errors.InvalidArgumentError):
        saver.init_experiment("val", size, 0)


def test_repair_takes_back_scores_of_targets_that_are_lost(folder: Path) -> None:
    saver = started(folder, 1)
    saver.serialize_current_model_id_metadata()
    saver.current_store["features"][...] = 1
    saver.model_ids[0]["is_finalized"] = 1
    saver.serialize_current_model_id_metadata()
    saver.init_experiment("val", 3, 0)
    saver.current_store["val_grads"][:] = 1
    saver.current_store["val_scores"][:] = 1
    saver.save_scores("val")
    saver.close()
    targets = folder / "0/val_grads.mmap"
    targets.write_bytes(targets.read_bytes()[:-8])
    trak.repair(folder)
    assert json.loads((folder / "experiments.json").read_text())["val"]["scores_finalized"] == 0
    assert regrow.verify(folder).ok

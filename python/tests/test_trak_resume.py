"""TRAK stores that are worked on: rows and their marks, killed writers, many processes at a
time.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from trak_stores import METADATA, make, mask_on_disk, run_python

from regrow import trak


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_marks_wait_for_rows_and_show_at_once(folder: Path) -> None:
    class Slow(trak.MmapSaver):
        sync_interval = 3600.0

    saver = Slow(folder, METADATA, 6, 4, True, logging.CRITICAL, True)
    saver.register_model_id(0, False)
    store = saver.current_store
    for row in range(5):
        store["grads"][[row]] = row + 1
        store["out_to_loss"][[row]] = 1
        store["is_featurized"][[row]] = 1
        saver.serialize_current_model_id_metadata()
    assert np.asarray(store["is_featurized"]).reshape(-1).tolist() == [1, 1, 1, 1, 1, 0]
    assert mask_on_disk(folder) == [1, 0, 0, 0, 0, 0]  # the first had no sync to share
    assert saver.missing_rows(0) == [5]
    saver.flush()
    assert mask_on_disk(folder) == [1, 1, 1, 1, 1, 0]
    # A row is not done while it is written again, and is done afterwards.
    store["grads"][[2]] = 9
    assert mask_on_disk(folder) == [1, 1, 0, 1, 1, 0]
    store["is_featurized"][[4]] = 0
    assert mask_on_disk(folder) == [1, 1, 0, 1, 0, 0]
    store["grads"][[4, 5]] = 1
    store["is_featurized"][[4, 5]] = 1
    saver.serialize_current_model_id_metadata()  # the last rows: nothing waits any longer
    assert mask_on_disk(folder) == [1] * 6
    assert json.loads((folder / "id_0.json").read_text()) == {"0": {"is_featurized": 1, "is_finalized": 0}}


def test_marks_that_wait_are_written_when_the_program_ends(folder: Path) -> None:
    run_python(
        f"""
        import logging
        from regrow.trak import MmapSaver
        MmapSaver.sync_interval = 3600.0
        saver = MmapSaver({str(folder)!r}, {METADATA!r}, 6, 4, True, logging.CRITICAL, True)
        saver.register_model_id(0)
        for row in range(4):
            saver.current_store["grads"][[row]] = 1
            saver.current_store["is_featurized"][[row]] = 1
        """
    )
    assert mask_on_disk(folder) == [1, 1, 1, 1, 0, 0]


def test_flags_that_a_killed_writer_could_not_write_are_made_up(folder: Path) -> None:
    saver = make(folder)
    saver.register_model_id(0, False)
    saver.current_store["grads"][:] = 1
    saver.current_store["is_featurized"][:] = 1
    assert json.loads((folder / "id_0.json").read_text())["0"]["is_featurized"] == 0
    assert make(folder).model_ids[0]["is_featurized"] == 1


def test_a_worker_that_starts_again_keeps_its_rows(folder: Path) -> None:
    worker = make(folder, load_from_save_dir=False)
    worker.register_model_id(3, False)
    worker.current_store["grads"][[1, 4]] = 1
    worker.current_store["is_featurized"][[1, 4]] = 1
    again = make(folder, load_from_save_dir=False)
    assert again.model_ids == {}
    again.register_model_id(3, False)
    assert again.missing_rows(3) == [0, 2, 3, 5]
    again.register_model_id(3, True)
    assert again.missing_rows(3) == list(range(6))
    assert not (folder / "metadata.json").exists()


def test_targets_have_a_mask_of_their_own(folder: Path) -> None:
    saver = make(folder)
    saver.register_model_id(0, False)
    saver.init_experiment("val", 4, 0)
    saver.current_store["val_grads"][[3, 0]] = 1
    assert saver.missing_targets("val", 0) == [1, 2]
    saver.close()
    again = make(folder)
    again.init_experiment("val", 4, 0)
    assert again.missing_targets("val", 0) == [1, 2]
    assert (np.asarray(again.current_store["val_grads"])[[0, 3]] == 1).all()


def test_finished_scores_stay_when_a_model_joins(folder: Path) -> None:
    saver = make(folder)
    for model in (0, 1):
        saver.register_model_id(model, False)
    saver.init_experiment("val", 3, 0)
    scores = saver.current_store["val_scores"]
    scores[:] = 5
    saver.save_scores("val")
    saver.init_experiment("val", 3, 1)
    assert saver.experiments["val"]["scores_finalized"] == 1
    assert (np.asarray(saver.current_store["val_scores"]) == 5).all()
    saver.current_store["val_scores"][0] = 6  # being written: not final
    assert json.loads((folder / "experiments.json").read_text())["val"]["scores_finalized"] == 0
    with pytest.raises(AssertionError):
        saver.save_scores("other")


def test_regrow_does_not_import_trak_and_trak_makes_it_one_of_its_savers(tmp_path: Path) -> None:
    package = tmp_path / "trak"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "savers.py").write_text(
        textwrap.dedent(
            """
            from abc import ABC, abstractmethod
            class AbstractSaver(ABC):
                @abstractmethod
                def __init__(self, save_dir, metadata, load_from_save_dir, logging_level, use_half_precision): ...
                @abstractmethod
                def register_model_id(self, model_id): ...
                @abstractmethod
                def serialize_current_model_id_metadata(self): ...
                @abstractmethod
                def init_store(self, model_id): ...
                @abstractmethod
                def init_experiment(self, model_id): ...
                @abstractmethod
                def load_current_store(self, model_id): ...
                @abstractmethod
                def save_scores(self, exp_name): ...
                @abstractmethod
                def del_grads(self, model_id, target): ...
            class ModelIDException(Exception): ...
            """
        )
    )
    run_python(
        f"""
        import sys
        import regrow
        assert "trak" not in sys.modules and "regrow.trak" not in sys.modules
        from regrow.trak import MmapSaver, ModelIDException
        import trak.savers
        assert issubclass(MmapSaver, trak.savers.AbstractSaver)
        assert ModelIDException is trak.savers.ModelIDException
        MmapSaver({str(tmp_path / "store")!r}, {METADATA!r}, 6, 4).register_model_id(0)
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
    )


WORKER = """
import logging, sys
import numpy as np
from regrow.trak import MmapSaver
worker, count = int(sys.argv[2]), int(sys.argv[3])
MmapSaver.sync_interval = 0.01
metadata = {"JL dimension": 8, "JL matrix type": "normal", "train set size": 600}
saver = MmapSaver(sys.argv[1], metadata, 600, 8, worker == 0, logging.CRITICAL, False)
print("READY", flush=True)
saver.register_model_id(0) if 0 not in saver.model_ids else saver.load_current_store(0)
for at, batch in enumerate(np.array_split(np.arange(worker, 600, count), 30)):
    todo = batch[np.asarray(saver.current_store["is_featurized"][batch] == 0).reshape(-1)]
    if len(todo):
        saver.current_store["grads"][todo] = np.repeat(todo[:, None] + 1.0, 8, 1)
        saver.current_store["out_to_loss"][todo] = todo[:, None] + 1.0
        saver.current_store["is_featurized"][todo] = 1
        saver.serialize_current_model_id_metadata()
    if at % 10 == 0:
        saver.init_experiment(f"e{worker}-{at}", 2, 0)
        saver.current_store[f"e{worker}-{at}_scores"][:] = worker
        saver.save_scores(f"e{worker}-{at}")
        saver.load_current_store(0)
saver.close()
"""


def start(folder: Path, worker: int, count: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WORKER, str(folder), str(worker), str(count)]
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and "READY" in child.stdout.readline()
    return child


def rows_done(folder: Path) -> Iterator[int]:
    """The rows that the mask says are done, each checked."""
    grads = np.lib.format.open_memmap(folder / "0/grads.mmap", "r")
    weights = np.lib.format.open_memmap(folder / "0/out_to_loss.mmap", "r")
    for row in np.flatnonzero(np.array(mask_on_disk(folder))):
        assert (grads[row] == row + 1).all() and weights[row] == row + 1
        yield int(row)


def test_processes_side_by_side_lose_nothing(folder: Path) -> None:
    children = [start(folder, worker, 4) for worker in range(4)]
    for child in children:
        assert child.wait(100) == 0
    assert len(list(rows_done(folder))) == 600
    metadata = {"JL dimension": 8, "JL matrix type": "normal", "train set size": 600}
    saver = make(folder, metadata=metadata, train_set_size=600, proj_dim=8, use_half_precision=False)
    assert saver.model_ids == {0: {"is_featurized": 1, "is_finalized": 0}}
    assert set(saver.experiments) == {f"e{worker}-{at}" for worker in range(4) for at in (0, 10, 20)}
    assert all(record["scores_finalized"] for record in saver.experiments.values())
    for name in saver.experiments:
        saver.load_current_store(0, name)
        assert (np.asarray(saver.current_store[f"{name}_scores"]) == int(name[1])).all()


def test_a_killed_process_leaves_only_rows_that_are_done(folder: Path) -> None:
    done: set[int] = set()
    for kill in range(6):
        child = start(folder, 0, 1)
        time.sleep(0.013 * kill)
        child.send_signal(signal.SIGKILL)
        child.wait()
        if (folder / "0/out_to_loss.mmap").exists():
            now = set(rows_done(folder))
            assert now >= done
            done = now
    child = start(folder, 0, 1)
    assert child.wait(100) == 0
    assert set(rows_done(folder)) == set(range(600))


def test_without_syncs_marks_are_written_at_once(folder: Path) -> None:
    class Unsynced(trak.MmapSaver):
        sync_interval = None

    saver = Unsynced(folder, METADATA, 6, 4, True, logging.CRITICAL, True)
    saver.register_model_id(0, False)
    store = saver.current_store
    for row in range(5):
        store["grads"][[row]] = row + 1
        store["out_to_loss"][[row]] = 1
        store["is_featurized"][[row]] = 1
        saver.serialize_current_model_id_metadata()
        assert mask_on_disk(folder) == [1] * (row + 1) + [0] * (5 - row)
    # A row that is written again is done as soon as it is.
    store["grads"][[2]] = 9
    assert mask_on_disk(folder) == [1, 1, 1, 1, 1, 0]
    store["is_featurized"][[4]] = 0
    assert mask_on_disk(folder) == [1, 1, 1, 1, 0, 0]
    assert saver.missing_rows(0) == [4, 5]

"""TRAK stores with a lost array, and rows whose gradients are really zero."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trak_stores import Saver, make, mask_on_disk

import regrow
from regrow import trak


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def finished(folder: Path) -> Saver:
    """A finalized model with final scores of three targets."""
    saver = make(folder)
    saver.register_model_id(0)
    for key in ("grads", "out_to_loss", "features"):
        saver.current_store[key][:] = 1
    saver.current_store["is_featurized"][:] = 1
    saver.model_ids[0]["is_finalized"] = 1
    saver.serialize_current_model_id_metadata()
    saver.init_experiment("val", 3, 0)
    saver.current_store["val_grads"][:] = 1
    saver.current_store["val_scores"][:] = 1
    saver.save_scores("val")
    saver.close()
    assert regrow.verify(folder).ok
    return saver


def is_final(folder: Path) -> bool:
    return json.loads((folder / "experiments.json").read_text())["val"]["scores_finalized"] == 1


def test_lost_gradients_of_targets_are_done_again(folder: Path, tmp_path: Path) -> None:
    finished(folder)
    saver = make(folder)
    saver.init_experiment("val", 3, 0)
    assert saver.missing_targets("val", 0) == [] and is_final(folder)  # what is sound is kept
    saver.close()
    (folder / "0/val_grads.mmap").unlink()
    (finding,) = regrow.verify(folder).findings
    assert finding.kind == "not_found" and finding.file == str(folder / "0/val_grads.mmap")
    assert "0/_targets_val.mmap says that 3 of its rows are done" in finding.message and "repair" in finding.message
    with pytest.raises(regrow.errors.NotFoundError, match="val_grads"):
        regrow.convert(folder, tmp_path / "copy")
    saver = make(folder)
    saver.init_experiment("val", 3, 0)
    assert saver.missing_targets("val", 0) == [0, 1, 2] and not is_final(folder)
    assert saver.experiments["val"]["scores_finalized"] == 0
    with pytest.raises(trak.ModelIDException, match="none of the targets"):
        trak.finalize_scores(saver, "val")
    saver.current_store["val_grads"][:] = 1
    assert saver.missing_targets("val", 0) == []
    trak.finalize_scores(saver, "val")
    saver.close()
    report = regrow.verify(folder)
    assert report.ok and not report.notes


def test_repair_says_that_lost_targets_are_not_done(folder: Path) -> None:
    finished(folder)
    (folder / "0/val_grads.mmap").unlink()
    done = trak.repair(folder)
    assert "0/_targets_val.mmap: 3 rows marked as not done" in done
    assert "0/val_grads.mmap: rebuilt: it was missing" in done
    assert regrow.verify(folder).ok and not is_final(folder)
    assert make(folder).missing_targets("val", 0) == [0, 1, 2]
    assert trak.repair(folder) == []


def test_a_worker_whose_model_lost_an_array_does_its_rows_again(folder: Path) -> None:
    finished(folder)
    (folder / "0/out_to_loss.mmap").unlink()
    worker = make(folder, load_from_save_dir=False)
    worker.register_model_id(0)
    assert worker.model_ids[0] == {"is_featurized": 0, "is_finalized": 0}
    assert worker.missing_rows(0) == [0, 1, 2, 3, 4, 5] and mask_on_disk(folder) == [0] * 6
    worker.close()
    assert json.loads((folder / "id_0.json").read_text()) == {"0": {"is_featurized": 0, "is_finalized": 0}}


def test_gradients_of_zero_are_no_damage(folder: Path) -> None:
    finished(folder)
    saver = make(folder)
    saver.load_current_store(0, "val")
    saver.current_store["val_grads"][[1]] = 0
    saver.close()
    report = regrow.verify(folder)
    assert report.ok and len(report.notes) == 1
    assert "0/_targets_val.mmap: 1 of 3 rows" in report.notes[0] and "recompute_zero_rows" in report.notes[0]
    assert trak.repair(folder) == []
    assert "0/_targets_val.mmap: 1 row marked as not done" in trak.repair(folder, recompute_zero_rows=True)
    assert make(folder).missing_targets("val", 0) == [1] and not is_final(folder)
    report = regrow.verify(folder)
    assert report.ok and not report.notes

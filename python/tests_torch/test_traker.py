"""The real TRAKer, end to end on the CPU, with its own saver and with ours: the same scores, the
same files.

Needs PyTorch and traker: `make test-torch` installs both into a place of their own. Not part of the
other tests.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trak.savers
from interfaces import differences, names_in
from trak import TRAKer
from trak.savers import AbstractSaver
from trak.savers import MmapSaver as TheirSaver

import regrow
from regrow.trak import MmapSaver as OurSaver
from regrow.trak import finalize_features, finalize_scores

TRAIN, TARGETS, FEATURES, CLASSES, DIM, BATCH = 24, 7, 6, 3, 8, 5
HALF = [False, True]
OURS = (".regrow.lock",)


def network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.ReLU(), torch.nn.Linear(8, CLASSES)).eval()


CHECKPOINTS = [network(seed).state_dict() for seed in (1, 2)]


def data(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, FEATURES, generator=generator)
    return images, torch.randint(0, CLASSES, (count,), generator=generator)


def traker(folder: Path, saver: type[Any], half: bool = False) -> TRAKer:
    return TRAKer(
        model=network(0),
        task="image_classification",
        train_set_size=TRAIN,
        save_dir=str(folder),
        device="cpu",
        proj_dim=DIM,
        logging_level=logging.CRITICAL,
        use_half_precision=half,
        saver=saver,
    )


def test_the_interface_is_that_of_the_original(tmp_path: Path) -> None:
    found = set()
    for name in names_in(trak.savers, "trak") - {"ch"}:
        found |= set(differences(name, getattr(trak.savers, name), getattr(regrow.trak, name)))
    metadata = {"JL dimension": DIM, "JL matrix type": "normal", "train set size": TRAIN}
    theirs, ours = (
        saver(tmp_path / saver.__module__, metadata, TRAIN, DIM, True, logging.CRITICAL, False)
        for saver in (TheirSaver, OurSaver)
    )
    public = {name for name in vars(theirs) if not name.startswith("_")}
    found |= {f"MmapSaver().{name}" for name in public if not hasattr(ours, name)}
    for saver in (theirs, ours):
        saver.register_model_id(0, False)
    found |= {f"current_store[{key!r}]" for key in theirs.current_store.keys() - ours.current_store.keys()}
    # In the original a generator, which its constructor has read to the end.
    assert found == {"MmapSaver().model_ids_files"}


def batches(count: int) -> list[slice]:
    return [slice(start, min(start + BATCH, count)) for start in range(0, count, BATCH)]


def featurize(tracer: TRAKer, model_id: int, which: list[slice]) -> None:
    images, labels = data(TRAIN, 10)
    tracer.load_checkpoint(CHECKPOINTS[model_id], model_id=model_id)
    for rows in which:
        inds = np.arange(TRAIN)[rows]
        tracer.featurize(batch=(images[rows], labels[rows]), inds=inds)


def score(tracer: TRAKer, model_id: int) -> None:
    images, labels = data(TARGETS, 20)
    tracer.start_scoring_checkpoint("val", CHECKPOINTS[model_id], model_id, TARGETS)
    for rows in batches(TARGETS):
        tracer.score(batch=(images[rows], labels[rows]), num_samples=len(labels[rows]))


def whole_run(folder: Path, saver: type[Any], half: bool = False) -> Any:
    tracer = traker(folder, saver, half)
    for model_id in (0, 1):
        featurize(tracer, model_id, batches(TRAIN))
    tracer.finalize_features()
    for model_id in (0, 1):
        score(tracer, model_id)
    return np.array(tracer.finalize_scores("val"))


def files(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = {name: data for name, data in found.items() if name not in OURS and "_targets_" not in name}
    records = found["experiments.json"].decode().replace(str(folder.resolve()), "")
    return {**found, "experiments.json": records.encode()}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """One thread: sums in one order, so that scores can be compared to the bit."""
    torch.set_num_threads(1)


def test_our_saver_is_one_of_theirs() -> None:
    assert issubclass(OurSaver, AbstractSaver)


@pytest.mark.parametrize("half", HALF)
def test_the_same_scores_and_the_same_files(tmp_path: Path, half: bool) -> None:
    theirs = whole_run(tmp_path / "theirs", TheirSaver, half)
    ours = whole_run(tmp_path / "ours", OurSaver, half)
    assert theirs.dtype == ours.dtype and theirs.tobytes() == ours.tobytes()
    assert np.abs(theirs.astype(np.float32)).max() > 0
    assert files(tmp_path / "theirs") == files(tmp_path / "ours")
    assert regrow.verify(tmp_path / "theirs").ok and regrow.verify(tmp_path / "ours").ok


@pytest.mark.parametrize(("first", "second"), [(TheirSaver, OurSaver), (OurSaver, TheirSaver)])
def test_each_goes_on_where_the_other_stopped(tmp_path: Path, first: type[Any], second: type[Any]) -> None:
    expected = whole_run(tmp_path / "whole", TheirSaver)
    folder = tmp_path / "both"
    tracer = traker(folder, first)
    featurize(tracer, 0, batches(TRAIN))
    featurize(tracer, 1, batches(TRAIN)[:2])
    if isinstance(tracer.saver, OurSaver):
        tracer.saver.close()
    del tracer
    tracer = traker(folder, second)
    assert tracer.saver.model_ids[0]["is_featurized"] == 1
    featurize(tracer, 1, batches(TRAIN))
    tracer.finalize_features()
    score(tracer, 0)
    if isinstance(tracer.saver, OurSaver):
        tracer.saver.close()
    del tracer
    tracer = traker(folder, first)
    score(tracer, 1)
    scores = np.array(tracer.finalize_scores("val"))
    assert scores.tobytes() == expected.tobytes()
    assert files(folder) == files(tmp_path / "whole")


def test_a_batch_that_is_half_done_is_completed(tmp_path: Path) -> None:
    expected = whole_run(tmp_path / "whole", TheirSaver)
    other = [slice(0, 3), slice(9, 16)]
    theirs = traker(tmp_path / "theirs", TheirSaver)
    featurize(theirs, 0, other)
    with pytest.raises(Exception, match=r"shape|broadcast"):
        featurize(theirs, 0, batches(TRAIN))
    ours = traker(tmp_path / "ours", OurSaver)
    for model_id in (0, 1):
        featurize(ours, model_id, other)
        featurize(ours, model_id, batches(TRAIN))
        assert ours.saver.model_ids[model_id]["is_featurized"] == 1
    ours.finalize_features()
    for model_id in (0, 1):
        score(ours, model_id)
    np.testing.assert_allclose(np.array(ours.finalize_scores("val")), expected, rtol=1e-4, atol=1e-6)


def test_gradients_can_be_deleted_and_models_skipped(tmp_path: Path) -> None:
    tracer = traker(tmp_path, OurSaver)
    for model_id in (0, 1):
        featurize(tracer, model_id, batches(TRAIN))
    tracer.finalize_features(del_grads=True)
    assert not (tmp_path / "0/grads.mmap").exists()
    score(tracer, 0)
    # Model 1 has no targets: TRAK itself would go on to an AttributeError here.
    with pytest.raises(regrow.errors.NotFoundError):
        tracer.finalize_scores("val")
    skipped = np.array(tracer.finalize_scores("val", allow_skip=True))
    assert np.isfinite(skipped).all()
    assert json.loads((tmp_path / "experiments.json").read_text())["val"]["scores_finalized"] == 1


def test_nothing_finalized_is_no_final_score(tmp_path: Path) -> None:
    tracer = traker(tmp_path, OurSaver)
    featurize(tracer, 0, batches(TRAIN))
    tracer.saver.init_experiment("val", TARGETS, 0)
    with pytest.raises((regrow.errors.CorruptError, ZeroDivisionError)), np.errstate(all="ignore"):
        tracer.finalize_scores("val")
    assert json.loads((tmp_path / "experiments.json").read_text())["val"]["scores_finalized"] == 0


def test_our_formulas_are_theirs(tmp_path: Path) -> None:
    expected = whole_run(tmp_path / "whole", TheirSaver)
    tracer = traker(tmp_path / "ours", OurSaver)
    for model_id in (0, 1):
        featurize(tracer, model_id, batches(TRAIN))
    finalize_features(tracer.saver, block_rows=7)
    for model_id in (0, 1):
        score(tracer, model_id)
    scores = finalize_scores(tracer.saver, "val", block_rows=7)
    np.testing.assert_allclose(np.array(scores), expected, rtol=1e-3, atol=1e-5)


def test_the_checkpoint_is_checked(tmp_path: Path) -> None:
    tracer = traker(tmp_path, OurSaver)
    featurize(tracer, 0, batches(TRAIN))
    tracer.saver.check_checkpoint(0, CHECKPOINTS[0])
    half = {name: tensor.bfloat16() for name, tensor in CHECKPOINTS[0].items()}
    for other in (CHECKPOINTS[1], half):
        with pytest.raises(regrow.errors.MismatchError):
            tracer.saver.check_checkpoint(0, other)

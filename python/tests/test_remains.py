"""A checkpoint that has lost its `regrow.json` can be read, and says so."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

import regrow


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    path = tmp_path / "lost"
    regrow.save(path, {"a": np.arange(7, dtype=np.float32), "b": {"c": np.int32(3)}})
    (path / "regrow.json").unlink()
    return path


def test_a_lost_record_is_warned_of(lost: Path) -> None:
    with pytest.warns(regrow.errors.IncompleteCheckpointWarning, match=r"regrow\.json is missing"):
        tree = regrow.load(lost)
    assert np.array_equal(tree["a"], np.arange(7, dtype=np.float32))
    with pytest.warns(regrow.errors.IncompleteCheckpointWarning):
        checkpoint = regrow.open(lost)
    assert len(checkpoint.warnings) == 1
    assert "regrow.json is missing" in checkpoint.overview()
    # There it is a finding, which says all that a warning would.
    report = regrow.verify(lost)
    assert not report.ok
    assert any("regrow.json is missing" in str(finding) for finding in report.findings)


def test_a_lost_record_is_an_error_for_the_strict(lost: Path, tmp_path: Path) -> None:
    for act in (
        lambda: regrow.open(lost, options=regrow.Options(lost_files="error")),
        lambda: regrow.load(lost, options=regrow.Options(lost_files="error")),
        lambda: regrow.convert(lost, tmp_path / "target", options=regrow.Options(lost_files="error")),
        lambda: regrow.convert(lost, tmp_path / "target", dry_run=True, options=regrow.Options(lost_files="error")),
    ):
        with pytest.raises(regrow.errors.CorruptError, match=r"regrow\.json is missing"):
            act()
    assert not (tmp_path / "target").exists()


def test_a_conversion_notes_it(lost: Path, tmp_path: Path) -> None:
    report = regrow.convert(lost, tmp_path / "target")
    assert any(loss.kind == "note" and "regrow.json is missing" in loss.what for loss in report.losses)


def test_what_orbax_wrote_has_lost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "orbax"
    ocp.PyTreeCheckpointer().save(path, {"a": np.arange(7)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regrow.load(path, options=regrow.Options(lost_files="error"))


def test_orbax_reads_what_says_that_there_was_a_record(tmp_path: Path) -> None:
    path = tmp_path / "ours"
    regrow.save(path, {"a": np.arange(7)})
    assert b'"beside_regrow_json": true' in (path / "_METADATA").read_bytes()
    assert np.array_equal(ocp.PyTreeCheckpointer().restore(path)["a"], np.arange(7))


def test_a_record_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "odd"
    regrow.save(path, {"a": np.arange(7)})
    record = path / "regrow.json"
    shutil.move(record, tmp_path / "kept")
    record.mkdir()
    with pytest.raises(regrow.errors.CorruptError, match="not a file"):
        regrow.open(path)
    record.rmdir()
    record.symlink_to("nothing")
    with pytest.raises(regrow.errors.CorruptError, match="not a file"):
        regrow.open(path)


def test_key_paths_of_any_length_are_shown(tmp_path: Path) -> None:
    name = "k" * 70_000
    path = tmp_path / "long.msgpack"
    regrow.save(path, {name: np.arange(2), "short": np.arange(2)}, layout="flax")
    text = regrow.overview(path)
    assert name in text
    assert len(text) < 80_000


def test_a_load_warns_once_at_the_line_that_asked(lost: Path) -> None:
    for read in (lambda: regrow.load(lost), lambda: regrow.open(lost), lambda: regrow.overview(lost)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            read()
        assert [warning.category for warning in told] == [regrow.errors.IncompleteCheckpointWarning]
        assert told[0].filename == __file__
    with pytest.raises(regrow.errors.CorruptError, match=r"regrow\.json is missing"):
        regrow.overview(lost, options=regrow.Options(lost_files="error"))


def test_copies_and_views_are_not_asked_for_at_once(tmp_path: Path) -> None:
    path, out = tmp_path / "both", {"a": np.zeros(7)}
    regrow.save(path, {"a": np.arange(7.0)})
    with pytest.raises(regrow.errors.InvalidArgumentError, match=r"load_into.*`mmap`"):
        regrow.load_into(path, out, options=regrow.Options(mmap=True))
    assert not out["a"].any()

"""`regrow.orbax` in a bucket in memory; `make test-cloud` does the same with servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from bucket_orbax import TREE, At, OrbaxInBuckets, check, names
from bucket_suite import claim

from regrow.orbax import v1
from regrow.orbax._paths import as_path


@pytest.fixture
def at(tmp_path: Path) -> At:
    return lambda name: f"memory://orbax-{tmp_path.name}/{name}"


class TestInMemory(OrbaxInBuckets):
    pass


def test_a_part_that_was_never_committed_is_none(at: At) -> None:
    v1.partial.save(at("x"), TREE)
    half = as_path(at("x.partial_save")) / "9-half"
    (half / "regrow.json").write_text("{}")
    (half / "regrow-writing.json").write_bytes(claim(age_seconds=0))
    v1.partial.finalize(at("x"))
    check(v1.load(at("x")))
    assert names(at("x").rpartition("/")[0]) == ["x"]


def test_what_is_not_covered_in_buckets(at: At) -> None:
    v1.save_checkpointables(at("x"), {"a": TREE, "b": TREE})
    with pytest.raises(NotImplementedError, match="one checkpointable in a bucket"):
        v1.delete(at("x"), checkpointable_name="a")
    context = v1.Context()
    context.deletion.gcs_deletion_options.todelete_full_path = "trash"
    with context, pytest.raises(NotImplementedError, match="todelete_full_path"):
        v1.delete(at("x"))
    with v1.training.Checkpointer(at("run"), context=context) as steps:
        steps.save(1, TREE)
        steps.save(2, TREE)
        steps.delete(1)
        assert [found.step for found in steps.checkpoints] == [2]
    assert [name.partition("-")[0] for name in names(at("trash"))] == ["1"]

"""`regrow.orbax.CheckpointManager` on the engine's manager: buckets, leases, deletions, other
writers.
"""

from __future__ import annotations

import logging
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as theirs
import pytest
from bucket_orbax import OrbaxInBuckets
from bucket_servers import S3Bucket
from etils import epath
from test_buckets import bucket, s3  # noqa: F401
from test_orbax_dropin import TREE, assert_same

import regrow
from regrow import orbax as ocp
from regrow._save._items import ItemsSave
from regrow.orbax import checkpoint_managers as policies
from regrow.orbax import v1

STATE = {"w": np.arange(4, dtype=np.float32)}
SAVE = ocp.args.StandardSave(STATE)


def manager(directory: Any, **options: Any) -> Any:
    return ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(**options))


def names(folder: Any) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- buckets --------------------------------------------------------------------------


def live(directory: Any) -> Any:
    """What a run does in a folder, wherever that is; its path."""
    options = {"max_to_keep": 2, "todelete_subdir": "old", "step_prefix": "step"}
    with ocp.CheckpointManager(
        directory, options=ocp.CheckpointManagerOptions(**options), metadata={"version": 1}
    ) as steps:
        for step in range(4):
            items = ocp.args.Composite(
                state=ocp.args.StandardSave(TREE), it=ocp.args.JsonSave({"at": step}), x=ocp.args.ArraySave(np.ones(2))
            )
            assert steps.save(step, args=items, metrics={"loss": math.nan}, custom_metadata={"by": "me"})
        steps.wait_until_finished()
        assert steps.all_steps() == [2, 3] and names(steps.directory / "old") == ["step_0", "step_1"]
        restored = steps.restore(None)
        assert_same(restored.state, TREE)
        assert restored.it == {"at": 3} and restored.x.tolist() == [1, 1]
        only = steps.restore(2, args=ocp.args.Composite(state=ocp.args.StandardRestore(TREE)))
        assert_same(dict(**only), {"state": TREE})
        assert steps.item_metadata(3).state["a"].shape == (4,) and steps.metadata(3).custom_metadata == {"by": "me"}
        with pytest.raises(FileNotFoundError):
            steps.restore(1)
    again = manager(directory, step_prefix="step")
    assert again.all_steps() == [2, 3] and math.isnan(again.metrics(3)["loss"])
    assert again.metadata().custom_metadata == {"version": 1}
    again.delete(3)
    again.reload()
    assert again.all_steps() == [2]
    return again.directory


def test_a_bucket_is_as_good_as_a_disk(tmp_path: Path) -> None:
    assert names(live(tmp_path / "m")) == ["metadata", "old", "step_2"]
    url = f"memory://orbax-{tmp_path.name}/run"
    directory = live(url)
    assert names(directory) == [".regrow", "metadata", "old", "step_2"]
    assert str(directory / "step_2") == directory.as_posix() + "/step_2" and directory.parent / "run" == directory
    # The pointer, which other readers of the folder use, says which is the newest.
    assert (directory / ".regrow" / "latest.json").read_text().startswith('{"step":2,')
    with regrow.Manager(url) as other:
        assert other.latest == 2 and other.restore(items=["it"])["it"] == {"at": 2}
        other.save(9, {"w": 1})
    assert list(ocp.checkpoint_utils.checkpoints_iterator(url, timeout=0, step_prefix="step")) == [9]
    with v1.training.Checkpointer(url + "-v1") as steps:
        steps.save_checkpointables_async(1, {"state": STATE})
        steps.wait()
        assert steps.latest.step == 1
        assert_same(steps.load_checkpointables(1)["state"], STATE)


def test_a_bucket_of_a_server_with_options_of_its_own(s3: S3Bucket, tmp_path: Path) -> None:  # noqa: F811
    place = regrow.Location(f"{s3.url}/orbax-run", **s3.options)
    with manager(place, max_to_keep=1, todelete_full_path="trash/run") as steps:
        assert not any(secret in f"{steps.directory!r}{steps.directory}" for secret in s3.secrets)
        for step in range(2):
            steps.save(step, args=SAVE)
    # Of a save that never ended there is no marker.
    s3.put("orbax-run/7/default/_METADATA", b"{}")
    again = manager(place)
    assert again.all_steps() == [1]
    assert_same(again.restore(1), STATE)
    with pytest.raises(ValueError, match="incomplete"):
        again.restore(7)
    assert {key.split("/")[2].partition("-")[0] for key in s3.keys("trash/run/")} == {"0"}


def test_leaves_of_own_types_on_a_server(s3: S3Bucket) -> None:  # noqa: F811
    root = regrow.Location(f"{s3.url}/own-leaves", **s3.options)
    OrbaxInBuckets().test_leaves_of_own_types(lambda name: root / name)


def test_paths_of_etils_with_secrets_of_the_environment(
    s3: S3Bucket,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    for name, option in {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "REGION": "region"}.items():
        monkeypatch.setenv(f"AWS_{name}", s3.options[option])
    root = epath.Path(f"{s3.url}/etils")
    OrbaxInBuckets().test_checkpointers(lambda name: root / name)
    OrbaxInBuckets().test_v1(lambda name: root / "v1" / name)


# ---- leases, deletions ----------------------------------------------------------------


class Reader(ocp.CheckpointHandler):
    """A handler whose restore goes on while something else happens."""

    during_read: Any = None

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        (directory / "x.txt").write_text("x")

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> str:
        if self.during_read is not None:
            self.during_read()
        return str((directory / "x.txt").read_text())


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_step_that_is_being_restored_is_not_deleted(
    tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "m" if where == "disk" else f"memory://orbax-{tmp_path.name}/run"
    handler = Reader()
    reader = ocp.CheckpointManager(directory, item_handlers={"x": handler})
    reader.save(1, {"x": 1})
    reader.wait_until_finished()
    writer = ocp.CheckpointManager(
        directory, item_handlers={"x": Reader()}, options=ocp.CheckpointManagerOptions(max_to_keep=1)
    )

    def during_read() -> None:
        with pytest.raises(ValueError, match="being read"):
            writer.delete(1)
        writer.save(2, {"x": 2})
        writer.wait_until_finished()
        assert writer.all_steps() == [1, 2]

    handler.during_read = during_read
    with caplog.at_level(logging.WARNING, "regrow.orbax"):
        assert reader.restore(1).x == "x"
    assert "step 1 was not deleted: it is being read" in caplog.text
    # The next save tries again.
    writer.save(3, {"x": 3})
    writer.wait_until_finished()
    assert writer.all_steps() == [3]
    assert names(writer.directory) == (["3"] if where == "disk" else [".regrow", "3"])


class Held(policies.PreservationPolicy):
    """Keeps the latest, and decides so only when it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.fails = False

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        if not self.may.wait(30):
            raise TimeoutError("a wait for deletions that must not happen")
        if self.fails:
            raise ZeroDivisionError("a policy")
        return [at == len(checkpoints) - 1 for at in range(len(checkpoints))]


@pytest.mark.parametrize("background", [False, True])
def test_saves_do_not_wait_for_deletions(tmp_path: Path, background: bool) -> None:
    policy = Held()
    steps = manager(tmp_path / "m", preservation_policy=policy, enable_background_delete=background)
    for step in range(4):
        assert steps.save(step, args=SAVE)
    assert set(steps.all_steps()) == {0, 1, 2, 3}
    policy.may.set()
    steps.wait_until_finished()
    assert steps.all_steps() == [3]
    steps.close()
    assert steps.all_steps() == [3] and names(tmp_path / "m") == ["3"]
    failing = manager(tmp_path / "m", preservation_policy=policy)
    policy.fails = True
    failing.save(4, args=SAVE)
    with pytest.raises(ZeroDivisionError):
        failing.wait_until_finished()
    failing.close()
    assert failing.all_steps() == [3, 4]


def test_nothing_is_deleted_for_a_step_that_is_damaged(tmp_path: Path) -> None:
    damaged: list[int] = []

    def damage() -> None:
        for file in damaged and (tmp_path / "m" / str(damaged.pop()) / "default" / "d").iterdir():
            data = file.read_bytes()
            file.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])

    ocp.check_saves()
    try:
        callback = ocp.AsyncOptions(post_finalization_callback=damage)
        with manager(tmp_path / "m", max_to_keep=1, async_options=callback) as steps:
            for step in range(2):
                steps.save(step, args=SAVE)
            steps.wait_until_finished()
            assert steps.all_steps() == [1]
            damaged.append(2)
            steps.save(2, args=SAVE)
            with pytest.raises(regrow.errors.CorruptError, match="step 2 is not what was saved"):
                steps.wait_until_finished()
            assert steps.all_steps() == [1, 2]
            assert_same(steps.restore(1), STATE)
    finally:
        ocp.check_saves(False)


def test_a_step_with_files_of_yours_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with manager(tmp_path / "m", max_to_keep=1) as steps:
        steps.save(0, args=SAVE)
        steps.wait_until_finished()
        (tmp_path / "m" / "0" / "notes.txt").write_text("mine")
        with caplog.at_level(logging.WARNING, "regrow.orbax"):
            steps.save(1, args=SAVE)
            steps.wait_until_finished()
        assert "step 0 was not deleted" in caplog.text and "notes.txt" in caplog.text
        assert steps.all_steps() == [0, 1]
        with pytest.raises(ValueError, match=r"notes\.txt"):
            steps.delete(0)
    assert (tmp_path / "m" / "0" / "notes.txt").read_text() == "mine"


def test_what_others_link_to_stays(tmp_path: Path) -> None:
    """Steps whose files are links to those of an older one outlive it, for any deleter."""
    with regrow.Manager(tmp_path / "m", options=regrow.SaveOptions(link_unchanged=True)) as writer:
        for step in range(3):
            writer.save(step, {"frozen": np.arange(1000.0), "step": step})
    steps = manager(tmp_path / "m")
    steps.delete(0)
    steps.delete(1)
    assert np.array_equal(steps.restore(2)["frozen"], np.arange(1000.0))


def test_steps_that_are_put_aside_on_a_disk(tmp_path: Path) -> None:
    with manager(tmp_path / "m", max_to_keep=1, todelete_full_path=str(tmp_path / "trash")) as steps:
        for step in range(2):
            steps.save(step, args=SAVE)
    assert [name.partition("-")[0] for name in names(tmp_path / "trash")] == ["0"]
    assert_same(ocp.PyTreeCheckpointer().restore(next((tmp_path / "trash").iterdir()) / "default"), STATE)


# ---- names, unfinished saves, other writers -------------------------------------------


def test_names_of_a_form_of_your_own(tmp_path: Path) -> None:
    from regrow.orbax.path import step as steps_of

    class Epochs(steps_of.NameFormat):
        def build_name(self, step: int) -> str:
            return f"epoch-{step}"

        def find_all(self, base_path: Any) -> Any:
            for path in base_path.iterdir():
                if path.name.startswith("epoch-") and "tmp" not in path.name:
                    yield steps_of.Metadata(int(path.name[6:]), path)

    for directory in (tmp_path / "m", f"memory://orbax-{tmp_path.name}/names"):
        with manager(directory, max_to_keep=2, step_name_format=Epochs()) as steps:
            for step in (3, 20, 100):
                steps.save(step, args=SAVE)
            steps.wait_until_finished()
            assert steps.all_steps() == [20, 100]
            assert_same(steps.restore(100), STATE)
        assert manager(directory, step_name_format=Epochs()).all_steps() == [20, 100]
    assert names(tmp_path / "m") == ["epoch-100", "epoch-20"]
    both = steps_of.composite_name_format(
        steps_of.standard_name_format(step_prefix="s"),
        [steps_of.standard_name_format(), steps_of.standard_name_format(step_prefix="s")],
    )
    with manager(tmp_path / "n") as steps:
        steps.save(1, args=SAVE)
    with manager(tmp_path / "n", step_name_format=both) as steps:
        steps.save(2, args=SAVE)
        steps.wait_until_finished()
        assert steps.all_steps() == [1, 2] and names(tmp_path / "n") == ["1", "s_2"]
        assert_same(steps.restore(1), STATE)


def test_a_save_that_goes_on_is_not_cleaned_up(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with ItemsSave(tmp_path / "m" / "7") as save:
        save.tree("default", STATE)
        (tmp_path / "m" / "8.orbax-checkpoint-tmp-17").mkdir()
        manager(tmp_path / "m", cleanup_tmp_directories=True).close()
        assert len(names(tmp_path / "m")) == 1
        save.commit()
    assert manager(tmp_path / "m").all_steps() == [7]


def test_regrows_manager_writes_alone_and_orbax_ones_do_not(tmp_path: Path) -> None:
    with regrow.Manager(tmp_path / "m"):
        steps = manager(tmp_path / "m")
        with pytest.raises(regrow.errors.AlreadyExistsError, match="another writer"):
            steps.save(0, args=SAVE)
    assert steps.save(0, args=SAVE)
    with manager(tmp_path / "m") as other:
        steps.wait_until_finished()
        assert other.save(1, args=SAVE)
        assert steps.save(2, args=SAVE)
    steps.close()
    assert manager(tmp_path / "m").all_steps() == [0, 1, 2]
    with theirs.CheckpointManager(tmp_path / "m") as original:
        assert list(original.all_steps()) == [0, 1, 2]


def test_v1_waits_for_its_saves_and_keeps_the_best(tmp_path: Path) -> None:
    best = policies.BestN(get_metric_fn=lambda metrics: metrics["loss"], reverse=True, n=1)
    with v1.training.Checkpointer(tmp_path / "m", preservation_policy=best) as steps:
        for step, loss in enumerate([3, 1, 2]):
            steps.save_checkpointables_async(step, {"state": STATE}, metrics={"loss": loss})
            steps.wait()
            assert not steps.is_saving_in_progress()
        assert [(found.step, found.metrics) for found in steps.checkpoints] == [(1, {"loss": 1})]

"""`regrow.orbax.CheckpointManager` and the original through the same calls: what each keeps,
lists and refuses.
"""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_orbax_dropin import MODULES

TREE = {"w": np.arange(4, dtype=np.float32)}
LOSSES = [5, 2, 4, 3, 7, 1, 10, 9, 7, 4]


@pytest.fixture(params=MODULES)
def ocp(request: pytest.FixtureRequest) -> Any:
    """The original, and ours."""
    return MODULES[request.param]


def run(manager: Any, ocp: Any, steps: Any, metrics: Any = None) -> list[int]:
    """Saves these steps, and returns those that the manager reports as saved."""
    told = metrics or {}
    args = ocp.args.StandardSave(TREE)
    return [step for step in steps if manager.save(step, args=args, metrics=told.get(step))]


# ---- what is saved and kept -----------------------------------------------------------


def best(**options: Any) -> dict[str, Any]:
    return {"best_fn": lambda metrics: metrics["loss"], "best_mode": "min", **options}


LOSS = {step: {"loss": loss} for step, loss in enumerate(LOSSES)}
SOME_LOSS = {0: {"loss": 3}, 2: {"loss": 4}, 4: {"loss": 7}}


KEPT: dict[str, tuple[dict[str, Any], Any, Any, list[int]]] = {
    "the latest": ({"max_to_keep": 2}, None, range(5), [3, 4]),
    "in the foreground": ({"max_to_keep": 2, "enable_async_checkpointing": False}, None, range(5), [3, 4]),
    "deleted later": ({"max_to_keep": 2, "enable_background_delete": True}, None, range(5), [3, 4]),
    "some for ever": (
        {"max_to_keep": 2, "keep_period": 4, "save_interval_steps": 2}, None, [0, 2, 4, 6, 8], [0, 4, 6, 8]
    ),
    "only some for ever": ({"max_to_keep": 0, "keep_period": 3}, None, range(8), [0, 3, 6]),
    "set steps": ({"save_interval_steps": 10_000, "save_on_steps": [1, 3]}, None, [0, 1, 3], [0, 1, 3]),
    "a function": (
        {"should_save_fn": lambda step, last: step % 3 == 0 or step == 2}, None, [0, 2, 3, 6], [0, 2, 3, 6]
    ),
    "the best": (best(max_to_keep=2), LOSS, range(9), [1, 5]),
    "the best without metrics": (best(max_to_keep=2), None, range(4), [0, 1, 2, 3]),
    "the best, and steps without metrics": (best(max_to_keep=3), SOME_LOSS, range(6), [0, 1, 2, 3, 4, 5]),
    "the best that was measured": (
        best(max_to_keep=1, keep_checkpoints_without_metrics=False), SOME_LOSS, range(5), [0]
    ),
    "the best, not written down": (best(max_to_keep=1, prevent_write_metrics=True), LOSS, range(3), [1]),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_which_steps_are_saved_and_kept(ocp: Any, tmp_path: Path, name: str) -> None:
    options, metrics, saved, kept = KEPT[name]
    with ocp.CheckpointManager(tmp_path / "m", options=ocp.CheckpointManagerOptions(**options)) as manager:
        assert run(manager, ocp, range(max(saved) + 1), metrics) == list(saved)
    # `close` waits for deletions, also for those in the background.
    assert sorted(manager.all_steps()) == kept
    assert sorted(int(path.name) for path in (tmp_path / "m").iterdir()) == kept


def test_a_manager_goes_on_with_the_best_of_another(ocp: Any, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(**best(max_to_keep=2), todelete_subdir="ttl=1h")
    first = ocp.CheckpointManager(tmp_path / "m", options=options)
    run(first, ocp, range(5), LOSS)
    first.wait_until_finished()
    # The first one is never closed, as after a preemption.
    with ocp.CheckpointManager(tmp_path / "m", options=options) as second:
        run(second, ocp, range(5, 9), LOSS)
        second.wait_until_finished()
        assert sorted(second.all_steps()) == [1, 5] and second.best_step() == 5
    trash = tmp_path / "m" / "ttl=1h"
    assert sorted(int(path.name) for path in trash.iterdir()) == [0, 2, 3, 4, 6, 7, 8]
    first.close()


def test_one_step_of_each_interval_stays(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        run(manager, ocp, [0, 1, 3, 4])
    options = ocp.CheckpointManagerOptions(max_to_keep=1, keep_time_interval=datetime.timedelta(hours=3))
    with ocp.CheckpointManager(tmp_path / "m", options=options) as manager:
        for found in manager._checkpoints:
            found.time = datetime.datetime.now(tz=datetime.UTC) - datetime.timedelta(hours=9 - found.step)
        run(manager, ocp, [9, 10])
        manager.wait_until_finished()
        assert sorted(manager.all_steps()) == [0, 3, 9, 10]


def test_policies_say_what_is_saved_and_kept(ocp: Any, tmp_path: Path) -> None:
    """Also one that no library has."""
    policies = ocp.checkpoint_managers

    class Middle(policies.PreservationPolicy):
        def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
            return [found.step == 4 for found in checkpoints]

    options = ocp.CheckpointManagerOptions(
        save_interval_steps=1,
        save_decision_policy=policies.AnySavePolicy(
            [policies.FixedIntervalPolicy(3), policies.SpecificStepsPolicy([4]), policies.InitialSavePolicy()]
        ),
        preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(1), policies.CustomSteps([3]), Middle()]),
    )
    with ocp.CheckpointManager(tmp_path / "m", options=options) as manager:
        assert run(manager, ocp, range(1, 11)) == [1, 3, 4, 6, 9]
        manager.wait_until_finished()
        assert sorted(manager.all_steps()) == [3, 4, 9]


def test_saves_when_the_machine_is_taken_away(ocp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jax.experimental import multihost_utils

    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", lambda step: step == 2)
    with ocp.CheckpointManager(tmp_path / "m", options=ocp.CheckpointManagerOptions(save_interval_steps=4)) as manager:
        assert run(manager, ocp, range(6)) == [0, 2, 4]


# ---- what is listed -------------------------------------------------------------------


def test_each_manager_knows_what_it_has_seen(ocp: Any, tmp_path: Path) -> None:
    """Two that write to one folder in one program; neither deletes what it does not know."""
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    first = ocp.CheckpointManager(tmp_path / "m", options=options)
    run(first, ocp, range(2))
    first.wait_until_finished()
    second = ocp.CheckpointManager(tmp_path / "m")
    run(second, ocp, range(2, 4))
    second.wait_until_finished()
    assert (list(first.all_steps()), list(second.all_steps())) == ([0, 1], [0, 1, 2, 3])
    first.save(9, args=ocp.args.StandardSave(TREE))
    first.wait_until_finished()
    assert list(first.all_steps()) == [1, 9]
    second.reload()
    assert list(second.all_steps()) == [1, 2, 3, 9]
    first.close()
    second.close()


NAMES: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "a width": (lambda ocp: {"step_format_fixed_length": 8}, "00000007"),
    "a prefix": (lambda ocp: {"step_prefix": "ckpt"}, "ckpt_7"),
    "both": (lambda ocp: {"step_prefix": "ckpt", "step_format_fixed_length": 4}, "ckpt_0007"),
    "a format": (lambda ocp: {"step_name_format": ocp.path.step.standard_name_format(step_prefix="s")}, "s_7"),
    "broadcast": (lambda ocp: {"step_prefix": "s", "single_host_load_and_broadcast": True}, "s_7"),
}


@pytest.mark.parametrize("names", NAMES)
def test_names_of_steps(ocp: Any, tmp_path: Path, names: str) -> None:
    given, name = NAMES[names]
    options = ocp.CheckpointManagerOptions(max_to_keep=1, **given(ocp))
    with ocp.CheckpointManager(tmp_path / "m", options=options) as manager:
        run(manager, ocp, [5, 7])
    assert [path.name for path in (tmp_path / "m").iterdir()] == [name]
    with ocp.CheckpointManager(tmp_path / "m", options=options) as again:
        again.reload()
        assert list(again.all_steps()) == [7]
        assert np.array_equal(again.restore(7, args=ocp.args.StandardRestore(TREE))["w"], TREE["w"])


def test_what_broken_saves_have_left(ocp: Any, tmp_path: Path) -> None:
    def leave() -> Path:
        folder = tmp_path / "m" / "0.orbax-checkpoint-tmp-1700000000"
        (folder / "params").mkdir(parents=True)
        return folder

    left = leave()
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        assert list(manager.all_steps()) == [] and left.exists()
    with ocp.CheckpointManager(
        tmp_path / "m", options=ocp.CheckpointManagerOptions(cleanup_tmp_directories=True)
    ) as manager:
        run(manager, ocp, [1])
        assert not left.exists()
        leave()
        manager.wait_until_finished()
        manager.reload()
        assert list(manager.all_steps()) == [1]


# ---- deleting, reading only -----------------------------------------------------------


def test_nothing_is_left_of_a_step_that_was_deleted(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        manager.save(0, args=ocp.args.JsonSave({"a": 1}))
        manager.wait_until_finished()
        assert manager.restore(0, args=ocp.args.JsonRestore()) == {"a": 1}
        manager.delete(0)
        assert list(manager.all_steps()) == [] and list((tmp_path / "m").iterdir()) == []


def test_a_manager_that_only_reads(ocp: Any, tmp_path: Path) -> None:
    read_only = {"options": ocp.CheckpointManagerOptions(read_only=True), "metadata": {"version": 2}}
    (tmp_path / "m").mkdir()
    with ocp.CheckpointManager(tmp_path / "m", **read_only) as manager:
        assert manager.metadata().custom_metadata == {"version": 2}
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        assert manager.metadata().custom_metadata == {}
        run(manager, ocp, [3])
    with ocp.CheckpointManager(tmp_path / "m", metadata={"version": 1}) as manager:
        assert manager.metadata().custom_metadata == {"version": 1}
    with ocp.CheckpointManager(tmp_path / "m", **read_only) as manager:
        assert manager.metadata().custom_metadata == {"version": 1}
        assert manager.should_save(4) is False and run(manager, ocp, [4]) == []
        manager.delete(3)
        assert list(manager.all_steps()) == [3]
        assert np.array_equal(manager.restore(3)["w"], TREE["w"])


def test_metadata_of_the_folder(ocp: Any, tmp_path: Path) -> None:
    off = ocp.CheckpointManagerOptions(save_root_metadata=False)
    with ocp.CheckpointManager(tmp_path / "m", options=off, metadata={"a": 1}) as manager:
        assert manager.metadata().custom_metadata == {}
    assert not (tmp_path / "m" / "metadata").exists()
    # As older versions have written it.
    ocp.Checkpointer(ocp.JsonCheckpointHandler()).save(tmp_path / "m" / "metadata", args=ocp.args.JsonSave({"b": 2}))
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        assert manager.metadata().custom_metadata == {"b": 2}


def test_metrics_are_an_item_of_a_step(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "m", options=ocp.CheckpointManagerOptions(**best())) as manager:
        items = ocp.args.Composite(state=ocp.args.StandardSave(TREE), it=ocp.args.JsonSave([1]))
        manager.save(0, args=items, metrics={"loss": 1.0}, custom_metadata={"by": "me"})
        manager.wait_until_finished()
        found = manager.metadata(0)
        assert set(found.item_metadata.keys()) == {"state", "it", "metrics"} and found.item_metadata["it"] is None
        assert (found.metrics, found.custom_metadata) == ({"loss": 1.0}, {"by": "me"})
        assert found.item_handlers["state"].endswith("StandardCheckpointHandler")
        assert 0 < found.init_timestamp_nsecs < found.commit_timestamp_nsecs


@pytest.mark.parametrize("mode", [0o750, 0o775])
def test_permissions(ocp: Any, tmp_path: Path, mode: int) -> None:
    before = os.umask(0)
    try:
        options = ocp.CheckpointManagerOptions(
            file_options=ocp.options.FileOptions(path_permission_mode=mode), enable_async_checkpointing=False
        )
        with ocp.CheckpointManager(tmp_path / "m", options=options) as manager:
            run(manager, ocp, [0])
        for folder in ("m", "m/0", "m/0/default"):
            assert (tmp_path / folder).stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


def test_a_step_of_another_folder(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "other") as manager:
        run(manager, ocp, [0, 4])
    target = ocp.args.StandardRestore(TREE)
    with ocp.CheckpointManager(tmp_path / "m", item_handlers=ocp.StandardCheckpointHandler()) as manager:
        with pytest.raises(FileNotFoundError):
            manager.restore(0, args=target)
        for step in (0, None):
            assert np.array_equal(manager.restore(step, args=target, directory=tmp_path / "other")["w"], TREE["w"])
        assert manager.latest_step() is None


# ---- failures and waiting -------------------------------------------------------------


@pytest.fixture
def waiters() -> Iterator[ThreadPoolExecutor]:
    """Two threads."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_many_threads_wait_for_one_save(ocp: Any, tmp_path: Path, waiters: ThreadPoolExecutor) -> None:
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        run(manager, ocp, [0])
        for waiting in [waiters.submit(manager.wait_until_finished) for _ in range(8)]:
            waiting.result(60)
        assert manager.is_saving_in_progress() is False
        assert np.array_equal(manager.restore(0)["w"], TREE["w"])


def test_options_that_exclude_each_other(ocp: Any, tmp_path: Path) -> None:
    options, policies = ocp.CheckpointManagerOptions, ocp.checkpoint_managers
    broadcast = ocp.path.step.standard_name_format(single_host_load_and_broadcast=True)
    for refused in (
        {"step_name_format": broadcast},
        {"step_name_format": ocp.path.step.standard_name_format(), "single_host_load_and_broadcast": True},
        {"enable_per_process_directory_creation": True},
        {"todelete_subdir": "a", "todelete_full_path": "b"},
        {"max_to_keep": -1},
    ):
        with pytest.raises(ValueError):
            options(**refused)
    for arguments in (
        {"item_names": ("a",), "item_handlers": ocp.StandardCheckpointHandler()},
        {"item_names": ("a",), "handler_registry": ocp.handlers.DefaultCheckpointHandlerRegistry()},
        {"options": options(preservation_policy=policies.LatestN(1), keep_period=2)},
    ):
        with pytest.raises(ValueError):
            ocp.CheckpointManager(tmp_path / "m", **arguments)


def test_what_a_logger_is_told(ocp: Any, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    class Logger(ocp.logging.AbstractLogger):
        def log_entry(self, entry: Any) -> None:
            told.append(entry)

    with ocp.CheckpointManager(tmp_path / "m", logger=Logger()) as manager:
        run(manager, ocp, [0])
        manager.wait_until_finished()
        manager.restore(0)
    save, restore = told
    assert (save["event_type"], save["step"], save["synchronous"]) == ("save", 0, False)
    assert (restore["event_type"], restore["step"]) == ("restore", 0)
    assert {entry["directory"] for entry in told} == {str(tmp_path / "m")}
    unset = {"preemption_received_at", "time_between_consecutive_saves_sec"}
    assert {name for entry in told for name, value in entry.items() if value is None} == unset
    original = {
        "step", "event_type", "directory", "reached_preemption", "preemption_received_at", "synchronous",
        "wait_for_prev_start_time", "wait_for_prev_duration_secs", "time_between_consecutive_saves_sec",
        "checkpointer_blocking_start_time", "checkpointer_blocking_duration_secs", "get_old_steps_start_time",
        "get_old_steps_duration_secs", "checkpoint_manager_blocking_start_time",
        "checkpoint_manager_blocking_duration_secs",
    }  # fmt: skip
    assert set(save) == original


def test_a_failure_in_the_background_is_told_once_in_each_thread(
    ocp: Any, tmp_path: Path, waiters: ThreadPoolExecutor
) -> None:
    barrier, failures = threading.Barrier(2), [SystemError("the disk is gone")]

    def fail_once() -> None:
        if failures:
            raise failures.pop()

    def wait() -> str:
        barrier.wait()
        try:
            manager.wait_until_finished()
        except SystemError:
            return "told"
        return "not told"

    options = ocp.CheckpointManagerOptions(async_options=ocp.AsyncOptions(post_finalization_callback=fail_once))
    args = ocp.args.StandardSave(TREE)
    with ocp.CheckpointManager(tmp_path / "m", options=options) as manager:
        manager.save(0, args=args)
        both = [waiters.submit(wait) for _ in range(2)]
        assert [each.result() for each in both] == ["told", "told"]
        with pytest.raises(SystemError, match="disk is gone"):
            manager.save(1, args=args)
        manager.wait_until_finished()
        assert manager.save(2, args=args)
        manager.wait_until_finished()
        assert manager.latest_step() == 2


def _outcomes(module: Any, folder: Path, told: list[Any], mode: str, keep: int | None) -> list[Any]:
    options = module.CheckpointManagerOptions(
        max_to_keep=keep, best_fn=lambda metrics: metrics["loss"], best_mode=mode, enable_async_checkpointing=False
    )
    manager = module.CheckpointManager(folder, options=options)
    found: list[Any] = []
    for step, metrics in enumerate(told):
        for call in (
            lambda step=step, metrics=metrics: manager.save(step, args=module.args.StandardSave(TREE), metrics=metrics),
            manager.best_step,
        ):
            try:
                found.append(call())
            except KeyError as error:
                found.append(type(error).__name__)
        # Ours deletes when the save has ended, Orbax when it begins.
        manager.wait_until_finished()
        found.append(list(manager.all_steps()))
    manager.close()
    return found


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("keep", [None, 2])
def test_nan_and_missing_metrics_are_ranked_as_in_orbax(path: Path, mode: str, keep: int | None) -> None:
    nan = float("nan")
    told: list[list[Any]] = [[{"loss": loss} for loss in losses] for losses in ((0.5, nan), (nan, 1, 0.5, nan, 2))]
    told += [[{"loss": 1}, None, {"loss": 2}], [{"los": 1}, {"los": 2}, {"los": 3}]]
    for number, metrics in enumerate(told):
        theirs, ours = (
            _outcomes(module, path / f"{name}_{number}", metrics, mode, keep)
            for name, module in sorted(MODULES.items())
        )
        assert ours == theirs, metrics

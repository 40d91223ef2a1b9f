"""`regrow.Manager`: saving, keeping, restoring and waiting, beside Orbax' own manager in one
folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow
from regrow import Manager, StepName
from regrow._load._load import Loading
from regrow._manager._restore import PYTREES


def tree(step: int) -> dict[str, Any]:
    return {"w": np.full((4, 3), step, np.float32), "step": step}


def manager(path: Path, **options: Any) -> Manager:
    saving = options.pop("options", regrow.SaveOptions())
    return Manager(path, options=dataclasses.replace(saving, durable=False), **options)


@contextlib.contextmanager
def files_of_at_most(len_bytes: int) -> Iterator[None]:
    """Longer ones cannot be written, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """Another user than root, who may write anywhere."""
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def damage(step: Path) -> None:
    """Changes the last byte of the data of a step."""
    largest = max((file for file in step.rglob("*.safetensors")), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[-1] ^= 1
    largest.write_bytes(data)


def test_a_loop_saves_keeps_and_goes_on(path: Path) -> None:
    options: dict[str, Any] = {"keep": regrow.Keep(last=2, by="eval/loss:min"), "save_every": 10}
    with manager(path, **options) as steps:
        assert (steps.latest, steps.steps, steps.next) == (None, [], 0)
        for step in range(51):
            saved = steps.save(step, tree(step), metrics={"eval": {"loss": np.float32(abs(step - 20))}})
            assert (saved is not None) == (step % 10 == 0)
        steps.wait()
        assert steps.steps == [20, 40, 50]
        assert (steps.latest, steps.best, steps.next) == (50, 20, 51)
        assert steps.metrics(20) == {"eval": {"loss": 0.0}}
    with manager(path, **options) as steps:
        state = steps.restore(like=tree(0))
        assert steps.restored == 50
        assert state["step"] == 50
        assert np.array_equal(state["w"], tree(50)["w"])
        assert not steps.should_save(50)
        assert steps.should_save(60)
        assert steps.restore(20)["step"] == 20
        with pytest.raises(regrow.errors.NotFoundError, match="step 30 does not exist") as error:
            steps.restore(30)
        assert "20, 40, 50" in str(error.value)


def test_items_metadata_and_names(path: Path) -> None:
    with manager(path, names=[StepName("step", 4), StepName()], keep=regrow.Keep(trash="trash", last=1)) as steps:
        items = {"config": regrow.Json({"width": 3}), "files": regrow.Files({"a.txt": b"text"})}
        assert steps.save(7, tree(7), items=items, metrics={"loss": 1}, metadata={"run": "a"})
        assert steps.save(8, items={"model": tree(8)})
        steps.wait()
        assert os.listdir(path / "trash") == ["step_0007"]
        assert [step.name for step in steps.list()] == ["step_0008"]
        assert steps.restore()["step"] == 8
        assert regrow.load(path / "trash" / "step_0007", at="config") == {"width": 3}
    with manager(path) as steps:
        assert steps.save(9, tree(9), items={"config": regrow.Json([1])}, metadata={"run": "b"})
        steps.wait()
        found = steps.step(9)
        assert (found.name, found.metadata, found.metrics) == ("step_0009", {"run": "b"}, {})
        assert found.time is not None
        assert steps.restore(items=["config"]) == {"config": [1]}
        both = steps.restore(9, items={"default": tree(0), "config": None})
        assert both["default"]["step"] == 9
        with pytest.raises(regrow.errors.NotFoundError, match="absent"):
            steps.restore(items=["absent"])


def test_the_newest_good_step_is_restored(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with manager(path) as steps:
        with pytest.raises(regrow.errors.NotFoundError, match="no step to restore"):
            steps.restore()
        for step in (1, 2, 3):
            steps.save(step, tree(step))
        steps.wait()
        damage(path / "3")
        with caplog.at_level(logging.INFO, "regrow.manager"):
            assert steps.restore(like=tree(0))["step"] == 2
        (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert record.record["passed_over"].keys() == {3}  # type: ignore[attr-defined]
        assert [passed.step for passed in steps.passed_over] == [3]
        assert isinstance(steps.passed_over[0].error, regrow.errors.CorruptError)
        # A template that does not fit is not the step's fault.
        with pytest.raises(regrow.errors.MismatchError):
            steps.restore(like={"w": np.zeros((1, 1), np.float32)})
        with pytest.raises(regrow.errors.CorruptError):
            steps.restore(3)
        for step in ("1", "2"):
            damage(path / step)
        with pytest.raises(regrow.errors.CorruptError, match="every step is damaged") as error:
            steps.restore()
        assert "step 1: " in str(error.value)


def test_a_reader_whose_steps_were_all_rotated_away_takes_a_newer_one(path: Path) -> None:
    writer = regrow.Manager(path, background=False, keep=2)
    for step in (1, 2):
        writer.save(step, {"w": np.full(3, step)})
    reader = regrow.Manager(path, read_only=True)
    tried: list[str] = []

    def one(at: regrow.Location, *about: Any) -> Any:
        tried.append(at.url.rpartition("/")[2])
        if len(tried) == 1:
            for step in (3, 4):
                writer.save(step, {"w": np.full(3, step)})
            assert writer.steps == [3, 4]
        return PYTREES.one(at, *about)

    restored = reader._restore(PYTREES._replace(one=one), None, None, None, Loading(), None)
    assert tried == ["2", "4"]
    assert (restored["w"] == 4).all()
    assert reader.restored == 4
    assert reader.passed_over == []


def test_after_a_roll_back_older_numbers_are_saved_again(path: Path) -> None:
    with manager(path) as steps:
        for step in (1, 2, 3):
            steps.save(step, tree(step))
        assert not steps.save(2, tree(20))
        with pytest.raises(regrow.errors.AlreadyExistsError, match="step 2 already exists"):
            steps.save(2, tree(20), force=True)
        assert steps.save(2, tree(21), overwrite=True)
        assert steps.restore(1)["step"] == 1
        assert steps.save(2, tree(22))
        assert not steps.save(2, tree(23))
        steps.wait()
        assert [steps.restore(step)["step"] for step in (2, 3)] == [22, 3]
        steps.roll_back(1)
        assert steps.steps == [1]
        assert steps.save(3, tree(30))
    assert regrow.list_checkpoints(path)[-1].state == "committed"


def test_a_failure_is_raised_by_the_next_call_and_is_no_step(path: Path) -> None:
    log = path.parent / "log.jsonl"
    with manager(path, log=log) as steps:
        steps.save(1, tree(1))
        steps.wait()
        with files_of_at_most(1 << 20):
            assert steps.save(2, {"w": np.ones(1 << 20, np.float32)})
            with pytest.raises(regrow.errors.StorageFullError):
                steps.wait()
        assert steps.steps == [1]
        assert steps.latest == 1
        # The same number once more, and an older one after that.
        assert steps.save(2, tree(2))
        steps.wait()
        steps.restore()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["event"], line["step"]) for line in lines] == [("save", 1), ("save", 2), ("save", 2), ("restore", 2)]
    assert "too large" in lines[1]["error"]
    assert lines[2]["stored_bytes"] > 0
    assert lines[2]["seconds"] > 0


def test_nothing_is_deleted_for_a_step_that_is_damaged(path: Path) -> None:
    def keep_if(step: regrow.reports.Step) -> bool:
        # It is asked when a step is there, before that is read again and others are deleted.
        if step.number == 3:
            damage(path / "3")
        return False

    log = path.parent / "log.jsonl"
    with manager(path, log=log, keep=regrow.Keep(last=1, verify_first=True, where=keep_if)) as steps:
        for step in (1, 2):
            steps.save(step, tree(step))
            steps.wait()
        assert steps.steps == [2]
        steps.save(3, tree(3))
        with pytest.raises(regrow.errors.CorruptError, match="step 3 differs from what was saved"):
            steps.wait()
        assert steps.steps == [2, 3]
        assert steps.restore()["step"] == 2
    (line,) = [line for line in map(json.loads, log.read_text().splitlines()) if line["step"] == 3]
    assert line["stored_bytes"] > 0, "it was saved"
    assert "differs from what was saved" in line["error"]


def test_files_that_did_not_change_are_linked(path: Path) -> None:
    log = path.parent / "log.jsonl"
    with manager(path, log=log, options=regrow.SaveOptions(link_unchanged=True), keep=1) as steps:
        state = {"frozen": np.arange(200_000, dtype=np.float32), "w": np.zeros(3)}
        steps.save(1, state)
        steps.wait()
        steps.save(2, {**state, "w": np.ones(3)})
        steps.wait()
        steps.save(3, {**state, "w": np.ones(3) * 2})
        steps.wait()
        assert steps.steps == [3]
        assert np.array_equal(steps.restore()["frozen"], state["frozen"])
    assert regrow.verify(path / "3" / "default").ok
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(line["step"] for line in lines if line["event"] == "delete") == [1, 2]
    assert all(line["bytes"] > 800_000 for line in lines if line["event"] == "delete")
    reused = [line.get("reused_bytes", 0) for line in lines if line["event"] == "save"]
    assert reused[0] == 0
    assert min(reused[1:3]) >= 0
    assert reused[2] >= 800_000


def test_one_writer_and_many_readers(path: Path) -> None:
    with manager(path, keep=1) as steps:
        steps.save(1, tree(1))
        steps.wait()
        with pytest.raises(regrow.errors.AlreadyExistsError, match="another"):
            manager(path)
        with manager(path, read_only=True) as reader:
            assert reader.wait_for_new() == 1
            assert reader.wait_for_new(1, timeout=0.01, every=0.001) is None
            assert reader.wait_for_new(timeout=0) == 1
            steps.save(2, tree(2))
            steps.wait()
            # It is being read.
            assert steps.steps == [1, 2]
            assert reader.restore(1)["step"] == 1
            with pytest.raises(regrow.errors.InvalidArgumentError, match="is being read"):
                steps.delete(1)
            assert reader.wait_for_new(1) == 2
            steps.delete(1)
            with pytest.raises(regrow.errors.InvalidArgumentError, match="cannot write"):
                reader.save(3, tree(3))
        with pytest.raises(regrow.errors.InvalidArgumentError, match="the last one"):
            steps.delete(2)
        with pytest.raises(regrow.errors.NotFoundError):
            steps.delete(1)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="is closed"):
        steps.save(3, tree(3))
    steps.close()
    manager(path).close()


def test_a_forked_child_does_not_save_in_its_parents_place(path: Path) -> None:
    with manager(path) as steps:
        steps.save(1, tree(1))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                steps.save(2, tree(2))
            except regrow.errors.InvalidArgumentError as error:
                status = 0 if "parent process" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        steps.wait()
        assert steps.steps == [1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a folder of another user")
def test_where_nothing_can_be_written_a_job_waits_without_a_lease(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "run"
        with manager(path) as steps:
            steps.save(1, tree(1))
        with manager(path, read_only=True) as reader, another_user():
            with caplog.at_level(logging.WARNING, "regrow.manager"):
                assert reader.wait_for_new() == 1
            assert reader.restore(1)["step"] == 1
    (record,) = caplog.records
    assert record.record["event"] == "unleased"  # type: ignore[attr-defined]


def test_when_to_save(path: Path) -> None:
    with manager(
        path / "a", save_every=regrow.SaveWhen(every=None, steps=[3, 5], first=True, where=lambda step: step == 9)
    ) as steps:
        chosen = [step for step in range(12) if steps.should_save(step)]
        assert chosen == list(range(12)), "nothing is there: each would be the first"
        assert [step for step in range(1, 12) if steps.save(step, tree(step))] == [1, 3, 5, 9]
    with manager(path / "b", save_every=regrow.SaveWhen(every=1, seconds=3600)) as steps:
        assert [step for step in range(5) if steps.save(step, tree(step))] == [0]
    with manager(
        path / "c", background=False, keep=regrow.Keep(every=4, steps=[1], where=lambda step: step.number == 6)
    ) as steps:
        for step in range(10):
            steps.save(step, tree(step))
        assert steps.steps == [0, 1, 4, 6, 8, 9]
    with manager(path / "d", background=False, keep=regrow.Keep(closest=10)) as steps:
        for step in (1, 8, 12, 17, 22, 24):
            steps.save(step, tree(step))
        # Nearest to 0, 10 and 20, the newest of equals, and the newest of all.
        assert steps.steps == [1, 12, 22, 24]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": 0}, "keep=0"),
        ({"keep": "3"}, "keep='3'"),
        ({"keep": True}, "keep=True"),
        ({"save_every": 0}, "every=0"),
        ({"save_every": None}, "save_every=None"),
        ({"keep": regrow.Keep(closest=0)}, "closest=0"),
        ({"keep": regrow.Keep(best=2)}, "needs a metric"),
        ({"keep": regrow.Keep(by="loss")}, "with its mode"),
        ({"keep": regrow.Keep(by=":min")}, "with its mode"),
        ({"keep": regrow.Keep(by=("loss", "least"))}, "with its mode"),
        ({"save_every": regrow.SaveWhen(seconds=-1)}, "seconds=-1"),
        ({"keep": regrow.Keep(steps="12")}, "steps='12'"),
        ({"names": []}, "names"),
        ({"names": [StepName("a/b")]}, "the prefix of step names"),
        ({"overwrite": True}, "unexpected keyword argument 'overwrite'"),
        ({"kep": 3}, "pass keep="),
        ({"keep": regrow.Keep(trash="../x", last=1)}, "cannot be moved to this folder"),
    ],
)
def test_options_that_make_no_sense_are_refused(path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises((regrow.errors.InvalidArgumentError, TypeError), match=said):
        manager(path, **options)
    assert not path.exists()


def test_a_folder_of_something_else_is_refused(path: Path) -> None:
    regrow.save(path, tree(1))
    with pytest.raises(regrow.errors.InvalidArgumentError, match="this is one checkpoint"):
        manager(path)
    (path.parent / "file").write_text("x")
    with pytest.raises(regrow.errors.InvalidArgumentError, match="a file"):
        manager(path.parent / "file")
    with manager(path.parent / "run") as steps:
        for wrong in ({}, {"state": None, "items": {}}, {"state": tree(1), "items": {"default": tree(1)}}):
            with pytest.raises(regrow.errors.InvalidArgumentError):
                steps.save(1, **wrong)
        with pytest.raises(regrow.errors.InvalidArgumentError, match="metrics"):
            steps.save(1, tree(1), metrics={"x": object()})
        with pytest.raises(regrow.errors.InvalidArgumentError, match="best"):
            _ = steps.best
        assert steps.steps == []


def test_metrics_that_are_missing_for_best(path: Path) -> None:
    with manager(path, keep=regrow.Keep(by="loss:max")) as steps:
        with pytest.raises(regrow.errors.InvalidArgumentError, match="found no metrics"):
            steps.save(1, tree(1))
        with pytest.raises(regrow.errors.InvalidArgumentError, match='did you mean "los"'):
            steps.save(1, tree(1), metrics={"los": 1.0})
        assert steps.steps == [] and list(path.glob("1*")) == [], "nothing was written"
        steps.save(2, tree(2), metrics={"loss": float("nan")})
        steps.wait()
        assert steps.best is None
        steps.save(3, tree(3), metrics={"loss": -1.0})
        steps.wait()
        assert steps.best == 3


def test_sigterm_sets_a_flag_and_the_next_step_is_saved(path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    log = path.parent / "log.jsonl"
    with manager(path, log=log, save_every=1000, preemption_timeout=30.0) as steps:
        assert not steps.save(1, tree(1))
        assert not steps.preempted
        assert not steps.reached_preemption(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert steps.preempted
        assert steps.save(2, tree(2))
        # It is there when `save` returns, and is saved once.
        assert steps.steps == [2]
        assert not steps.save(3, tree(3))
    assert signal.getsignal(signal.SIGTERM) == before
    (line,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert (line["step"], line["preempted"]) == (2, True)


def test_ctrl_c_ends_a_wait_and_the_save_goes_on(path: Path) -> None:
    let_go = threading.Event()
    # A shell ignores the signal for background processes.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with manager(path, on_saved=lambda step, report: let_go.wait(60)) as steps:
            steps.save(1, tree(1))
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                steps.wait()
            assert steps.pending == [1]
            let_go.set()
            steps.wait()
            assert steps.steps == [1]
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_exception_of_on_saved_is_raised_as_it_is(path: Path) -> None:
    def on_saved(step: int, report: regrow.reports.SaveReport) -> None:
        if step == 1:
            raise LookupError(report.leaf_count)

    with manager(path, on_saved=on_saved) as steps:
        handle = steps.save(1, tree(1))
        assert handle is not None
        for _ in range(2):
            with pytest.raises(LookupError) as error:
                handle.result()
            assert error.value.args == (2,)
        # It was raised: the next call goes on.
        assert steps.save(2, tree(2))
        steps.wait()
        assert steps.steps == [1, 2]


def test_a_bucket_and_a_local_folder_are_the_same(path: Path) -> None:
    url = f"memory://manager-{path.parent.name}/run"
    with Manager(url, keep=regrow.Keep(last=1, by="loss:min")) as steps:
        for step in (1, 2, 3):
            steps.save(step, tree(step), metrics={"loss": step})
        steps.wait()
        assert steps.steps == [1, 3]
        assert (steps.latest, steps.best) == (3, 1)
        assert steps.restore()["step"] == 3
        with pytest.raises(regrow.errors.AlreadyExistsError):
            Manager(url)
    Manager(url).close()


def test_orbax_and_this_take_turns_in_one_folder(path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    options = ocp.CheckpointManagerOptions(max_to_keep=10, best_fn=lambda metrics: metrics["loss"], best_mode="min")
    state = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}

    def orbax() -> Any:
        return ocp.CheckpointManager(path, options=options)

    with orbax() as theirs:
        theirs.save(1, args=ocp.args.StandardSave(state), metrics={"loss": 0.5})
        theirs.wait_until_finished()
    with manager(path, keep=regrow.Keep(by="loss:min")) as ours:
        assert (ours.latest, ours.best) == (1, 1)
        assert np.array_equal(ours.restore(like=state)["w"], state["w"])
        ours.save(2, {"w": state["w"] + 1}, metrics={"loss": 0.25})
    with orbax() as theirs:
        assert theirs.all_steps() == [1, 2]
        assert theirs.best_step() == 2
        assert np.array_equal(theirs.restore(2, args=ocp.args.StandardRestore(state))["w"], state["w"] + 1)
        theirs.save(3, args=ocp.args.StandardSave({"w": state["w"] + 2}), metrics={"loss": 0.75})
        theirs.wait_until_finished()
    with manager(path, keep=regrow.Keep(last=1, by="loss:min")) as ours:
        assert ours.steps == [1, 2, 3]
        assert np.array_equal(ours.restore()["w"], state["w"] + 2)
        ours.save(4, state, metrics={"loss": 1.0})
        ours.wait()
        assert ours.steps == [1, 2, 3, 4], "1 and 3 are Orbax', and 2 is the best of its own"
    with manager(path, keep=regrow.Keep(last=1, by="loss:min", adopt=True)) as ours:
        ours.save(5, state, metrics={"loss": 1.0})
        ours.wait()
        assert ours.steps == [2, 5]
    with orbax() as theirs:
        assert theirs.all_steps() == [2, 5]


PREEMPTED = """
import os, signal, socket, sys, time
import jax
with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
jax.distributed.initialize(f"localhost:{port}", 1, 0)
import numpy as np
import regrow
step, ends = 1, time.monotonic() + 60
with regrow.Manager(sys.argv[1], save_every=1000, options=regrow.SaveOptions(durable=False)) as steps:
    assert not steps.reached_preemption(0)
    os.kill(os.getpid(), signal.SIGTERM)
    while not steps.preempted and time.monotonic() < ends:
        saved = steps.save(step, {"w": np.ones(3)})
        step += 1
        time.sleep(0.01)
    assert steps.preempted and saved and steps.steps == [step - 1], (saved, step, steps.steps)
"""


def test_jax_says_at_which_step_all_processes_save(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    command = [sys.executable, "-c", PREEMPTED, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


WORKER = """
import json, os, signal, sys
import numpy as np
import regrow
rank, folder, path, log = int(sys.argv[1]), *sys.argv[2:]
job = regrow.jobs.Job(regrow.jobs.Folder(folder, rank=rank, size=2), timeout=60)
options = {"job": job, "log": log, "options": regrow.SaveOptions(durable=False)}
told = []

def state(step):
    return {"w": np.arange(8.0), "step": step}

with regrow.Manager(path + "/a", save_every=2, keep=1, **options) as steps:
    told.append(steps.latest)
    for step in range(5):
        told.append(steps.save(step, state(step)) is not None)
    steps.wait()
    told.append(steps.steps)
    told.append(steps.restore()["step"])
    told.append(steps.restored)
    try:
        steps.restore(7)
    except regrow.errors.NotFoundError as error:
        told.append("no step 7")

# The signal comes to the one that decides nothing.
with regrow.Manager(path + "/b", save_every=1000, preemption_timeout=30.0, **options) as steps:
    for step in range(1, 5):
        if (rank, step) == (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)
        told.append(steps.save(step, state(step)) is not None)
    told.append([steps.preempted, steps.steps])

asked = []

def fails(step):
    asked.append(step)
    if len(asked) == 1:
        raise ValueError("of the caller")
    return True

# Only rank 0 asks the function, after the save; all hear of its error before the next one.
with regrow.Manager(path + "/c", keep=regrow.Keep(where=fails if rank == 0 else len), **options) as steps:
    told.append(steps.save(1, state(1)) is not None)
    try:
        steps.save(2, state(2))
    except (ValueError, regrow.RegrowError) as error:
        told.append("of the caller" in str(error))
    told.append(steps.save(2, state(2)) is not None)
print(json.dumps(told))
"""


def test_processes_of_a_job_see_and_decide_the_same(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    started = [
        subprocess.Popen(
            [sys.executable, worker, str(rank), tmp_path / "job", tmp_path / "run", tmp_path / f"log{rank}"],
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    told = [json.loads(process.communicate(timeout=100)[0]) for process in started]
    assert [process.returncode for process in started] == [0, 0]
    expected: list[Any] = [None, True, False, True, False, True, [4], 4, 4, "no step 7"]
    expected += [False, True, False, False, [True, [2]], True, True, True]
    assert told == [expected, expected]
    for rank in range(2):
        lines = [json.loads(line) for line in (tmp_path / f"log{rank}").read_text().splitlines()]
        preempted = [line["step"] for line in lines if line["event"] == "save" and line.get("preempted")]
        assert preempted == [2], "each has the record of it"
        assert [line["step"] for line in lines if line["event"] == "delete"] == ([0, 2] if rank == 0 else [])


def test_an_unseen_failure_ends_the_program_with_1(tmp_path: Path) -> None:
    code = (
        "import resource, sys, numpy, regrow\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))\n"
        "steps = regrow.Manager(sys.argv[1])\n"
        "steps.save(1, {'w': numpy.ones(1 << 20)})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "too large" in done.stderr

"""Several processes that coordinate: through JAX' service, and through a folder."""

from __future__ import annotations

import subprocess
import sys
import threading
import types

import coordinators
import processes
import pytest

import regrow
from regrow import _native
from regrow._jobs import _coordination, _coordination_jax

ROUNDS = """
    import regrow
    from regrow._jobs._coordination import Session

    if arguments["folder"] is None:
        coordinator = regrow.jobs.coordinator()
    else:
        coordinator = regrow.jobs.Folder(arguments["folder"], rank=rank, size=size)
    assert (coordinator.rank, coordinator.size) == (rank, size)
    given = []
    for _ in range(3):
        with Session(coordinator, arguments["target"], "save", timeout=60) as session:
            session.shares_storage(arguments["target"])
            gathered = session.gather("index", b"%d" % rank * 5_000_000)
            if rank == 0:
                assert gathered == [b"%d" % each * 5_000_000 for each in range(size)]
            given.append(session.broadcast("plan", b"plan of %d" % rank).decode())
            try:
                session.agree("written", "no space" if arguments["fails"] == rank else None)
                given.append("agreed")
            except regrow.RegrowError as error:
                given.append(f"{type(error).__name__}: {error}")
    done(given)
"""


@pytest.mark.parametrize(
    ("service", "make"),
    [
        ("jax", "regrow.jobs.coordinator()"),
        ("folder", "regrow.jobs.Folder(arguments, rank=rank, size=size)"),
    ],
)
def test_a_coordinator_keeps_its_promises(tmp_path, service, make):
    worker = coordinators.promises(make)
    ended = processes.run(2, worker, tmp_path / "run", arguments=str(tmp_path / "meet"), jax=service == "jax")
    assert ended[0].value == ended[1].value
    assert set(ended[0].value) <= {0, 1}


@pytest.mark.parametrize(("service", "size"), [("jax", 2), ("jax", 4), ("folder", 3)])
def test_processes_gather_broadcast_and_agree(tmp_path, service, size):
    folder = None if service == "jax" else str(tmp_path / "meet")
    arguments = {"folder": folder, "target": str(tmp_path / "step_1"), "fails": None}
    ended = processes.run(size, ROUNDS, tmp_path / "run", arguments=arguments, jax=service == "jax")
    for each in ended:
        assert each.value == ["plan of 0", "agreed"] * 3
    assert not (tmp_path / "step_1").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"] if folder is None else ["meet", "run"]
    if folder is not None:
        assert list((tmp_path / "meet").iterdir()) == []


def test_an_error_of_one_process_is_an_error_of_all_and_the_next_attempt_starts_again(tmp_path):
    arguments = {"folder": None, "target": str(tmp_path / "step_1"), "fails": 1}
    ended = processes.run(2, ROUNDS, tmp_path / "run", arguments=arguments, jax=True)
    assert ended[1].value == ["plan of 0", "IoError: no space"] * 3
    assert ended[0].value == ["plan of 0", "IoError: rank 1 failed in phase `written`: no space"] * 3


KILLED = """
    import logging, os, signal
    import regrow
    from regrow._jobs._coordination import Session

    logging.basicConfig(level=logging.INFO)
    session = Session(regrow.jobs.coordinator(), arguments["target"], "save", timeout=arguments["timeout"])
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        session.agree("written")
        done("agreed")
    except regrow.errors.TimedOutError as error:
        done([str(error), time.monotonic() - began])
    # JAX would wait for the one that has died. Its service is in rank 0, which ends last.
    while rank == 0 and not os.path.exists(_result.replace("result-0", "result-1")):
        time.sleep(0.01)
    os._exit(0)
"""


@pytest.mark.parametrize(("timeout", "heartbeat"), [(3, 100), (100, 7)])
def test_survivors_of_a_killed_process_are_told_who_it_was(tmp_path, timeout, heartbeat):
    arguments = {"target": str(tmp_path / "step_1"), "timeout": timeout}
    options = {"jax": True, "recoverable": True, "heartbeat": heartbeat, "statuses": {2: -9}}
    ended = processes.run(3, KILLED, tmp_path / "run", arguments=arguments, **options)
    # After the time-out, or as soon as JAX has missed a heartbeat.
    has = "has not come to" if timeout < heartbeat else "has ended before"
    what = f"rank 2 {has} phase `written`"
    for each in ended[:2]:
        message, seconds = each.value
        assert what in message
        assert message.startswith(what) or "failed in phase `written`: " in message
        assert str(tmp_path / "step_1") in message
        assert seconds < 60
    if timeout > 10:
        assert "waits for rank 2 in phase `written`" in ended[0].output


def test_a_process_that_leaves_early_ends_the_others(tmp_path):
    worker = """
        import regrow
        from regrow._jobs._coordination import Session
        try:
            with Session(regrow.jobs.coordinator(), arguments, "save", timeout=100) as session:
                if rank == 1:
                    raise ValueError("not of regrow")
                session.agree("written")
        except (ValueError, regrow.RegrowError) as error:
            done(f"{type(error).__name__}: {error}")
    """
    ended = processes.run(2, worker, tmp_path / "run", arguments=str(tmp_path / "step_1"), jax=True)
    assert ended[1].value == "ValueError: not of regrow"
    assert ended[0].value.startswith("CancelledError: rank 1 failed in phase `leave`: it has left before its end")


def test_disks_that_are_not_shared_are_found_at_the_start(tmp_path):
    worker = """
        import os, regrow
        from regrow._jobs._coordination import Session
        target = f"{arguments}/disk-{rank % 2}/run/step_1"
        os.makedirs(f"{arguments}/disk-{rank % 2}", exist_ok=True)
        with Session(regrow.jobs.coordinator(), f"{arguments}/step_1", "save", timeout=6) as session:
            try:
                session.shares_storage(target)
            except regrow.errors.InvalidArgumentError as error:
                done(str(error))
    """
    ended = processes.run(3, worker, tmp_path / "run", arguments=str(tmp_path), jax=True)
    for each in ended:
        assert each.value.startswith("the folder is not shared: rank 1 does not see the files of rank 0")
    assert [list((tmp_path / f"disk-{disk}").iterdir()) for disk in range(2)] == [[], []]


def test_ctrl_c_ends_a_wait_in_every_process(tmp_path):
    worker = """
        import os, signal, threading
        import regrow
        from regrow._jobs._coordination import Session
        try:
            with Session(regrow.jobs.coordinator(), arguments, "save", timeout=100) as session:
                if rank == 1:
                    # A shell ignores the signal for background processes.
                    signal.signal(signal.SIGINT, signal.default_int_handler)
                    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
                    session.broadcast("plan")
                session.gather("index", b"")
        except (KeyboardInterrupt, regrow.errors.CancelledError) as error:
            done(type(error).__name__)
    """
    ended = processes.run(2, worker, tmp_path / "run", arguments=str(tmp_path / "step_1"), jax=True)
    assert [each.value for each in ended] == ["CancelledError", "KeyboardInterrupt"]


# ---- one process ----------------------------------------------------------------------


def test_importing_regrow_and_choosing_a_coordinator_imports_no_service():
    program = """
import sys, regrow
alone = regrow.jobs.coordinator()
assert (alone.rank, alone.size) == (0, 1)
regrow.save, regrow.load, regrow.jobs.Folder
found = [name for name in ("jax", "torch", "mpi4py") if name in sys.modules]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_one_process_with_jax_sends_no_messages():
    import jax  # noqa: F401

    assert regrow.jobs.coordinator().size == 1


def test_the_engines_coordinators_keep_the_protocol(tmp_path):
    for each in (regrow.jobs.coordinator(), regrow.jobs.Folder(tmp_path / "meet", rank=1, size=2)):
        assert isinstance(each, _coordination.Coordinator)
        assert each.put_if_absent("a/b", b"x")
        assert not each.put_if_absent("a/b", b"y")
        assert each.get("a/b", 0) == b"x"
        assert each.get("a", 0.01) is None
        each.remove("a")
        assert each.get("a/b", 0) is None
        assert each.value_len_max_bytes > 1 << 20
    assert regrow.jobs.coordinator().live() == [0]
    with pytest.raises(regrow.errors.InvalidArgumentError, match="the rank does not exist"):
        regrow.jobs.Folder(tmp_path, rank=2, size=2)
    for wrong in (None, -1, "1", 1.5):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="rank="):
            regrow.jobs.Folder(tmp_path, rank=wrong, size=2)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="seconds"):
        regrow.jobs.Folder(tmp_path, rank=0, size=2).get("x", -1.0)


class Dict:
    """A coordinator of Python for threads."""

    value_len_max_bytes = 64

    def __init__(self, rank, size, keys, changed):
        self.rank, self.size, self.keys, self.changed = rank, size, keys, changed

    def put_if_absent(self, key, value):
        assert 0 < len(value) <= 64
        with self.changed:
            self.changed.notify_all()
            return self.keys.setdefault(key, value) is value

    def get(self, key, wait):
        with self.changed:
            self.changed.wait_for(lambda: key in self.keys, wait)
            return self.keys.get(key)

    def remove(self, key):
        with self.changed:
            for each in [each for each in self.keys if each == key or each.startswith(f"{key}/")]:
                del self.keys[each]

    def live(self):
        return None


def on_threads(size, work):
    given = [None] * size

    def run(rank):
        given[rank] = work(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return given


class GivesMany(Dict):
    """One that gives many values in one call, which the protocol does not ask for."""

    asked = 0

    def get_many(self, keys):
        with self.changed:
            self.asked += 1
            return {key: self.keys[key] for key in keys if key in self.keys}


class GivesNone(Dict):
    """A coordinator whose service turns out to lack such a call."""

    def get_many(self, keys):
        return None


@pytest.mark.parametrize("kind", [Dict, GivesMany, GivesNone])
def test_any_object_of_the_protocol_will_do(kind):
    keys, changed = {}, threading.Condition()

    def work(rank):
        coordinator = kind(rank, 3, keys, changed)
        with _coordination.Session(coordinator, "/data/step_1", "save", prefix="own") as session:
            if rank == 0:
                assert all(key.startswith("own/save/step_1-") for key in keys)
            gathered = session.gather("index", bytes([rank]) * 1000)
            if rank == 0 and kind is GivesMany:
                assert coordinator.asked > 0
            return gathered, session.broadcast("plan", b"x")

    given = on_threads(3, work)
    assert given[0] == ([bytes([rank]) * 1000 for rank in range(3)], b"x")
    assert given[1:] == [(None, b"x")] * 2
    assert keys == {}


def test_what_a_coordinator_raises_is_in_the_error():
    class Broken(Dict):
        def get(self, key, wait):
            raise RuntimeError("UNAVAILABLE: socket closed")

    with pytest.raises(regrow.errors.IoError, match=r"`get` of the coordinator Broken raised .*UNAVAILABLE") as caught:
        _coordination.Session(Broken(0, 2, {}, threading.Condition()), "/data/x", "save")
    assert "rank 0 still runs" in caught.value.help


def test_a_jax_without_what_is_needed_is_refused_by_name():
    client = types.SimpleNamespace(key_value_set_bytes=None, key_value_delete=None)
    with pytest.raises(
        regrow.errors.UnsupportedError, match="lacks key_value_try_get_bytes, blocking_key_value_get_bytes"
    ) as caught:
        _coordination_jax.JaxCoordinator(client, 0, 2, False)
    assert "regrow.jobs.Folder" in caught.value.help


def test_several_processes_of_jax_are_never_taken_for_one(monkeypatch):
    import jax

    monkeypatch.setitem(sys.modules, "jax._src.distributed", types.SimpleNamespace())
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    with pytest.raises(regrow.errors.UnsupportedError, match=r"the coordination service of JAX .* is not known"):
        regrow.jobs.coordinator()
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: False)
    jax.devices()
    assert regrow.jobs.coordinator().size == 1
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(regrow.errors.UnsupportedError, match="4 processes of JAX") as caught:
        regrow.jobs.coordinator()
    assert "jax.distributed.initialize" in caught.value.help


def test_a_session_is_used_up_when_it_ends():
    session = _coordination.Session(regrow.jobs.coordinator(), "/data/x", "save")
    with session:
        assert session.gather("index", b"x") == [b"x"]
    with pytest.raises(regrow.errors.InvalidArgumentError, match="has ended"):
        session.agree("late")
    with pytest.raises(regrow.errors.InvalidArgumentError, match="the purpose is not valid in a key"):
        _coordination.Session(_native.Coordinator.single(), "/data/x", "a/b")

"""Processes of one host that restore in turns. Threads stand for ranks; each has a coordinator
of its own.
"""

from __future__ import annotations

import itertools
import platform
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import regrow

TREE = {"w": np.arange(100.0), "b": np.ones(3)}


@pytest.fixture
def path(tmp_path):
    regrow.save(tmp_path / "step", TREE)
    return tmp_path / "step"


def on_ranks(size, path, work, *, only=None, timeout=30):
    """What `work(rank, load)` gives on each rank; an error if it raises one."""

    def on(rank):
        job = regrow.jobs.Job(regrow.jobs.Folder(path.parent / "meet", rank=rank, size=size), timeout=timeout)
        try:
            return work(
                rank,
                lambda cast=None, **options: regrow.load(
                    path, cast=cast, options=regrow.Options(in_turns=True, job=job, **options)
                ),
            )
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(on, range(size) if only is None else only))


def test_reads_of_one_host_do_not_overlap(path, monkeypatch):
    # Ranks 0, 1 and 3 on one host, 2 and 4 on another one.
    of_thread = threading.local()
    monkeypatch.setattr(platform, "node", lambda: of_thread.host)
    intervals, reports = {}, {}
    other_host_reads = threading.Event()

    def work(rank, load):
        of_thread.host = "a" if rank in (0, 1, 3) else "b"

        def region(leaf, shape):
            began = intervals.setdefault(rank, [time.monotonic()])
            # Another host has turns of its own: it does not wait for this one.
            if rank == 2:
                other_host_reads.set()
            elif rank == 1:
                assert other_host_reads.wait(20), "rank 2 waits for ranks of another host"
            time.sleep(0.1)
            intervals[rank] = [began[0], time.monotonic()]

        loaded = load(region=region, on_report=lambda report: reports.setdefault(rank, report))
        return loaded["w"].tobytes() == TREE["w"].tobytes(), time.monotonic()

    given = on_ranks(5, path, work)
    assert [each[0] for each in given] == [True] * 5, given
    for host in ((0, 1, 3), (2, 4)):
        for before, after in itertools.pairwise(host):
            assert intervals[before][1] <= intervals[after][0]
            waited = {stage.stage: stage.seconds for stage in reports[after].stages}["wait_for_turn"]
            assert waited >= 0.1
    # All return when all have had their turn.
    last = max(end for _, end in intervals.values())
    assert all(returned >= last for _, returned in given)


def test_an_error_in_a_turn_is_an_error_of_all(path):
    def work(rank, load):
        return load(cast="no such dtype" if rank == 1 else None)

    given = on_ranks(3, path, work)
    assert all(isinstance(error, regrow.errors.InvalidArgumentError) for error in given), given
    assert "no such dtype" in str(given[1]) and not str(given[1]).startswith("rank")
    assert str(given[0]).startswith("rank 1 failed") and str(given[2]).startswith("rank 1 failed")
    # The next restore is another one.
    given = on_ranks(3, path, lambda rank, load: load()["b"].sum())
    assert given == [3.0] * 3


def test_who_is_stuck_in_its_turn_is_named(path):
    others_are_done = threading.Barrier(3, timeout=60)

    def work(rank, load):
        def stuck(leaf, shape):
            others_are_done.wait()
            raise ValueError("late")

        try:
            return load(region=stuck if rank == 1 else {})
        finally:
            if rank != 1:
                others_are_done.wait()

    began = time.monotonic()
    given = on_ranks(3, path, work, timeout=2)
    assert time.monotonic() - began < 20
    assert isinstance(given[1], ValueError)
    for error in (given[0], given[2]):
        assert isinstance(error, regrow.errors.TimedOutError), given
        assert "rank 1" in str(error) and "phase `turn`" in str(error), error


def test_who_never_comes_is_named(path):
    (error,) = on_ranks(2, path, lambda rank, load: load(), only=[0], timeout=0.3)
    assert isinstance(error, regrow.errors.TimedOutError) and "rank 1" in str(error)


def test_a_process_alone_has_its_turn_at_once(path):
    assert regrow.load(path, options=regrow.Options(in_turns=True))["b"].sum() == 3
    assert regrow.open(path).load(options=regrow.Options(job=regrow.jobs.Job.alone(), in_turns=True))["b"].sum() == 3
    # Work of a single process waits for no other.
    job = regrow.jobs.Job(regrow.jobs.Folder(path.parent / "meet", rank=0, size=2), timeout=0.1)
    assert regrow.load(path, options=regrow.Options(job=job))["b"].sum() == 3

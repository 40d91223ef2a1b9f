"""The interpreter is free while the engine works; forks and threads find nothing of it left
behind.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow

TREE = {f"w{i}": np.full((256, 1024), i, dtype=np.float32) for i in range(32)}


def counts_while(work: object) -> int:
    """How far another thread counts while `work` runs."""
    count, stop = 0, threading.Event()

    def run() -> None:
        nonlocal count
        while not stop.is_set():
            count += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        work()  # type: ignore[operator]
        return count
    finally:
        stop.set()
        thread.join()


def test_another_thread_runs_while_saving_and_verifying(path: Path) -> None:
    assert counts_while(lambda: regrow.save(path, TREE)) > 10_000
    assert counts_while(lambda: regrow.verify(path)) > 1_000


def test_saves_and_loads_from_many_threads(tmp_path: Path) -> None:
    def one(number: int) -> int:
        path = tmp_path / str(number)
        regrow.save(path, {"n": np.full(1000, number), "t": str(number)}, durable=False)
        loaded = regrow.load(path)
        assert loaded["t"] == str(number)
        return int(loaded["n"].sum())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(32))) == [1000 * number for number in range(32)]


ASKING = """
import sys, threading
import regrow

with regrow.Manager(sys.argv[1], options=regrow.SaveOptions(durable=False)) as manager:
    sys.setswitchinterval(1e-6)
    ask = lambda: [manager._lock.check() for _ in range(200)]
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_ask_a_managers_lock_at_once_all_hear(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ASKING, tmp_path / "run"], timeout=60, check=True)


def test_one_checkpoint_read_by_many_threads(path: Path) -> None:
    regrow.save(path, TREE)
    ckpt = regrow.open(path)
    with ThreadPoolExecutor(8) as pool:
        sums = pool.map(lambda i: int(ckpt[f"w{i % 32}"][3:5].sum()), range(128))
        assert list(sums) == [2048 * (i % 32) for i in range(128)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_save_and_load_in_a_forked_child(tmp_path: Path) -> None:
    regrow.save(tmp_path / "before", TREE)
    loaded = regrow.load(tmp_path / "before")
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            regrow.save(tmp_path / "child", loaded)
            np.testing.assert_array_equal(regrow.load(tmp_path / "child")["w3"], TREE["w3"])
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(regrow.load(tmp_path / "child")["w7"], TREE["w7"])


def test_no_threads_are_left_behind(path: Path) -> None:
    threads = Path("/proc/self/task")  # the engine is for Linux, which has it
    before = len(list(threads.iterdir()))
    regrow.save(path, TREE)
    regrow.load(path)
    # A thread that has been joined may stay in the list for a moment.
    deadline = time.monotonic() + 5
    while len(list(threads.iterdir())) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(list(threads.iterdir())) <= before


def test_saved_arrays_are_let_go(path: Path) -> None:
    import weakref

    class Owned(np.ndarray):  # a plain array takes no weak reference to its memory's owner
        pass

    owner = np.arange(1 << 16).view(Owned)
    alive = weakref.ref(owner)
    regrow.save(path, {"a": np.asarray(owner)})
    del owner
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("options", [{}, {"layout": "orbax"}, {"layout": regrow.layouts.Orbax(ocdbt=False)}])
def test_a_reader_beside_a_writer_sees_one_checkpoint_or_another(path: Path, options: dict[str, Any]) -> None:
    def save(value: int) -> None:
        tree = {f"k{i}": np.full(2000, value) for i in range(8)}
        regrow.save(path, tree, overwrite=True, durable=False, **options)

    save(0)
    writer = threading.Thread(target=lambda: [save(value) for value in range(1, 40)])
    writer.start()
    while writer.is_alive():
        loaded = regrow.load(path)
        assert len({int(number) for array in loaded.values() for number in array}) == 1
    writer.join()

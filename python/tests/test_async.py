"""Saves in the background: what is in them, in which order, what becomes of failures, forks and
exits.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import regrow
from regrow.jobs import AsyncSaver

RANDOM = np.random.default_rng(0)
SLOW = {"w": RANDOM.integers(0, 256, 6 << 20, np.uint8)}
"""With `SLOW_OPTIONS`, a save of this takes about a second."""
SLOW_OPTIONS: dict[str, Any] = {"layout": "orbax", "compression": ("zstd", 15), "durable": False}


@pytest.fixture
def saver() -> Iterator[AsyncSaver]:
    saver = AsyncSaver()
    yield saver
    while True:
        try:
            saver.wait()
            return
        except regrow.RegrowError:
            pass


def test_saves_what_the_tree_held(tmp_path: Path, saver: AsyncSaver) -> None:
    array = np.arange(1 << 20, dtype=np.float32)
    strided = array.reshape(1024, 1024).T
    tree = {"a": array, "b": [strided, 3], "c": "text"}
    slow = saver.save(tmp_path / "slow", SLOW, **SLOW_OPTIONS)
    save = saver.save(tmp_path / "x", tree, when_busy="queue")
    assert not save.skipped and save.blocked.copied_bytes >= 2 * array.nbytes
    array[:] = -1
    report = save.result()
    assert report is not None and report.leaf_count == 4 and save.done() and slow.done()
    loaded = regrow.load(tmp_path / "x")
    np.testing.assert_array_equal(loaded["a"], np.arange(1 << 20, dtype=np.float32))
    np.testing.assert_array_equal(loaded["b"][0], np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024).T)
    assert (loaded["b"][1], loaded["c"]) == (3, "text")


def test_jax_arrays_are_referred_to_and_donation_does_no_harm(tmp_path: Path, saver: AsyncSaver) -> None:
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    big, small = jnp.zeros(1 << 20), jnp.zeros(16)
    jax.block_until_ready((big, small))
    saver.save(tmp_path / "slow", SLOW, **SLOW_OPTIONS)
    save = saver.save(tmp_path / "x", {"big": big, "small": small}, when_busy="queue")
    assert save.blocked.copied_bytes == small.nbytes
    for _ in range(5):
        big, small = step(big), step(small)
    jax.block_until_ready((big, small))
    save.result()
    loaded = regrow.load(tmp_path / "x")
    assert not loaded["big"].any() and not loaded["small"].any()


def test_copying_all_leaves_jax_free_to_donate(tmp_path: Path, saver: AsyncSaver) -> None:
    big = jax.block_until_ready(jnp.zeros(1 << 20))
    saver.save(tmp_path / "slow", SLOW, **SLOW_OPTIONS)
    saver.save(tmp_path / "x", {"big": big}, when_busy="queue", options=regrow.Options(copy="all"))
    jax.block_until_ready(jax.jit(lambda x: x + 1, donate_argnums=0)(big))
    assert big.is_deleted()


def test_waits_skips_or_queues(tmp_path: Path, saver: AsyncSaver) -> None:
    first = saver.save(tmp_path / "0", SLOW, **SLOW_OPTIONS)
    skipped = saver.save(tmp_path / "1", {"a": 1}, when_busy="skip")
    assert skipped.skipped and skipped.done() and skipped.result() is None
    queued = saver.save(tmp_path / "2", {"a": 2}, when_busy="queue")
    assert not first.done() and not queued.done() and saver.is_busy()
    with pytest.raises(TimeoutError):
        queued.result(0.01)
    with pytest.raises(TimeoutError):
        saver.wait(0.01)
    began = time.perf_counter()
    waited = saver.save(tmp_path / "3", {"a": 3})
    seconds = time.perf_counter() - began
    assert first.done() and queued.done()
    # It did little else.
    assert seconds / 2 < waited.blocked.waited_seconds <= waited.blocked.seconds <= seconds
    saver.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2", "3"]


def test_taking_the_tree_apart_counts_as_blocked(tmp_path: Path, saver: AsyncSaver) -> None:
    class Slow:
        pass

    def take_apart(_: Slow) -> tuple[tuple[int], None]:
        time.sleep(0.05)
        return (1,), None

    jax.tree_util.register_pytree_node(Slow, take_apart, lambda _, children: children[0])
    save = saver.save(tmp_path / "x", {"slow": Slow()})
    assert save.blocked.seconds > 0.05 and save.blocked.waited_seconds < save.blocked.seconds / 2
    report = save.result()
    assert report is not None
    assert next(stage for stage in report.stages if stage.stage == "snapshot").seconds > 0.025


def test_a_failure_is_told_by_the_next_call(tmp_path: Path, saver: AsyncSaver) -> None:
    saver.save(tmp_path / "no" / "x", {"a/b": 1, "a": {"b": 2}}, layout=regrow.layouts.Safetensors(separator="/"))
    with pytest.raises(regrow.RegrowError, match="in the background failed"):
        saver.save(tmp_path / "y", {"a": 1})
    assert not (tmp_path / "y").exists()
    saver.save(tmp_path / "y", {"a": 1}).result()


def test_only_the_waiting_call_gets_the_error(tmp_path: Path, saver: AsyncSaver) -> None:
    save = saver.save(tmp_path / "x", {"a/b": 1, "a": {"b": 2}}, layout=regrow.layouts.Safetensors(separator="/"))
    for _ in range(2):
        with pytest.raises(regrow.errors.NameCollisionError):
            save.result()
    saver.wait()
    with pytest.raises(regrow.errors.LeafTypeError):
        saver.save(tmp_path / "x", {"a": object()})
    (tmp_path / "x").mkdir()
    with pytest.raises(regrow.errors.AlreadyExistsError):
        saver.save(tmp_path / "x", {"a": 1})
    for wrong in ({"when_busy": "never"}, {"copy": "some"}):
        with pytest.raises(regrow.errors.InvalidArgumentError):
            saver.save(tmp_path / "z", {"a": 1}, **wrong)  # type: ignore[arg-type]


def test_cancel_leaves_nothing(tmp_path: Path, saver: AsyncSaver) -> None:
    running = saver.save(tmp_path / "a", SLOW, **SLOW_OPTIONS)
    queued = saver.save(tmp_path / "b", {"a": 1}, when_busy="queue")
    queued.cancel()
    running.cancel()
    for save in (running, queued):
        with pytest.raises(regrow.errors.CancelledError):
            save.result()
    saver.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_changed_source_is_named(tmp_path: Path, saver: AsyncSaver) -> None:
    tree = {"a": np.zeros(1000), "b": {"c": np.zeros(1000)}}
    saver.save(tmp_path / "slow", SLOW, **SLOW_OPTIONS)
    save = saver.save(
        tmp_path / "x", tree, when_busy="queue", options=regrow.Options(copy="nothing", check_source=True)
    )
    tree["b"]["c"][7] = 1  # type: ignore[index]
    with pytest.raises(regrow.errors.SourceChangedError) as caught:
        save.result()
    assert caught.value.leaf == "b/c"
    assert not (tmp_path / "x").exists()


def test_awaited(tmp_path: Path) -> None:
    async def main() -> int:
        save = regrow.save_async(tmp_path / "x", {"a": np.zeros(10)})
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while not save.done():
                ticks += 1
                await asyncio.sleep(0)

        report, _ = await asyncio.gather(_awaited(save), tick())
        assert report is not None and report.leaf_count == 1
        return ticks

    async def _awaited(save: regrow.reports.SaveHandle) -> regrow.reports.SaveReport | None:
        return await save

    asyncio.run(main())
    assert regrow.load(tmp_path / "x")["a"].shape == (10,)


def test_ctrl_c_ends_the_wait_and_not_the_save(tmp_path: Path, saver: AsyncSaver) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        save = saver.save(tmp_path / "x", SLOW, **SLOW_OPTIONS)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            save.result()
    finally:
        signal.signal(signal.SIGALRM, before)
    save.result()
    np.testing.assert_array_equal(regrow.load(tmp_path / "x")["w"], SLOW["w"])


def test_ctrl_c_ends_the_wait_for_room_in_the_queue(tmp_path: Path, saver: AsyncSaver) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    tree = {str(i): SLOW["w"] for i in range(10)}
    saves = [saver.save(tmp_path / "0", tree, options=regrow.Options(copy="nothing"), **SLOW_OPTIONS)]
    for i in range(1, 10):
        if i == 9:
            before = signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            saves.append(
                saver.save(
                    tmp_path / str(i), tree, when_busy="queue", options=regrow.Options(copy="nothing"), **SLOW_OPTIONS
                )
            )
        except KeyboardInterrupt:
            break
    signal.signal(signal.SIGALRM, before)
    assert len(saves) == 9 and not any(save.done() for save in saves)
    for save in saves:
        save.cancel()
    saver.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_bad_option_is_told_before_the_wait(tmp_path: Path, saver: AsyncSaver) -> None:
    slow = saver.save(
        tmp_path / "slow",
        {str(i): SLOW["w"] for i in range(10)},
        options=regrow.Options(copy="nothing"),
        **SLOW_OPTIONS,
    )
    with pytest.raises(regrow.errors.InvalidArgumentError, match="copy"):
        saver.save(tmp_path / "x", {"a": 1}, options=regrow.Options(copy="some"))  # type: ignore[arg-type]
    assert not slow.done()
    slow.cancel()


def test_a_saver_that_is_let_go_finishes(tmp_path: Path) -> None:
    saver = AsyncSaver()
    saver.save(tmp_path / "x", SLOW, **SLOW_OPTIONS)
    del saver
    gc.collect()
    assert (tmp_path / "x").exists()


def test_arrays_are_let_go_without_another_call(tmp_path: Path, saver: AsyncSaver) -> None:
    array = jnp.zeros(1 << 18)
    alive = weakref.ref(array)
    saver.save(tmp_path / "x", {"a": array})
    del array
    deadline = time.monotonic() + 30
    while alive() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert alive() is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_a_forked_child_neither_waits_nor_hangs(tmp_path: Path, saver: AsyncSaver) -> None:
    default = regrow.save_async(tmp_path / "default", {"a": 1})
    save = saver.save(tmp_path / "parent", SLOW, **SLOW_OPTIONS)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            assert not saver.is_busy() and not save.done()
            for call in (save.result, saver.wait, default.result):
                with pytest.raises(regrow.errors.InvalidArgumentError, match="parent process"):
                    call()
            regrow.save_async(tmp_path / "child", {"a": 2}).result()
            del saver, save
            gc.collect()
            sys.stdout.flush()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    save.result()
    default.result()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["child", "default", "parent"]
    np.testing.assert_array_equal(regrow.load(tmp_path / "parent")["w"], SLOW["w"])


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_end_of_the_program_waits(tmp_path: Path) -> None:
    script = """
        import sys, numpy as np, regrow
        regrow.save_async(sys.argv[1], {"a": np.zeros(1 << 24, np.uint8)})
        print("the program is done")
    """
    done = run(script, tmp_path / "x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "the program is done\n", "")
    assert regrow.load(tmp_path / "x")["a"].shape == (1 << 24,)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_failure_at_the_end_is_seen_and_changes_the_status(tmp_path: Path) -> None:
    script = """
        import atexit, sys, regrow
        atexit.register(print, "another handler")
        regrow.save_async(sys.argv[1], {"a/b": 1, "a": {"b": 2}}, layout=regrow.layouts.Safetensors(separator="/"))
        print("the program is done")
    """
    done = run(script, tmp_path / "x")
    assert done.returncode == 1
    assert done.stdout == "the program is done\nanother handler\n"
    assert "in the background failed" in done.stderr and str(tmp_path / "x") in done.stderr


def test_a_failure_that_was_seen_does_not(tmp_path: Path) -> None:
    script = """
        import sys, regrow
        layout = regrow.layouts.Safetensors(separator="/")
        save = regrow.save_async(sys.argv[1], {"a/b": 1, "a": {"b": 2}}, layout=layout)
        try:
            save.result()
        except regrow.errors.NameCollisionError:
            print("seen")
    """
    done = run(script, tmp_path / "x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "seen\n", "")

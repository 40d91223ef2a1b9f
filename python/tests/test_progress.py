"""Progress, reports and Ctrl-C: of saves, loads, verifications and conversions."""

from __future__ import annotations

import itertools
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import regrow
from regrow._core import _progress

TREE = {"a": np.arange(3_000_000, dtype=np.float64), "b": np.ones(3)}
DATA_BYTES = 24_000_024


class StopItError(Exception):
    """What a callback raises."""


def works(tmp_path: Path) -> dict[str, Callable[[Any], object]]:
    """Each kind of work, as a function of `progress`."""
    source = tmp_path / "source"
    regrow.save(source, TREE, progress=False)
    return {
        "save": lambda progress: regrow.save(tmp_path / "new", TREE, progress=progress),
        "overwrite": lambda progress: regrow.save(source, {"a": np.zeros(3)}, overwrite=True, progress=progress),
        "load": lambda progress: regrow.load(source, progress=progress),
        "like": lambda progress: regrow.load(source, like=TREE, progress=progress),
        "verify": lambda progress: regrow.verify(source, progress=progress),
        "convert": lambda progress: regrow.convert(source, tmp_path / "new", layout="npy", progress=progress),
    }


@pytest.mark.parametrize("what", ["save", "load", "like", "verify", "convert"])
def test_a_callback_is_told_of_all_bytes_on_its_own_thread(tmp_path: Path, what: str) -> None:
    told: list[tuple[int, int]] = []
    threads = set()

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        threads.add(threading.get_ident())

    works(tmp_path)[what](progress)
    assert told[-1] == (DATA_BYTES, DATA_BYTES)
    assert all(one[0] <= other[0] for one, other in itertools.pairwise(told))
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("at", [0, DATA_BYTES])
@pytest.mark.parametrize("what", ["save", "overwrite", "load", "like", "verify", "convert"])
def test_what_a_callback_raises_ends_the_work_and_nothing_is_left(tmp_path: Path, what: str, at: int) -> None:
    work = works(tmp_path)[what]

    def stop(done: int, total: int) -> None:
        if done >= min(at, total):
            raise StopItError

    with pytest.raises(StopItError):
        work(stop)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    np.testing.assert_array_equal(regrow.load(tmp_path / "source")["a"], TREE["a"])


def test_a_callback_works_on_other_threads_too(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    work = works(tmp_path)["save"]
    thread = threading.Thread(target=work, args=(lambda *state: told.append(state),))
    thread.start()
    thread.join()
    assert told[-1] == (DATA_BYTES, DATA_BYTES)


def test_other_values_of_progress_are_refused(tmp_path: Path) -> None:
    with pytest.raises(regrow.errors.InvalidArgumentError, match="progress"):
        regrow.save(tmp_path / "x", TREE, progress="yes")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_the_report_says_where_the_time_went(tmp_path: Path) -> None:
    report = regrow.save(tmp_path / "x", TREE)
    path, stored_bytes, leaf_count = report[:3]
    assert (path, leaf_count) == (os.fspath(tmp_path / "x"), 2)
    assert stored_bytes == sum(file.stat().st_size for file in (tmp_path / "x").rglob("*") if file.is_file())
    assert report.data_bytes == DATA_BYTES
    assert report.reused_bytes == 0
    assert report.gb_per_s == pytest.approx(DATA_BYTES / report.seconds / 1e9)
    stages = {stage.stage: stage for stage in report.stages}
    own = sum(stage.seconds for name, stage in stages.items() if name not in ("write", "read"))
    assert own == pytest.approx(report.seconds, rel=0.01)
    assert stages["copy"].bytes >= DATA_BYTES
    assert stages["write"].gb_per_s == pytest.approx(stages["write"].bytes / stages["write"].seconds / 1e9)
    assert report.io_path == "direct" or report.io_path.startswith("buffered (the file system refuses direct I/O")
    text = str(report)
    assert "2 leaves, 22.9 MiB of data" in text
    assert all(name in text for name in ("prepare", "copy", "sync", "commit", "GB/s"))
    converted = regrow.convert(tmp_path / "x", tmp_path / "y", layout="npy")
    assert converted.save.data_bytes == DATA_BYTES
    assert {"read", "copy", "commit"} <= {stage.stage for stage in converted.save.stages}


def test_keep_cached_saves_through_the_page_cache(tmp_path: Path) -> None:
    kept = regrow.Options(keep_cached=True)
    reports = {
        "save": regrow.save(tmp_path / "save", TREE, options=kept),
        "save_async": regrow.save_async(tmp_path / "save_async", TREE, options=kept).result(),
        "save_items": regrow.save_items(tmp_path / "save_items", {"state": TREE}, options=kept),
        "convert": regrow.convert(tmp_path / "save", tmp_path / "convert.safetensors", options=kept).save,
    }
    with regrow.Manager(tmp_path / "run", options=regrow.SaveOptions(options=kept)) as steps:
        saved = steps.save(1, TREE)
        assert saved is not None
        reports["manager"] = saved.result()
    with regrow.options(keep_cached=True):
        reports["block"] = regrow.save(tmp_path / "block", TREE)
    paths = {name: report.io_path for name, report in reports.items()}
    assert paths == dict.fromkeys(reports, "page cache")


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
import regrow

# A job in the background of a shell starts with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
data = np.random.default_rng(0).random(200_000)
tree = {f"leaf{at}": data for at in range(300)}

def interrupt():
    while not os.listdir(os.path.dirname(sys.argv[1])):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

try:
    threading.Thread(target=interrupt).start()
    regrow.save(sys.argv[1], tree, layout="orbax", compression=("zstd", 19), progress=False)
except KeyboardInterrupt:
    print("interrupted", len(os.listdir(os.path.dirname(sys.argv[1]))))
else:
    print("saved")
"""


def test_ctrl_c_ends_a_save_and_leaves_nothing(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "x")], capture_output=True, text=True, timeout=300
    )
    assert run.stdout == "interrupted 0\n", run.stderr


def on_terminal(code: str, *arguments: str) -> str:
    """What a program writes to stderr when that is a terminal."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert program.wait(timeout=60) == 0
    return written.decode()


ON_TERMINAL = """
import importlib.util, sys
import numpy as np
import regrow
from regrow._core import _progress

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in sys.argv[3] else find_spec(name, *rest)
_progress.SHOW_AFTER_SECONDS = float(sys.argv[2])
regrow.save(sys.argv[1], {"a": np.zeros(3_000_000)})
assert not {"tqdm", "rich"} & set(sys.modules) or sys.argv[2] == "0", sys.modules
"""


def test_on_a_terminal_there_is_a_bar_after_a_second_only(tmp_path: Path) -> None:
    assert on_terminal(ON_TERMINAL, str(tmp_path / "x"), "1000", "[]") == ""
    plain = on_terminal(ON_TERMINAL, str(tmp_path / "y"), "0", "['tqdm', 'rich']")
    assert "saving: 22.9 MiB of 22.9 MiB (100 %)" in plain
    assert plain.endswith(" \r")
    assert "saving" in on_terminal(ON_TERMINAL, str(tmp_path / "z"), "0", "[]")


def test_without_a_terminal_there_is_none_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    regrow.save(tmp_path / "x", TREE)
    assert capsys.readouterr().err == ""
    regrow.save(tmp_path / "y", TREE, progress=True)
    assert "saving" in capsys.readouterr().err


class _Tqdm:
    """A stand-in that keeps what it is told."""

    made: ClassVar[list[_Tqdm]] = []

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.n = 0
        self.total = options["total"]
        self.is_closed = False
        _Tqdm.made.append(self)

    def update(self, by: int) -> None:
        self.n += by

    def close(self) -> None:
        self.is_closed = True


def test_tqdm_is_used_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        tqdm = _Tqdm

    monkeypatch.setattr(_progress.importlib.util, "find_spec", lambda name: object() if name == "tqdm" else None)
    real = _progress.importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        return Module if name.startswith("tqdm") else real(name, package)

    monkeypatch.setattr(_progress.importlib, "import_module", import_module)
    regrow.save(tmp_path / "x", TREE, progress=True)
    (bar,) = _Tqdm.made
    assert (bar.n, bar.total, bar.is_closed) == (DATA_BYTES, DATA_BYTES, True)
    assert bar.options["leave"] is True


def test_a_broken_terminal_costs_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            raise OSError("the terminal has gone")

    monkeypatch.setattr(_progress.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "stderr", Broken())
    regrow.save(tmp_path / "x", TREE, progress=True)
    assert regrow.verify(tmp_path / "x", progress=False)


def test_a_signal_handler_that_does_not_raise_changes_nothing(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: seen.append(number))
    try:
        timer = threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        regrow.save(tmp_path / "x", TREE)
        timer.join()
        time.sleep(0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]
    assert regrow.verify(tmp_path / "x")


def test_an_exception_of_the_function_ends_a_save_in_the_background(path: Path) -> None:
    def fails(done: int, total: int) -> None:
        raise KeyError("of the caller")

    handle = regrow.save_async(path, {"a": np.zeros(1 << 24)}, progress=fails)
    with pytest.raises(KeyError, match="of the caller"):
        handle.result()
    # A function that is first called when the save is committed cannot undo it.
    assert not path.exists() or regrow.verify(path).ok


def test_a_save_in_the_background_tells_its_progress(path: Path) -> None:
    told: list[tuple[int, int]] = []
    regrow.save_async(path, {"a": np.zeros(1 << 16)}, progress=lambda *now: told.append(now)).result()
    assert told[-1] == (8 << 16, 8 << 16)

"""`copy`, `remove`, `list_checkpoints`: whole checkpoints, between disks, memory and a bucket."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_servers import S3Bucket
from bucket_suite import tree
from conftest import assert_same
from test_buckets import bucket, options, s3, same  # noqa: F401

import regrow

LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "regrow": ("x", {}),
    "regrow, compressed": ("x", {"compression": "zstd"}),
    "orbax": ("x", {"layout": "orbax"}),
    "orbax without ocdbt": ("x", {"layout": regrow.layouts.Orbax(ocdbt=False)}),
    "orbax v1": ("x", {"layout": regrow.layouts.Orbax(v1=True)}),
    "flax": ("x.msgpack", {"layout": "flax"}),
    "equinox": ("x.eqx", {"layout": "equinox"}),
    "pytree_data": ("x", {"layout": "pytree_data"}),
    "safetensors": ("x.safetensors", {"layout": "safetensors"}),
    "safetensors in a folder": ("x", {"layout": regrow.layouts.Safetensors(max_shard_bytes=2000)}),
    "npz": ("x.npz", {"layout": "npy"}),
    "npy": ("x", {"layout": "npy"}),
}
LONG = {"a": np.arange(3_000_000, dtype=np.float64), "b": np.ones(3)}

_buckets = itertools.count()


class StopItError(Exception):
    """What a callback raises."""


@pytest.fixture
def in_memory() -> str:
    """The URL of an empty bucket in memory."""
    return f"memory://{__name__}-{next(_buckets)}"


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {os.fspath(path.relative_to(folder)): path.read_bytes() for path in found}


def without_marker(found: dict[str, bytes]) -> dict[str, bytes]:
    """A bucket needs the marker of the layout; on a disk some have none."""
    return {name: data for name, data in found.items() if Path(name).name != "commit_success.txt"}


# ---- copy -----------------------------------------------------------------------------


def test_a_copy_has_the_bytes_of_its_source(tmp_path: Path) -> None:
    source, target = tmp_path / "from" / "x", tmp_path / "to" / "x"
    regrow.save(source, tree(), compression="zstd")
    report = regrow.copy(source, target)
    found = files(tmp_path / "to")
    assert found == files(tmp_path / "from")
    assert report[:4] == (os.fspath(target), len(found), sum(map(len, found.values())), 0)
    assert report.seconds > 0
    assert_same(regrow.load(target), regrow.load(source))
    regrow.save(source, tree(2.0), overwrite=True)
    regrow.copy(source, target, overwrite=True)
    assert same(regrow.load(target), tree(2.0))


@pytest.mark.parametrize("layout", ["regrow", "orbax", "safetensors"])
def test_to_a_bucket_and_back(options: dict[str, str], s3: S3Bucket, layout: str, tmp_path: Path) -> None:  # noqa: F811
    name = "x.safetensors" if layout == "safetensors" else "x"
    runs = regrow.Location(f"s3://runs/copies/{layout}", **options)
    source, target = tmp_path / "from" / name, tmp_path / "to" / name
    regrow.save(source, tree(), layout=layout)
    regrow.copy(source, runs / name)
    assert regrow.verify(runs / name).ok
    regrow.copy(f"s3://runs/copies/{layout}/{name}", target, storage_options=options)
    assert_same(regrow.load(target), regrow.load(source))
    came = files(tmp_path / "to")
    assert without_marker(came) == without_marker(files(tmp_path / "from"))
    (listed,) = regrow.list_checkpoints(f"s3://runs/copies/{layout}", storage_options=options)
    assert (listed.name, listed.layout, listed.state) == (name, layout, "committed")
    regrow.remove(f"s3://runs/copies/{layout}/{name}", storage_options=options)
    assert s3.keys(f"copies/{layout}/") == []


def test_a_trak_store_goes_to_disks_only(fixtures: Path, in_memory: str, tmp_path: Path) -> None:
    source = fixtures / "trak" / "half_two_models"
    regrow.copy(source, tmp_path / "store")
    assert files(tmp_path / "store") == files(source)
    assert regrow.open(tmp_path / "store").layout == "trak"
    with pytest.raises(regrow.errors.UnsupportedError):
        regrow.copy(source, f"{in_memory}/store")
    with pytest.raises(regrow.errors.NotFoundError):
        regrow.open(f"{in_memory}/store")
    # Nothing in it says that it was written by a save.
    with pytest.raises(regrow.errors.InvalidArgumentError):
        regrow.remove(tmp_path / "store")
    assert files(tmp_path / "store") == files(source)


@pytest.mark.parametrize("to_memory", [False, True], ids=["disk", "memory"])
def test_a_copy_that_a_callback_has_ended_goes_on(to_memory: bool, in_memory: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    target = f"{in_memory}/x" if to_memory else os.fspath(tmp_path / "x")
    # Several files. Some are done when it ends.
    regrow.save(
        source,
        {f"a{at}": LONG["a"] + at for at in range(4)},
        layout=regrow.layouts.Safetensors(max_shard_bytes=25_000_000),
    )
    told: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        told.append((done, total))
        if done > total // 2:
            raise StopItError

    with pytest.raises(StopItError):
        regrow.copy(source, target, budget_bytes=1 << 24, progress=stop)
    with pytest.raises((regrow.errors.NotFoundError, regrow.errors.UncommittedError)):
        regrow.open(target)
    report = regrow.copy(source, target, progress=lambda done, total: told.append((done, total)))
    assert 0 < report.reused_bytes <= report.bytes
    assert "already copied" in str(report)
    assert told[-1] == (2 * report.bytes, 2 * report.bytes), "what is read back counts too"
    assert_same(regrow.load(target), regrow.load(source))
    assert regrow.copy(source, f"{target}.again").reused_bytes == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"source", "x", "x.again"}


def test_a_copy_that_is_under_way_is_left_alone_but_for_force(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "x"
    regrow.save(source, LONG)

    def disturb(done: int, total: int) -> None:
        if done == total:
            with pytest.raises(regrow.errors.AlreadyExistsError):
                regrow.copy(source, target)
            with pytest.raises(regrow.errors.AlreadyExistsError):
                regrow.remove(target, unfinished=True)
            assert regrow.remove(target, unfinished=True, force=True).file_count > 0
            raise StopItError

    with pytest.raises(StopItError):
        regrow.copy(source, target, progress=disturb)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_progress_is_told_on_the_callers_thread(tmp_path: Path) -> None:
    regrow.save(tmp_path / "source", LONG)
    told: list[tuple[int, int]] = []
    threads = set()

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        threads.add(threading.get_ident())

    verified = regrow.copy(tmp_path / "source", tmp_path / "x", progress=progress)
    assert told[-1] == (2 * verified.bytes, 2 * verified.bytes)
    assert all(one[0] <= other[0] for one, other in itertools.pairwise(told))
    assert threads == {threading.get_ident()}
    regrow.copy(tmp_path / "source", tmp_path / "y", durable=False, progress=progress)
    assert told[-1] == (2 * verified.bytes, 2 * verified.bytes), "read back, also without durable"
    unverified = regrow.copy(tmp_path / "source", tmp_path / "z", verify=False, progress=progress)
    assert told[-1] == (unverified.bytes, unverified.bytes), "nothing is read back"
    assert unverified.bytes == verified.bytes


def test_a_copy_refuses_options_that_do_not_apply(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", tree())
    with pytest.raises(regrow.errors.InvalidArgumentError, match="storage_options"):
        regrow.copy(tmp_path / "x", tmp_path / "y", storage_options={"key": "K"})
    with pytest.raises(TypeError, match="overwrit"):
        regrow.copy(tmp_path / "x", tmp_path / "y", overwrit=True)  # type: ignore[call-arg]


def test_a_report_prints_as_one_line() -> None:
    report = regrow.reports.CopyReport("runs/\x1b[31mx", 2, 3 << 20, 1 << 20, 0.5)
    assert report.gb_per_s == pytest.approx((2 << 20) / 0.5 / 1e9)
    assert str(report) == "runs/\\u{1b}[31mx: 2 files, 3.0 MiB in 0.500 s (0.00 GB/s); 1.0 MiB already copied"
    assert str(report._replace(file_count=1, reused_bytes=0, seconds=0.0)).endswith("1 file, 3.0 MiB in <0.1 ms")


# ---- remove ---------------------------------------------------------------------------


def test_a_removal_reports_its_files(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", tree())
    made = files(tmp_path)
    assert regrow.remove(tmp_path / "x") == (os.fspath(tmp_path / "x"), len(made), sum(map(len, made.values())))
    assert files(tmp_path) == {}


def test_force_is_for_what_is_unfinished(path: Path) -> None:
    regrow.save(path, tree())
    with pytest.raises(regrow.errors.InvalidArgumentError, match="unfinished=True"):
        regrow.remove(path, force=True)
    with pytest.raises(regrow.errors.NotFoundError):
        regrow.remove(path, unfinished=True, force=True)
    assert regrow.verify(path).ok


# ---- list -----------------------------------------------------------------------------


def test_a_folder_of_steps_is_listed_in_their_order(in_memory: str, tmp_path: Path) -> None:
    for runs in (os.fspath(tmp_path / "runs"), f"{in_memory}/runs"):
        for step in (10, 9, 1):
            regrow.save(f"{runs}/step_{step}", tree())
        found = regrow.list_checkpoints(runs)
        assert [each.name for each in found] == ["step_1", "step_9", "step_10"]
        assert [each.path for each in found] == [f"{runs}/{each.name}" for each in found]
        for each in found:
            assert (each.layout, each.state, each.steps, each.error) == ("regrow", "committed", [], None)
            assert each.file_count is not None and each.file_count > 1
            assert each.bytes is not None and each.bytes > 2400
        assert regrow.list_checkpoints(regrow.Location(runs)) == found
        assert [each.steps for each in regrow.list_checkpoints(os.path.dirname(runs)) if each.name == "runs"] == [
            [1, 9, 10]
        ]
    stored = files(tmp_path / "runs" / "step_1")
    first = regrow.list_checkpoints(tmp_path / "runs")[0]
    assert (first.file_count, first.bytes) == (len(stored), sum(map(len, stored.values())))
    assert first.modified is not None
    newest = max(path.stat().st_mtime for path in (tmp_path / "runs" / "step_1").rglob("*"))
    assert first.modified == pytest.approx(newest, abs=1e-3)


def test_every_layout_is_listed_by_its_name(tmp_path: Path) -> None:
    for at, (name, saved) in enumerate(LAYOUTS.values()):
        regrow.save(tmp_path / name.replace("x", f"x{at}", 1), tree(), **saved)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    found = regrow.list_checkpoints(tmp_path)
    expected = {name.replace("x", f"x{at}", 1): saved for at, (name, saved) in enumerate(LAYOUTS.values())}
    assert {each.name: each.layout for each in found} == {
        name: regrow.layouts.chosen(saved.get("layout", "regrow")).name for name, saved in expected.items()
    }
    assert all(each.state == "committed" for each in found)


def test_a_damaged_one_is_listed_with_what_is_wrong(tmp_path: Path) -> None:
    regrow.save(tmp_path / "good", tree())
    regrow.save(tmp_path / "bad.safetensors", tree(), layout="safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 100)
    bad, good = regrow.list_checkpoints(tmp_path)
    assert (good.name, good.state) == ("good", "committed")
    assert (bad.name, bad.state, bad.layout, bad.bytes) == ("bad.safetensors", "damaged", None, 100)
    assert bad.error is not None
    with pytest.raises(regrow.RegrowError) as raised:
        regrow.open(tmp_path / "bad.safetensors")
    assert (bad.error.kind, bad.error.message, bad.error.file) == (
        raised.value.kind,
        str(raised.value),
        raised.value.file,
    )


def test_a_folder_without_checkpoints(tmp_path: Path) -> None:
    assert regrow.list_checkpoints(tmp_path) == []
    with pytest.raises(regrow.errors.NotFoundError) as raised:
        regrow.list_checkpoints(tmp_path / "nothing")
    assert os.fspath(tmp_path / "nothing") in str(raised.value)

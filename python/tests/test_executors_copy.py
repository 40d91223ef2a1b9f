"""Copies by the workers of an executor: the same files as by one process, also where workers
die.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from conftest import assert_same
from dying_workers import Killing, LostError, Pools, Replacing, die_after, die_at_once, die_when_done, die_while_writing

import regrow

TREE = {f"w{index}": np.full((50, 60 + index), index, np.float32) for index in range(6)} | {"step": 7, "name": "run"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Many files of one checkpoint."""
    regrow.save(tmp_path / "source", TREE, compression="none", layout=regrow.layouts.Orbax(ocdbt=False))
    return tmp_path / "source"


def files_of(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def by_orbax(path: Path) -> Path:
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path, {"a": np.arange(4000.0).reshape(40, 100), "b": [np.ones(3, np.float16)]})
    return path


def saved(name: str, **options: Any) -> Callable[[Path], Path]:
    def save(path: Path) -> Path:
        arrays = {name: value for name, value in TREE.items() if name != "name"}
        regrow.save(path.with_name(name), arrays, **options)
        return path.with_name(name)

    return save


def in_steps(path: Path) -> Path:
    for step in (100, 200):
        regrow.save(path / str(step), {"w": np.full(3000, step), "b": np.zeros(2)})
    return path


SOURCES: dict[str, Callable[[Path], Path]] = {
    "orbax": by_orbax,
    "regrow": saved("model"),
    "one file": saved("model.msgpack", layout="flax"),
    "npy": saved("arrays", layout="npy"),
    "data and manifest": saved("pair", layout="pytree_data"),
    "steps": in_steps,
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_what_they_copy_is_the_same(make: Callable[[Path], Path], tmp_path: Path, pool: Any) -> None:
    source = make(tmp_path / "source")
    plain = regrow.copy(source, tmp_path / "plain" / source.name)
    for workers in (None, 30):
        target = tmp_path / f"shared_{workers}" / source.name
        report = regrow.copy(source, target, executor=pool, workers=workers)
        assert (report.path, report.file_count, report.bytes) == (str(target), plain.file_count, plain.bytes)
        assert report.reused_bytes == 0
        assert files_of(target.parent) == files_of(tmp_path / "plain")
        assert regrow.verify(target).ok


@pytest.mark.parametrize("how", [die_while_writing, die_when_done])
def test_a_worker_that_dies_costs_its_share_alone(how: Any, source: Path, tmp_path: Path) -> None:
    large = source / "large" / "0.0"
    large.parent.mkdir()
    large.write_bytes(bytes(100_000))
    executor = Killing(Pools(), 1, how)
    regrow.copy(source, tmp_path / "shared", executor=executor, workers=2)
    assert executor.submitted == 3
    assert files_of(tmp_path / "shared") == files_of(source)
    # Nothing beside it, and nothing in it of the dead.
    assert sorted(os.listdir(tmp_path)) == ["shared", "source"]


def test_what_was_brought_stays_when_a_share_is_lost_again_and_again(source: Path, tmp_path: Path, pool: Any) -> None:
    class LosesTheSecond:
        submitted = 0

        def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
            self.submitted += 1
            if self.submitted == 1:
                return pool.submit(function, *arguments)
            lost: Future[Any] = Future()
            lost.set_exception(LostError())
            return lost

    def lose(target: Path) -> None:
        with pytest.raises(regrow.errors.IoError, match="share 2 of 2 of a copy was lost 3 times"):
            regrow.copy(source, target, executor=LosesTheSecond(), workers=2)
        assert not target.exists()

    for name, again in {"with": {"executor": pool}, "without": {}}.items():
        target = tmp_path / name
        lose(target)
        report = regrow.copy(source, target, **again)  # type: ignore[arg-type]
        assert 0.2 * report.bytes < report.reused_bytes < 0.8 * report.bytes
        assert files_of(target) == files_of(source)
    assert sorted(os.listdir(tmp_path)) == ["source", "with", "without"]


def test_what_an_earlier_copy_left_and_is_damaged_is_copied_again(source: Path, tmp_path: Path, pool: Any) -> None:
    target = tmp_path / "shared"

    def stop(done: int, total: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        regrow.copy(source, target, executor=pool, workers=2, progress=stop)
    left = tmp_path / "shared.orbax-checkpoint-tmp-copy" / ".orbax-checkpoint-tmp-files"
    files = sorted(file for file in left.rglob("*") if file.is_file() and file.stat().st_size > 50)
    assert len(files) > 2
    files[0].write_bytes(bytes(byte ^ 1 for byte in files[0].read_bytes()))
    report = regrow.copy(source, target, executor=pool)
    assert 0 < report.reused_bytes < report.bytes
    assert files_of(target) == files_of(source)


def test_memory_is_a_bucket(source: Path, tmp_path: Path) -> None:
    url = "memory://executors_copy/new"
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) as threads:
        executor = Killing(threads, 1, die_after)
        regrow.copy(source, url, executor=executor, workers=3, progress=lambda done, total: told.append((done, total)))
        assert executor.submitted == 4
        assert told[-1][0] == told[-1][1] > 70_000
        assert_same(regrow.load(url), regrow.load(source))
        with pytest.raises(regrow.errors.AlreadyExistsError):
            regrow.copy(source, url, executor=threads)
        regrow.copy(source, url, executor=threads, overwrite=True, verify=False)
        regrow.copy(url, tmp_path / "back", executor=threads, durable=False)
    back = files_of(tmp_path / "back")
    assert {name: back[name] for name in files_of(source) if name in back} == files_of(source)


def test_a_source_that_is_replaced_is_copied_anew(source: Path, tmp_path: Path, pool: Any) -> None:
    new = TREE | {"w0": np.full((50, 60), 99, np.float32)}
    executor = Replacing(
        pool, lambda: regrow.save(source, new, overwrite=True, layout=regrow.layouts.Orbax(ocdbt=False))
    )
    regrow.copy(source, tmp_path / "shared", executor=executor, workers=3)
    assert files_of(tmp_path / "shared") == files_of(source)
    assert_same(regrow.load(tmp_path / "shared"), regrow.load(source))


class Meddling:
    """An executor that does a call itself, as `how` wants it."""

    def __init__(self, how: Callable[..., Any]) -> None:
        self.how = how

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.how(function, *arguments))
        return future


def test_a_file_that_changes_when_its_share_is_done_is_copied_anew(source: Path, tmp_path: Path) -> None:
    changed: list[str] = []

    def change_behind(function: Callable[..., Any], *arguments: Any) -> Any:
        outcome = function(*arguments)
        name, len_bytes = max(arguments[3][1], key=lambda file: file[1])
        if not changed:
            changed.append(name)
            (source / name).write_bytes(b"x" * len_bytes)
        return outcome

    regrow.copy(source, tmp_path / "shared", executor=Meddling(change_behind), workers=2)
    assert files_of(tmp_path / "shared") == files_of(source)
    assert changed


def test_a_worker_that_finds_other_files_says_so(source: Path, tmp_path: Path) -> None:
    def other_lengths(function: Callable[..., Any], *arguments: Any) -> Any:
        ticket, files = arguments[3]
        told = (ticket, [(name, len_bytes + 1) for name, len_bytes in files])
        return function(*arguments[:3], told, *arguments[4:])

    with pytest.raises(regrow.errors.ReplacedError, match="a worker finds other files in the source"):
        regrow.copy(source, tmp_path / "shared", executor=Meddling(other_lengths), workers=2)
    assert os.listdir(tmp_path) == ["source"]


def test_two_calls_of_one_share_write_apart(source: Path, tmp_path: Path) -> None:
    def twice(function: Callable[..., Any], *arguments: Any) -> Any:
        outcomes = [function(*arguments) for _ in range(2)]
        first, second = ({by for _, by, _, _ in brought[0]} for brought, error in outcomes if error is None)
        assert first
        assert not first & second
        return outcomes[0]

    regrow.copy(source, tmp_path / "shared", executor=Meddling(twice), workers=2)
    assert files_of(tmp_path / "shared") == files_of(source)
    assert sorted(os.listdir(tmp_path)) == ["shared", "source"]


def test_what_cannot_be_copied_is_refused_before_anything_begins(source: Path, tmp_path: Path, pool: Any) -> None:
    counting = Killing(pool, 0, die_at_once)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="the same"):
        regrow.copy(source, source, executor=counting)
    with pytest.raises(regrow.errors.NotFoundError):
        regrow.copy(tmp_path / "nothing", tmp_path / "new", executor=counting)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="executor"):
        regrow.copy(source, tmp_path / "new", workers=2)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="workers"):
        regrow.copy(source, tmp_path / "new", executor=counting, workers=0)
    assert counting.submitted == 0
    assert os.listdir(tmp_path) == ["source"]

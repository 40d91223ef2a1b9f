"""Conversions and verifications by the workers of an executor: the same as by one process, also
where workers die.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from conftest import assert_same
from dying_workers import Killing, Pools, Replacing, die_after, die_at_once, die_when_done, die_while_writing, kill_once

import regrow

TREE = {
    "params": {
        "dense": {"kernel": np.arange(48_000, dtype=np.float32).reshape(200, 240), "bias": np.ones(240, np.float16)},
        "norm": {"scale": np.arange(7, dtype=np.float32), "none": np.zeros((0, 3), np.int8)},
    },
    "rest": [np.full((3, 5), index, np.int16) for index in range(5)],
    "step": 7,
    "rate": 0.5,
    "name": "run",
    "nothing": None,
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    regrow.save(tmp_path / "source", TREE)
    return tmp_path / "source"


def by_orbax(path: Path) -> Path:
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path, {"a": jnp.arange(4000.0).reshape(40, 100), "b": [jnp.ones(3, jnp.bfloat16), 7]})
    return path


def in_steps(path: Path) -> Path:
    for step in (100, 200):
        regrow.save(path / str(step), {"w": np.full(30, step), "b": np.zeros(2)})
    return path


def saved(name: str, **options: Any) -> Callable[[Path], Path]:
    def save(path: Path) -> Path:
        arrays = {"a": {"w": np.arange(600.0).reshape(20, 30)}, "b": np.arange(5, dtype=np.int32), "c": np.float32(2)}
        regrow.save(path.with_name(name), arrays, **options)
        return path.with_name(name)

    return save


def len_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


SOURCES: dict[str, Callable[[Path], Path]] = {
    "orbax": by_orbax,
    "flax": saved("model.msgpack", layout="flax"),
    "npz": saved("model.npz", layout="npy"),
    "npz, deflated": saved("model.npz", layout=regrow.layouts.Npy(compress=True)),
    "regrow": saved("model"),
    "regrow, compressed": saved("model", compression="zstd"),
    "steps": in_steps,
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_every_source_comes_out_the_same(make: Callable[[Path], Path], tmp_path: Path, pool: Any) -> None:
    source = make(tmp_path / "source")
    step = 200 if make is in_steps else None
    plain = regrow.convert(source, tmp_path / "plain", step=step)
    report = regrow.convert(source, tmp_path / "shared", executor=pool, step=step)
    assert_same(regrow.load(tmp_path / "shared"), regrow.load(tmp_path / "plain"))
    assert (report.leaf_count, report.save.data_bytes) == (plain.leaf_count, plain.save.data_bytes)
    assert report.stored_bytes == len_bytes(tmp_path / "shared")
    assert len(list((tmp_path / "shared").glob("regrow.process_*.json"))) == 2
    assert regrow.verify(tmp_path / "shared").ok
    assert regrow.open(tmp_path / "shared").metadata == regrow.open(tmp_path / "plain").metadata


def test_orbax_reads_it(tmp_path: Path, pool: Any) -> None:
    source = by_orbax(tmp_path / "source")
    regrow.convert(source, tmp_path / "shared", executor=pool)
    with ocp.PyTreeCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "shared")
    assert np.array_equal(restored["a"], np.arange(4000.0).reshape(40, 100))
    assert np.array_equal(restored["b"][0], np.ones(3))


def test_the_target_is_compressed_and_cut(source: Path, tmp_path: Path, pool: Any) -> None:
    options: dict[str, Any] = {"compression": "zstd", "layout": regrow.layouts.Regrow(chunk_byte_size=10_000)}
    report = regrow.convert(source, tmp_path / "shared", executor=Killing(pool, 1, die_after), workers=2, **options)
    assert report.stored_bytes == len_bytes(tmp_path / "shared") < 0.8 * len_bytes(source)
    assert regrow.open(tmp_path / "shared")["params/dense/kernel"].chunk_shape == (50, 48)
    assert_same(regrow.load(tmp_path / "shared"), TREE)
    assert regrow.verify(tmp_path / "shared", executor=pool).ok


@pytest.mark.parametrize("workers", [1, 3, 40])
def test_rules_do_what_they_do_in_one_process(workers: int, source: Path, tmp_path: Path, pool: Any) -> None:
    options: dict[str, Any] = {
        "only": ["params/**", "step"],
        "rename": {"params/(.*)/kernel": "model/$1/weight", "params/(.*)": "model/$1"},
        "cast": {"**/kernel": "bfloat16"},
        "transpose": {"**/kernel": (1, 0)},
        "reshape": {"params/dense/bias": (2, -1)},
        "metadata": {"of": "mine"},
    }
    regrow.convert(source, tmp_path / "plain", **options)
    regrow.convert(source, tmp_path / "shared", executor=pool, workers=workers, **options)
    assert_same(regrow.load(tmp_path / "shared"), regrow.load(tmp_path / "plain"))
    assert regrow.open(tmp_path / "shared").metadata == {"of": "mine"}


def test_each_share_has_about_as_many_bytes_and_reads_no_others(tmp_path: Path, pool: Any) -> None:
    tree = {f"w{index}": np.full(10_000 + index, index) for index in range(8)}
    regrow.save(tmp_path / "source", tree, layout="npy")
    regrow.convert(tmp_path / "source", tmp_path / "shared", executor=pool, workers=4)
    sizes = [file.stat().st_size for file in (tmp_path / "shared").glob("model-*")]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) < 1000
    # A share that reads the damaged leaf fails; the others do not.
    damaged = tmp_path / "source" / "w3.npy"
    damaged.write_bytes(damaged.read_bytes()[:-8])
    with pytest.raises(regrow.RegrowError, match="w3"):
        regrow.convert(tmp_path / "source", tmp_path / "other", executor=pool, workers=4)
    assert sorted(os.listdir(tmp_path)) == ["shared", "source"]


def test_a_base_is_linked_share_by_share(source: Path, tmp_path: Path, pool: Any) -> None:
    regrow.convert(source, tmp_path / "first", executor=pool)
    report = regrow.convert(source, tmp_path / "second", executor=pool, base=tmp_path / "first")
    assert report.reused_bytes > 192_000
    assert_same(regrow.load(tmp_path / "second"), TREE)


def test_a_relative_path_is_that_of_the_caller(source: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=os.chdir, initargs=("/",)) as elsewhere:
        regrow.convert("source", "shared", executor=elsewhere)
        assert regrow.verify("shared", executor=elsewhere).ok
    assert_same(regrow.load(tmp_path / "shared"), TREE)


def test_threads_are_an_executor_and_progress_is_told(source: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(3) as threads:
        regrow.convert(
            source, tmp_path / "shared", executor=threads, progress=lambda done, total: told.append((done, total))
        )
    assert_same(regrow.load(tmp_path / "shared"), TREE)
    assert len(told) == 3
    assert told[-1] == (told[0][1],) * 2 == (192_000 + 480 + 28 + 150 + 16,) * 2


def test_memory_is_a_bucket(source: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        report = regrow.convert(source, "memory://executors/new", executor=Killing(threads, 1, die_after), workers=2)
        assert regrow.verify("memory://executors/new", executor=threads).ok
        assert_same(regrow.load("memory://executors/new"), TREE)
        # What the lost share had written is gone: nothing keeps it from being replaced.
        regrow.convert(source, "memory://executors/new", executor=threads, overwrite=True)
    assert_same(regrow.load("memory://executors/new"), TREE)
    assert report.stored_bytes > 192_000


# ---- workers that die -----------------------------------------------------------------


@pytest.mark.parametrize("how", [die_at_once, die_while_writing, die_when_done])
def test_a_worker_that_dies_costs_its_share_alone(how: Any, source: Path, tmp_path: Path) -> None:
    executor = Killing(Pools(), 1, how)
    report = regrow.convert(source, tmp_path / "shared", executor=executor, workers=2)
    assert executor.submitted == 3
    assert_same(regrow.load(tmp_path / "shared"), TREE)
    assert regrow.verify(tmp_path / "shared").ok
    files = sorted(os.listdir(tmp_path / "shared"))
    # The dead one had the first share; its files are not there, and what took its place has another
    # number.
    number = 0 if how is die_at_once else 2
    assert [name for name in files if "process" in name] == sorted(
        [f"regrow.process_{number}.json", "regrow.process_1.json"]
    )
    assert len([name for name in files if name.endswith(".safetensors")]) == 2
    assert report.stored_bytes == len_bytes(tmp_path / "shared")
    # Nothing beside it that would keep it from being replaced.
    regrow.convert(source, tmp_path / "shared", executor=executor, workers=2, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["shared", "source"]


def test_one_share_whose_worker_dies(source: Path, tmp_path: Path) -> None:
    regrow.convert(source, tmp_path / "shared", executor=Killing(Pools(), 1, die_when_done), workers=1)
    assert_same(regrow.load(tmp_path / "shared"), TREE)
    assert regrow.verify(tmp_path / "shared").ok


def test_a_pool_that_breaks_is_replaced(source: Path, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        pool.submit(die_at_once, print)
        regrow.convert(source, tmp_path / "shared", executor=pool, workers=6)
    assert_same(regrow.load(tmp_path / "shared"), TREE)
    large = {f"w{index}": np.full(2**21, index) for index in range(6)}
    regrow.save(tmp_path / "large", large, layout="npy")
    flag = str(tmp_path / "flag")
    with ProcessPoolExecutor(2, mp_context=spawn, initializer=kill_once, initargs=(flag,)) as pool:
        regrow.convert(tmp_path / "large", tmp_path / "large_shared", executor=pool, workers=6)
    assert Path(flag).exists()
    assert_same(regrow.load(tmp_path / "large_shared"), large)
    assert regrow.verify(tmp_path / "large_shared").ok


def test_a_share_that_is_lost_again_and_again_ends_it(source: Path, tmp_path: Path) -> None:
    executor = Killing(Pools(), 100, die_when_done)
    with pytest.raises(regrow.errors.IoError, match=r"share \d of 2 of a conversion was lost 3 times"):
        regrow.convert(source, tmp_path / "shared", executor=executor, workers=2)
    assert executor.submitted <= 6
    assert os.listdir(tmp_path) == ["source"]
    with pytest.raises(regrow.errors.IoError, match="of a verification was lost 3 times"):
        regrow.verify(source, executor=executor, workers=2)


# ---- errors ---------------------------------------------------------------------------


def test_an_error_of_a_worker_ends_it_and_nothing_is_left(source: Path, tmp_path: Path, pool: Any) -> None:
    file = source / "model.safetensors"
    bytes_ = bytearray(file.read_bytes())
    bytes_[-50_000] ^= 1
    file.write_bytes(bytes_)
    counting = Killing(pool, 0, die_at_once)
    with pytest.raises(regrow.errors.CorruptError) as plain:
        regrow.convert(source, tmp_path / "plain")
    with pytest.raises(regrow.errors.CorruptError) as shared:
        regrow.convert(source, tmp_path / "shared", executor=counting, workers=3)
    assert shared.value.leaf == plain.value.leaf == "params/dense/kernel"
    assert counting.submitted == 3
    assert os.listdir(tmp_path) == ["source"]


def test_what_cannot_be_shared_is_refused_before_anything_begins(source: Path, tmp_path: Path, pool: Any) -> None:
    counting = Killing(pool, 0, die_at_once)
    with pytest.raises(regrow.errors.UnsupportedError, match="several workers cannot write the layout npy"):
        regrow.convert(source, tmp_path / "new", executor=counting, layout="npy", lossy=True)
    with pytest.raises(regrow.errors.NotFoundError):
        regrow.convert(source, tmp_path / "new", executor=counting, only="unknown")
    with pytest.raises(regrow.errors.AlreadyExistsError):
        regrow.convert(source, source.parent / "source", executor=counting)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="executor"):
        regrow.convert(source, tmp_path / "new", workers=2)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="workers"):
        regrow.convert(source, tmp_path / "new", executor=counting, workers=0)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="executor"):
        regrow.verify(source, executor=2)  # type: ignore[arg-type]
    assert counting.submitted == 0
    assert os.listdir(tmp_path) == ["source"]


def test_what_a_progress_function_raises_ends_it(source: Path, tmp_path: Path, pool: Any) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        regrow.convert(source, tmp_path / "shared", executor=pool, workers=4, progress=stop)
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize("new", [{"w": np.ones(3)}, {**TREE, "step": 8}], ids=["another tree", "the same tree"])
def test_a_source_that_is_replaced_is_converted_again(new: Any, source: Path, tmp_path: Path, pool: Any) -> None:
    executor = Replacing(pool, lambda: regrow.save(source, new, overwrite=True))
    regrow.convert(source, tmp_path / "shared", executor=executor, workers=3)
    assert_same(regrow.load(tmp_path / "shared"), new)


def test_a_step_that_comes_in_between_is_not_mixed_in(tmp_path: Path, pool: Any) -> None:
    steps = in_steps(tmp_path / "steps")
    executor = Replacing(pool, lambda: regrow.save(steps / "300", {"w": np.full(30, 300), "b": np.zeros(2)}))
    regrow.convert(steps, tmp_path / "shared", executor=executor, workers=2, step=200)
    assert_same(regrow.load(tmp_path / "shared"), {"w": np.full(30, 200), "b": np.zeros(2)})


# ---- verifying ------------------------------------------------------------------------


def damage_nothing(path: Path) -> None:
    pass


def damage_leaves(path: Path) -> None:
    file = path / "model.safetensors"
    bytes_ = bytearray(file.read_bytes())
    for leaf in (TREE["rest"][4], TREE["params"]["dense"]["bias"], TREE["params"]["dense"]["kernel"]):
        bytes_[bytes_.index(leaf.tobytes()[:32])] ^= 1
    file.write_bytes(bytes_)


def damage_documents(path: Path) -> None:
    (path / "_METADATA").write_text("{}")
    damage_leaves(path)


def damage_structure(path: Path) -> None:
    (path / "regrow.json").write_text((path / "regrow.json").read_text().replace("kernel", "kernal"))


@pytest.mark.parametrize("damage", [damage_nothing, damage_leaves, damage_documents])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_findings_are_the_same(damage: Callable[[Path], None], workers: int, source: Path, pool: Any) -> None:
    damage(source)
    plain = regrow.verify(source)
    assert regrow.verify(source, executor=pool, workers=workers) == plain
    assert plain.ok == (damage is damage_nothing)


def test_what_cannot_be_opened_is_raised(source: Path, pool: Any) -> None:
    damage_structure(source)
    with pytest.raises(regrow.RegrowError) as plain:
        regrow.verify(source)
    with pytest.raises(type(plain.value)) as shared:
        regrow.verify(source, executor=pool)
    assert str(shared.value) == str(plain.value)


@pytest.mark.parametrize("name", ["orbax", "flax", "steps"])
def test_other_layouts_are_verified_by_shares(name: str, tmp_path: Path, fixtures: Path, pool: Any) -> None:
    source = SOURCES[name](tmp_path / "source")
    assert regrow.verify(source, executor=pool, workers=3) == regrow.verify(source)


def test_arrays_are_verified_beside_a_damaged_pytree(tmp_path: Path, pool: Any) -> None:
    source = tmp_path / "source"
    regrow.save(source, TREE["params"], layout="npy")
    (source / "regrow-structure.json").write_text("{")
    plain = regrow.verify(source)
    assert len(plain.findings) == 1
    assert regrow.verify(source, executor=pool, workers=2) == plain


def test_a_lost_share_is_verified_again(source: Path) -> None:
    damage_leaves(source)
    executor = Killing(Pools(), 1, die_at_once)
    assert regrow.verify(source, executor=executor, workers=2) == regrow.verify(source)
    assert executor.submitted == 3


def test_nothing_is_kept_of_a_target_that_is_taken_in_between(source: Path, tmp_path: Path, pool: Any) -> None:
    executor = Replacing(pool, lambda: shutil.copytree(source, tmp_path / "shared"))
    with pytest.raises(regrow.errors.AlreadyExistsError):
        regrow.convert(source, tmp_path / "shared", executor=executor, workers=2)
    assert sorted(os.listdir(tmp_path)) == ["shared", "source"]
    assert_same(regrow.load(tmp_path / "shared"), TREE)

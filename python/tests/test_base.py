"""Saving again with `base=`: what did not change is linked, and every reader sees a whole
checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
from conftest import assert_same

import regrow

Tree = dict[str, Any]


def frozen() -> Tree:
    """Parameters of a model that is not trained: large ones and small ones."""
    random = np.random.default_rng(0)
    return {
        f"layer_{i}": {
            "kernel": random.standard_normal((128, 160 + i)).astype(np.float32),
            "bias": random.standard_normal(300 + i).astype(np.float32),
        }
        for i in range(4)
    }


def trained(step: int) -> Tree:
    random = np.random.default_rng(step + 1)
    return {
        f"layer_{i}": {"a": random.standard_normal((128, 4)), "b": random.standard_normal((4, 160))} for i in range(4)
    }


def state(step: int, base: Tree) -> Tree:
    return {"base": base, "lora": trained(step), "step": step, "note": "low rank", "none": None}


def data_files(path: Path) -> dict[str, os.stat_result]:
    return {file.name: file.stat() for file in sorted(path.glob("model*.safetensors"))}


def linked(path: Path, base: Path) -> set[str]:
    """The data files of `path` that are files of `base`, too."""
    inodes = {stat.st_ino for stat in data_files(base).values()}
    found = {name: stat for name, stat in data_files(path).items() if stat.st_ino in inodes}
    assert all(stat.st_nlink >= 2 for stat in found.values())
    return set(found)


def names_in(path: Path, files: set[str]) -> set[str]:
    """The tensors of some data files."""
    found: set[str] = set()
    for file in files:
        with safetensors.safe_open(path / file, framework="numpy") as opened:
            found.update(opened.keys())
    return found


def manifest(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((path / "regrow.json").read_text())
    return loaded


def dotted(tree: Tree) -> dict[str, np.ndarray[Any, Any]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    arrays = [(path, leaf) for path, leaf in flat if not isinstance(leaf, str)]
    return {".".join(str(key.key) for key in path): np.asarray(leaf) for path, leaf in arrays}


def assert_judged(path: Path, tree: Tree) -> None:
    """regrow, Orbax and safetensors all give `tree`."""
    report = regrow.verify(path)
    assert report.ok, [finding.message for finding in report.findings]
    assert_same(tree, regrow.load(path))
    arrays = dotted(tree)
    with ocp.PyTreeCheckpointer() as checkpointer:
        by_orbax = checkpointer.restore(path)
    with ocp.StandardCheckpointer() as checkpointer:
        standard = checkpointer.restore(path)
    for restored in (by_orbax, standard):
        flat = dotted(restored)
        assert flat.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(flat[name], array, strict=array.shape != ())
    by_safetensors: dict[str, Any] = {}
    for file in data_files(path):
        by_safetensors |= safetensors.numpy.load_file(path / file)
    assert by_safetensors.keys() == arrays.keys()
    for name, array in arrays.items():
        assert by_safetensors[name].tobytes() == array.tobytes(), name
    if len(data_files(path)) > 1:
        index = json.loads((path / "model.safetensors.index.json").read_text())
        assert index["weight_map"].keys() == arrays.keys()
        for file in data_files(path):
            assert names_in(path, {file}) == {name for name, of in index["weight_map"].items() if of == file}


def test_low_rank_training_writes_what_is_trained(tmp_path: Path) -> None:
    base = frozen()
    paths = [tmp_path / f"step_{step}" for step in range(4)]
    reports = []
    for step, path in enumerate(paths):
        reports.append(regrow.save(path, state(step, base), base=paths[step - 1] if step else None))
        assert reports[-1].stored_bytes == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    for step, path in enumerate(paths):
        assert_judged(path, state(step, base))

    frozen_names = {f"base.{name}" for name in dotted(base)}
    frozen_bytes = sum(array.nbytes for array in dotted(base).values())
    assert [len(data_files(path)) for path in paths] == [1, 3, 3, 3]
    assert [report.reused_bytes for report in reports[:2]] == [0, 0]
    assert [linked(paths[1], paths[0]), "reused" in str(reports[1])] == [set(), False]
    for step in (2, 3):
        files = linked(paths[step], paths[step - 1])
        assert names_in(paths[step], files) == frozen_names
        assert reports[step].reused_bytes == sum(data_files(paths[step])[file].st_size for file in files)
        assert frozen_bytes < reports[step].reused_bytes < frozen_bytes + 3 * 4096
        assert "reused" in str(reports[step])
        assert [file["name"] for file in manifest(paths[step])["data_files"] if "blake3" in file] == sorted(files)
    assert {stat.st_nlink for stat in data_files(paths[1]).values()} == {1, 3}
    assert all("blake3" not in file for file in manifest(paths[0])["data_files"])

    shutil.rmtree(paths[0])
    shutil.rmtree(paths[1])
    shutil.rmtree(paths[2])
    assert_judged(paths[3], state(3, base))


def test_the_digest_is_blake3_of_the_data(tmp_path: Path) -> None:
    """The input of BLAKE3's own test vectors: bytes that count up to 250 and start again."""
    counting = np.resize(np.arange(251, dtype=np.uint8), 2048)
    regrow.save(tmp_path / "a", {"x": counting, "y": np.ones(3)})
    regrow.save(tmp_path / "b", {"x": counting, "y": np.zeros(3)}, base=tmp_path / "a")
    changed, gathered = manifest(tmp_path / "b")["data_files"]
    assert "blake3" not in changed
    assert gathered["blake3"] == "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"


def test_a_text_that_changed_is_in_the_new_checkpoint(tmp_path: Path) -> None:
    """It stands in the header of the first file, which so cannot be the old one."""
    tree = state(0, frozen())
    regrow.save(tmp_path / "a", tree)
    other = tree | {"note": "changed"}
    regrow.save(tmp_path / "b", other, base=tmp_path / "a")
    assert linked(tmp_path / "b", tmp_path / "a") == set()
    assert_judged(tmp_path / "b", other)
    third = other | {"note": "again"}
    regrow.save(tmp_path / "c", third, base=tmp_path / "b")
    assert names_in(tmp_path / "c", linked(tmp_path / "c", tmp_path / "b")) == set(dotted(tree))
    assert_judged(tmp_path / "c", third)


def test_names_dtypes_and_shapes_count(tmp_path: Path) -> None:
    zeros = np.zeros((64, 64), np.float32)
    trees = [
        {"w": zeros, "z": np.arange(1000)},
        {"w": zeros.view(np.int32), "z": np.arange(1000)},
        {"w": zeros.view(np.int32).reshape(32, 128), "z": np.arange(1000)},
        {"v": zeros.view(np.int32).reshape(32, 128), "z": np.arange(1000)},
        {"v": zeros.view(np.int32).reshape(32, 128), "z": np.arange(1000), "x": [zeros[:0], np.arange(5)]},
        {"z": np.arange(1000)},
    ]
    for at, tree in enumerate(trees):
        path = tmp_path / str(at)
        base = tmp_path / str(at - 1) if at else None
        regrow.save(path, tree, base=base)
        assert_same(tree, regrow.load(path))
        assert regrow.verify(path).ok
        assert base is None or names_in(path, linked(path, base)) == ({"z"} if at > 1 else set())
    assert names_in(tmp_path / "5", linked(tmp_path / "5", tmp_path / "4")) == {"z"}


def test_jax_arrays_strides_and_casts(tmp_path: Path) -> None:
    fortran = np.asfortranarray(np.random.default_rng(3).standard_normal((200, 300)))
    tree = {"jax": jnp.arange(70_000.0), "fortran": fortran, "slice": np.arange(90_000)[::3], "step": np.int64(0)}
    options: dict[str, Any] = {"cast": {"fortran": "bfloat16", "jax": "float16"}, "lossy": True}
    for step in range(3):
        tree["step"] = np.int64(step)
        base = tmp_path / str(step - 1) if step else None
        report = regrow.save(tmp_path / str(step), tree, base=base, **options)
    assert report.reused_bytes > 4 * 70_000
    assert names_in(tmp_path / "2", linked(tmp_path / "2", tmp_path / "1")) == {"jax", "fortran", "slice"}
    once = regrow.save(tmp_path / "once", tree, **options)
    assert once.reused_bytes == 0
    assert_same(regrow.load(tmp_path / "once"), regrow.load(tmp_path / "2"))
    # Without the cast they are others.
    plain = regrow.save(tmp_path / "plain", tree, base=tmp_path / "2")
    assert names_in(tmp_path / "plain", linked(tmp_path / "plain", tmp_path / "2")) <= {"slice"}
    assert plain.reused_bytes == 0, "its file held the others, too"


def test_in_place_of_its_own_base(tmp_path: Path) -> None:
    path = tmp_path / "latest"
    base = frozen()
    regrow.save(path, state(0, base))
    reused = []
    for step in range(1, 4):
        reused.append(regrow.save(path, state(step, base), base=path, overwrite=True).reused_bytes)
        assert_judged(path, state(step, base))
    assert reused[0] == 0 < reused[1] == reused[2]
    assert {stat.st_nlink for stat in data_files(path).values()} == {1}
    with pytest.raises(regrow.errors.AlreadyExistsError):
        regrow.save(path, state(4, base), base=path)
    assert_judged(path, state(3, base))


def test_what_is_no_base(tmp_path: Path) -> None:
    tree = state(0, frozen())
    regrow.save(tmp_path / "steps/100", tree)
    regrow.save(tmp_path / "orbax", tree, layout="orbax")
    regrow.save(tmp_path / "plain", dotted(tree), layout="safetensors")
    (tmp_path / "file").write_bytes(b"no checkpoint")
    target = tmp_path / "new/target"
    with pytest.raises(regrow.errors.NotFoundError, match="base"):
        regrow.save(target, tree, base=tmp_path / "missing")
    for wrong in ("steps", "orbax", "plain", "file"):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="not a checkpoint of the layout regrow"):
            regrow.save(target, tree, base=tmp_path / wrong)
    unfinished = tmp_path / "100.orbax-checkpoint-tmp-1"
    shutil.copytree(tmp_path / "steps/100", unfinished)
    with pytest.raises(regrow.errors.UncommittedError):
        regrow.save(target, tree, base=unfinished)
    damaged = bytearray((tmp_path / "steps/100/regrow.json").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shutil.copytree(tmp_path / "steps/100", tmp_path / "damaged")
    (tmp_path / "damaged/regrow.json").write_bytes(damaged)
    with pytest.raises(regrow.errors.CorruptError):
        regrow.save(target, tree, base=tmp_path / "damaged")
    assert not target.parent.exists(), "nothing is left"


def test_a_conversion_takes_a_base(tmp_path: Path) -> None:
    """Steps that Orbax wrote, one after the other."""
    base = frozen()
    reused = []
    for step in range(4):
        # Orbax sorts keys, as JAX does.
        tree = jax.tree.map(lambda leaf: leaf, {"base": base, "lora": trained(step)})
        source, target = tmp_path / f"orbax_{step}", tmp_path / str(step)
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(source, tree)
        last = tmp_path / str(step - 1) if step else None
        report = regrow.convert(source, target, base=last)
        assert report.reused_bytes == report.save.reused_bytes
        reused.append(report.reused_bytes)
        assert_judged(target, tree)
    frozen_bytes = sum(array.nbytes for array in dotted(base).values())
    assert reused[:2] == [0, 0]
    assert all(frozen_bytes < each < frozen_bytes + 20_000 for each in reused[2:])
    assert linked(tmp_path / "3", tmp_path / "2")


def damage(file: Path, at: int) -> None:
    """Flips a bit, in a file of its own: another name of the old one stays as it is."""
    stored = bytearray(file.read_bytes())
    stored[at] ^= 1
    file.unlink()
    file.write_bytes(stored)


def test_a_damaged_base_is_not_taken_over(tmp_path: Path) -> None:
    tree = state(0, frozen())
    for at in (5000, 100, -1):
        path = tmp_path / f"base_{at}"
        regrow.save(path, tree)
        damage(path / "model.safetensors", at)
        report = regrow.save(tmp_path / f"next_{at}", tree, base=path)
        assert report.reused_bytes == 0
        assert_judged(tmp_path / f"next_{at}", tree)
    cut = tmp_path / "cut"
    regrow.save(cut, tree)
    os.truncate(cut / "model.safetensors", 10_000)
    regrow.save(tmp_path / "next_cut", tree, base=cut)
    (cut / "model.safetensors").unlink()
    regrow.save(tmp_path / "next_gone", tree, base=cut)
    for name in ("next_cut", "next_gone"):
        assert_judged(tmp_path / name, tree)
        assert linked(tmp_path / name, cut) == set()


def test_damage_behind_a_digest_is_not_passed_on(tmp_path: Path) -> None:
    """Where a digest says that nothing changed, the file is read all the same, unless the base
    is trusted.
    """
    paths = [tmp_path / name for name in "abc"]
    base = frozen()
    for step, path in enumerate(paths[:2]):
        regrow.save(path, state(step, base), base=paths[step - 1] if step else None)
    large = max(data_files(paths[1]), key=lambda name: data_files(paths[1])[name].st_size)
    damage(paths[1] / large, 6000)
    report = regrow.save(paths[2], state(2, base), base=paths[1])
    assert any(large in note for note in report.notes)
    assert "the base is damaged" in str(report)
    assert_judged(paths[2], state(2, base))
    report = regrow.save(
        paths[2], state(2, base), base=paths[1], overwrite=True, options=regrow.Options(trust_base=True)
    )
    assert report.reused_bytes > 0
    assert not report.notes
    assert not regrow.verify(paths[2]).ok
    with pytest.raises(regrow.errors.CorruptError):
        regrow.load(paths[2])
    # Of another length it is not the file that was recorded.
    with (paths[1] / large).open("ab") as file:
        file.write(b"\0")
    regrow.save(paths[2], state(2, base), base=paths[1], overwrite=True)
    assert_judged(paths[2], state(2, base))


def test_files_that_are_links_themselves(tmp_path: Path) -> None:
    """As in caches of model hubs, whose folders hold symbolic links to blobs."""
    tree = {"x": np.arange(5000), "y": np.arange(3)}
    regrow.save(tmp_path / "a", tree)
    blob = tmp_path / "blob"
    (tmp_path / "a/model.safetensors").rename(blob)
    (tmp_path / "a/model.safetensors").symlink_to("../blob")
    (tmp_path / "alias").symlink_to("a")
    report = regrow.save(tmp_path / "b", tree, base=tmp_path / "alias")
    stored = tmp_path / "b/model.safetensors"
    assert not stored.is_symlink()
    assert (stored.stat().st_ino, report.reused_bytes) == (blob.stat().st_ino, blob.stat().st_size)
    assert_judged(tmp_path / "b", tree)


def test_a_linked_file_keeps_its_mode_and_time(tmp_path: Path) -> None:
    tree = {"x": np.arange(5000)}
    regrow.save(tmp_path / "a", tree)
    file = tmp_path / "a/model.safetensors"
    file.chmod(0o440)
    before = file.stat()
    regrow.save(tmp_path / "b", tree, base=tmp_path / "a", metadata={"only": "this"})
    after = (tmp_path / "b/model.safetensors").stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_size) == (before.st_mode, before.st_mtime_ns, before.st_size)
    assert linked(tmp_path / "b", tmp_path / "a") == {"model.safetensors"}
    assert regrow.open(tmp_path / "b").metadata == {"only": "this"}


def test_in_the_background(tmp_path: Path) -> None:
    base = frozen()
    with regrow.jobs.AsyncSaver() as saver:
        saves = [
            saver.save(
                tmp_path / str(step),
                state(step, base),
                base=tmp_path / str(step - 1) if step else None,
                when_busy="queue",
                options=regrow.Options(check_source=True),
            )
            for step in range(4)
        ]
        reports = [save.result() for save in saves]
    assert [report is not None and report.reused_bytes > 0 for report in reports] == [False, False, True, True]
    for step in range(4):
        assert_judged(tmp_path / str(step), state(step, base))
    report = regrow.save_async(tmp_path / "4", state(3, base), base=tmp_path / "3").result()
    assert report is not None
    assert linked(tmp_path / "4", tmp_path / "3") == set(data_files(tmp_path / "4"))
    with pytest.raises(regrow.errors.NotFoundError, match="base"):
        regrow.save_async(tmp_path / "5", base, base=tmp_path / "missing").result()


KILLED = """
import sys, numpy as np, regrow
path, base = sys.argv[1:]
tree = {"frozen": np.arange(500_000), "small": np.arange(500), "x": np.zeros(2_000_000)}
print("READY", flush=True)
for step in range(100_000):
    tree["x"] += 1
    regrow.save(path, tree, base=base, overwrite=True)
"""


def test_a_killed_save_leaves_the_base_alone(tmp_path: Path) -> None:
    base, path = tmp_path / "base", tmp_path / "next"
    tree = {"frozen": np.arange(500_000), "small": np.arange(500), "x": np.zeros(2_000_000)}
    regrow.save(tmp_path / "first", tree | {"x": np.ones(2_000_000)})
    regrow.save(base, tree, base=tmp_path / "first")
    before = {file: file.read_bytes() for file in base.rglob("*") if file.is_file()}
    for pause in (0.05, 0.13, 0.2, 0.31):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(path), str(base)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"READY\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(pause)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert {file: file.read_bytes() for file in base.rglob("*") if file.is_file()} == before
        if path.exists():
            assert regrow.verify(path).ok
            assert linked(path, base)
    regrow.save(path, tree, base=base, overwrite=True)
    assert_same(tree, regrow.load(path))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["base", "first", "next"]
    shutil.rmtree(path)
    assert regrow.verify(base).ok


def test_a_cancelled_save_leaves_the_base_alone(tmp_path: Path) -> None:
    tree = state(0, frozen())
    regrow.save(tmp_path / "a", tree)

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regrow.save(tmp_path / "b", tree, base=tmp_path / "a", progress=stop)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    assert_judged(tmp_path / "a", tree)
    assert {stat.st_nlink for stat in data_files(tmp_path / "a").values()} == {1}

"""Seals in Python, and beside what other libraries wrote: these read it as before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
from flax import serialization

import regrow

TREE = {
    "a": np.arange(20_000, dtype=np.float32).reshape(100, 200),
    "b": {"c": np.arange(7, dtype=np.int32)},
}
SEAL = "regrow.seal.json"


def _orbax(path: Path) -> None:
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path, TREE)


def _of_orbax(path: Path) -> Any:
    with ocp.PyTreeCheckpointer() as checkpointer:
        return checkpointer.restore(path)


def _standard(path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, TREE)


def _of_standard(path: Path) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, TREE)


def _flat(path: Path) -> dict[str, Any]:
    return {"a": TREE["a"], "b.c": TREE["b"]["c"]}  # type: ignore[index]


def _of_npz(path: Path) -> Any:
    with np.load(path) as arrays:
        return dict(arrays)


LIBRARIES: dict[str, tuple[str, Callable[[Path], Any], Callable[[Path], Any]]] = {
    "orbax": ("x", _orbax, _of_orbax),
    "orbax standard": ("x", _standard, _of_standard),
    "flax": (
        "x.msgpack",
        lambda path: path.write_bytes(serialization.to_bytes(TREE)),
        lambda path: serialization.from_bytes(TREE, path.read_bytes()),
    ),
    "equinox": (
        "x.eqx",
        lambda path: eqx.tree_serialise_leaves(path, TREE),
        lambda path: eqx.tree_deserialise_leaves(path, TREE),
    ),
    "safetensors": (
        "x.safetensors",
        lambda path: safetensors.numpy.save_file(_flat(path), path),
        lambda path: safetensors.numpy.load_file(path),
    ),
    "npz": ("x.npz", lambda path: np.savez(path, **_flat(path)), _of_npz),
    "npy": ("x.npy", lambda path: np.save(path, TREE["a"]), np.load),
}


def _leaves(tree: Any) -> list[bytes]:
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _leaves(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for each in tree for leaf in _leaves(each)]
    return [np.asarray(tree).tobytes()]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_library_reads_what_is_sealed(library: str, tmp_path: Path) -> None:
    name, write, read = LIBRARIES[library]
    path = tmp_path / name
    write(path)
    before = _leaves(read(path))
    loaded = _leaves(regrow.load(path))
    files = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    report = regrow.protect.seal(path)
    assert (report.file_count, report.has_changed) == (len(files), True)
    assert report.bytes == sum(map(len, files.values()))
    assert report.path == str(path / SEAL if path.is_dir() else tmp_path / f"regrow.seal.{name}.json")
    assert {file: file.read_bytes() for file in files} == files, "nothing is touched"
    assert _leaves(read(path)) == before, f"{library} reads it as before"
    assert _leaves(regrow.load(path)) == loaded
    assert _leaves(regrow.load(path, options=regrow.Options(mmap=True))) == loaded
    verified = regrow.verify(path)
    assert verified.ok
    assert verified.has_data_checksums
    largest = max(files, key=lambda file: len(files[file]))
    damaged = bytearray(files[largest])
    damaged[len(damaged) // 2] ^= 4
    largest.write_bytes(damaged)
    with pytest.raises(regrow.errors.CorruptError, match=largest.name):
        regrow.load(path)
    assert not regrow.verify(path).ok
    largest.write_bytes(files[largest])
    assert _leaves(regrow.load(path)) == loaded


def test_torch_reads_what_is_sealed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    tree = {"a": torch.arange(20_000, dtype=torch.float32)}
    torch.save(tree, tmp_path / "x.pt")
    dcp.save(tree, checkpoint_id=tmp_path / "dcp")
    for name in ("x.pt", "dcp"):
        assert regrow.protect.seal(tmp_path / name).has_changed
        assert regrow.verify(tmp_path / name).has_data_checksums
    assert torch.equal(torch.load(tmp_path / "x.pt")["a"], tree["a"])
    empty = {"a": torch.zeros(20_000)}
    dcp.load(empty, checkpoint_id=tmp_path / "dcp")
    assert torch.equal(empty["a"], tree["a"])


def test_saves_and_conversions_seal(tmp_path: Path) -> None:
    path, seal = tmp_path / "x.npz", tmp_path / "regrow.seal.x.npz.json"
    regrow.save(path, TREE, layout="npy", seal=True)
    assert regrow.verify(path).has_data_checksums and seal.exists()
    regrow.save(path, TREE, layout="npy", overwrite=True)
    assert not seal.exists(), "the next save removes the old seal"
    regrow.save_async(path, TREE, layout="npy", overwrite=True, seal=True).result()
    assert seal.exists()
    regrow.convert(path, tmp_path / "default")
    regrow.convert(tmp_path / "default", tmp_path / "again.npz", layout="npy", seal=True)
    assert (tmp_path / "regrow.seal.again.npz.json").exists()
    assert not regrow.protect.seal(tmp_path / "default").has_changed, "it has its own"


def test_a_file_changed_after_its_seal_loads_only_with_ignore_seal(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(9))
    regrow.protect.seal(path)
    np.save(path, np.ones(9))
    with pytest.raises(regrow.errors.CorruptError, match="ignore_seal") as caught:
        regrow.load(path)
    assert "regrow.protect.seal(path, remove=True)" in str(caught.value)
    assert np.array_equal(regrow.load(path, options=regrow.Options(ignore_seal=True)), np.ones(9))
    assert regrow.open(path, options=regrow.Options(ignore_seal=True)).tree is not None
    assert not regrow.verify(path).ok
    assert regrow.verify(path, options=regrow.Options(ignore_seal=True)).ok
    assert regrow.protect.seal(path, remove=True).has_changed
    assert not regrow.protect.seal(path, remove=True).has_changed
    assert np.array_equal(regrow.load(path), np.ones(9))


def test_the_seal_is_as_its_page_says(tmp_path: Path) -> None:
    import zlib

    _orbax(tmp_path / "x")
    regrow.protect.seal(tmp_path / "x")
    seal = json.loads((tmp_path / "x" / SEAL).read_text())
    assert (seal["format"], seal["version"], seal["layout"], seal["covers_folder"]) == ("regrow-seal", 1, "orbax", True)
    left = seal["block_crc32"]
    for name, length in zip(seal["names"], seal["len_bytes"], strict=True):
        data = (tmp_path / "x" / name).read_bytes()
        assert len(data) == length
        for at in range(0, length, seal["block_len_bytes"]):
            assert left[:8] == f"{zlib.crc32(data[at : at + seal['block_len_bytes']]):08x}"
            left = left[8:]
    assert not left


def test_flax_finds_the_newest_of_sealed_checkpoints(tmp_path: Path) -> None:
    checkpoints = pytest.importorskip("flax.training.checkpoints")
    for step in (5, 10):
        checkpoints.save_checkpoint(tmp_path, {"a": np.full(9, step)}, step=step, keep=2, overwrite=True)
        regrow.protect.seal(tmp_path, step=step)
    assert checkpoints.latest_checkpoint(tmp_path).endswith("checkpoint_10")
    assert regrow.verify(tmp_path).has_data_checksums
    assert checkpoints.restore_checkpoint(tmp_path, None)["a"][0] == 10
    assert regrow.load(tmp_path, step=5)["a"][0] == 5


def _regrow(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "regrow", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(10_000))
    verified = _regrow("verify", path)
    assert verified.returncode == 0
    assert "`regrow seal`" in verified.stderr, "what nothing protects, and what to do"
    sealed = _regrow("seal", path)
    assert (sealed.returncode, sealed.stderr) == (0, "")
    assert sealed.stdout.endswith("regrow.seal.x.npy.json: sealed 1 file, 78.2 KiB\n"), sealed.stdout
    assert _regrow("verify", path).stderr == ""
    assert "seal" not in _regrow("ls", tmp_path).stdout, "no longer a checkpoint"
    data = bytearray(path.read_bytes())
    data[40_000] ^= 1
    path.write_bytes(data)
    damaged = _regrow("verify", path)
    assert damaged.returncode == 1
    assert "at byte 32768" in damaged.stderr
    assert _regrow("cat", path, "").returncode != 0
    assert _regrow("verify", "--ignore-seal", path).returncode == 0
    report = json.loads(_regrow("seal", "--json", path).stdout)
    assert (report["file_count"], report["bytes"], report["has_changed"]) == (1, len(data), True)
    assert _regrow("seal", "--remove", path).stdout.endswith(": removed\n")
    assert _regrow("seal", "--remove", path).stdout.endswith(": there is no seal\n")
    assert _regrow("convert", path, tmp_path / "y.npz", "--layout", "npy", "--seal").returncode == 0
    assert (tmp_path / "regrow.seal.y.npz.json").exists()


def test_what_nothing_protects_is_named_by_its_file(tmp_path: Path) -> None:
    arrays = {"a": np.ones((40, 50), np.float32), "b": np.ones(7, np.int32)}
    regrow.save(tmp_path / "x", arrays, layout="npy")
    expected = [(str(tmp_path / "x/a.npy"), 8000), (str(tmp_path / "x/b.npy"), 28)]
    assert list(regrow.verify(tmp_path / "x").unprotected_files) == expected
    with ThreadPoolExecutor(2) as executor:
        report = regrow.verify(tmp_path / "x", executor=executor, workers=2)
    assert list(report.unprotected_files) == expected
    assert report.unprotected_bytes == 8028
    regrow.protect.seal(tmp_path / "x")
    assert not regrow.verify(tmp_path / "x").unprotected_files


def test_an_executor_finds_the_same(tmp_path: Path) -> None:
    _orbax(tmp_path / "x")
    regrow.protect.seal(tmp_path / "x")
    (tmp_path / "x" / "_METADATA").write_bytes((tmp_path / "x" / "_METADATA").read_bytes() + b" ")
    alone = regrow.verify(tmp_path / "x")
    with ThreadPoolExecutor(2) as executor:
        spread = regrow.verify(tmp_path / "x", executor=executor)
    assert not alone.ok
    assert [finding.message for finding in spread.findings] == [finding.message for finding in alone.findings]


def test_items_and_steps_are_sealed_as_a_whole(tmp_path: Path) -> None:
    items = {"state": TREE, "config": regrow.Json({"width": 4})}
    regrow.save_items(tmp_path / "items", items, layout="orbax", seal=True)
    assert [file.parent for file in tmp_path.rglob(SEAL)] == [tmp_path / "items"]
    assert regrow.verify(tmp_path / "items").has_data_checksums
    assert regrow.verify(tmp_path / "items", item="state").has_data_checksums
    with regrow.Manager(
        tmp_path / "run", background=False, options=regrow.SaveOptions(layout="orbax", seal=True)
    ) as steps:
        steps.save(1, TREE)
        steps.save(2, TREE)
        assert _leaves(steps.restore(like=TREE)) == _leaves(TREE)
    assert len(list((tmp_path / "run").rglob(SEAL))) == 2
    assert regrow.verify(tmp_path / "run").has_data_checksums
    regrow.save_items(tmp_path / "default", items, seal=True)
    assert list((tmp_path / "default").rglob(SEAL)) == [tmp_path / "default" / SEAL]

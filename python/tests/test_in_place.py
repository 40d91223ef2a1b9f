"""Loaded arrays do not change: other programs may write their files in place, as the original tools
do.

For each layout of single files: what `regrow.load` gave is written to the very same path by the
original tool, and nothing is lost; and a file that becomes shorter changes nothing that is in
memory, and ends no program.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox
import flax.serialization
import numpy as np
import pytest
import safetensors.numpy
from conftest import assert_same

import regrow
from regrow.flax import checkpoints

TREE = {f"w{i}": np.arange(300_000, dtype=np.float32).reshape(300, 1000) + i for i in range(3)}


def write_npy(path: Path, tree: Any) -> None:
    np.save(path, tree)


def write_npz(path: Path, tree: Any) -> None:
    np.savez(path, **tree)


def write_folder(path: Path, tree: Any) -> None:
    for name, array in tree.items():
        np.save(path / f"{name}.npy", array)


def write_safetensors(path: Path, tree: Any) -> None:
    safetensors.numpy.save_file(tree, path)


def write_equinox(path: Path, tree: Any) -> None:
    equinox.tree_serialise_leaves(path, tree)


def write_flax(path: Path, tree: Any) -> None:
    path.write_bytes(flax.serialization.to_bytes(tree))


def write_data(path: Path, tree: Any) -> None:
    with open(f"{path}.data", "r+b") as file:
        for array in tree.values():
            file.write(array.tobytes())


class Way(NamedTuple):
    """A layout, and how its original tool writes."""

    layout: str
    name: str
    write: Callable[[Path, Any], None]
    options: dict[str, Any]
    files: str


WAYS = {
    "npy": Way("npy", "x.npy", write_npy, {}, "x.npy"),
    "npz": Way("npy", "x.npz", write_npz, {}, "x.npz"),
    "folder of npy": Way("npy", "x", write_folder, {}, "x/*.npy"),
    "safetensors": Way("safetensors", "x.safetensors", write_safetensors, {}, "x.safetensors"),
    "equinox": Way("equinox", "x.eqx", write_equinox, {}, "x.eqx"),
    "flax": Way("flax", "x.msgpack", write_flax, {}, "x.msgpack"),
    "data and manifest": Way("pytree_data", "x", write_data, {}, "x.data"),
}


def tree_of(name: str) -> Any:
    return TREE["w1"] if name == "npy" else TREE


def saved(name: str, folder: Path) -> Path:
    way = WAYS[name]
    path = folder / way.name
    regrow.save(path, tree_of(name), layout=way.layout, **way.options)
    return path


@pytest.mark.parametrize("name", WAYS)
def test_the_original_writes_what_was_loaded_to_the_same_file(name: str, tmp_path: Path) -> None:
    path = saved(name, tmp_path)
    WAYS[name].write(path, regrow.load(path))
    # What Equinox writes are leaves without names.
    assert_same(leaves_of(regrow.load(path)), leaves_of(tree_of(name)))


def cut(folder: Path, pattern: str) -> None:
    files = list(folder.glob(pattern))
    assert files
    for file in files:
        with open(file, "r+b") as opened:
            opened.truncate(1)


READS = {
    "load": lambda path: regrow.load(path),
    "load(like=)": lambda path: regrow.load(path, like=regrow.load(path)),
    "load(cast=)": lambda path: regrow.load(path, cast="float32"),
    "load(verify=False)": lambda path: regrow.load(path, options=regrow.Options(checksums=False)),
    "lazy": lambda path: [leaf[...] for leaf in regrow.open(path).values()],
    "lazy slices": lambda path: [leaf[0:300] for leaf in regrow.open(path).values()],
    "lazy reads": lambda path: [leaf.read() for leaf in regrow.open(path).values()],
}


def leaves_of(tree: Any) -> list[Any]:
    return [tree] if isinstance(tree, np.ndarray) else list(tree.values()) if isinstance(tree, dict) else tree


def cut_and_look(name: str, read: str, folder: Path) -> None:
    """In a program of its own: reading a map beyond the end of its file is a signal."""
    path = saved(name, folder)
    loaded = READS[read](path)
    cut(folder, WAYS[name].files)
    assert_same(leaves_of(loaded), leaves_of(tree_of(name)))


@pytest.mark.parametrize("name", WAYS)
def test_a_file_that_is_cut_short_takes_nothing_from_memory(name: str, tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_in_place as t
for read in t.READS:
    folder = Path({str(tmp_path)!r}) / str(len(read)) / read.replace("/", "")
    folder.mkdir(parents=True)
    t.cut_and_look({name!r}, read, folder)
    print(read)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"after {run.stdout.split()[-1:]}: {run.returncode} {run.stderr}"


@pytest.mark.parametrize("name", [name for name in WAYS if name != "npz"])
def test_maps_are_there_for_the_asking(name: str, tmp_path: Path) -> None:
    path = saved(name, tmp_path)
    mapped = [
        regrow.load(path, options=regrow.Options(mmap=True)),
        [leaf[...] for leaf in regrow.open(path, options=regrow.Options(mmap=True)).values()],
    ]
    file = next(tmp_path.glob(WAYS[name].files))
    data = bytearray(file.read_bytes())
    data[-4:] = np.float32(-1).tobytes()
    # Of data with checksums behind it, the last bytes are no array's.
    is_data_last = name in ("npy", "folder of npy", "safetensors", "data and manifest")
    with open(file, "r+b") as opened:
        opened.write(data)
    for tree in mapped:
        has_changed = any((leaf == -1).any() for leaf in leaves_of(tree))
        assert has_changed or not is_data_last


def test_a_folder_that_is_committed_is_still_mapped(path: Path) -> None:
    regrow.save(path, TREE)
    file = max(path.rglob("*"), key=lambda file: file.stat().st_size)
    file.read_bytes()  # into the page cache: what is not there is read past it
    loaded = regrow.load(path)
    with open(file, "r+b") as opened:
        opened.write(b"\xff" * file.stat().st_size)
    assert np.isnan(loaded["w0"]).any()


@pytest.mark.usefixtures("legacy_flax_files")
@pytest.mark.parametrize("parallel", [True, False])
def test_what_flax_checkpoints_gave_is_its_own_memory(parallel: bool, tmp_path: Path) -> None:
    checkpoints.save_checkpoint(tmp_path, TREE, 1, orbax_checkpointer=None)
    restored = checkpoints.restore_checkpoint(tmp_path, None, parallel=parallel)
    file = next(file for file in tmp_path.rglob("*") if file.is_file() and file.stat().st_size > 1 << 20)
    with open(file, "r+b") as opened:
        opened.write(b"\0" * file.stat().st_size)
    np.testing.assert_array_equal(restored["w2"], TREE["w2"])


def test_damage_is_found_in_what_is_read_into_memory(tmp_path: Path) -> None:
    for name in ("npz", "equinox", "data and manifest"):
        folder = tmp_path / name
        folder.mkdir()
        path = saved(name, folder)
        file = next(folder.glob(WAYS[name].files))
        at = file.read_bytes().index(TREE["w1"].tobytes()[-4000:]) + 3999
        with open(file, "r+b") as opened:
            opened.seek(at)
            opened.write(b"\x7f")
        for read in ("load", "load(like=)", "lazy", "lazy reads"):
            with pytest.raises(regrow.errors.CorruptError) as caught:
                READS[read](path)
            assert caught.value.leaf in ("w1", "[1]", "1"), (name, read, str(caught.value))

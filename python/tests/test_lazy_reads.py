"""An opened checkpoint: a mapping of key paths to leaves that read only what is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import assert_same

import regrow

ARRAY = np.arange(5 * 6 * 7, dtype=np.int32).reshape(5, 6, 7)
TREE = {
    "params": {"kernel": ARRAY, "bias": np.float32(2)},
    "name": "net",
    "layers": [np.arange(3), (None, True)],
    "none": np.zeros((0, 4), np.int8),
}


@pytest.fixture(params=["regrow", "orbax"])
def ckpt(request: pytest.FixtureRequest, path: Path) -> regrow.Checkpoint:
    tree = TREE if request.param == "regrow" else {key: TREE[key] for key in ("params", "name", "layers")}
    regrow.save(path, tree, layout=request.param)
    return regrow.open(path)


def test_is_a_mapping(ckpt: regrow.Checkpoint) -> None:
    assert isinstance(ckpt, Mapping)
    assert len(ckpt) == len(list(ckpt)) == len(dict(ckpt))
    assert "params/kernel" in ckpt
    assert "params" not in ckpt
    assert ckpt.get("nope") is None
    with pytest.raises(KeyError) as caught:
        ckpt["params/kernal"]
    assert isinstance(caught.value, regrow.errors.NotFoundError)


def test_a_leaf_says_what_it_is(ckpt: regrow.Checkpoint) -> None:
    leaf = ckpt["params/kernel"]
    assert (leaf.dtype, leaf.shape, leaf.nbytes, leaf.ndim, leaf.size) == (np.int32, (5, 6, 7), 840, 3, 210)
    assert (leaf.path, leaf.name, leaf.kind) == ("params/kernel", "params.kernel", "numpy_array")
    assert ckpt["params.kernel"].path == "params/kernel"
    assert len(leaf) == 5
    assert leaf.sharding is None
    assert leaf.coding
    assert "params/kernel" in repr(leaf)
    assert ckpt.layout in repr(ckpt)


INDICES: list[Any] = [
    ...,
    (),
    0,
    -1,
    np.int64(2),
    slice(None),
    slice(1, 3),
    slice(-2, None),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(4, 0, -2),
    slice(3, 1),
    slice(100, 200),
    (1, 2, 3),
    (1, 2, 3, ...),
    (..., 3),
    (slice(1, 3), ..., slice(2, 5)),
    (1, slice(None, None, 3), -2),
    (None, 1, None, ..., None),
    (slice(None), slice(0, 0)),
    (slice(None, None, -1), 0, slice(5, None, -2)),
]


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_slices_as_numpy_does(ckpt: regrow.Checkpoint, index: Any) -> None:
    found, expected = ckpt["params/kernel"][index], ARRAY[index]
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("index", [5, -6, (0, 0, 7), (0, 0, 0, 0), (..., ...)], ids=repr)
def test_out_of_bounds_as_numpy_does(ckpt: regrow.Checkpoint, index: Any) -> None:
    with pytest.raises(IndexError):
        ckpt["params/kernel"][index]


@pytest.mark.parametrize("index", [[0, 1], np.array([1]), ARRAY > 3, True, 1.5, "x"], ids=lambda i: type(i).__name__)
def test_advanced_indices_are_refused(ckpt: regrow.Checkpoint, index: Any) -> None:
    with pytest.raises(regrow.errors.InvalidArgumentError, match="read it first"):
        ckpt["params/kernel"][index]


def test_numpy_takes_a_leaf(ckpt: regrow.Checkpoint) -> None:
    leaf = ckpt["params/kernel"]
    np.testing.assert_array_equal(np.asarray(leaf), ARRAY)
    assert np.asarray(leaf, dtype=np.float64).dtype == np.float64
    assert np.array(leaf, copy=True).flags.writeable
    np.testing.assert_array_equal(np.add(leaf, 1), ARRAY + 1)


def test_reads_scalars_and_text(ckpt: regrow.Checkpoint) -> None:
    assert ckpt["name"].read() == "net"
    assert ckpt["layers/1/1"].read() in (True, 1)
    assert ckpt["params/bias"][()] == np.float32(2)
    with pytest.raises(regrow.errors.LeafTypeError):
        ckpt["name"][0]


def test_the_tree_has_exact_containers(path: Path) -> None:
    regrow.save(path, TREE)
    assert_same(regrow.open(path).tree, TREE)


def test_slices_of_a_leaf_without_elements(path: Path) -> None:
    regrow.save(path, TREE)
    leaf = regrow.open(path)["none"]
    assert leaf[...].shape == (0, 4)
    assert leaf[:, 1].shape == (0,)


def test_reads_only_what_is_asked_for(path: Path) -> None:
    """Damage elsewhere in a leaf's file does not keep a slice from being read."""
    rows = np.arange(4_000_000, dtype=np.int32).reshape(4000, 1000)
    regrow.save(path, {"w": rows})
    file = max(path.glob("*.safetensors"), key=lambda file: file.stat().st_size)
    with open(file, "r+b") as data:
        data.seek(-10, 2)
        data.write(b"\xff")
    ckpt = regrow.open(path)
    np.testing.assert_array_equal(ckpt["w"][5:7, 3], rows[5:7, 3])
    with pytest.raises(regrow.errors.CorruptError):
        ckpt["w"][3999]


def test_fills_arrays_of_the_caller(path: Path) -> None:
    regrow.save(path, {"a": ARRAY, "b": [np.ones(3)]})
    out = {"a": np.zeros_like(ARRAY), "b": [np.zeros(6)[::2]]}
    first = out["a"]
    assert regrow.load_into(path, out) is out
    assert out["a"] is first
    np.testing.assert_array_equal(first, ARRAY)
    np.testing.assert_array_equal(out["b"][0], 1)
    with pytest.raises(regrow.errors.MismatchError):
        regrow.load_into(path, {"a": np.zeros(3), "b": [np.zeros(3)]})
    with pytest.raises(regrow.errors.InvalidArgumentError, match="writable"):
        regrow.load_into(path, {"a": ARRAY, "b": [regrow.load(path)["b"][0]]})


def test_fills_arrays_of_every_layout_in_memory(path: Path) -> None:
    rows = np.arange(600 * 1000, dtype=np.float32).reshape(600, 1000)
    tree = {"f": rows, "none": np.zeros((0, 3), np.int8), "s": np.float64(3), "u": rows[:7], "x": rows.astype(">i4")}
    regrow.save(path, tree)
    out = {
        "f": np.zeros((600, 1000), np.float32, order="F"),
        "none": np.zeros((0, 3), np.int8),
        "s": np.zeros(()),
        "u": np.zeros((14, 1000), np.float32)[::-2],
        "x": np.zeros((600, 1000), np.int32),
    }
    assert regrow.load_into(path, out) is out
    for key, want in tree.items():
        np.testing.assert_array_equal(out[key], want, strict=False)
    regrow.load_into(path, out, options=regrow.Options(checksums=False))
    np.testing.assert_array_equal(out["x"], tree["x"])


def test_arrays_that_share_memory_are_filled_one_after_another(path: Path) -> None:
    a, b = np.arange(10_000), np.arange(10_000) + 7
    regrow.save(path, {"a": a, "b": b, "c": a})
    shared = np.zeros(15_000, a.dtype)
    out = {"a": shared[:10_000], "b": shared[5_000:], "c": np.zeros_like(a)}
    regrow.load_into(path, out)
    np.testing.assert_array_equal(shared, np.concatenate([a[:5_000], b]))
    np.testing.assert_array_equal(out["c"], a)


def test_a_selection_and_casts_go_into_arrays(path: Path) -> None:
    regrow.save(path, {"a": ARRAY, "b": ARRAY, "name": "net"})
    out = {"a": np.zeros(ARRAY.shape), "b": np.zeros_like(ARRAY)}
    regrow.load_into(path, out, only="a", cast={"a": "float64"})
    np.testing.assert_array_equal(out["a"], ARRAY.astype(np.float64))
    assert not out["b"].any()
    with pytest.raises(regrow.errors.MismatchError):
        regrow.load_into(path, out, cast={"a": "float16"}, extra="drop")
    with pytest.raises(regrow.errors.MismatchError, match="text"):
        regrow.load_into(path, {"name": np.zeros(3, np.uint8)}, extra="drop")


def test_damage_is_found_on_the_way_into_arrays(path: Path) -> None:
    rows = np.arange(1_000_000, dtype=np.int32)
    regrow.save(path, {"w": rows})
    file = max(path.glob("*.safetensors"), key=lambda file: file.stat().st_size)
    with open(file, "r+b") as data:
        data.seek(-10, 2)
        data.write(b"\xff")
    with pytest.raises(regrow.errors.CorruptError) as caught:
        regrow.load_into(path, {"w": np.zeros_like(rows)})
    assert caught.value.leaf == "w"
    out = regrow.load_into(path, {"w": np.zeros_like(rows)}, options=regrow.Options(checksums=False))
    np.testing.assert_array_equal(out["w"][:-4], rows[:-4])


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A checkpoint on a disk, where files can be out of the page cache; temporary folders may be
    memory.
    """
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        regrow.save(Path(folder) / "x", {"a": np.arange(1 << 20), "b": np.arange(1 << 18, dtype=np.int32), "c": 1})
        yield Path(folder) / "x"


def leave_page_cache(path: Path) -> None:
    """Nothing of the checkpoint's files stays in memory."""
    for file in path.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def lies_in_a_file(array: Any) -> bool:
    """Whether the array's memory is a map of the data file."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_ = line.split()
        first, end = (int(each, 16) for each in span.split("-"))
        if first <= address < end:
            return line.endswith(".safetensors")
    raise AssertionError("the address is in no map")


def test_what_is_cached_is_mapped_and_what_is_not_is_read(on_disk: Path) -> None:
    leave_page_cache(on_disk)
    cold = regrow.load(on_disk)
    assert not lies_in_a_file(cold["a"]) and not lies_in_a_file(cold["b"])
    leave_page_cache(on_disk)
    asked_for = regrow.load(on_disk, options=regrow.Options(mmap=True))
    assert lies_in_a_file(asked_for["a"]) and lies_in_a_file(asked_for["b"])
    warm = regrow.load(on_disk)
    assert lies_in_a_file(warm["a"])
    for loaded in (cold, asked_for, warm):
        np.testing.assert_array_equal(loaded["a"], np.arange(1 << 20))
        np.testing.assert_array_equal(loaded["b"], np.arange(1 << 18, dtype=np.int32))
        assert loaded["c"] == 1 and not loaded["a"].flags.writeable


@pytest.mark.parametrize("mmap", [False, True])
def test_damage_is_found_by_cold_loads(on_disk: Path, mmap: bool) -> None:
    file = on_disk / "model.safetensors"
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        byte = opened.read(1)
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte[0] ^ 1]))
        opened.flush()
        os.fsync(opened.fileno())
    leave_page_cache(on_disk)
    with pytest.raises(regrow.errors.CorruptError) as caught:
        regrow.load(on_disk, options=regrow.Options(mmap=mmap))
    assert (caught.value.file, caught.value.leaf) == (str(file), "a")


def peak_of(code: str) -> tuple[int, int]:
    """What a process of its own held before `code`, and at most while it ran: bytes that are no
    file's pages.
    """
    program = f"""
import sys, threading, time
import numpy as np
import regrow

def held():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["RssAnon"].split()[0]) << 10

most, is_over = 0, threading.Event()

def watch():
    global most
    while not is_over.is_set():
        most = max(most, held())
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
before = held()
watcher.start()
{code}
is_over.set()
watcher.join()
print(before, most)
"""
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    before, most = map(int, run.stdout.split())
    return before, most


@pytest.mark.parametrize("use_zarr3", [False, True])
def test_a_chunk_larger_than_the_budget_is_decoded_without_a_copy_of_it(tmp_path: Path, use_zarr3: bool) -> None:
    leaf = np.random.default_rng(0).integers(0, 250, 96 << 20, np.uint8)
    regrow.save(tmp_path / "x", {"a": leaf}, compression="zstd", layout=regrow.layouts.Orbax(zarr3=use_zarr3))
    before, most = peak_of(f"loaded = regrow.load({str(tmp_path / 'x')!r})")
    # The result; five buffers of 4 MiB, and what decoding needs.
    assert leaf.nbytes < most - before < leaf.nbytes + (48 << 20)


def test_verifying_chunks_larger_than_the_budget_takes_one_at_a_time(tmp_path: Path) -> None:
    leaf = np.random.default_rng(0).integers(0, 250, 96 << 20, np.uint8)
    regrow.save(tmp_path / "x", {"a": leaf, "b": leaf}, layout="orbax", compression="zstd")
    before, most = peak_of(f"assert regrow.verify({str(tmp_path / 'x')!r}).ok")
    assert most - before < leaf.nbytes + (48 << 20)

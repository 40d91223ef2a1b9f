"""Damaged NumPy and Equinox files, with the original tools as judges: what they refuse, regrow
refuses.
"""

from __future__ import annotations

import random
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import pytest
from conftest import assert_same

import regrow
from regrow import equinox as ours

FLIPS = 400

TREES: dict[str, dict[str, Any]] = {
    "numbers": {"a": np.arange(300.0), "b": np.arange(6, dtype=">i4").reshape(2, 3), "c": np.asfortranarray(np.eye(3))},
    "names": {"params/kernel": np.ones(2), "λ": np.zeros((0, 2)), "x": np.array("text")},
    "records": {"r": np.array([(1, 2.5)], [("a", "<i4"), ("b", ">f8")]), "d": np.array(["2020-01-01"], "M8[D]")},
    "nothing": {},
}


def flips(raw: bytes, seed: int) -> Iterator[tuple[int, bytes]]:
    """Copies with one bit flipped: all of a small file, else some of it."""
    bits = range(8 * len(raw))
    for bit in bits if len(bits) <= FLIPS else random.Random(seed).sample(bits, FLIPS):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(damaged)


def replace(path: Path, data: bytes) -> None:
    """A new file at `path`: what maps the old one must not see it change."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def is_refused_by_zipfile(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is not None
    except Exception:  # BadZipFile, NotImplementedError, zlib.error, RuntimeError, EOFError, ...
        return True


def is_refused_by_regrow(path: Path) -> bool:
    try:
        return not regrow.verify(path).ok
    except regrow.RegrowError:
        return True


def the_same_or_refused(path: Path, good: Any) -> bool:
    """Whether `load` refuses the file; it gives no other tree than `good`, and no other part of
    an array.
    """
    try:
        ckpt = regrow.open(path)
    except regrow.RegrowError:
        with pytest.raises(regrow.RegrowError):
            regrow.load(path)
        return True
    for name in ckpt:
        if name in good and isinstance(good[name], np.ndarray) and good[name].ndim:
            try:
                part = ckpt[name][-1:]
            except regrow.RegrowError:
                continue
            expected = np.ascontiguousarray(good[name])[-1:]
            # A part of what only NumPy has a dtype for comes as its bytes.
            assert part.tobytes() == expected.tobytes()
            assert part.dtype == (expected.dtype if expected.dtype.kind in "biufc" else np.uint8)
    try:
        loaded = regrow.load(path)
    except regrow.RegrowError:
        return True
    assert_same(loaded, good)
    return False


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("writer", ["savez", "savez_compressed", "regrow", "regrow deflated"])
def test_what_zipfile_refuses_is_refused(tmp_path: Path, writer: str, name: str) -> None:
    path, tree = tmp_path / "x.npz", TREES[name]
    if writer.startswith("regrow"):
        regrow.save(path, tree, layout=regrow.layouts.Npy(compress="deflated" in writer))
    else:
        getattr(np, writer)(path, **tree)
    assert not is_refused_by_zipfile(path)
    assert not is_refused_by_regrow(path)
    good = regrow.load(path)
    raw = path.read_bytes()
    for bit, damaged in flips(raw, seed=len(name)):
        replace(path, damaged)
        is_refused = the_same_or_refused(path, good)
        if is_refused or is_refused_by_zipfile(path):
            assert is_refused_by_regrow(path), f"bit {bit} of {8 * len(raw)}"


def test_a_shorter_array_in_a_deflated_member(tmp_path: Path) -> None:
    """The header says less than there is: NumPy then never looks at the checksum."""
    path = tmp_path / "x.npz"
    header, data = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (%s,), }", bytes(2400)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", (header % b"2").ljust(127) + b"\n" + data)
    assert np.load(path)["a"].shape == (2,)
    with pytest.raises(regrow.errors.CorruptError, match="has bytes after its array"):
        regrow.load(path)
    assert is_refused_by_regrow(path)


def test_objects_are_refused_in_archives_as_in_files(tmp_path: Path) -> None:
    objects = np.array([{}, None])
    np.savez(tmp_path / "x.npz", a=np.arange(3), b=objects)
    np.save(tmp_path / "x.npy", objects)
    with pytest.raises(regrow.errors.UnsupportedError, match="pickled"):
        regrow.load(tmp_path / "x.npy")
    ckpt = regrow.open(tmp_path / "x.npz")
    assert_same(ckpt["a"][...], np.arange(3))
    with pytest.raises(regrow.errors.UnsupportedError, match="executes nothing") as caught:
        regrow.load(tmp_path / "x.npz")
    assert caught.value.leaf == "b"
    with pytest.raises(ValueError, match="allow_pickle"), np.load(tmp_path / "x.npz") as theirs:
        dict(theirs)
    assert_same(regrow.load(tmp_path / "x.npz", only="a"), {"a": np.arange(3)})
    assert [(finding.kind, finding.leaf) for finding in regrow.verify(tmp_path / "x.npz").findings] == [
        ("unsupported", "b")
    ]


def test_bytes_behind_an_array(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(3))
    replace(path, path.read_bytes() + bytes(64))
    with pytest.raises(regrow.errors.CorruptError, match="has bytes after its array"):
        regrow.load(path)
    assert is_refused_by_regrow(path)
    assert_same(regrow.load(path, options=regrow.Options(arrays_only=True)), np.load(path))
    # Two arrays, as several calls of np.save with one file write them: both of them.
    with path.open("wb") as file:
        np.save(file, np.arange(3))
        np.save(file, np.ones(2))
    assert_same(regrow.load(path), [np.arange(3), np.ones(2)])


@pytest.mark.parametrize("name", ["x.npz", "x", "x.eqx"])
def test_a_damaged_pytree_is_an_error_and_the_arrays_are_there(tmp_path: Path, name: str) -> None:
    path, kernel = tmp_path / name, np.arange(6.0).reshape(2, 3)
    tree = {"layers": [(kernel, "relu"), (None, "gelu")], "w": kernel + 1}
    regrow.save(path, tree, layout="equinox" if name.endswith("eqx") else "npy", lossy=True)
    file = path / "regrow-structure.json" if path.is_dir() else path
    replace(file, file.read_bytes().replace(b'"gelu"', b'"tanh"'))
    with pytest.raises(regrow.errors.CorruptError, match="arrays_only=True"):
        regrow.load(path)
    with pytest.raises(regrow.errors.CorruptError):
        regrow.convert(path, tmp_path / "y")
    report = regrow.verify(path)
    assert [finding.kind for finding in report.findings] == ["corrupt"]
    assert report.leaf_count >= 2
    arrays = list(_leaves(regrow.load(path, options=regrow.Options(arrays_only=True))))
    assert any(np.array_equal(array, kernel) for array in arrays)
    regrow.convert(path, tmp_path / "y", lossy=True, options=regrow.Options(arrays_only=True))
    assert regrow.verify(path, options=regrow.Options(arrays_only=True)).ok
    assert len(regrow.open(path, options=regrow.Options(arrays_only=True))) == len(arrays)


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (dict, list)):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(value)
    else:
        yield tree


def test_an_empty_equinox_file(tmp_path: Path) -> None:
    path = tmp_path / "x.eqx"
    eqx.tree_serialise_leaves(path, {"f": abs})
    assert path.read_bytes() == b""
    with pytest.raises(regrow.errors.CorruptError, match="empty"):
        regrow.load(path)
    assert not regrow.verify(path).ok
    assert regrow.load(path, options=regrow.Options(arrays_only=True)) == []
    # Who brings a pytree without arrays gets what Equinox gives.
    for module in (eqx, ours):
        assert module.tree_deserialise_leaves(path, {"f": abs}) == {"f": abs}
    with pytest.raises((EOFError, RuntimeError)):
        ours.tree_deserialise_leaves(path, {"w": np.ones(2)})
    ours.tree_serialise_leaves(tmp_path / "y.eqx", {"f": "text"})
    assert regrow.load(tmp_path / "y.eqx") == {"f": "text"}


def test_equinox_files_with_a_flipped_bit(tmp_path: Path) -> None:
    path, tree = tmp_path / "x.eqx", {"b": np.arange(4.0), "n": 3, "text": "relu", "w": (np.ones((3, 2)), None)}
    ours.tree_serialise_leaves(path, tree)
    good, raw = regrow.load(path), path.read_bytes()
    for bit, damaged in flips(raw, seed=1):
        replace(path, damaged)
        if the_same_or_refused(path, good):
            assert is_refused_by_regrow(path), f"bit {bit}"
        # With `like`, the pytree is not asked for; the leaves are those that were saved, or an
        # error.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = ours.tree_deserialise_leaves(path, tree)
            except Exception:  # test_equinox_errors checks the kind
                continue
            is_whole = regrow.open(path, options=regrow.Options(arrays_only=True)).variant.endswith("trailer")
        if is_whole:
            assert_same(found, tree)


def test_the_rest_of_an_orbax_checkpoint_is_no_folder_of_arrays(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", {"a": np.ones(2)}, layout="orbax")
    np.save(tmp_path / "x" / "mine.npy", np.ones(3))
    for entry in list((tmp_path / "x").iterdir()):
        if entry.name not in ("mine.npy", "commit_success.txt"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    assert {entry.name for entry in (tmp_path / "x").iterdir()} == {"mine.npy", "commit_success.txt"}
    with pytest.raises(regrow.RegrowError):
        regrow.load(tmp_path / "x")

"""NumPy files, with NumPy as the judge: what it writes is read, what is written it reads."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import assert_same, same_bits

import regrow

NUMBERS = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
CUSTOM = [
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
    "int2",
    "int4",
    "uint2",
    "uint4",
]

OTHERS = {
    "text": np.array([["a", "bcd"], ["", "λ中😀"]]),
    "text_big": np.array(["ab", "c"], ">U2"),
    "text_0d": np.array("hello"),
    "bytes": np.array([b"a", b"bcd"]),
    "dates": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "dates_ns": np.array([[1, 2, 3]], "M8[25ns]"),
    "durations": np.array([1, 2], ">m8[s]"),
    "void": np.array([b"abc", b"xyz"], "V3"),
    "longdouble": np.array([1, 2.5], np.longdouble),
    "record": np.array([(1, 2.5, b"ab"), (3, 4.5, b"c")], [("a", "<i4"), ("b", ">f8"), ("c", "S2")]),
    "record_aligned": np.zeros(2, np.dtype([("a", "u1"), ("b", "<f8")], align=True)),
    "record_nested": np.zeros((2, 2), [("a", [("x", "<f4"), ("y", "<i2", (2, 3))]), ("b", "M8[s]")]),
    "record_utf8": np.zeros(1, [("λ", "<f4"), ("é", "u1")]),
    "no_text": np.array([], "U3"),
}


def numbers() -> dict[str, Any]:
    """Arrays of every number, order and rank."""
    base = np.arange(-6, 18).reshape(2, 3, 4)
    out: dict[str, Any] = {code: base.astype(np.dtype(code)) for code in NUMBERS}
    out |= {
        "fortran": np.asfortranarray(base.astype("<f4")),
        "slice": base[:, ::-2, 1:],
        "zero_d": np.array(2.5),
        "empty": np.zeros((3, 0, 2), "<f8"),
        "rank": np.zeros((1,) * 20, "<u2"),
    }
    return out


def little(array: Any) -> Any:
    """As regrow gives numbers: little-endian."""
    return array.astype(array.dtype.newbyteorder("<")) if array.dtype.kind in "iufc" else array


def same_values(left: Any, right: Any) -> bool:
    """The same bits, but for the padding in records and extended floats, which NumPy does not
    copy.
    """
    if left.dtype.kind == "V" or left.dtype.char in "gG":
        return left.dtype == right.dtype and np.array_equal(left, right)
    return same_bits(left, right)


# ---- what NumPy wrote -----------------------------------------------------------------


@pytest.mark.parametrize("order", "<>")
def test_numbers_that_numpy_saved(tmp_path: Path, order: str) -> None:
    for name, array in numbers().items():
        array = array.astype(array.dtype.newbyteorder(order), order="K")
        np.save(tmp_path / "x.npy", array)
        loaded = regrow.load(tmp_path / "x.npy")
        assert same_bits(loaded, little(array)), name


@pytest.mark.parametrize("name", OTHERS)
def test_dtypes_that_only_numpy_has(tmp_path: Path, name: str) -> None:
    array = OTHERS[name]
    for variant in (array, np.asfortranarray(array)):
        np.save(tmp_path / "x.npy", variant)
        loaded = regrow.load(tmp_path / "x.npy")
        assert loaded.dtype == np.load(tmp_path / "x.npy").dtype
        assert loaded.shape == variant.shape
        assert loaded.tobytes() == np.load(tmp_path / "x.npy").tobytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_that_numpy_saved(tmp_path: Path, save: Any) -> None:
    arrays = numbers() | OTHERS | {"a/b": np.arange(3), "λ": np.ones(2)}
    save(tmp_path / "x.npz", **arrays)
    loaded = regrow.load(tmp_path / "x.npz")
    assert list(loaded) == list(arrays)
    with np.load(tmp_path / "x.npz") as theirs:
        for name in arrays:
            assert same_values(loaded[name], theirs[name]), name
    assert regrow.verify(tmp_path / "x.npz").ok
    ckpt = regrow.open(tmp_path / "x.npz")
    assert same_bits(ckpt["f4"][1, 1:, ::2], arrays["f4"][1, 1:, ::2])


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", good=np.arange(100), bad=np.arange(1000, 1100))
    raw = bytearray((tmp_path / "x.npz").read_bytes())
    raw[raw.index(np.int64(1050).tobytes())] ^= 1
    (tmp_path / "x.npz").write_bytes(raw)
    with pytest.raises(regrow.errors.CorruptError, match="CRC-32") as caught:
        regrow.load(tmp_path / "x.npz")
    assert caught.value.leaf == "bad"
    assert same_bits(regrow.load(tmp_path / "x.npz", only="good")["good"], np.arange(100))


# ---- what regrow wrote ----------------------------------------------------------------


def npy_bytes(array: Any) -> bytes:
    """The file that `np.save` would write."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_one_array_is_the_file_that_numpy_writes(tmp_path: Path) -> None:
    for number, (name, array) in enumerate((numbers() | OTHERS).items()):
        path = tmp_path / f"{number}.npy"
        regrow.save(path, array, layout="npy")
        loaded = np.load(path)
        assert same_bits(loaded, array), name
        assert path.read_bytes() == npy_bytes(np.ascontiguousarray(array).reshape(array.shape)), name
        if array.size:
            assert same_bits(np.load(path, mmap_mode="r"), array), name
        assert same_bits(regrow.load(path), array), name


def test_big_endian_numbers_become_little_endian(tmp_path: Path) -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    regrow.save(tmp_path / "x.npy", array, layout="npy")
    assert (tmp_path / "x.npy").read_bytes() == npy_bytes(array.astype("<f4"))


@pytest.mark.parametrize("name", CUSTOM)
def test_dtypes_of_ml_dtypes(tmp_path: Path, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    regrow.save(tmp_path / "x.npy", array, layout="npy")
    assert same_bits(np.load(tmp_path / "x.npy"), array)
    assert same_bits(regrow.load(tmp_path / "x.npy"), array)
    regrow.save(tmp_path / "x.npy", array, overwrite=True, lossy=True, layout=regrow.layouts.Npy(named_dtypes=False))
    assert (tmp_path / "x.npy").read_bytes() == npy_bytes(array)
    loaded = regrow.load(tmp_path / "x.npy")
    assert loaded.tobytes() == array.tobytes()
    assert (loaded.dtype == dtype) == (name in ("bfloat16", "float8_e5m2"))
    # With the structure beside it, nothing is lost.
    regrow.save(tmp_path / "x.npz", {"a": array}, lossy=True, layout=regrow.layouts.Npy(named_dtypes=False))
    assert same_bits(regrow.load(tmp_path / "x.npz")["a"], array)


def test_jax_reads_bfloat16_either_way(tmp_path: Path) -> None:
    array = jnp.arange(4, dtype=jnp.bfloat16)
    for named in (True, False):
        path = tmp_path / f"{named}.npy"
        regrow.save(path, array, layout=regrow.layouts.Npy(named_dtypes=named))
        assert jnp.load(path).dtype == jnp.bfloat16
        assert (jnp.load(path) == array).all()


RICH = {
    "params": {"dense/0": {"kernel": np.arange(12, dtype="<f4").reshape(3, 4), "bias": np.ones(4, ml_dtypes.bfloat16)}},
    "opt": (None, [1, 2.5, True, 1 + 2j], {}),
    3: np.float32(1.5),
    "name": "net\0",
    "blob": b"\x00\x01\x00",
    "dates": OTHERS["dates"],
    "record": OTHERS["record_nested"],
    "..": np.zeros((0, 2)),
    "": 7,
    "skip": ...,
}


@pytest.mark.parametrize(
    "options", [{}, {"compress": True}, {"compress": 9}, {"separator": "."}, {"named_dtypes": False}]
)
def test_the_exact_tree_comes_back_from_an_archive(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "x.npz"
    regrow.save(path, RICH, layout=regrow.layouts.Npy(**options), metadata={"run": 3}, lossy=True)
    assert_same(regrow.load(path, options=regrow.Options(placeholders=True)), RICH)
    assert regrow.open(path).metadata == {"run": 3}
    with np.load(path) as theirs, zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        join = options.get("separator", "/").join
        assert set(theirs.files) == {
            join(keys)
            for keys in [
                ("params", "dense/0", "kernel"),
                ("params", "dense/0", "bias"),
                ("opt", "1", "0"),
                ("opt", "1", "1"),
                ("opt", "1", "2"),
                ("opt", "1", "3"),
                ("3",),
                ("name",),
                ("blob",),
                ("dates",),
                ("record",),
                ("..",),
                ("",),
            ]
        }
        kernel = RICH["params"]["dense/0"]["kernel"]
        assert same_bits(theirs[join(("params", "dense/0", "kernel"))], kernel)
        assert theirs["name"] == "net"
        assert theirs["blob"].tobytes() == b"\x00\x01\x00"
        assert theirs[join(("opt", "1", "3"))] == 1 + 2j


def test_an_archive_that_was_written_again_is_a_flat_dict(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x.npz", RICH, layout="npy", lossy=True)
    with np.load(tmp_path / "x.npz") as theirs:
        np.savez(tmp_path / "y.npz", **dict(theirs))
        assert list(regrow.load(tmp_path / "y.npz")) == theirs.files


def test_an_empty_tree_is_an_archive_too(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x.npz", {"a": {}, "b": None}, layout="npy")
    assert regrow.load(tmp_path / "x.npz") == {"a": {}, "b": None}
    with np.load(tmp_path / "x.npz") as theirs:
        assert theirs.files == []


def test_a_folder_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x"
    regrow.save(path, RICH, layout="npy", lossy=True)
    assert_same(regrow.load(path, options=regrow.Options(placeholders=True)), RICH)
    kernel = RICH["params"]["dense/0"]["kernel"]
    assert same_bits(np.load(path / "params" / "dense%2F0" / "kernel.npy", mmap_mode="r"), kernel)
    assert {file.name for file in path.iterdir()} >= {"%.npy", "%2E..npy", "regrow-structure.json"}
    regrow.save(path, {"a": np.ones(1)}, layout="npy", overwrite=True)
    assert {file.name for file in path.iterdir()} == {"a.npy", "regrow-structure.json"}
    (path / "regrow-structure.json").unlink()
    np.save(path / "b.npy", np.zeros(2))
    assert_same(regrow.load(path), {"a": np.ones(1), "b": np.zeros(2)})


def test_big_archives_keep_their_offsets(tmp_path: Path) -> None:
    tree = {f"{i:06}": np.int32(i) for i in range(70_000)}
    regrow.save(tmp_path / "x.npz", tree, layout="npy", durable=False)
    with np.load(tmp_path / "x.npz") as theirs:
        assert len(theirs.files) == 70_000
        assert theirs["069999"] == 69_999
    assert regrow.open(tmp_path / "x.npz")["069999"].read() == 69_999


def test_jax_leaves_and_keys(tmp_path: Path) -> None:
    tree = {"x": jnp.ones((2, 3)), "key": jax.random.key(3)}
    regrow.save(tmp_path / "x.npz", tree, layout="npy")
    loaded = regrow.load(tmp_path / "x.npz", like=tree)
    assert (jax.random.key_data(loaded["key"]) == jax.random.key_data(tree["key"])).all()
    with np.load(tmp_path / "x.npz") as theirs:
        assert same_bits(theirs["key"], np.asarray(jax.random.key_data(tree["key"])))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"compress": 10}, regrow.errors.InvalidArgumentError),
        ({"compress": "zip"}, regrow.errors.InvalidArgumentError),
        ({"form": "zip"}, regrow.errors.InvalidArgumentError),
        ({"unknown": 1}, TypeError),
        ({"compression": "zstd"}, regrow.errors.InvalidArgumentError),
        ({"form": "npy"}, regrow.errors.UnsupportedError),
        ({"form": "folder", "compress": True}, regrow.errors.InvalidArgumentError),
        ({"structure": False, "metadata": 1}, regrow.errors.InvalidArgumentError),
        ({"structure": False}, regrow.errors.UnsupportedError),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        more = {name: options.pop(name) for name in ("metadata", "compression", "lossy") if name in options}
        regrow.save(tmp_path / "x.npz", RICH, layout=regrow.layouts.Npy(**options), **more)
    assert list(tmp_path.iterdir()) == []

"""Every dtype of NumPy and ml_dtypes, every memory layout, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_same, round_trip

import regrow

NUMPY = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
ML_DTYPES = (
    "bfloat16 float4_e2m1fn float6_e2m3fn float6_e3m2fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn "
    "float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu int2 int4 uint2 uint4"
).split()
BITS = {
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "float4_e2m1fn": 4,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
}


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def every_bit_pattern(name: str) -> np.ndarray[Any, Any]:
    """An array of shape (n, 2) that has every bit pattern of a small dtype, and random ones of a
    large.
    """
    dtype = dtype_of(name)
    if name == "bool":
        return np.array([[True, False], [False, True]])
    if dtype.itemsize == 1:
        patterns = np.arange(256, dtype=np.uint8)
        if name in BITS:
            # One byte an element, the value in its low bits; signed ones are extended as ml_dtypes
            # does.
            values = np.arange(2 ** BITS[name], dtype=np.uint8)
            if name.startswith("int"):
                return values.astype(np.int8).astype(dtype).reshape(-1, 2)
            return values.view(dtype).reshape(-1, 2)
        return patterns.view(dtype).reshape(-1, 2)
    random = np.random.default_rng(7).bytes(dtype.itemsize * 512)
    return np.frombuffer(random, dtype).reshape(-1, 2)


@pytest.mark.parametrize("name", NUMPY + ML_DTYPES)
def test_every_dtype(path: Path, name: str) -> None:
    array = every_bit_pattern(name)
    tree = {"a": array, "scalar": array[0, 0], "empty": array[:0], "zero_d": array[0, 0].reshape(())}
    tree["zero_d"] = np.asarray(array[0, 0])
    assert_same(tree, round_trip(path, tree))


LAYOUTS = {
    "fortran": lambda a: np.asfortranarray(a),
    "transposed": lambda a: a.transpose(2, 0, 1),
    "every other": lambda a: a[::2, :, 1::3],
    "backwards": lambda a: a[::-1, :, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[:1], (5, 6, 7)),
    "a window": lambda a: a[1:3, 2:4, 3:],
    "big endian": lambda a: a.astype(">f4"),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "no elements": lambda a: a[:, :0],
    "one element": lambda a: a[:1, :1, :1],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_memory_layout(path: Path, layout: Any) -> None:
    array = layout(np.arange(4 * 6 * 7, dtype=np.float32).reshape(4, 6, 7))
    loaded = round_trip(path, [array])[0]
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, array)


def test_a_large_strided_array(path: Path) -> None:
    array = np.arange(3_000_000, dtype=np.int32).reshape(1000, 3000)
    loaded = round_trip(path, {"t": array.T, "s": array[::3, ::-2]})
    np.testing.assert_array_equal(loaded["t"], array.T)
    np.testing.assert_array_equal(loaded["s"], array[::3, ::-2])


def test_a_memmap_is_an_array(path: Path, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "m", dtype=np.int16, mode="w+", shape=(3,))
    mapped[:] = [1, 2, 3]
    np.testing.assert_array_equal(round_trip(path, [mapped])[0], [1, 2, 3])


def test_loaded_arrays_are_read_only_views(path: Path) -> None:
    loaded = round_trip(path, {"a": np.arange(4096)})["a"]
    assert not loaded.flags.writeable
    assert not loaded.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        loaded[0] = 1


def test_views_outlive_checkpoint_and_folder(path: Path) -> None:
    import gc
    import shutil

    loaded = round_trip(path, {"a": np.arange(100_000)})["a"]
    shutil.rmtree(path)
    gc.collect()
    assert loaded.sum() == 100_000 * 99_999 // 2


NUMPYS_ALONE = {
    "text": np.array(["a", "b\u00e9"]),
    "big-endian text": np.array(["a", "b\u00e9"], dtype=">U2"),
    "bytes": np.array([b"a"]),
    "void": np.array([b"abc", b"d"], dtype="V3"),
    "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "durations": np.array([1], dtype="timedelta64[s]"),
    "records": np.array([(1.5, 2), (3, 4)], dtype=[("x", "f4"), ("y", ">i4")]),
    "nested records": np.zeros((2, 3), dtype=[("x", "f4", (2,)), ("y", [("z", "U1")])]),
    "long doubles": np.zeros(2, dtype=np.longdouble),
    "no axes": np.array("text"),
    "no elements": np.zeros((0, 2), dtype="U3"),
    "Fortran order": np.asfortranarray([["a", "b"], ["c", "d"]]),
}


@pytest.mark.parametrize("leaf", NUMPYS_ALONE.values(), ids=NUMPYS_ALONE.keys())
def test_dtypes_that_are_numpys_alone_come_back(path: Path, leaf: Any) -> None:
    loaded = round_trip(path, {"a": leaf, "b": np.arange(3)})
    assert_same(loaded, {"a": leaf, "b": np.arange(3)})
    assert regrow.verify(path).ok


REFUSED = {
    "objects": np.array([object()]),
    "records with objects": np.zeros(2, dtype=[("x", "O")]),
    "text scalar": np.str_("a"),
    "masked": np.ma.masked_array([1, 2], [True, False]),
    "matrix": np.ndarray.__new__(type("Sub", (np.ndarray,), {}), (2,)),
}


@pytest.mark.parametrize("leaf", REFUSED.values(), ids=REFUSED.keys())
def test_other_dtypes_are_refused_with_their_key_path(path: Path, leaf: Any) -> None:
    with pytest.raises(regrow.errors.UnsupportedError) as caught:
        regrow.save(path, {"params": [1, leaf]})
    assert caught.value.leaf == "params/1"
    assert "params/1" in str(caught.value)
    assert not path.exists()


def test_an_integer_beyond_64_bits_is_refused(path: Path) -> None:
    with pytest.raises(regrow.errors.UnsupportedError, match="64 bits") as caught:
        regrow.save(path, {"n": 2**64})
    assert caught.value.leaf == "n"

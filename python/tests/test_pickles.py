"""Pickles of plain containers and arrays are read as data; everything else is refused by its
name.
"""

from __future__ import annotations

import collections
import datetime
import pickle
import random
from pathlib import Path
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from conftest import same_bits

import regrow

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
FLOATS = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "uint4"]


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {
        np.dtype(code).name + order: (rng.standard_normal((5, 7)) * 100).astype(np.dtype(code).newbyteorder(order))
        for code in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16")
        for order in "<>"
    }
    made |= {name: np.arange(4).astype(getattr(ml_dtypes, name)) for name in FLOATS}
    made |= {
        "fortran": np.asfortranarray(rng.standard_normal((3, 4, 5))),
        "strided": np.arange(40)[::3],
        "transposed": np.arange(12).reshape(3, 4).T,
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 3), np.float32),
        "large": rng.standard_normal(5000).astype(np.float32),
        "large_bytes": rng.integers(0, 256, 20_000).astype(np.uint8),
        "newlines": np.frombuffer(b"\n\r\\'\"\0\x1a" * 4, np.uint8),
        "text": np.array(["a", "\u00e9\U0001f600"]),
        "bytes": np.array([b"ab", b"c"]),
    }
    return made


def plain() -> dict[str, Any]:
    return {
        "params": {"dense": {"kernel": np.ones((2, 3), np.float32), "bias": [1, 2.5, -7]}, "tuple": (1, (2, None))},
        "ordered": collections.OrderedDict(b=1, a=2),
        "counts": collections.defaultdict(int, {"x": 1}),
        "numbers": [True, False, 0, -1, 2**31, -(2**63), 2**63, 1.5e300, float("inf"), 1 + 2j],
        "text": ["", "a\nb", "\\u0041", "\u00e9\u4e2d\U0001f600", 'it\'s "so"'],
        "raw": [b"", b"\x00\xff\n", b"ascii"],
        "scalars": [np.float32(1.5), np.int64(-3), np.bool_(True), ml_dtypes.bfloat16(1.5)],
        "frozen": flax.core.freeze({"a": {"b": np.arange(3)}}),
        0: "an integer key",
    }


def same(found: Any, saved: Any) -> bool:
    if isinstance(saved, (dict, flax.core.FrozenDict)):
        return list(found) == list(saved) and all(same(found[key], saved[key]) for key in saved)
    if isinstance(saved, (list, tuple)):
        return type(found) is type(saved) and len(found) == len(saved) and all(map(same, found, saved))
    if isinstance(saved, np.ndarray) and saved.dtype.byteorder == ">":
        return found.dtype == saved.dtype.newbyteorder("<") and np.array_equal(found, saved)
    if isinstance(saved, (np.ndarray, np.generic, jax.Array)):
        return same_bits(np.asarray(found), np.asarray(saved))
    return type(found) is type(saved) and (found == saved or found != found)


def written(path: Path, value: Any, protocol: int) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_of_numpy_come_back_bit_for_bit(tmp_path: Path, protocol: int) -> None:
    path = written(tmp_path / "x.pkl", arrays(), protocol)
    assert same(regrow.load(path), arrays())
    assert regrow.verify(path).ok


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_containers_come_back_as_they_were(tmp_path: Path, protocol: int) -> None:
    path = written(tmp_path / "x.pickle", plain(), protocol)
    found, saved = regrow.load(path), plain()
    for key in saved:
        assert same(found[key], saved[key]), key
    assert same(found, saved)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_of_jax_come_back_bit_for_bit(tmp_path: Path, protocol: int) -> None:
    tree = {
        "w": jax.random.normal(jax.random.key(0), (40, 50)),
        "h": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
        "weak": jnp.asarray(1.0),
        "f8": jnp.ones(3, jnp.float8_e4m3fn),
        "raw_key": jax.random.PRNGKey(3),
    }
    path = written(tmp_path / "x.pkl", tree, protocol)
    assert same(regrow.load(path), tree)
    assert regrow.open(path)["w"].kind == "jax_array"


def test_arrays_of_python_2_are_read(tmp_path: Path) -> None:
    def short(data: bytes) -> bytes:
        return b"U" + bytes([len(data)]) + data

    for data in (b"\x00\x00\x80?", b"abcd", b"\n'\xff\\"):
        dtype = (
            b"cnumpy\ndtype\n"
            + short(b"f4")
            + b"K\x00K\x01\x87R(K\x03"
            + short(b"<")
            + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        )
        head = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
        (tmp_path / "x.pkl").write_bytes(
            b"\x80\x02" + head + b"(K\x01K\x01\x85" + dtype + b"\x89" + short(data) + b"tb."
        )
        assert regrow.load(tmp_path / "x.pkl").tobytes() == data
        assert pickle.loads((tmp_path / "x.pkl").read_bytes(), encoding="latin1").tobytes() == data


@pytest.mark.parametrize("name", ["x.pkl", "x", "x.bin", "weights.ckpt"])
def test_pickles_are_recognised_by_their_first_bytes(tmp_path: Path, name: str) -> None:
    for protocol in range(2, 6):
        path = written(tmp_path / name, {"w": np.arange(3)}, protocol)
        assert np.array_equal(regrow.load(path)["w"], np.arange(3))
        assert regrow.open(path).variant == "pickle"


class Own:
    def __init__(self) -> None:
        self.value = 1


REFUSED: dict[str, tuple[Any, str]] = {
    "class": (Own(), "Own"),
    "function": (len, "builtins.len|__builtin__.len"),
    "type": (np.float32, "numpy.float32"),
    "date": (datetime.date(2026, 1, 1), "datetime.date"),
    "path": (Path("x"), "pathlib"),
    "range": (range(3), "range"),
    "objects": (np.array([1, "a"], dtype=object), "NumPy array has"),
    "dates": (np.array(["2026-01-01"], "datetime64[D]"), "NumPy array has"),
    "records": (np.zeros(2, [("a", "<f4")]), "NumPy array has"),
    "masked": (np.ma.array([1, 2], mask=[0, 1]), "numpy.ma"),
    "optax": (optax.ScaleByAdamState(jnp.zeros(()), {}, {}), "ScaleByAdamState"),
    "dtype": (np.dtype("f4"), "numpy.dtype"),
}


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_is_refused_by_its_name(tmp_path: Path, name: str, protocol: int) -> None:
    value, named = REFUSED[name]
    path = written(tmp_path / "x.pkl", {"bad": value, "good": np.arange(3)}, protocol)
    with pytest.raises(regrow.errors.UnsupportedError, match=named) as raised:
        regrow.load(path)
    assert "bad" in str(raised.value) and "byte" in str(raised.value)
    assert np.array_equal(regrow.load(path, only="good")["good"], np.arange(3))


def test_nothing_of_a_pickle_is_called(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "called"), "w"))

    for protocol in PROTOCOLS:
        path = written(tmp_path / "x.pkl", {"a": Evil(), "b": 1}, protocol)
        with pytest.raises(regrow.errors.UnsupportedError, match=r"(io|_io)\.open"):
            regrow.load(path)
    assert not (tmp_path / "called").exists()


def test_what_is_no_single_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"a": 1}) + pickle.dumps({"b": 2}))
    with pytest.raises(regrow.errors.UnsupportedError, match="more than one pickle"):
        regrow.load(path)
    joblib = (
        b"\x80\x04\x95\x3e\0\0\0\0\0\0\0\x8c\x13joblib.numpy_pickle\x94\x8c\x11NumpyArrayWrapper\x94\x93\x94)\x81\x94}b"
        b"\x06\xff\xff\xff\xff\xff\xff\0\0\0."
    )
    path.write_bytes(joblib)
    with pytest.raises(regrow.errors.UnsupportedError, match="joblib"):
        regrow.load(path)
    buffers: list[pickle.PickleBuffer] = []
    path.write_bytes(pickle.dumps({"w": np.arange(10_000)}, 5, buffer_callback=buffers.append))
    assert buffers
    with pytest.raises(regrow.errors.UnsupportedError, match="NEXT_BUFFER"):
        regrow.load(path)


def test_a_pickle_is_converted_and_compared(tmp_path: Path) -> None:
    tree = {"params": {"w": jnp.arange(3000.0), "b": np.zeros(3, ml_dtypes.bfloat16)}}
    path = written(tmp_path / "params.pkl", tree, 4)
    regrow.convert(path, tmp_path / "params.safetensors")
    assert same(regrow.load(tmp_path / "params.safetensors"), tree)
    assert regrow.diff(path, tmp_path / "params.safetensors").equal
    regrow.save(tmp_path / "features", tree)
    with pytest.raises(regrow.RegrowError, match="not a checkpoint"):
        regrow.save(path, tree, layout="flax", overwrite=True)


def test_long_arrays_are_read_in_parts(tmp_path: Path) -> None:
    path = written(tmp_path / "x.pkl", {"w": np.arange(100_000, dtype=np.int32)}, 4)
    assert np.array_equal(regrow.open(path)["w"][50_000:50_004], [50_000, 50_001, 50_002, 50_003])


def test_no_change_of_a_pickle_raises_anything_but_regrows_own(tmp_path: Path) -> None:
    choose = random.Random(34)
    originals = [pickle.dumps(tree, protocol) for tree in (plain(), arrays()) for protocol in PROTOCOLS]
    path = tmp_path / "x.pkl"
    loaded = 0
    for _ in range(1500):
        data = bytearray(choose.choice(originals))
        for _ in range(choose.choice([1, 1, 2, 5])):
            at = choose.randrange(len(data))
            match choose.randrange(4):
                case 0:
                    data[at] = choose.randrange(256)
                case 1:
                    del data[at : at + choose.randrange(1, 40)]
                case 2:
                    data[at:at] = choose.choice(originals)[at : at + choose.randrange(1, 40)]
                case 3:
                    data[at:at] = choose.choice(
                        [b"(", b"R", b"\x93", b"2", b"J\xff\xff\xff\x7f", b"\x8a\x08" + b"\xff" * 7 + b"\x7f"]
                    )
        path.write_bytes(data)
        try:
            regrow.load(path)
            loaded += 1
        except regrow.RegrowError:
            pass
    assert loaded > 100

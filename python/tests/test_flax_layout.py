"""The layout `flax`: the library reads ours, we read the library's, bit for bit; and the low
level on its own.
"""

from __future__ import annotations

import gc
import mmap
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import flax.struct
import flax.training.checkpoints
import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import optax
import pytest
from conftest import assert_same, same_bits
from flax import serialization

import regrow
from regrow import _native
from regrow._msgpack import ExtType, Timestamp, dtype_of

ALL = 2**30
"""Flax' own limit of a chunk."""


class Moments(NamedTuple):
    mean: Any
    var: Any


@flax.struct.dataclass
class Model:
    kernel: Any
    extra: Any
    name: str = flax.struct.field(pytree_node=False, default="net")


def dtypes() -> list[np.dtype[Any]]:
    """All that Flax can write and read."""
    names = [*_native.DTYPES, "float128", "complex256", "datetime64[ns]", "timedelta64[D]"]
    names += [name for name in ("int1", "uint1", "complex32", "bcomplex32") if hasattr(ml_dtypes, name)]
    return [np.dtype(getattr(ml_dtypes, name, None) or name) for name in names]


def some(dtype: np.dtype[Any]) -> Any:
    """An array with every byte pattern that its dtype can show in six elements."""
    if dtype.kind == "b":
        return np.array([[True, False, True], [False, False, True]])
    if dtype.itemsize == 1:
        return np.arange(6, dtype=np.int8).reshape(2, 3).astype(dtype)
    raw = np.random.default_rng(7).integers(0, 256, 6 * dtype.itemsize, np.uint8)
    return raw.view(dtype).reshape(2, 3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.msgpack"


def tree() -> dict[str, Any]:
    params = {"b": jnp.arange(3.0), "a": {"k": np.ones((2, 2), ml_dtypes.bfloat16)}}
    return {
        "params": params,
        "opt": optax.adam(1e-3).init(params),
        "model": Model(np.float16([1, 2]), [1, (2.5, None)]),
        "moments": Moments(np.int8([1]), {}),
        "lists": [[], (), [np.float32(1.5), True]],
        "partial": jax.tree_util.Partial(print, np.uint8([7]), end=2),
        "plain": [1, -1, 2**40, 2**64 - 1, 0.5, 1 + 2j, "text", b"bytes", None],
        "many": {str(i): i for i in range(300)},
        "by number": {3: np.int16([3]), 10: "ten"},
    }


# ---- the layout -----------------------------------------------------------------------


def test_a_file_is_what_to_bytes_makes(file: Path) -> None:
    regrow.save(file, tree(), layout="flax")
    assert file.read_bytes() == serialization.to_bytes(tree())


def test_sorted_keys_are_what_msgpack_serialize_makes(file: Path) -> None:
    raw = serialization.to_state_dict(tree())
    regrow.save(file, tree(), layout=regrow.layouts.Flax(sort_keys=True))
    assert file.read_bytes() == serialization.msgpack_serialize(raw)


def test_integer_keys_can_be_kept(file: Path) -> None:
    raw = {"layers": {2: np.int8([1]), 10: np.int8([2])}}
    regrow.save(file, raw, layout=regrow.layouts.Flax(integer_keys=True))
    assert file.read_bytes() == serialization.msgpack_serialize(raw)
    assert_same(regrow.load(file), raw)


@pytest.mark.parametrize("dtype", dtypes(), ids=lambda dtype: dtype.name)
def test_every_dtype_both_ways(file: Path, tmp_path: Path, dtype: np.dtype[Any]) -> None:
    arrays = {"a": some(dtype), "empty": np.zeros((0, 2), dtype), "0d": some(dtype)[0, 0].reshape(())}
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    regrow.save(file, arrays, layout="flax")
    assert file.read_bytes() == serialization.to_bytes(arrays)
    theirs = serialization.msgpack_restore(file.read_bytes())
    ours = regrow.load(file)
    for name, array in arrays.items():
        assert same_bits(theirs[name], array), name
        assert same_bits(ours[name], array), name
        assert type(ours[name]) is np.ndarray


@pytest.mark.parametrize(
    "dtype", [np.dtype(name) for name in (">f4", ">i8", ">c16", ">f2", ">M8[us]", ">c32")], ids=str
)
def test_byte_order_is_not_lost(file: Path, dtype: np.dtype[Any]) -> None:
    array = np.arange(6).astype(dtype)
    little = array.astype(dtype.newbyteorder("<"))
    regrow.save(file, {"a": array}, layout="flax")
    assert same_bits(serialization.msgpack_restore(file.read_bytes())["a"], little)
    packed = _native.msgpack_pack({"a": array}, ALL)
    assert same_bits(serialization.msgpack_restore(packed)["a"], little)


def test_chunks_both_ways(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 100)
    arrays = {"big": np.arange(77.0).reshape(7, 11), "exact": np.arange(25, dtype=np.float32), "f": np.arange(60)[::-2]}
    regrow.save(file, arrays, layout=regrow.layouts.Flax(max_chunk_bytes=100))
    assert file.read_bytes() == serialization.to_bytes(arrays) == _native.msgpack_pack(arrays, 100)
    opened = regrow.open(file)
    assert same_bits(opened.load()["big"], arrays["big"])
    assert same_bits(opened["big"][1:6, 2:9], arrays["big"][1:6, 2:9])
    folded = _native.msgpack_unpack(file.read_bytes())
    assert same_bits(folded["big"], arrays["big"])
    assert folded["big"].flags.writeable
    assert not folded["exact"].flags.writeable


def test_what_flax_has_no_form_for_is_named_at_once(file: Path) -> None:
    bad = {"key": jax.random.key(0), "text": np.array(["a"]), "record": np.zeros(2, "i2,i2"), "fine": 1, "gap": ...}
    with pytest.raises(regrow.errors.UnsupportedError) as caught:
        regrow.save(file, bad, layout="flax")
    assert all(f"\n  {name}: " in str(caught.value) for name in ("key", "text", "record", "gap"))
    assert not file.exists()


# ---- the low level --------------------------------------------------------------------


def test_pack_is_msgpack_serialize_in_place() -> None:
    raw = {
        "list": [1, [np.float32([1, 2])], {}],
        "jax": jnp.arange(3),
        "scalars": [np.float64(1), np.bool_(True), ml_dtypes.bfloat16(2), np.datetime64("2020", "s"), 3j, np.int8(1)],
        "bytes": [b"", bytearray(b"ab"), memoryview(b"cd"), b"x" * 70_000],
        1: "int key", None: 0, 2.5: 1, False: 2, b"k": 3, -7: 4,
        "strided": np.arange(24).reshape(2, 3, 4).T, "sub": np.ma.masked_array([1.0]), "matrix": np.matrix([[1]]),
        "0d": np.array(3), "none": None, "text": "hé☃😀" * 100, "wide": {i: i for i in range(70_000)},
        "ints": [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63, 2**64 - 1],
        "negative": [-1, -32, -33, -128, -129, -(2**15) - 1, -(2**31) - 1, -(2**63)],
    }  # fmt: skip
    expected = serialization.msgpack_serialize({**raw}, in_place=True)
    assert _native.msgpack_pack(raw, ALL) == expected
    for root in (np.arange(5), 7, None, "x", [], {}, 1j, np.float32(2), b"b", 1.5, [{}]):
        assert _native.msgpack_pack(root, ALL) == serialization.msgpack_serialize(root, in_place=True)


def test_large_arrays_are_copied_by_threads() -> None:
    large = np.random.default_rng(1).standard_normal(3 << 20)
    raw = {"a": large, "t": large.reshape(1024, -1).T, "b": large.tobytes(), "l": [large[::-1]]}
    assert _native.msgpack_pack(raw, ALL) == serialization.msgpack_serialize({**raw}, in_place=True)
    assert _native.msgpack_pack(large, 999) == pack_chunked(large, 999)


def pack_chunked(array: Any, limit: int) -> bytes:
    kept = serialization.MAX_CHUNK_SIZE
    serialization.MAX_CHUNK_SIZE = limit
    try:
        return serialization.msgpack_serialize(array, in_place=True)
    finally:
        serialization.MAX_CHUNK_SIZE = kept


@pytest.mark.parametrize(
    ("value", "error", "message", "place"),
    [
        ((1, 2), TypeError, "can not serialize 'tuple' object", None),
        ({"a": [{"b": {1}}]}, TypeError, "can not serialize 'set' object", "a/0/b"),
        ({"a": {(1, 2): 3}}, TypeError, "can not serialize 'tuple' object", "a/(1, 2)"),
        ([object()], TypeError, "can not serialize 'object' object", "0"),
        ({"a": 2**64}, OverflowError, "Integer value out of range", "a"),
        ({"a": -(2**63) - 1}, OverflowError, "Integer value out of range", "a"),
        ({"a": np.array([None])}, ValueError, "Object and structured dtypes not supported", "a"),
        ({"a": np.zeros(2, "i2,i2")}, ValueError, "Object and structured dtypes not supported", "a"),
        ({"a": np.array(["x"])}, ValueError, "<U1", "a"),
        ({"a": np.str_("x")}, ValueError, "<U1", "a"),
        ({"a": np.zeros(2, "V3")}, ValueError, "V3", "a"),
        ({"a": jax.random.key(0)}, TypeError, "JAX array with PRNGKey dtype", None),
    ],
)
def test_what_cannot_be_packed(value: Any, error: type[Exception], message: str, place: str | None) -> None:
    with pytest.raises(error) as caught:
        _native.msgpack_pack(value, ALL)
    assert str(caught.value).startswith(message) or message in str(caught.value)
    assert place is None or f"leaf {place}" in str(caught.value)


def test_a_list_in_itself_has_an_end() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested deeper than 1024"):
        _native.msgpack_pack(endless, ALL)


def test_arrays_are_views_that_keep_their_bytes(tmp_path: Path) -> None:
    array = np.arange(1000.0)
    packed = serialization.to_bytes({"a": array, "b": 1})
    (tmp_path / "file").write_bytes(packed)
    with (tmp_path / "file").open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    for data in (packed, bytearray(packed), memoryview(packed), mapped, np.frombuffer(packed, np.uint8)):
        found = _native.msgpack_unpack(data)["a"]
        assert same_bits(found, array)
        assert not found.flags.writeable and not found.flags.owndata
        with pytest.raises(ValueError, match="WRITEABLE"):
            found.flags.writeable = True
        assert np.shares_memory(found, np.frombuffer(data, np.uint8))
    grows = bytearray(packed)
    found = _native.msgpack_unpack(grows)["a"]
    with pytest.raises(BufferError):
        grows.extend(b"more")
    assert same_bits(found, array)

    class Owner(np.ndarray):  # type: ignore[type-arg]
        """An array that supports weak references."""

    owner = np.frombuffer(packed, np.uint8).copy().view(Owner)
    ref = weakref.ref(owner)
    found = _native.msgpack_unpack(owner)["a"]
    del owner
    gc.collect()
    assert ref() is not None and same_bits(found, array)
    del found
    gc.collect()
    assert ref() is None


def test_foreign_extensions_and_timestamps_come_back() -> None:
    theirs = {"e": msgpack.ExtType(99, b"xyz")}
    theirs |= {str(i): msgpack.Timestamp(*t) for i, t in enumerate([(1, 0), (2**34, 5), (-5, 999_999_999), (2**33, 1)])}
    packed = msgpack.packb(theirs)
    found = _native.msgpack_unpack(packed)
    assert found["e"] == ExtType(99, b"xyz")
    assert [found[str(i)] for i in range(4)] == [
        Timestamp(1, 0), Timestamp(2**34, 5), Timestamp(-5, 999_999_999), Timestamp(2**33, 1)
    ]  # fmt: skip
    assert _native.msgpack_pack(found, ALL) == packed == _native.msgpack_pack(theirs, ALL)


"""What Flax reads without a word, as something else than was stored."""


def test_every_truncation_is_an_error() -> None:
    packed = _native.msgpack_pack({"a": [1, {"b": np.arange(3)}, "text"], 2: 1j}, ALL)
    for length in range(len(packed)):
        with pytest.raises(ValueError, match="at byte"):
            _native.msgpack_unpack(packed[:length])
    with pytest.raises(ValueError, match="left over"):
        _native.msgpack_unpack(packed + b"\0")


def test_names_of_dtypes() -> None:
    for dtype in dtypes():
        assert dtype_of(dtype.name) == dtype
    assert [str(dtype_of(name)) for name in ("str96", "bytes24", "void48")] == ["<U3", "|S3", "|V6"]
    for name in (">f4", "i2,i2", "object", "O", "float33", "str95", "f4", "", "finfo", "__name__", "int"):
        assert dtype_of(name) is None, name

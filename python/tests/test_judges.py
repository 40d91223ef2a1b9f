"""Other libraries judge what regrow writes: each dtype, each way of storing and each form, bit
for bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
import pytest
import safetensors
import safetensors.numpy
import tensorstore as ts
from orbax.checkpoint._src.metadata.pytree_metadata_options import PyTreeMetadataOptions

import regrow

# What TensorStore, and so Orbax, has a dtype for.
STORABLE = (
    "bool int2 int4 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16 float8_e3m4 "
    "float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn "
    "complex64 complex128"
).split()
# What only the default layout takes: Orbax is given uint8.
ESCAPED = "uint2 uint4 float6_e2m3fn float6_e3m2fn float8_e4m3".split()
# What safetensors has a tag for, one byte an element or more.
TAGS = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "complex64": "C64",
}
# Bits of a value, where they are fewer than eight.
BITS = {"bool": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4} | dict.fromkeys(ESCAPED[2:4], 6)
SHAPES: dict[str, tuple[int, ...]] = {"odd": (3, 5), "even": (64, 64), "none": ()}


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def random_bits(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Random bytes, NaN payloads and signed zeros among them; only patterns that NumPy itself
    makes of small dtypes.
    """
    dtype = dtype_of(name)
    random = np.random.default_rng([seed, *name.encode()])
    raw = np.frombuffer(random.bytes(math.prod(shape) * dtype.itemsize), np.uint8)
    if name in BITS:
        raw = raw & (2 ** BITS[name] - 1)
    if name in ("int2", "int4"):
        raw = raw.view(np.int8).astype(dtype)
    return raw.view(dtype).reshape(shape)


def bits(leaf: Any) -> np.ndarray[Any, Any]:
    """The bytes of a leaf."""
    return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)


def assert_bits(found: Any, wanted: np.ndarray[Any, Any], where: str) -> None:
    """Of the same dtype and shape, and the same to the bit."""
    array = np.asarray(found)
    assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape), where
    np.testing.assert_array_equal(bits(array), bits(wanted), err_msg=where)


def assert_restored(found: Any, wanted: Any, where: str = "") -> None:
    """The same containers, keys, types of leaves and bits."""
    assert type(found) is type(wanted), f"{where}: {found!r} is not {wanted!r}"
    if isinstance(wanted, dict):
        assert set(found) == set(wanted), where
        for key in wanted:
            assert_restored(found[key], wanted[key], f"{where}/{key}")
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), where
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_restored(one, other, f"{where}/{at}")
    elif isinstance(wanted, np.ndarray):
        assert_bits(found, wanted, where)
    else:
        assert found == wanted, where


def every_dtype(names: list[str]) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    return {name: {at: random_bits(name, shape) for at, shape in SHAPES.items()} for name in names}


def by_pytree_checkpointer(path: Path) -> Any:
    with ocp.PyTreeCheckpointer() as checkpointer:
        return checkpointer.restore(path)


def by_standard_checkpointer(path: Path) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path)


def open_array(path: Path, name: str, *, zarr3: bool = True, ocdbt: bool = True) -> Any:
    """One array, by TensorStore alone."""
    place = f"{name}/" if name else ""
    kvstore: Any = {"driver": "ocdbt", "base": path.as_uri(), "path": place} if ocdbt else f"{path.as_uri()}/{place}"
    return ts.open({"driver": "zarr3" if zarr3 else "zarr", "kvstore": kvstore}, read=True).result()


def by_tensorstore(path: Path) -> Any:
    return {name: {at: open_array(path, f"{name}.{at}").read().result() for at in SHAPES} for name in sorted(STORABLE)}


READERS: dict[str, Callable[[Path], Any]] = {
    "PyTreeCheckpointer": by_pytree_checkpointer,
    "StandardCheckpointer": by_standard_checkpointer,
    "v1": ocp_v1.load_pytree,
    "TensorStore": by_tensorstore,
    "regrow": regrow.load,
}


# ---- 1, 2: the default layout, every dtype --------------------------------------------


@pytest.fixture(scope="module", params=[None, "zstd", ("zstd", 19)], ids=["raw", "zstd", "zstd 19"])
def default(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default layout of a tree with every dtype that Orbax can hold."""
    path = tmp_path_factory.mktemp("default") / "step_100"
    regrow.save(path, every_dtype(STORABLE), compression=request.param)
    return path


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_every_dtype_in_the_default_layout(default: Path, reader: Callable[[Path], Any]) -> None:
    assert_restored(reader(default), every_dtype(STORABLE))


class Tensor(NamedTuple):
    """An entry of a safetensors header, and its bytes."""

    tag: str
    shape: list[int]
    raw: bytes


def tensors(file: Path) -> dict[str, Tensor]:
    """A safetensors file, parsed as its specification says: no gaps, nothing over."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    assert all(isinstance(text, str) for text in header.pop("__metadata__", {}).values())
    found, at = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == at, f"a gap before {name}"
        found[name] = Tensor(entry["dtype"], entry["shape"], data[start + begin : start + end])
        at = end
    assert start + at == len(data)
    return found


def as_safetensors(name: str, shape: tuple[int, ...]) -> tuple[str, list[int]]:
    """The tag and shape under which the default layout shows an array."""
    return ("F64", [*shape, 2]) if name == "complex128" else (TAGS.get(name, "U8"), list(shape))


def test_every_dtype_in_the_safetensors_file(path: Path) -> None:
    tree = every_dtype(STORABLE + ESCAPED)
    regrow.save(path, tree)
    file = path / "model.safetensors"
    raw, by_library = tensors(file), dict(safetensors.deserialize(file.read_bytes()))
    with safetensors.safe_open(file, framework="numpy") as opened:
        assert set(opened.keys()) == set(raw) == set(by_library)
        for name, arrays in tree.items():
            for at, array in arrays.items():
                key = f"{name}.{at}"
                tag, shape = as_safetensors(name, array.shape)
                assert raw.pop(key) == (tag, shape, array.tobytes()), key
                theirs = by_library[key]
                assert (theirs["dtype"], theirs["shape"], bytes(theirs["data"])) == (tag, shape, array.tobytes()), key
                assert (opened.get_slice(key).get_dtype(), opened.get_slice(key).get_shape()) == (tag, shape), key
                if tag.startswith("F8"):
                    continue  # Its NumPy half looks float8 up in NumPy itself, and fails on files of its own.
                tensor = opened.get_tensor(key)
                wanted = array if name in TAGS else array.reshape(-1).view("f8" if tag == "F64" else "u1")
                assert_bits(tensor, wanted.reshape(shape), key)
    assert not raw


# ---- 3: Orbax' own layout, each way of storing ----------------------------------------


class Pair(NamedTuple):
    """A named tuple, which rich types keep."""

    left: Any
    right: Any


MIXED: dict[str, Any] = {
    "params": {
        "kernel": random_bits("float32", (16, 24)),
        "half": random_bits("bfloat16", (8, 6)),
        "wide": random_bits("complex128", (4, 6)),
        "small": random_bits("int4", (8, 8)),
    },
    "layers": [random_bits("float8_e5m2", (12,)), {"flag": random_bits("bool", (2, 2))}],
    "deep": random_bits("int16", (3, 5, 7)),
    "zero_d": random_bits("float64", ()),
    "step": 7,
    "rate": 0.25,
    "on": True,
    "name": "net/é\n",
    "nothing": None,
    "no_dict": {},
    "no_list": [],
}
STORES = [
    pytest.param(ocdbt, zarr3, compression, id=f"{'ocdbt' if ocdbt else 'files'}-{zarr}-{compression}")
    for ocdbt in (True, False)
    for zarr3, zarr in ((False, "v2"), (True, "v3"))
    for compression in (None, "none", ("zstd", 7))
]
each_store = pytest.mark.parametrize(("ocdbt", "zarr3", "compression"), STORES)
each_form = pytest.mark.parametrize(("ocdbt", "zarr3"), [(True, False), (True, True), (False, False), (False, True)])


def stored(ocdbt: bool, zarr3: bool, compression: Any, **more: Any) -> dict[str, Any]:
    of_save = {name: more.pop(name) for name in ("metadata", "cast", "lossy") if name in more}
    return {"layout": regrow.layouts.Orbax(ocdbt=ocdbt, zarr3=zarr3, **more), "compression": compression, **of_save}


def chunks(array: Any) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The shapes of what one key holds, and of what is decoded alone."""
    return array.chunk_layout.write_chunk.shape, array.chunk_layout.read_chunk.shape


@each_store
def test_every_dtype_in_orbax_layout(path: Path, ocdbt: bool, zarr3: bool, compression: Any) -> None:
    tree = every_dtype(STORABLE)
    regrow.save(path, tree, **stored(ocdbt, zarr3, compression))
    assert_restored(by_pytree_checkpointer(path), tree)
    assert_restored(by_standard_checkpointer(path), tree)
    assert_restored(regrow.load(path), tree)
    assert regrow.verify(path).ok
    for name in ("float32", "float8_e3m4", "int2"):
        for at, array in tree[name].items():
            opened = open_array(path, f"{name}.{at}", zarr3=zarr3, ocdbt=ocdbt)
            assert_bits(opened.read().result(), array, f"{name}.{at}")
            codec = opened.spec(retain_context=False).to_json()["metadata"]
            assert ("zstd" in json.dumps(codec)) == (compression != "none")
            if compression == ("zstd", 7):
                assert '"level": 7' in json.dumps(codec)


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small chunks": {"chunk_byte_size": 256},
    "one element": {"chunk_byte_size": 16},
    "axes": {"chunk_byte_size": 128, "shard_axes": [1]},
    "axes alone": {"shard_axes": [0]},
    "rich types": {"rich_types": True},
    "small files": {"ocdbt_target_data_file_size": 1024},
    "one file": {"ocdbt_target_data_file_size": 0},
    "metadata": {"metadata": {"who": "me", "lr": [0.1, None, {"é": True}]}},
    "bare": {"write_sharding": False, "write_array_metadatas": False},
    "of a leaf": {"per_leaf": {"**/kernel": {"write_chunk_shape": [8, 12]}, "**/half": {"shard_axes": [1]}}},
}


@each_store
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_way_of_storing(path: Path, way: dict[str, Any], ocdbt: bool, zarr3: bool, compression: Any) -> None:
    regrow.save(path, MIXED, **stored(ocdbt, zarr3, compression, **way))
    assert_restored(by_pytree_checkpointer(path), MIXED)
    assert_restored(regrow.load(path), MIXED)
    assert regrow.verify(path).ok
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert checkpointer.metadata(path).item_metadata.custom_metadata == way.get("metadata")
    assert regrow.open(path).metadata == way.get("metadata")


# Options, name of a leaf of MIXED, its chunks.
CUTS: dict[str, tuple[dict[str, Any], str, tuple[int, ...]]] = {
    "by size": ({"chunk_byte_size": 256}, "params.kernel", (8, 8)),
    "by size, wide": ({"chunk_byte_size": 64}, "params.wide", (2, 2)),
    "to elements": ({"chunk_byte_size": 16}, "params.wide", (1, 1)),
    "by axes": ({"shard_axes": [1]}, "params.kernel", (16, 1)),
    "by axes and size": ({"chunk_byte_size": 128, "shard_axes": [0, 1]}, "params.kernel", (1, 1)),
    "by axis and size": ({"chunk_byte_size": 32, "shard_axes": [1]}, "params.kernel", (8, 1)),
    "by file": ({"ocdbt_target_data_file_size": 256}, "params.kernel", (8, 8)),
    "by leaf": ({"per_leaf": {"**/kernel": {"write_chunk_shape": [8, 12]}}}, "params.kernel", (8, 12)),
    "others stay": ({"per_leaf": {"**/kernel": {"write_chunk_shape": [8, 12]}}}, "params.half", (8, 6)),
    "whole": ({}, "params.kernel", (16, 24)),
}


@each_form
@pytest.mark.parametrize(("options", "name", "wanted"), CUTS.values(), ids=CUTS.keys())
def test_chunks_are_cut_as_asked(
    path: Path,
    options: dict[str, Any],
    name: str,
    wanted: tuple[int, ...],
    ocdbt: bool,
    zarr3: bool,
) -> None:
    regrow.save(path, MIXED, **stored(ocdbt, zarr3, None, **options))
    array = open_array(path, name, zarr3=zarr3, ocdbt=ocdbt)
    if "ocdbt_target_data_file_size" in options and not ocdbt:
        wanted = array.shape
    assert chunks(array) == (wanted, wanted)
    leaf = MIXED["params"][name.removeprefix("params.")]
    assert_bits(array.read().result(), leaf, name)
    assert regrow.open(path)[name.replace(".", "/")].chunk_shape == wanted


@pytest.mark.parametrize("zarr3", [False, True], ids=["v2", "v3"])
def test_data_files_end_near_the_size_asked_for(path: Path, zarr3: bool) -> None:
    tree = {str(at): random_bits("uint8", (32, 64), seed=at) for at in range(20)}
    regrow.save(
        path, tree, compression="none", layout=regrow.layouts.Orbax(zarr3=zarr3, ocdbt_target_data_file_size=4096)
    )
    sizes = [file.stat().st_size for file in (path / "ocdbt.process_0" / "d").iterdir()]
    assert len(sizes) >= 8
    assert max(sizes) < 4096 + 2048 + 512
    assert_restored(by_pytree_checkpointer(path), tree)


@each_store
def test_chunks_by_hand(path: Path, ocdbt: bool, zarr3: bool, compression: Any) -> None:
    tree = {"a": random_bits("float32", (16, 24)), "b": random_bits("float16", (8, 12)), "n": 3}
    shapes: dict[str, Any] = {"write_chunk_shape": (8, 12)}
    if zarr3:
        shapes["read_chunk_shape"] = (2, 4)
    regrow.save(path, tree, **stored(ocdbt, zarr3, compression, **shapes))
    for name in ("a", "b"):
        array = open_array(path, name, zarr3=zarr3, ocdbt=ocdbt)
        assert chunks(array) == ((8, 12), (2, 4) if zarr3 else (8, 12))
        assert_bits(array.read().result(), tree[name], name)
        assert_bits(array[3:7, 5:].read().result(), tree[name][3:7, 5:], name)
        assert_bits(regrow.open(path)[name][3:7, 5:], tree[name][3:7, 5:], name)
    assert_restored(by_pytree_checkpointer(path), tree)
    assert_restored(by_standard_checkpointer(path), tree)
    assert_restored(regrow.load(path), tree)


@each_form
def test_rich_types_keep_tuples(path: Path, ocdbt: bool, zarr3: bool) -> None:
    pair = Pair(random_bits("float32", (3,)), {"x": random_bits("int8", (2,))})
    tree = {"pair": pair, "tuple": (random_bits("bfloat16", (5,)), [1, 2.5])}
    regrow.save(path, tree, **stored(ocdbt, zarr3, None, rich_types=True))
    rich_types = PyTreeMetadataOptions(support_rich_types=True)
    handler = ocp.PyTreeCheckpointHandler(pytree_metadata_options=rich_types)
    with ocp.Checkpointer(handler) as checkpointer:
        restored = checkpointer.restore(path)
        rich = checkpointer.metadata(path).item_metadata.tree
    assert (type(rich["tuple"]), rich["pair"]._fields) == (tuple, Pair._fields)
    assert "Pair" in type(rich["pair"]).__name__, "Orbax makes a class, and numbers it"
    assert_bits(jax.tree.leaves(restored["pair"])[0], pair.left, "pair")
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert_restored(checkpointer.restore(path, item=tree), tree)
    loaded = regrow.load(path)
    assert (type(loaded["tuple"]), type(loaded["pair"]).__name__) == (tuple, "Pair")
    assert_restored(jax.tree.leaves(loaded), jax.tree.leaves(tree))
    assert_restored(regrow.load(path, like=tree), tree)


@each_form
def test_v1_loads_orbax_layout(path: Path, ocdbt: bool, zarr3: bool) -> None:
    tree = every_dtype(STORABLE) | {"more": MIXED}
    form = stored(ocdbt, zarr3, None, v1=True, chunk_byte_size=512)
    regrow.save(path, tree, metadata={"who": "me"}, **form)
    assert_restored(ocp_v1.load_pytree(path), tree)
    assert_restored(by_pytree_checkpointer(path / "state"), tree)
    assert_restored(regrow.load(path), tree)
    assert ocp_v1.pytree_metadata(path).custom_metadata == {"who": "me"}
    assert regrow.open(path).metadata == {"who": "me"}


@each_form
def test_a_bare_leaf(path: Path, ocdbt: bool, zarr3: bool) -> None:
    array = random_bits("float32", (6, 4))
    regrow.save(path, array, **stored(ocdbt, zarr3, None))
    assert_bits(open_array(path, "", zarr3=zarr3, ocdbt=ocdbt).read().result(), array, "TensorStore")
    assert_bits(regrow.load(path), array, "regrow")
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert_bits(checkpointer.restore(path, item=np.zeros_like(array)), array, "Orbax")


# ---- 4: what the default layout gives Orbax for what Orbax lacks ----------------------

X, Y = random_bits("float32", (3,), seed=1), random_bits("float32", (3,), seed=2)
NO_ARRAY = np.zeros((0, 3), np.float32)

# What is saved, what Orbax restores.
TABLE: dict[str, tuple[Any, Any]] = {
    "bytes": (b"\x00\xffabc", np.frombuffer(b"\x00\xffabc", np.uint8)),
    "no bytes": (b"", None),
    "complex": (1.5 - 2j, np.array(1.5 - 2j)),
    "zero size": (NO_ARRAY, None),
    "float32 scalar": (np.float32(0.1), float(np.float32(0.1))),
    "float64 scalar": (np.float64(0.1), 0.1),
    "int8 scalar": (np.int8(-5), -5),
    "uint64 scalar": (np.uint64(2**64 - 1), 2**64 - 1),
    "bool scalar": (np.bool_(True), True),
    "complex64 scalar": (np.complex64(1 + 2j), 1 + 2j),
    "bfloat16 scalar": (ml_dtypes.bfloat16(1.5), 1.5),
    "collision": ({"a": {"b": X}, "a.b": Y}, {"a": {"b": X}, "a%2Eb": Y}),
    "collision of lists": ({"a": [X], "a.0": Y}, {"a": [X], "a%2E0": Y}),
    "dots": ({"up": {"..": X}}, {"up": {"..": X}}),
    "dots alone": ({"..": X}, {"%2E%2E": X}),
    "slashes": ({"a//b": X}, {"a%2F%2Fb": X}),
    "NUL": ({"a\0b": X}, {"a%00b": X}),
    "tilde of a text": ({"a~b": "text", "c~d": X}, {"a%7Eb": "text", "c~d": X}),
    "one dot": ({"a.b": X}, {"a.b": X}),
    "slash": ({"a/b": X, "s/t": "text"}, {"a/b": X, "s/t": "text"}),
    "string": ("text é\n\0\U0001f600", "text é\n\0\U0001f600"),
    "no string": ("", ""),
    "None": (None, None),
    "no dict": ({}, {}),
    "no list": ([], []),
    "no tuple": ((), ()),
    "numbers": ([7, -(2**63), 2**64 - 1, 0.25, True], [7, -(2**63), 2**64 - 1, 0.25, True]),
} | {name: (array := random_bits(name, (3, 5)), bits(array).reshape(3, 5)) for name in ESCAPED}


@pytest.mark.parametrize(("leaf", "wanted"), TABLE.values(), ids=TABLE.keys())
def test_what_orbax_restores_of_the_default_layout(path: Path, leaf: Any, wanted: Any) -> None:
    """At the top too, where a name has nothing before it."""
    top = leaf if isinstance(leaf, dict) else {}
    top_wanted = wanted if isinstance(leaf, dict) else {}
    regrow.save(path, {**top, "leaf": None if isinstance(leaf, dict) else leaf, "w": X})
    whole = {**top_wanted, "leaf": None if isinstance(leaf, dict) else wanted, "w": X}
    assert_restored(by_pytree_checkpointer(path), whole, "Orbax")
    assert_restored(ocp_v1.load_pytree(path), whole, "v1")
    if not isinstance(leaf, np.complexfloating):  # The StandardCheckpointer fails on those of Orbax itself too.
        assert_restored(by_standard_checkpointer(path), whole, "StandardCheckpointer")


def test_the_table_in_one_tree(path: Path) -> None:
    tree = {name: leaf for name, (leaf, _) in TABLE.items()}
    regrow.save(path, tree)
    assert regrow.verify(path).ok
    assert_restored(regrow.load(path), tree, "regrow")
    restored = by_pytree_checkpointer(path)
    assert set(restored) == set(TABLE)
    for name, (leaf, wanted) in TABLE.items():
        if not isinstance(leaf, dict):
            assert_restored(restored[name], wanted, name)


def test_the_table_in_the_safetensors_file(path: Path) -> None:
    regrow.save(path, {"c": 1.5 - 2j, "e": NO_ARRAY, "n": np.float32(0.5), "i": 7, "s": "text", "o": None, "d": {}})
    assert {name: (found.tag, found.shape) for name, found in tensors(path / "model.safetensors").items()} == {
        "c": ("F64", [2]),
        "e": ("F32", [0, 3]),
        "n": ("F32", []),
        "i": ("I64", []),
    }


# ---- 5, 6: what is refused ------------------------------------------------------------


def test_strict_orbax_refuses_all_at_once(path: Path) -> None:
    beyond = {
        "bytes": b"abc",
        "complex": 1j,
        "zero": NO_ARRAY,
        "..": X,
        "a~b": "text",
        **{name: random_bits(name, (3, 5)) for name in ESCAPED},
    }
    fine = {"w": X, "n": 3, "s": "text", "none": None, "empty": {}, "x": random_bits("float8_e3m4", (2,))}
    with pytest.raises(regrow.errors.UnsupportedError) as caught:
        regrow.save(path, fine | beyond | {"p": {"q": X}, "p.q": Y}, layout=regrow.layouts.Regrow(strict=True))
    lines = [line.strip().partition(":")[0] for line in str(caught.value).splitlines()[1:]]
    assert sorted(line for line in lines if line != "help") == sorted([*beyond, "p.q"])
    assert list(path.parent.iterdir()) == []
    regrow.save(path, fine, layout=regrow.layouts.Regrow(strict=True))
    assert_restored(by_pytree_checkpointer(path), fine, "Orbax")


@pytest.mark.parametrize("scalar", [np.float32(0.5), np.bool_(True), np.complex64(1j)], ids=["f32", "bool", "c64"])
def test_strict_orbax_refuses_numpy_scalars(path: Path, scalar: Any) -> None:
    """Orbax gives back a Python number, so not the leaf as it is."""
    with pytest.raises(regrow.errors.UnsupportedError) as caught:
        regrow.save(path, {"w": X, "n": scalar}, layout=regrow.layouts.Regrow(strict=True))
    assert "n" in str(caught.value)
    assert list(path.parent.iterdir()) == []


REFUSED: dict[str, tuple[Any, dict[str, Any], type[regrow.RegrowError], str]] = {
    "a collision": ({"a": {"b": X}, "a.b": Y}, {}, regrow.errors.NameCollisionError, "a.b"),
    "a collision of lists": ({"a": [X], "a.0": Y}, {}, regrow.errors.NameCollisionError, "a.0"),
    "a collision of texts": ({"a": {"b": "x"}, "a.b": "y"}, {}, regrow.errors.NameCollisionError, "a.b"),
    "equal keys": ({"d": {1: X, "1": Y}}, {}, regrow.errors.NameCollisionError, "d/1"),
    "zero size": ({"w": X, "z": NO_ARRAY}, {}, regrow.errors.UnsupportedError, "z"),
    "bytes": ({"w": X, "b": b"abc"}, {}, regrow.errors.UnsupportedError, "b"),
    "a NumPy bool": ({"w": X, "t": np.bool_(True)}, {}, regrow.errors.UnsupportedError, "t"),
    "chunks": ({"w": X}, {"write_chunk_shape": [2]}, regrow.errors.InvalidArgumentError, "w"),
    "chunks of zero": ({"w": X}, {"write_chunk_shape": [0]}, regrow.errors.InvalidArgumentError, "w"),
    "chunks of other axes": ({"w": X}, {"write_chunk_shape": [3, 1]}, regrow.errors.InvalidArgumentError, "w"),
    "chunks of a leaf": (
        {"w": X},
        {"per_leaf": {"w": {"write_chunk_shape": [2]}}},
        regrow.errors.InvalidArgumentError,
        "w",
    ),
    "less than an element": ({"w": X}, {"chunk_byte_size": 3}, regrow.errors.InvalidArgumentError, "w"),
    "nothing": ({"w": X}, {"chunk_byte_size": 0}, regrow.errors.InvalidArgumentError, "w"),
} | {name: ({"w": X, "e": random_bits(name, (3,))}, {}, regrow.errors.UnsupportedError, "e") for name in ESCAPED}


@pytest.mark.parametrize("zarr3", [False, True], ids=["v2", "v3"])
@pytest.mark.parametrize("ocdbt", [False, True], ids=["files", "ocdbt"])
@pytest.mark.parametrize(("tree", "options", "error", "leaf"), REFUSED.values(), ids=REFUSED.keys())
def test_orbax_layout_refuses(
    path: Path, tree: Any, options: dict[str, Any], error: type[regrow.RegrowError], leaf: str, ocdbt: bool, zarr3: bool
) -> None:
    with pytest.raises(error) as caught:
        regrow.save(path, tree, **stored(ocdbt, zarr3, None, **options))
    assert type(caught.value) is error
    assert caught.value.leaf == leaf
    assert caught.value.help
    assert list(path.parent.iterdir()) == []


BY_HAND: dict[str, dict[str, Any]] = {
    "an inner chunk": {"zarr3": True, "write_chunk_shape": [4, 4], "read_chunk_shape": [3, 4]},
    "an inner chunk of no outer": {"zarr3": True, "read_chunk_shape": [3, 4]},
    "an inner chunk in v2": {"write_chunk_shape": [4, 4], "read_chunk_shape": [2, 4]},
    "shape and size": {"write_chunk_shape": [4, 4], "chunk_byte_size": 64},
    "shape and axes": {"write_chunk_shape": [4, 4], "shard_axes": [0]},
}


@pytest.mark.parametrize("options", BY_HAND.values(), ids=BY_HAND.keys())
def test_orbax_layout_refuses_chunks(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(regrow.errors.InvalidArgumentError):
        regrow.save(path, {"w": random_bits("float32", (8, 8))}, layout=regrow.layouts.Orbax(**options))
    assert list(path.parent.iterdir()) == []


def test_a_refused_save_leaves_what_was_there(path: Path) -> None:
    regrow.save(path, {"w": X})
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(regrow.errors.UnsupportedError):
        regrow.save(path, {"w": b"abc"}, layout="orbax", overwrite=True)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    assert list(path.parent.iterdir()) == [path]

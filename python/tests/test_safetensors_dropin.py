"""`regrow.safetensors` beside the original, in both directions, bit for bit."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.flax
import safetensors.numpy
from conftest import assert_same, same_bits

import regrow
import regrow.safetensors as ours
import regrow.safetensors.flax
import regrow.safetensors.numpy

# What safetensors calls each dtype, and whether it reads it for NumPy.
DTYPES = {
    "bool": ("BOOL", True),
    "uint8": ("U8", True),
    "int8": ("I8", True),
    "uint16": ("U16", True),
    "int16": ("I16", True),
    "float16": ("F16", True),
    "bfloat16": ("BF16", True),
    "uint32": ("U32", True),
    "int32": ("I32", True),
    "float32": ("F32", True),
    "complex64": ("C64", True),
    "float64": ("F64", True),
    "int64": ("I64", True),
    "uint64": ("U64", True),
    "float8_e4m3fn": ("F8_E4M3", False),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", False),
    "float8_e5m2": ("F8_E5M2", False),
    "float8_e5m2fnuz": ("F8_E5M2FNUZ", False),
    "float8_e8m0fnu": ("F8_E8M0", False),
}
READ_BY_THEM = [name for name, (_, is_read) in DTYPES.items() if is_read]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def random_array(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Random bits: NaNs of every kind among them."""
    dtype = dtype_of(name)
    top = 2 if name == "bool" else 256
    raw = rng.integers(0, top, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


def random_dict(rng: np.random.Generator, names: list[str], count: int) -> dict[str, np.ndarray[Any, Any]]:
    letters = list('ab.c/é"\\ \n日')
    out = {}
    for _ in range(count):
        key = "".join(rng.choice(letters, rng.integers(0, 6)))
        shape = tuple(int(n) for n in rng.integers(0, 5, rng.integers(0, 4)))
        out[key] = random_array(rng, str(rng.choice(names)), shape)
    return out


def assert_tensors(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert type(left[name]) is type(right[name]), name
        assert same_bits(left[name], right[name]), name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


# ---- writing --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_our_bytes_are_theirs(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    tensors = random_dict(rng, list(DTYPES), int(rng.integers(0, 12)))
    metadata = [None, {}, {"format": "pt"}, {'quote "': "é\n\x01\x7f\u2028/"}][seed % 4]
    expected = safetensors.numpy.save(tensors, metadata=metadata)
    assert ours.save(tensors, metadata=metadata) == expected
    ours.save_file(tensors, tmp_path / "ours", metadata=metadata, durable=False)
    safetensors.numpy.save_file(tensors, tmp_path / "theirs", metadata=metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes() == expected
    regrow.save(
        tmp_path / "engine.safetensors",
        tensors,
        metadata=metadata or None,
        durable=False,
        layout=regrow.layouts.Safetensors(structure=False),
    )
    if metadata != {}:
        assert (tmp_path / "engine.safetensors").read_bytes() == expected


def test_every_dtype_alone_and_in_order() -> None:
    rng = np.random.default_rng(1)
    tensors = {name: random_array(rng, name, (2, 3)) for name in DTYPES}
    assert ours.save(tensors) == safetensors.numpy.save(tensors)
    for array in tensors.values():
        assert ours.save({"x": array}) == safetensors.numpy.save({"x": array})


def test_metadata_keeps_its_order() -> None:
    """safetensors' own order changes from one call to the next."""
    metadata = {"z": "1", "a": "2", "m": "3"}
    raw = ours.save({"x": np.zeros(1)}, metadata)
    (length,) = struct.unpack("<Q", raw[:8])
    assert list(json.loads(raw[8 : 8 + length])["__metadata__"].items()) == list(metadata.items())
    assert len({ours.save({"x": np.zeros(1)}, metadata) for _ in range(20)}) == 1


def test_four_bit_elements_go_in_pairs() -> None:
    rng = np.random.default_rng(2)
    elements = rng.integers(0, 16, (3, 4), dtype=np.uint8)
    packed = (elements[:, 0::2] | elements[:, 1::2] << 4).copy()
    spec = safetensors.TensorSpec(
        dtype="float4_e2m1fn_x2", shape=packed.shape, data_ptr=packed.ctypes.data, data_len=packed.nbytes
    )
    theirs = bytes(safetensors.serialize({"x": spec}))
    array = elements.view(ml_dtypes.float4_e2m1fn)
    assert ours.save({"x": array}) == theirs
    assert ours.save({"x": np.asfortranarray(array)}) == theirs
    assert same_bits(ours.load(theirs)["x"], array)
    with pytest.raises(ours.SafetensorError, match="last axis is odd"):
        ours.save({"x": array[:, :3]})


def test_strides_and_byte_order_are_no_matter() -> None:
    """safetensors writes what lies in memory: another array than was meant."""
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = {
        "t": base.T,
        "step": base[::2, ::-1],
        "big": base.astype(">f4"),
        "broadcast": np.broadcast_to(base, (2, 4, 6)),
    }
    assert ours.save(arrays) == safetensors.numpy.save(
        {name: np.ascontiguousarray(array, dtype="<f4") for name, array in arrays.items()}
    )
    assert not same_bits(safetensors.numpy.load(safetensors.numpy.save({"t": base.T}))["t"], base.T)
    assert ours.save({"scalar": np.float32(3)}) == ours.save({"scalar": np.array(3, np.float32)})


def test_jax_arrays_are_saved_and_the_dict_stays(file: Path) -> None:
    tensors = {"w": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3), "n": jnp.int32(3)}
    ours.flax.save_file(tensors, file)
    assert all(isinstance(array, jax.Array) for array in tensors.values())
    assert file.read_bytes() == safetensors.flax.save(dict(tensors))
    assert ours.flax.save(tensors) == file.read_bytes()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), "x")
    spread = jax.device_put(tensors["w"], jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
    assert ours.save({"w": spread, "n": tensors["n"]}) == file.read_bytes()


def test_a_tree_of_arrays_is_joined_and_cut_again(file: Path) -> None:
    tree = {"layers": {"0": {"w": np.ones(2)}, "1": {"w": np.zeros(2)}}, "head": np.arange(3)}
    ours.save_file(tree, file, sep=".")
    assert set(safetensors.numpy.load_file(file)) == {"layers.0.w", "layers.1.w", "head"}
    nested = ours.load_file(file, nested=True)
    assert_same({key: nested[key] for key in tree}, tree)
    assert ours.load(ours.save(tree, sep="/"), nested=True, sep="/").keys() == nested.keys()
    assert ours.load(ours.save({"x": [np.ones(1), (np.zeros(1),)]}, sep=".")).keys() == {"x.0", "x.1.0"}
    assert isinstance(ours.flax.load_file(file, nested=True)["layers"]["0"]["w"], jax.Array)
    with pytest.raises(TypeError, match=r"sep=\"\.\" to join"):
        ours.save(tree)
    with pytest.raises(ours.SafetensorError, match=r"(?s)a\.b.*also that of a/b"):
        ours.save({"a": {"b": np.ones(1)}, "a.b": np.ones(1)}, sep=".")
    with pytest.raises(ours.SafetensorError, match='"a" is a tensor'):
        ours.load(ours.save({"a": np.ones(1), "a.b": np.ones(1)}), nested=True)


@pytest.mark.parametrize(
    ("tensors", "error"),
    [
        ([np.ones(1)], TypeError),
        ({1: np.ones(1)}, TypeError),
        ({"a": [1, 2]}, TypeError),
        ({"a": 1.0}, TypeError),
        ({"a": "text"}, TypeError),
        ({"a": None}, TypeError),
        ({"a": {}}, TypeError),
        ({"a": np.array(["x"])}, ours.SafetensorError),
        ({"a": np.zeros(1, "M8[ns]")}, ours.SafetensorError),
        ({"a": np.zeros(1, complex)}, ours.SafetensorError),
        ({"a": np.zeros(1, ml_dtypes.int4)}, ours.SafetensorError),
        ({"a": np.zeros(1, ml_dtypes.float8_e4m3)}, ours.SafetensorError),
        ({"a": np.zeros(1, object)}, ours.SafetensorError),
        ({"__metadata__": np.zeros(1)}, ours.SafetensorError),
        ({"a": jax.random.key(0)}, TypeError),
    ],
)
def test_what_they_refuse_is_refused(tensors: Any, error: type[Exception], file: Path) -> None:
    with pytest.raises((TypeError, AttributeError, safetensors.SafetensorError)):
        raw = safetensors.numpy.save(tensors)
        safetensors.numpy.load(raw)
    with pytest.raises(error):
        ours.save(tensors)
    with pytest.raises(error):
        ours.save_file(tensors, file)
    assert not file.exists() and not list(file.parent.iterdir())


def test_metadata_is_text_by_name() -> None:
    for metadata in ({"a": 1}, {1: "a"}, [], "text"):
        with pytest.raises(TypeError):
            ours.save({"x": np.zeros(1)}, metadata)
        with pytest.raises(TypeError):
            safetensors.numpy.save({"x": np.zeros(1)}, metadata)


def test_a_file_is_replaced_whole_or_not_at_all(file: Path) -> None:
    ours.save_file({"a": np.arange(3)}, file)
    before = file.read_bytes()
    with pytest.raises(ours.SafetensorError):
        ours.save_file({"a": np.arange(3), "b": np.zeros(2, complex)}, file)
    assert file.read_bytes() == before and len(list(file.parent.iterdir())) == 1
    ours.save_file({"a": np.arange(4)}, file)
    assert len(ours.load_file(file)["a"]) == 4 and len(list(file.parent.iterdir())) == 1
    ours.save_file({"a": np.arange(5)}, file.parent / "new" / "model.st")
    assert len(safetensors.numpy.load_file(file.parent / "new" / "model.st")["a"]) == 5


def test_the_data_may_begin_at_a_page(file: Path) -> None:
    tensors = {"a": np.arange(5, dtype=np.float32)}
    ours.save_file(tensors, file, align=4096)
    assert file.stat().st_size == 4096 + 20
    assert_tensors(safetensors.numpy.load_file(file), tensors)
    with pytest.raises(regrow.errors.InvalidArgumentError):
        ours.save(tensors, align=12)


def test_a_folder_of_files_and_its_index(tmp_path: Path) -> None:
    tensors = {f"layer.{i}": np.full(10, i, np.float32) for i in range(7)}
    folder = tmp_path / "model"
    ours.save_file(tensors, folder, {"format": "np"}, max_shard_size="100B")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 280
    assert index["weight_map"]["layer.6"] == "model-00004-of-00004.safetensors"
    for name, part in index["weight_map"].items():
        with safetensors.safe_open(folder / part, framework="np") as opened:
            assert same_bits(opened.get_tensor(name), tensors[name])
            assert opened.metadata() == {"format": "np"}
    for path in (folder, folder / "model.safetensors.index.json"):
        assert_tensors(ours.load_file(path), tensors)
        with ours.safe_open(path, "np") as opened:
            assert opened.keys() == sorted(tensors)
            assert same_bits(opened.get_slice("layer.5")[3:], tensors["layer.5"][3:])
    assert_tensors(regrow.load(folder), tensors)
    (folder / "model-00002-of-00004.safetensors").unlink()
    with pytest.raises(ours.SafetensorError, match="missing"):
        ours.load_file(folder)


# ---- reading --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_we_read_theirs_and_they_read_ours(seed: int, file: Path) -> None:
    rng = np.random.default_rng(1000 + seed)
    tensors = random_dict(rng, READ_BY_THEM, 8)
    safetensors.numpy.save_file(tensors, file, metadata={"a": "b"})
    theirs = safetensors.numpy.load_file(file)
    assert_tensors(theirs, tensors)
    found = ours.load_file(file)
    assert_tensors(found, theirs)
    # Tensors without bytes lie nowhere: safetensors has them in another order at each call.
    assert [name for name in found if found[name].size] == [name for name in theirs if theirs[name].size]
    assert_tensors(ours.load(file.read_bytes()), theirs)
    assert_tensors(ours.load_file(file, copy=False), theirs)
    ours.save_file(tensors, file, metadata={"a": "b"}, durable=False)
    assert_tensors(safetensors.numpy.load_file(file), tensors)


def test_every_dtype_is_read_even_those_that_they_cannot(file: Path) -> None:
    rng = np.random.default_rng(3)
    tensors = {name: random_array(rng, name, (2, 3)) for name in DTYPES}
    file.write_bytes(safetensors.numpy.save(tensors))
    assert_tensors(ours.load_file(file), tensors)
    with ours.safe_open(file, "np") as opened:
        for name, (tag, _) in DTYPES.items():
            assert opened.get_slice(name).get_dtype() == tag
            assert same_bits(opened.get_slice(name)[1:, ::2], tensors[name][1:, ::2])
    with jax.enable_x64(True):
        for name, array in ours.flax.load_file(file).items():
            assert isinstance(array, jax.Array) and same_bits(np.asarray(array), tensors[name]), name


def test_jax_arrays_are_those_of_the_original(file: Path) -> None:
    rng = np.random.default_rng(4)
    safetensors.numpy.save_file({name: random_array(rng, name, (2, 3)) for name in READ_BY_THEM}, file)
    theirs, found = safetensors.flax.load_file(file), ours.flax.load_file(file)
    assert list(theirs) == list(found)
    for name, array in theirs.items():
        assert isinstance(found[name], jax.Array)
        assert same_bits(np.asarray(array), np.asarray(found[name])), name
    for framework in ("jax", "flax"):
        with ours.safe_open(file, framework) as opened, safetensors.safe_open(file, "flax") as original:
            part, expected = opened.get_slice("bfloat16")[:, 1:], original.get_slice("bfloat16")[:, 1:]
            assert isinstance(part, jax.Array) and same_bits(np.asarray(part), np.asarray(expected))


def test_copies_are_writable_and_views_are_not(file: Path) -> None:
    ours.save_file({"a": np.arange(6, dtype=np.int32)}, file)
    raw = file.read_bytes()
    for array in (ours.load_file(file)["a"], ours.load(raw)["a"], ours.safe_open(file, "np").get_tensor("a")):
        assert array.flags.writeable and array.flags.owndata and array.flags.c_contiguous
        array[:] = 0
    assert file.read_bytes() == raw
    part = ours.safe_open(file, "np").get_slice("a")[::2]
    assert part.flags.writeable and part.flags.c_contiguous
    view = ours.load_file(file, copy=False)["a"]
    assert not view.flags.writeable and not ours.load(raw, copy=False)["a"].flags.writeable
    file.unlink()
    assert view.tolist() == list(range(6))


def test_safe_open_is_theirs(file: Path) -> None:
    tensors = {"b": np.zeros(2, np.int8), "a": np.zeros(2), "c": np.zeros(0)}
    for metadata in (None, {}, {"format": "np", "x": "y"}):
        safetensors.numpy.save_file(tensors, file, metadata=metadata)
        with safetensors.safe_open(file, framework="np") as theirs, ours.safe_open(file, framework="np") as opened:
            assert opened.keys() == theirs.keys()
            assert opened.offset_keys() == theirs.offset_keys()
            assert opened.metadata() == theirs.metadata() == metadata
            assert_tensors(opened.get_tensors(), theirs.get_tensors())
            for name in tensors:
                assert same_bits(opened.get_tensor(name), theirs.get_tensor(name))
        for call in (opened.keys, opened.offset_keys, opened.metadata, opened.get_tensors):
            with pytest.raises(ours.SafetensorError, match="closed"):
                call()
    opened = ours.safe_open(file, "numpy", backend="pread")
    with pytest.raises(ours.SafetensorError, match="does not contain tensor nope"):
        opened.get_tensor("nope")
    with pytest.raises(ours.SafetensorError, match="does not contain tensor nope"):
        opened.get_slice("nope")
    with pytest.raises(TypeError):
        opened.get_tensor(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"framework": "nope"},
        {"framework": "np", "device": "cuda"},
        {"framework": "np", "device": 3},
        {"framework": "np", "backend": "nope"},
    ],
)
def test_arguments_that_they_refuse_are_refused(arguments: dict[str, Any], file: Path) -> None:
    ours.save_file({"a": np.zeros(1)}, file)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(file, **arguments)
    with pytest.raises(ours.SafetensorError):
        ours.safe_open(file, **arguments)


def test_a_missing_file_is_a_file_that_is_not_found(tmp_path: Path) -> None:
    for opener in (safetensors.safe_open, ours.safe_open):
        with pytest.raises(FileNotFoundError):
            opener(tmp_path / "nope.safetensors", framework="np")
    with pytest.raises(FileNotFoundError):
        ours.load_file(tmp_path / "nope.safetensors")


def test_torch_is_imported_only_when_asked_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    assert "regrow.safetensors.torch" not in sys.modules
    ours.save_file({"a": np.zeros(1)}, file)
    # As on a machine without torch.
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError):
        ours.safe_open(file, "pt")


def test_a_file_with_a_pytree_shows_its_tensors_as_they_do(tmp_path: Path) -> None:
    tree = {"a": [np.ones(2), np.zeros(3, ml_dtypes.int4)], "n": 3, "text": "hello", "z": 1j}
    path = tmp_path / "x.safetensors"
    regrow.save(path, tree, layout="safetensors", metadata={"format": "np"}, lossy=True)
    assert_same(regrow.load(path), tree)
    assert regrow.open(path).metadata == {"format": "np"}
    theirs = safetensors.numpy.load_file(path)
    assert list(theirs) == list(ours.load_file(path))
    assert_tensors(ours.load_file(path), theirs)
    with safetensors.safe_open(path, "np") as original, ours.safe_open(path, "np") as opened:
        assert opened.metadata() == original.metadata()
    # Its metadata may be handed on to another file.
    ours.save_file(theirs, path, metadata=ours.safe_open(path, "np").metadata())
    assert_same(regrow.load(path), tree)


def test_the_lowest_level_reads_the_same(file: Path) -> None:
    rng = np.random.default_rng(6)
    raw = ours.save({name: random_array(rng, name, (2, 2)) for name in DTYPES})
    assert sorted(ours.deserialize(raw)) == sorted(safetensors.deserialize(raw))


# ---- damage ---------------------------------------------------------------------------


def test_every_fixture_that_they_refuse_is_refused(fixtures: Path) -> None:
    folder = fixtures / "safetensors"
    expected = json.loads((folder / "expected.json").read_text())
    for name in expected["bad"]:
        path = folder / "bad" / f"{name}.safetensors"
        with pytest.raises(safetensors.SafetensorError):
            safetensors.numpy.load_file(path)
        for call in (ours.load_file, lambda path: ours.load(path.read_bytes())):
            with pytest.raises(ours.SafetensorError):
                call(path)
    for name, file in expected["good"].items():
        with ours.safe_open(folder / name, "np") as opened:
            assert opened.keys() == sorted(file["tensors"])
            assert (opened.metadata() or {}) == file["metadata"]
            for tensor, about in file["tensors"].items():
                part = opened.get_slice(tensor)
                assert (part.get_dtype(), part.get_shape()) == (about["dtype"], about["shape"])
                if about["dtype"].startswith("F6_"):
                    with pytest.raises(ours.SafetensorError, match="Dtype not understood: F6"):
                        opened.get_tensor(tensor)
                    with pytest.raises(ours.SafetensorError):
                        part[:1]


def test_every_truncation_and_every_flipped_byte(file: Path) -> None:
    """What safetensors refuses is refused, and what it reads is read the same."""
    tensors = {"a": np.arange(3, dtype=np.float32), "bb": np.arange(2, dtype=np.int64)}
    raw = ours.save(tensors, metadata={"x": "y"})
    for cut in range(len(raw)):
        with pytest.raises(ours.SafetensorError):
            ours.load(raw[:cut])
    refused = 0
    for at in range(len(raw)):
        for flip in (0x01, 0x20, 0x80):
            damaged = bytearray(raw)
            damaged[at] ^= flip
            damaged = bytes(damaged)
            try:
                theirs = safetensors.numpy.load(damaged)
            except (safetensors.SafetensorError, KeyError, ValueError):
                theirs = None
            try:
                found = ours.load(damaged)
            except ours.SafetensorError:
                refused += 1
                assert theirs is None or not damaged[8:].startswith(b"{"), (at, flip)
                continue
            if theirs is not None:
                assert_tensors(found, theirs)
    assert refused > len(raw)


def test_random_files_are_refused(file: Path) -> None:
    rng = np.random.default_rng(7)
    for _ in range(200):
        raw = rng.bytes(int(rng.integers(0, 200)))
        with pytest.raises(ours.SafetensorError):
            ours.load(raw)
        file.write_bytes(struct.pack("<Q", max(len(raw) - 8, 0)) + b"{" + raw)
        with pytest.raises(ours.SafetensorError):
            ours.load_file(file)


def test_an_error_says_what_where_and_of_what_kind(file: Path) -> None:
    file.write_bytes(ours.save({"a": np.zeros(3)})[:-1])
    with pytest.raises(ours.SafetensorError) as caught:
        ours.load_file(file)
    assert caught.value.kind == "corrupt" and caught.value.file == str(file)
    assert isinstance(caught.value, regrow.RegrowError) and isinstance(
        caught.value.__cause__, regrow.errors.CorruptError
    )


@pytest.mark.parametrize("module", [safetensors.numpy, ours.numpy], ids=["safetensors", "regrow"])
@pytest.mark.parametrize("leads_to", ["blob", "nowhere"])
def test_a_link_is_replaced_and_what_it_leads_to_stays(module: Any, leads_to: str, tmp_path: Path) -> None:
    """The Hub's cache has links to blobs that several revisions share."""
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    shared = safetensors.numpy.save({"a": np.zeros(2)})
    blob.write_bytes(shared)
    link = tmp_path / "snapshots" / "model.safetensors"
    link.parent.mkdir()
    link.symlink_to(f"../blobs/{'0123' if leads_to == 'blob' else 'gone'}")
    module.save_file({"a": np.ones(3)}, link)
    assert not link.is_symlink() and safetensors.numpy.load_file(link)["a"].tolist() == [1, 1, 1]
    assert blob.read_bytes() == shared and [path.name for path in blob.parent.iterdir()] == ["0123"]

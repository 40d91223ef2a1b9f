"""Checkpoints come back on any mesh, from any writer: each device has its part, bit for bit as
Orbax returns it.
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import regrow

DEVICES = np.array(jax.devices()[:8])


def mesh(*shape: int) -> Mesh:
    """The first devices, as a grid with axes a, b, c."""
    count = int(np.prod(shape))
    return Mesh(DEVICES[:count].reshape(shape), ("a", "b", "c")[: len(shape)])


def on(shape: tuple[int, ...], *spec: Any) -> NamedSharding:
    """A sharding over such a mesh."""
    return NamedSharding(mesh(*shape), P(*spec))


SHARDINGS = {
    "8": on((8,), "a"),
    "8, second axis": on((8,), None, "a"),
    "4x2": on((4, 2), "a", "b"),
    "2x4, other order": on((2, 4), "b", "a"),
    "2x2x2": on((2, 2, 2), ("a", "c"), "b"),
    "2x2x2, partly replicated": on((2, 2, 2), "b"),
    "1": on((1,), "a"),
    "6 of 8": on((6,), "a"),
    "3x2 of 8": on((3, 2), "b", "a"),
    "replicated": on((8,)),
    "one device": SingleDeviceSharding(DEVICES[5]),
    "other devices first": NamedSharding(Mesh(DEVICES[::-1].reshape(4, 2), ("a", "b")), P("b", "a")),
}
"""All of them divide (24, 48)."""

DTYPES = [
    np.dtype(getattr(ml_dtypes, name, None) or name)
    for name in (
        *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "complex64"),
        *("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        *("float8_e3m4", "float8_e4m3", "float8_e8m0fnu", "int4", "uint4", "int2", "uint2", "float4_e2m1fn"),
    )
]
WIDE = [np.dtype(name) for name in ("int64", "uint64", "float64", "complex128")]


def numbers(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Any bits that the dtype has."""
    random = np.random.default_rng(seed)
    if dtype.name == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.name in ("int4", "int2", "uint4", "uint2"):
        info = ml_dtypes.iinfo(dtype)
        return random.integers(info.min, info.max + 1, shape).astype(dtype)
    size = int(np.prod(shape))
    if dtype.name == "float4_e2m1fn":
        return random.integers(0, 16, size).astype(np.uint8).view(dtype).reshape(shape)
    return np.frombuffer(random.bytes(size * dtype.itemsize), dtype).reshape(shape)


def assert_spread(array: jax.Array, sharding: Any, data: np.ndarray[Any, Any]) -> None:
    """Each device of the sharding has its part of `data`, bit for bit."""
    assert array.sharding.is_equivalent_to(sharding, data.ndim)
    assert (array.shape, array.dtype) == (data.shape, data.dtype)
    indices = sharding.addressable_devices_indices_map(data.shape)
    assert {shard.device for shard in array.addressable_shards} == set(indices)
    for shard in array.addressable_shards:
        assert np.asarray(shard.data).tobytes() == data[indices[shard.device]].tobytes(), shard


@pytest.mark.parametrize("sharding", SHARDINGS.values(), ids=SHARDINGS)
def test_every_dtype_on_every_mesh(path: Path, sharding: Any) -> None:
    tree = {dtype.name: numbers(dtype, (24, 48), at) for at, dtype in enumerate(DTYPES)}
    regrow.save(path, tree)
    for restored in (
        regrow.load(path, shardings=sharding),
        regrow.load(
            path,
            like={name: jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding) for name, data in tree.items()},
        ),
    ):
        for name, data in tree.items():
            assert_spread(restored[name], sharding, data)


def test_wide_dtypes(path: Path) -> None:
    tree = {dtype.name: numbers(dtype, (24, 8), at) for at, dtype in enumerate(WIDE)}
    regrow.save(path, tree)
    sharding = on((4, 2), "a", "b")
    with pytest.raises(regrow.errors.UnsupportedError, match="jax_enable_x64") as raised:
        regrow.load(path, shardings=sharding)
    assert raised.value.leaf in tree
    with jax.enable_x64(True):
        restored = regrow.load(path, shardings=sharding)
        for name, data in tree.items():
            assert_spread(restored[name], sharding, data)


@pytest.mark.parametrize("sharding", [on((4, 2)), on((1,)), SingleDeviceSharding(DEVICES[3])])
def test_scalars(path: Path, sharding: Any) -> None:
    regrow.save(path, {"step": np.int32(7), "x": np.array(1.5, np.float32), "n": 3})
    like = {
        "step": jax.ShapeDtypeStruct((), np.int32, sharding=sharding),
        "x": jax.ShapeDtypeStruct((), np.float32, sharding=sharding),
        "n": 0,
    }
    restored = regrow.load(path, like=like)
    assert_spread(restored["step"], sharding, np.array(7, np.int32))
    assert_spread(restored["x"], sharding, np.array(1.5, np.float32))
    assert restored["n"] == 3


@pytest.mark.parametrize("shape", [(0,), (0, 8), (8, 0), (16, 0, 3)])
def test_empty_arrays(path: Path, shape: tuple[int, ...]) -> None:
    data = np.zeros(shape, np.float32)
    regrow.save(path, {"x": data})
    sharding = on((8,), "a")
    assert_spread(regrow.load(path, shardings=sharding)["x"], sharding, data)


# ---- what Orbax wrote sharded, against what Orbax restores ----------------------------

FORMS = list(itertools.product((False, True), (False, True)))

RESHARDS = {
    # The cases that Orbax benches (data, fsdp, tensor), on eight devices.
    "fsdp to all fsdp": (on((4, 2, 1), ("a", "b"), "c"), on((1, 8, 1), ("a", "b"), "c")),
    "to fewer devices": (on((4, 2, 1), ("a", "b"), "c"), on((1, 2, 1), ("a", "b"), "c")),
    "the same": (on((4, 2, 1), "b", "c"), on((4, 2, 1), "b", "c")),
    "hybrid to fsdp": (on((2, 2, 2), "b", "c"), on((1, 8, 1), "b", "c")),
    "hybrid to fewer": (on((2, 2, 2), "b", "c"), on((1, 4, 1), "b", "c")),
    "8 to 6": (on((1, 1, 8), None, "c"), on((1, 1, 6), None, "c")),
    "rows to columns": (on((8,), "a"), on((8,), None, "a")),
    "replicated to sharded": (on((8,)), on((2, 4), "b", "a")),
    "sharded to replicated": (on((2, 4), "b", "a"), on((8,))),
}


def orbax(use_ocdbt: bool, use_zarr3: bool) -> ocp.Checkpointer:
    """Orbax, writing such a form."""
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3))


def orbax_restores(path: Path, like: Any, **arguments: Any) -> Any:
    """What Orbax restores to these shardings."""

    def args_of(leaf: Any) -> ocp.ArrayRestoreArgs:
        return ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype, **arguments)

    restore = ocp.args.PyTreeRestore(restore_args=jax.tree.map(args_of, like))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(path, args=restore)


def assert_same_shards(left: jax.Array, right: jax.Array) -> None:
    """Two arrays have the same bits on the same devices."""
    assert (left.shape, left.dtype) == (right.shape, right.dtype)
    parts = {shard.device: shard for shard in right.addressable_shards}
    assert {shard.device for shard in left.addressable_shards} == set(parts)
    for shard in left.addressable_shards:
        other = parts[shard.device]
        assert shard.index == other.index
        assert np.asarray(shard.data).tobytes() == np.asarray(other.data).tobytes()


@pytest.mark.parametrize(("use_ocdbt", "use_zarr3"), FORMS)
@pytest.mark.parametrize("case", RESHARDS)
def test_what_orbax_wrote_sharded_comes_back_as_orbax_has_it(
    path: Path, case: str, use_ocdbt: bool, use_zarr3: bool
) -> None:
    before, after = RESHARDS[case]
    dtypes = [np.dtype(name) for name in ("float32", "int8", "bool")] + [np.dtype(ml_dtypes.bfloat16)]
    data = {dtype.name: numbers(dtype, (48, 96), at) for at, dtype in enumerate(dtypes)}
    state = {"p": {name: jax.device_put(array, before) for name, array in data.items()}}
    orbax(use_ocdbt, use_zarr3).save(path, args=ocp.args.PyTreeSave(state))
    like = {"p": {n: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=after) for n, array in data.items()}}
    theirs = orbax_restores(path, like)
    ours = regrow.load(path, like=like)
    by_glob = regrow.load(path, shardings={"p/float*": after, "**": after})
    whole = regrow.load(path)
    for name, array in data.items():
        assert_same_shards(ours["p"][name], theirs["p"][name])
        assert_same_shards(by_glob["p"][name], theirs["p"][name])
        assert whole["p"][name].tobytes() == array.tobytes()


@pytest.mark.parametrize(("use_ocdbt", "use_zarr3"), FORMS)
def test_other_shapes_as_orbax_pads_and_truncates(path: Path, use_ocdbt: bool, use_zarr3: bool) -> None:
    before, after = on((4, 2), "a", "b"), on((2, 4), "b", "a")
    state = {"w": jax.device_put(numbers(np.dtype(np.int32), (16, 24)), before)}
    orbax(use_ocdbt, use_zarr3).save(path, args=ocp.args.PyTreeSave(state))
    for shape in ((8, 24), (16, 32), (24, 8), (40, 48), (8, 8)):
        like = {"w": jax.ShapeDtypeStruct(shape, np.int32, sharding=after)}
        with pytest.raises(regrow.errors.MismatchError, match=r"\[16,24\]") as raised:
            regrow.load(path, like=like)
        assert "w: template" in str(raised.value)
        theirs = orbax_restores(path, like, strict=False)
        assert_same_shards(regrow.load(path, like=like, options=regrow.Options(pad_or_truncate=True))["w"], theirs["w"])
        plain = regrow.load(path, like={"w": np.zeros(shape, np.int32)}, options=regrow.Options(pad_or_truncate=True))[
            "w"
        ]
        assert plain.tobytes() == np.asarray(theirs["w"]).tobytes()
    with pytest.raises(regrow.errors.MismatchError, match="number of axes") as raised:
        regrow.load(path, like={"w": np.zeros((16, 24, 1), np.int32)}, options=regrow.Options(pad_or_truncate=True))
    assert raised.value.leaf == "w"


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_regrow_wrote_of_a_sharded_state(path: Path, compression: str) -> None:
    data = numbers(np.dtype(np.float32), (48, 96))
    regrow.save(path, {"w": jax.device_put(data, on((8,), None, "a"))}, compression=compression)
    for sharding in SHARDINGS.values():
        assert_spread(regrow.load(path, shardings=sharding)["w"], sharding, data)
    # Devices that are not there are never an error.
    assert regrow.load(path)["w"].tobytes() == data.tobytes()


@pytest.mark.parametrize("layout", ["regrow", "orbax", "flax", "equinox", "safetensors", "npy", "pytree_data"])
def test_every_layout(tmp_path: Path, layout: str) -> None:
    suffix = {"flax": ".msgpack", "equinox": ".eqx", "safetensors": ".safetensors", "npy": ".npz"}.get(layout, "")
    data = {"w": numbers(np.dtype(np.float32), (48, 96)), "b": numbers(np.dtype(np.int16), (8,), 1)}
    regrow.save(tmp_path / f"x{suffix}", data, layout=layout)
    restored = regrow.load(tmp_path / f"x{suffix}", shardings={"w": on((4, 2), "b", "a"), "b": on((8,), "a")})
    assert_spread(restored["w"], on((4, 2), "b", "a"), data["w"])
    assert_spread(restored["b"], on((8,), "a"), data["b"])


def test_casts(path: Path) -> None:
    data = np.arange(48 * 96, dtype=np.float32).reshape(48, 96)
    regrow.save(path, {"w": data, "n": np.int32([1, 2])})
    sharding = on((2, 4), "b", "a")
    for chosen in ({"w": "bfloat16"}, "bfloat16"):
        restored = regrow.load(path, shardings={"w": sharding}, cast=chosen)
        assert_spread(restored["w"], sharding, data.astype(ml_dtypes.bfloat16))
    like = {"w": jax.ShapeDtypeStruct((48, 96), jnp.bfloat16, sharding=sharding), "n": np.zeros(2, np.int32)}
    assert_spread(regrow.load(path, like=like, cast={"w": "bfloat16"})["w"], sharding, data.astype(ml_dtypes.bfloat16))
    with pytest.raises(regrow.errors.MismatchError, match="dtype"):
        regrow.load(path, like=like)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_typed_keys(path: Path, implementation: str) -> None:
    keys = jax.random.split(jax.random.key(3, impl=implementation), (8, 2))
    sharding = on((4, 2), "a", "b")
    regrow.save(path, {"rng": jax.device_put(keys, sharding), "one": jax.random.key(4, impl=implementation)})
    other = on((2, 2, 2), ("a", "c"))
    like = {
        "rng": jax.ShapeDtypeStruct(keys.shape, keys.dtype, sharding=other),
        "one": jax.ShapeDtypeStruct((), keys.dtype, sharding=on((8,))),
    }
    by_name = {"rng": other, "one": on((8,))}
    arrays = jax.device_put({"rng": keys, "one": keys[0, 0]}, by_name)
    for restored in (
        regrow.load(path, like=like),
        regrow.load(path, shardings=by_name),
        regrow.load(path, like=arrays),
    ):
        assert restored["rng"].dtype == keys.dtype
        assert restored["rng"].sharding.is_equivalent_to(other, 2)
        assert jnp.array_equal(jax.random.key_data(restored["rng"]), jax.random.key_data(keys))
        assert len(restored["one"].addressable_shards) == 8
        assert jax.random.bits(restored["one"]) == jax.random.bits(jax.random.key(4, impl=implementation))
    # A whole load says which implementation it was.
    assert regrow.load(path)["rng"].impl == implementation


# ---- which sharding a leaf has --------------------------------------------------------


def test_the_first_glob_that_matches_decides_and_each_has_to_match(path: Path) -> None:
    tree = {"p": {"w": np.ones((8, 8), np.float32), "b": np.ones(8, np.float32)}, "n": 3, "t": "text"}
    regrow.save(path, tree)
    rows, columns, all_of = on((8,), "a"), on((8,), None, "a"), on((8,))
    restored = regrow.load(path, shardings={"p/w": columns, "p/*": rows, "**": all_of})
    assert restored["p"]["w"].sharding == columns
    assert restored["p"]["b"].sharding == rows
    assert (restored["n"], restored["t"]) == (3, "text")
    with pytest.raises(regrow.errors.NotFoundError, match=r'"q/\*", "zz".*\n.*p/b'):
        regrow.load(path, shardings={"p/w": columns, "q/*": rows, "zz": rows})
    like = {"p": {"w": jnp.zeros((8, 8)), "b": np.zeros(8, np.float32)}, "n": 0, "t": ""}
    with pytest.raises(regrow.errors.NotFoundError, match="zz"):
        regrow.load(path, like=like, shardings={"zz": rows})
    restored = regrow.load(path, like=like, shardings={"p/w": columns})
    assert restored["p"]["w"].sharding == columns
    assert type(restored["p"]["b"]) is np.ndarray


def test_only_with_shardings(path: Path) -> None:
    regrow.save(path, {"a": [np.ones(8, np.float32), 3, np.arange(8, dtype=np.int32)], "b": np.ones(3)})
    restored = regrow.load(path, only="a/2", shardings=on((8,), "a"))
    assert restored["a"][:2] == [..., ...]
    assert_spread(restored["a"][2], on((8,), "a"), np.arange(8, dtype=np.int32))
    assert "b" not in restored


@pytest.mark.parametrize(
    ("sharding", "said"),
    [
        (on((8,), None, "a"), r"divide|divisible"),
        (on((4, 2), None, None, "a"), r"rank"),
    ],
)
def test_a_sharding_that_does_not_fit_names_every_leaf(path: Path, sharding: Any, said: str) -> None:
    regrow.save(path, {"p": {"w": np.ones((8, 6), np.float32), "v": np.ones((8, 6), np.float32)}})
    like = jax.ShapeDtypeStruct((8, 6), np.float32)
    for load in (
        lambda: regrow.load(path, shardings={"p/*": sharding}),
        lambda: regrow.load(path, like={"p": {"w": like, "v": like}}, shardings=sharding),
    ):
        with pytest.raises(regrow.errors.InvalidArgumentError, match=said) as raised:
            load()
        assert raised.value.leaf in ("p/w", "p/v")
        assert "p/w: " in str(raised.value)
        assert "p/v: " in str(raised.value)


def test_a_template_of_another_shape_is_refused(path: Path) -> None:
    regrow.save(path, {"w": np.ones((8, 6), np.float32)})
    like = {"w": jax.ShapeDtypeStruct((8, 8), np.float32, sharding=on((8,), "a"))}
    with pytest.raises(regrow.errors.MismatchError, match=r"shape +w: template \[8,8\], stored \[8,6\]"):
        regrow.load(path, like=like)


# ---- damage, progress -----------------------------------------------------------------


def test_damage_is_seen_before_an_array_is_handed_out(path: Path) -> None:
    data = numbers(np.dtype(np.float32), (1024, 1024))
    regrow.save(path, {"w": data})
    file = path / "model.safetensors"
    stored = bytearray(file.read_bytes())
    stored[-5] ^= 1
    file.write_bytes(stored)
    with pytest.raises(regrow.errors.CorruptError) as raised:
        regrow.load(path, shardings=on((8,), "a"))
    assert raised.value.leaf == "w"
    # What no device asks for is not read.
    upper = regrow.load(path, options=regrow.Options(region={"w": (slice(0, 256),)}))["w"]
    assert upper.tobytes() == data[:256].tobytes()
    regrow.load(path, shardings=on((8,), "a"), options=regrow.Options(checksums=False))


def test_progress_goes_once_from_nothing_to_all(path: Path) -> None:
    tree = {f"w{at}": numbers(np.dtype(np.float32), (256, 256), at) for at in range(16)}
    regrow.save(path, {**tree, "plain": np.ones(1000)})
    told: list[tuple[int, int]] = []
    regrow.load(
        path,
        shardings={"w*": on((8,), "a")},
        progress=lambda done, total: told.append((done, total)),
        options=regrow.Options(budget_bytes=1 << 20),
    )
    total = 16 * 256 * 256 * 4 + 8000
    assert told[-1] == (total, total)
    assert {each for _, each in told} == {total}
    assert [done for done, _ in told] == sorted(done for done, _ in told)

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        regrow.load(path, shardings={"w*": on((8,), "a")}, progress=stop)


ORBAX_DTYPES = [
    dtype
    for dtype in DTYPES
    if dtype.name not in ("float8_e3m4", "float8_e4m3", "float8_e8m0fnu", "uint4", "int2", "uint2", "float4_e2m1fn")
]
"""Those that TensorStore has."""


@pytest.mark.parametrize(("use_ocdbt", "use_zarr3"), FORMS)
def test_every_dtype_that_orbax_has(path: Path, use_ocdbt: bool, use_zarr3: bool) -> None:
    before, after = on((4, 2), "a", "b"), on((2, 3), "b", "a")
    data = {dtype.name: numbers(dtype, (24, 48), at) for at, dtype in enumerate(ORBAX_DTYPES)}
    state = {name: jax.device_put(array, before) for name, array in data.items()}
    state |= {"step": jax.device_put(np.int32(3), on((8,)))}
    orbax(use_ocdbt, use_zarr3).save(path, args=ocp.args.PyTreeSave(state))
    like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=after) for name, array in data.items()}
    like["step"] = jax.ShapeDtypeStruct((), np.int32, sharding=on((6,)))
    theirs, ours = orbax_restores(path, like), regrow.load(path, like=like)
    for name in like:
        assert_same_shards(ours[name], theirs[name])
        if name in data:
            assert_spread(ours[name], after, data[name])

"""Equinox is the judge, both ways: what it writes is read, and what is written here it reads, to
the bit.
"""

from __future__ import annotations

import collections
import functools
import gzip
import inspect
import io
import json
import os
import pathlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import same_bits
from equinox_trees import TREES, assert_leaves, net, written

import regrow
from regrow import equinox as ours

NAMES = [
    "tree_serialise_leaves",
    "tree_deserialise_leaves",
    "default_serialise_filter_spec",
    "default_deserialise_filter_spec",
]


# ---- the same calls, the same bytes ---------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_signatures_begin_as_theirs(name: str) -> None:
    mine, theirs = (list(inspect.signature(getattr(module, name)).parameters.values()) for module in (ours, eqx))
    assert all(extra.kind is inspect.Parameter.KEYWORD_ONLY for extra in mine[len(theirs) :])
    for one, other in zip(mine, theirs, strict=False):
        assert (one.name, one.kind) == (other.name, other.kind)
        default = getattr(other.default, "__name__", other.default)
        assert getattr(one.default, "__name__", one.default) == default


@pytest.mark.parametrize("name", TREES)
def test_both_ways(name: str, tmp_path: Path) -> None:
    tree, like = TREES[name]()
    eqx.tree_serialise_leaves(tmp_path / "theirs", tree)
    ours.tree_serialise_leaves(tmp_path / "ours", tree)
    assert_leaves(ours.tree_deserialise_leaves(tmp_path / "theirs", like), tree)
    assert_leaves(ours.tree_deserialise_leaves(tmp_path / "ours", like), tree)
    assert_leaves(ours.tree_deserialise_leaves(io.BytesIO((tmp_path / "theirs.eqx").read_bytes()), like), tree)
    assert_leaves(eqx.tree_deserialise_leaves(tmp_path / "ours.eqx", like), tree)
    theirs = (tmp_path / "theirs.eqx").read_bytes()
    mine = (tmp_path / "ours.eqx").read_bytes()
    assert mine[: len(theirs)] == theirs
    assert mine[len(theirs) :].startswith(b"\xffregrow\n")
    ours.tree_serialise_leaves(tmp_path / "strict", tree, strict=True)
    assert (tmp_path / "strict.eqx").read_bytes() == theirs
    assert written(ours.tree_serialise_leaves, tree) == theirs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.eqx", "strict.eqx", "theirs.eqx"]


def test_shapes_without_data(tmp_path: Path) -> None:
    tree = net(1)
    ours.tree_serialise_leaves(tmp_path / "x", tree)
    like = eqx.filter_eval_shape(net, 1)
    assert_leaves(ours.tree_deserialise_leaves(tmp_path / "x", (*like[:3], 0)), tree)
    theirs = io.BytesIO(written(eqx.tree_serialise_leaves, tree))
    assert_leaves(ours.tree_deserialise_leaves(theirs, (*like[:3], 0)), tree)
    with pytest.raises(ours.TreePathError, match="SequenceKey") as error:
        ours.tree_serialise_leaves(tmp_path / "shapes", like)
    assert isinstance(error.value.__cause__.__cause__, TypeError)  # type: ignore[union-attr]
    assert not (tmp_path / "shapes.eqx").exists()


def test_large_leaves_are_writable_and_nobodys_file(tmp_path: Path) -> None:
    numbers = np.arange(3 << 20, dtype=np.float32).reshape(1024, -1)
    tree = [numbers, np.asfortranarray(numbers), numbers.astype(ml_dtypes.bfloat16), jnp.asarray(numbers)]
    ours.tree_serialise_leaves(tmp_path / "x.eqx", tree)
    loaded = ours.tree_deserialise_leaves(tmp_path / "x.eqx", tree)
    (tmp_path / "x.eqx").write_bytes(b"")
    assert_leaves(loaded, tree)
    for after in loaded[:3]:
        assert after.ctypes.data % 64 == 0
        after[:] = 0
    assert loaded[1].flags.f_contiguous and not loaded[0].any()


def test_numpy_leaves_are_writable_and_keep_their_order(tmp_path: Path) -> None:
    tree = {"f": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "big": np.arange(3, dtype=">i4")}
    ours.tree_serialise_leaves(tmp_path / "x", tree)
    for source in (tmp_path / "x", io.BytesIO((tmp_path / "x.eqx").read_bytes())):
        loaded = ours.tree_deserialise_leaves(source, tree)
        assert loaded["f"].flags.f_contiguous and loaded["f"].flags.writeable
        assert loaded["big"].dtype == np.dtype(">i4")


ML_DTYPES = [name for name in regrow._native.DTYPES if hasattr(ml_dtypes, name)] + ["int1", "uint1"]
JAX_DTYPES = [name for name in ML_DTYPES if hasattr(jnp, name) and not name.startswith(("float6", "int1", "uint1"))]


@pytest.mark.parametrize("name", [*ML_DTYPES, "complex32"])
def test_dtypes_that_equinox_loses(name: str, tmp_path: Path) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.arange(4, dtype=np.uint8).repeat(dtype.itemsize).view(dtype).reshape(2, 2)
    tree: Any = {"numpy": values, "more": np.arange(3)}
    if name in JAX_DTYPES:
        tree["jax"] = jnp.asarray(values)
    ours.tree_serialise_leaves(tmp_path / "x", tree)
    assert_leaves(eqx.tree_deserialise_leaves(tmp_path / "x", tree), tree)
    assert_leaves(ours.tree_deserialise_leaves(tmp_path / "x", tree), tree)
    # As Equinox writes them the name is lost; with `like` in hand it comes back.
    scalar = values[0, 1]
    lossy = {**tree, "scalar": scalar}
    eqx.tree_serialise_leaves(tmp_path / "lossy", lossy)
    assert_leaves(ours.tree_deserialise_leaves(tmp_path / "lossy", lossy), lossy)
    ours.tree_serialise_leaves(tmp_path / "strict", lossy, strict=True, trailer=True)
    data = (tmp_path / "lossy.eqx").read_bytes()
    assert (tmp_path / "strict.eqx").read_bytes()[: len(data)] == data
    loaded = regrow.load(tmp_path / "strict.eqx")
    if name in regrow._native.DTYPES:
        assert same_bits(loaded["numpy"], values)
        assert same_bits(loaded["scalar"], scalar)


def test_a_float8_scalar_does_not_crash_equinox(tmp_path: Path) -> None:
    scalar = ml_dtypes.float8_e4m3fn(1.5)
    ours.tree_serialise_leaves(tmp_path / "x", [scalar])
    (loaded,) = eqx.tree_deserialise_leaves(tmp_path / "x", [scalar])
    assert type(loaded) is type(scalar) and same_bits(loaded, scalar)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**300, -(10**4000)])
def test_integers_of_many_digits(number: int, tmp_path: Path) -> None:
    ours.tree_serialise_leaves(tmp_path / "x", [number, 1])
    assert eqx.tree_deserialise_leaves(tmp_path / "x", [0, 0]) == [number, 1]
    assert ours.tree_deserialise_leaves(tmp_path / "x", [0, 0], strict_scalars=True) == [number, 1]
    with pytest.raises(ours.TreePathError):
        ours.tree_serialise_leaves(tmp_path / "x", [number], strict=True)


def test_big_endian_into_jax(tmp_path: Path) -> None:
    ours.tree_serialise_leaves(tmp_path / "x", np.array([1.5, 2], ">f4"))
    assert_leaves(ours.tree_deserialise_leaves(tmp_path / "x", jnp.zeros(2)), jnp.array([1.5, 2]))


# ---- the layout without a `like` ------------------------------------------------------


def test_the_whole_pytree_without_like(tmp_path: Path) -> None:
    tree = net(1)
    model = tree[0]
    ours.tree_serialise_leaves(tmp_path / "x", tree)
    checkpoint = regrow.open(tmp_path / "x.eqx")
    assert checkpoint.layout == "equinox" and regrow.verify(tmp_path / "x.eqx").ok
    with pytest.raises(regrow.errors.UnsupportedError, match="0/activation"):
        checkpoint.load()
    loaded = checkpoint.load(options=regrow.Options(placeholders=True))
    assert same_bits(loaded[0].conv.weight, model.conv.weight)
    assert same_bits(loaded[0].head.layers[1].bias, model.head.layers[1].bias)
    assert (loaded[0].name, loaded[0].dropout.p, loaded[3]) == ("net", 0.25, 1)
    assert same_bits(checkpoint["0/conv/weight"][1:2], np.asarray(model.conv.weight)[1:2])


def test_trees_that_regrow_sees_otherwise_have_no_trailer(tmp_path: Path) -> None:
    tree = {(1, 2): np.arange(2), (0, 1): np.arange(3)}
    ours.tree_serialise_leaves(tmp_path / "x", tree)
    assert (tmp_path / "x.eqx").read_bytes() == written(eqx.tree_serialise_leaves, tree)
    assert_leaves(ours.tree_deserialise_leaves(tmp_path / "x", tree), tree)


def test_damage_is_noticed_through_the_trailer(tmp_path: Path) -> None:
    tree = {"w": np.arange(100.0)}
    ours.tree_serialise_leaves(tmp_path / "x", tree)
    data = bytearray((tmp_path / "x.eqx").read_bytes())
    data[200] ^= 1
    (tmp_path / "x.eqx").write_bytes(data)
    with pytest.raises(regrow.errors.CorruptError, match="crc32c"):
        ours.tree_deserialise_leaves(tmp_path / "x", tree)


# ---- hyperparameters, several trees, file objects -------------------------------------

HYPER = {"depth": 2, "name": "netz ü", "sizes": [1, 2]}


def test_hyperparameters_in_front(tmp_path: Path) -> None:
    tree, like = TREES["net"]()
    ours.tree_serialise_leaves(tmp_path / "x", tree, hyperparameters=HYPER)
    with open(tmp_path / "x.eqx", "rb") as file:
        assert file.readline() == json.dumps(HYPER).encode() + b"\n"
        assert_leaves(eqx.tree_deserialise_leaves(file, like), tree)
    assert regrow.open(tmp_path / "x.eqx").metadata == HYPER
    assert_leaves(ours.tree_deserialise_leaves(tmp_path / "x", like), tree)
    call = ours.default_deserialise_filter_spec
    assert_leaves(ours.tree_deserialise_leaves(tmp_path / "x", like, lambda file, leaf: call(file, leaf)), tree)
    with pytest.raises(regrow.errors.InvalidArgumentError):
        ours.tree_serialise_leaves(tmp_path / "x", tree, hyperparameters=3)


def test_several_trees_in_one_file(tmp_path: Path) -> None:
    first, second = TREES["net"]()[0], TREES["mixed"]()[0]
    for write, read in ((ours, eqx), (eqx, ours), (ours, ours)):
        with open(tmp_path / "x", "wb") as file:
            file.write(b"line\n")
            write.tree_serialise_leaves(file, first)
            write.tree_serialise_leaves(file, second)
            file.write(b"the end")
        with open(tmp_path / "x", "rb") as file:
            assert file.readline() == b"line\n"
            assert_leaves(read.tree_deserialise_leaves(file, TREES["net"]()[1]), first)
            assert_leaves(read.tree_deserialise_leaves(file, TREES["mixed"]()[1]), second)
            assert file.read() == b"the end"


class Sink:
    """Has `write`, and takes nothing but `bytes`."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


class Source:
    """Has `read` and `seek`, and gives less than it is asked for."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, length: int = -1) -> bytes:
        return self._file.read(min(length, 1000))

    def seek(self, offset: int, whence: int) -> object:
        return self._file.seek(offset, whence)


def test_all_sorts_of_file_objects(tmp_path: Path) -> None:
    tree, like = TREES["mixed"]()
    expected = written(eqx.tree_serialise_leaves, tree)
    sink = Sink()
    ours.tree_serialise_leaves(sink, tree)
    assert sink.data == expected
    assert_leaves(ours.tree_deserialise_leaves(Source(expected), like), tree)
    openers: list[Any] = [functools.partial(open, buffering=0), open, gzip.open]
    for opener in openers:
        with opener(tmp_path / "x", "wb") as file:
            ours.tree_serialise_leaves(file, tree)
        with opener(tmp_path / "x", "rb") as file:
            assert file.read() == expected
        with opener(tmp_path / "x", "rb") as file:
            assert_leaves(ours.tree_deserialise_leaves(file, like), tree)


# ---- paths ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model", "m.npy", "v1.2", "dir.v1/m", "m.", ".hidden", "a.eqx", "b.tar.gz", "ä b"])
@pytest.mark.parametrize("make", [str, pathlib.Path])
def test_the_rule_for_suffixes(name: str, make: Any, tmp_path: Path) -> None:
    for folder, module in (("ours", ours), ("theirs", eqx)):
        target = tmp_path / folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        module.tree_serialise_leaves(make(os.path.join(tmp_path, folder, name)), [1])
        assert module.tree_deserialise_leaves(make(os.path.join(tmp_path, folder, name)), [0]) == [1]
    names = [sorted(p.relative_to(tmp_path / f) for p in (tmp_path / f).rglob("*")) for f in ("ours", "theirs")]
    assert names[0] == names[1]


class AnyPath:
    """A path that is no `pathlib.Path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


def test_every_path_like_is_a_path(tmp_path: Path) -> None:
    tree, like = TREES["mixed"]()
    ours.tree_serialise_leaves(AnyPath(tmp_path / "x"), tree)
    assert_leaves(ours.tree_deserialise_leaves(AnyPath(tmp_path / "x"), like), tree)
    assert [path.name for path in tmp_path.iterdir()] == ["x.eqx"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    def fails(file: Any, leaf: Any) -> None:
        if leaf == 2:
            raise KeyError("no")
        eqx.default_serialise_filter_spec(file, leaf)

    ours.tree_serialise_leaves(tmp_path / "x", [7, 8])
    before = (tmp_path / "x.eqx").read_bytes()
    with pytest.raises(ours.TreePathError):
        ours.tree_serialise_leaves(tmp_path / "x", [1, 2], fails)
    with pytest.raises(ours.TreePathError):
        ours.tree_serialise_leaves(tmp_path / "x", [1, np.array([None])])
    assert (tmp_path / "x.eqx").read_bytes() == before
    ours.tree_serialise_leaves(tmp_path / "x", [1, 3], fails)
    assert ours.tree_deserialise_leaves(tmp_path / "x", [0, 0]) == [1, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["x.eqx"]
    with pytest.raises(FileNotFoundError):
        ours.tree_deserialise_leaves(tmp_path / "absent", [0])


# ---- what is only ours ----------------------------------------------------------------


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_prng_keys_on_request(impl: str, tmp_path: Path) -> None:
    tree = {"key": jax.random.key(3, impl=impl), "many": jax.random.split(jax.random.key(1, impl=impl), (2, 3))}
    like = jax.tree.map(lambda key: jax.random.clone(key), {"key": jax.random.key(0, impl=impl), "many": tree["many"]})
    ours.tree_serialise_leaves(tmp_path / "x", tree, prng_keys=True)
    data = written(ours.tree_serialise_leaves, tree, prng_keys=True)
    for source in (tmp_path / "x", io.BytesIO(data)):
        loaded = ours.tree_deserialise_leaves(source, like, prng_keys=True)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), loaded, tree))
        assert str(jax.random.key_impl(loaded["key"])) == impl
    shapes = jax.eval_shape(lambda: tree)
    loaded = ours.tree_deserialise_leaves(tmp_path / "x", shapes, prng_keys=True)
    assert loaded["many"].dtype == tree["many"].dtype
    bare = regrow.load(tmp_path / "x.eqx")
    assert bare["key"].impl == impl and bare["many"].wrap().shape == (2, 3)
    with pytest.raises(RuntimeError, match="changed type"):
        ours.tree_deserialise_leaves(tmp_path / "x", like)


def test_numbers_are_converted_unless_told_otherwise(tmp_path: Path) -> None:
    ours.tree_serialise_leaves(tmp_path / "x", [1.5, 2, 0.0, np.float32(2)])
    like = [0, True, False, 1.5]
    expected = eqx.tree_deserialise_leaves(tmp_path / "x", like)
    assert ours.tree_deserialise_leaves(tmp_path / "x", like) == expected == [1, True, False, 2.0]
    with pytest.raises(RuntimeError) as error:
        ours.tree_deserialise_leaves(tmp_path / "x", like, strict_scalars=True)
    assert str(error.value).count("has changed dtype from") == 3
    with pytest.raises(ours.TreePathError):
        ours.tree_deserialise_leaves(io.BytesIO((tmp_path / "x.eqx").read_bytes()), like, strict_scalars=True)


def test_64_bits_are_rounded_with_a_warning(tmp_path: Path) -> None:
    eqx.tree_serialise_leaves(tmp_path / "x", np.array([0.1, 2**40]))
    with pytest.warns(UserWarning, match="jax_enable_x64"):
        loaded = ours.tree_deserialise_leaves(tmp_path / "x", jnp.zeros(2))
    assert_leaves(loaded, eqx.tree_deserialise_leaves(tmp_path / "x", jnp.zeros(2)))


def test_states_of_old_files(tmp_path: Path) -> None:
    like = [eqx.nn.StateIndex(jnp.zeros(3)), eqx.nn.StateIndex((jnp.zeros(2), jnp.zeros(()))), eqx.nn.StateIndex(1), 5]
    file = io.BytesIO()
    for record in (True, True, np.ones(3, np.float32), True, False, 2, np.ones(2, np.float32), np.float32(7), False, 6):
        np.save(file, np.asarray(record))
    (tmp_path / "x.eqx").write_bytes(file.getvalue())
    first, second, third, number = ours.tree_deserialise_leaves(tmp_path / "x", like, old_state_index=True)
    assert_leaves(first.init, jnp.ones(3))
    assert_leaves(second.init, (jnp.ones(2), jnp.float32(7)))
    assert (third.init, number) == (1, 6)
    assert first.marker is like[0].marker and float(like[0].init.sum()) == 0


def test_numpy_trees_need_no_jax(tmp_path: Path) -> None:
    program = f"""
import sys, collections, numpy as np
from regrow import equinox
Pair = collections.namedtuple("Pair", "left right")
tree = {{"b": [np.arange(3), None], "a": Pair(1, {{"y": 2.5, "x": (True,)}}), "o": collections.OrderedDict(z=1, a=2)}}
equinox.tree_serialise_leaves({str(tmp_path / "x")!r}, tree)
loaded = equinox.tree_deserialise_leaves({str(tmp_path / "x")!r}, tree)
order = lambda tree: repr([tree[key] for key in sorted(tree)])
assert order(loaded) == order({{**tree, "a": Pair(1, {{"x": (True,), "y": 2.5}})}}), loaded
spec = {{"b": equinox.default_deserialise_filter_spec, "a": lambda f, x: x, "o": lambda f, x: x}}
try:
    equinox.tree_deserialise_leaves({str(tmp_path / "x")!r}, tree, {{"b": 1}})
except ValueError as error:
    print(error)
try:
    equinox.tree_deserialise_leaves({str(tmp_path / "x")!r}, {{"b": [np.arange(4)]}})
except RuntimeError as error:
    print(str(error).splitlines()[0])
assert "jax" not in sys.modules and "equinox" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    pair = collections.namedtuple("pair", "left right")
    ordered = collections.OrderedDict(z=1, a=2)
    tree = {"b": [np.arange(3), None], "a": pair(1, {"y": 2.5, "x": (True,)}), "o": ordered}
    data = written(eqx.tree_serialise_leaves, tree)
    assert (tmp_path / "x.eqx").read_bytes()[: len(data)] == data
    with pytest.raises(ValueError) as error:
        eqx.tree_deserialise_leaves(tmp_path / "x", tree, {"b": 1})
    mine = done.stdout.splitlines()
    assert mine[0] == str(error.value)
    with pytest.raises(RuntimeError) as failed:
        eqx.tree_deserialise_leaves(tmp_path / "x", {"b": [np.zeros(4, int)]})
    assert mine[1] == str(failed.value)

"""What regrow writes for another tool, opened with that tool: each leaf is the same, or among the
losses.

    every kind of leaf  --regrow.save-->  source  --regrow.convert-->  each layout  --its own library-->  compare bits
    every kind of leaf  --regrow.save-->  each layout  --its own library-->  compare bits
    each layout  --its own library-->  leaves; the same  --regrow.convert-->  another  --its own library-->  compare

A leaf is `Same` with the same bits, dtype and shape, and `Near` with the same bits in another type:
a number in an array without axes, bytes as an array of uint8, a PRNG key as its data. What is
`Near` needs a loss, and be it a note. What is `Other`, or not there, needs a loss that is refused
without `lossy`.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import original_pytree
import pytest
import safetensors
from conftest import REPOSITORY
from test_judges import ESCAPED, TAGS, random_bits

import regrow
from regrow._core._dtypes import DTYPES

BASE = np.arange(24, dtype=np.float32)
NAMES = [dtype.name for dtype in DTYPES]


def kinds() -> dict[str, Any]:
    """A leaf of every kind."""
    numbers = (True, 7, -(2**63), 2.5, float("nan"), 1 - 2j)
    scalars = (np.bool_(True), np.int8(-3), np.uint64(2**64 - 1), np.float16(0.1), np.complex64(1j))
    scalars += (ml_dtypes.bfloat16(0.1), ml_dtypes.float8_e5m2(0.25))
    return {
        **{f"dtype {name}": random_bits(name, (3, 5)) for name in NAMES},
        **{f"dtype {name} without axes": random_bits(name, ()) for name in NAMES},
        **{f"jax {name}": jnp.asarray(random_bits(name, (3, 5))) for name in ("float32", "bfloat16", "int4", "bool")},
        **{f"number {number}": number for number in numbers},
        **{f"scalar {scalar.dtype}": scalar for scalar in scalars},
        "slice": BASE[3:9],
        "transposed": BASE.reshape(4, 6).T,
        "every other": BASE[::2],
        "reversed": BASE[::-1],
        "zero stride": np.broadcast_to(BASE[:3], (2, 3)),
        "big endian": BASE.astype(">f4"),
        "big endian scalar": np.float64(0.5).astype(">f8"),
        "empty": np.empty((0, 3), np.int16),
        "text array": np.array(["a", "größe"]),
        "bytes array": np.array([b"a", b"bcd"]),
        "record array": np.array([(1, 2.5)], "i4,f8"),
        "times": np.array(["2026-11-28"], "M8[D]"),
        "text": "größe\n",
        "long text": "x" * 100_000,
        "text with a zero": "a\0",
        "bytes": b"\0\xff",
        "key": jax.random.key(7),
        "keys": jax.random.split(jax.random.key(7, impl="rbg"), 3),
        "placeholder": ...,
    }


class Like(enum.Enum):
    """How much of a leaf another tool gives back."""

    SAME = "same"
    NEAR = "near"
    OTHER = "other"


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype


def compared(found: Any, wanted: Any) -> Like:
    """How like two leaves are."""
    if wanted is ...:
        # It has no data that could be lost.
        return Like.SAME if found is ... or found is None else Like.OTHER
    if isinstance(wanted, (str, bytes)):
        if type(found) is type(wanted):
            return Like.SAME if found == wanted else Like.OTHER
        if isinstance(wanted, bytes) and isinstance(found, np.ndarray) and found.dtype == np.uint8:
            return Like.NEAR if found.tobytes() == wanted else Like.OTHER
        is_text = isinstance(found, np.ndarray) and found.dtype.kind == "U"
        return Like.NEAR if is_text and found.item() == wanted else Like.OTHER
    if isinstance(found, (str, bytes)) or found is None or found is ...:
        return Like.OTHER
    if jnp.issubdtype(getattr(found, "dtype", None), jax.dtypes.prng_key) and isinstance(wanted, np.ndarray):
        # The source's tool knows a key as its data alone.
        return Like.NEAR if np.asarray(jax.random.key_data(found)).tobytes() == wanted.tobytes() else Like.OTHER
    is_key = jnp.issubdtype(getattr(wanted, "dtype", None), jax.dtypes.prng_key)
    if is_key and jnp.issubdtype(getattr(found, "dtype", None), jax.dtypes.prng_key):
        is_same = found.dtype == wanted.dtype and bool((found == wanted).all())
        return Like.SAME if is_same else Like.OTHER
    left, right = np.asarray(found), np.asarray(jax.random.key_data(wanted) if is_key else wanted)
    if left.shape != right.shape:
        return Like.OTHER
    # The source has numbers in this machine's order.
    right = right.astype(native(right.dtype))
    if left.dtype == right.dtype and left.tobytes() == right.tobytes():
        is_same = isinstance(found, jax.Array) if is_key else np.isscalar(found) or not np.isscalar(wanted)
        return Like.SAME if is_same else Like.NEAR
    if right.dtype == ml_dtypes.bfloat16 and left.dtype == np.float32:
        return Like.NEAR if left.tobytes() == right.astype(np.float32).tobytes() else Like.OTHER
    return Like.OTHER


Tree = dict[str, Any]


def by_orbax(path: Path, _tree: Tree) -> Tree:
    with ocp.PyTreeCheckpointer() as checkpointer:
        return dict(checkpointer.restore(path))


def by_flax(path: Path, _tree: Tree) -> Tree:
    return dict(flax.serialization.msgpack_restore(path.read_bytes()))


def by_safetensors(path: Path, _tree: Tree) -> Tree:
    """As its library tells of a file; it has no NumPy dtype for some of its own."""
    dtypes = {tag: np.dtype(getattr(ml_dtypes, name, name)) for name, tag in TAGS.items()}
    file = path / "model.safetensors" if path.is_dir() else path
    found = {}
    for name, told in safetensors.deserialize(file.read_bytes()):
        raw = np.frombuffer(bytes(told["data"]), np.uint8)
        dtype = dtypes.get(told["dtype"])
        found[name] = raw if dtype is None else raw.view(dtype).reshape(told["shape"])
    return found


def by_numpy(path: Path, _tree: Tree) -> Tree:
    with np.load(path, allow_pickle=False) as opened:
        return {name: opened[name] for name in opened.files}


def by_numpy_folder(path: Path, _tree: Tree) -> Tree:
    return {file.stem: np.load(file, allow_pickle=False) for file in path.glob("*.npy")}


def by_original_pytree(path: Path, _tree: Tree) -> Tree:
    return dict(original_pytree.load(path))


def by_equinox(path: Path, tree: Tree) -> Tree:
    """Equinox reads into a template, which here has the leaves that it writes, and other
    numbers.
    """

    def zero(leaf: Any) -> Any:
        if isinstance(leaf, (bool, int, float, complex, np.generic)):
            return type(leaf)(0)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return np.zeros_like(jax.random.key_data(leaf))
        return jnp.zeros_like(leaf) if isinstance(leaf, jax.Array) else np.zeros(leaf.shape, native(leaf.dtype))

    written = (bool, int, float, complex, np.ndarray, np.generic, jax.Array)
    like = {name: zero(leaf) for name, leaf in tree.items() if isinstance(leaf, written)}
    return dict(eqx.tree_deserialise_leaves(path, like))


def by_equinox_bytes_too(path: Path, tree: Tree) -> Tree:
    """Of a file in which bytes have become arrays."""
    arrays = {name: np.frombuffer(leaf, np.uint8) for name, leaf in tree.items() if isinstance(leaf, bytes)}
    return by_equinox(path, tree | arrays)


def is_nameless(leaf: Any) -> bool:
    """Whether NumPy writes no name of its dtype that it reads back."""
    dtype = getattr(leaf, "dtype", None)
    is_known = dtype == ml_dtypes.bfloat16 and not isinstance(leaf, np.ndarray)
    return isinstance(dtype, np.dtype) and dtype.isbuiltin == 2 and not is_known


class Target(NamedTuple):
    """A layout, where it goes, and its reader."""

    layout: str
    name: str
    read: Callable[[Path, Tree], Tree]
    options: dict[str, Any] = {}  # noqa: RUF012
    is_without: Callable[[Any], bool] = lambda _leaf: False
    """Leaves that are not converted, since the tool stops at the first of them."""


TARGETS = {
    "orbax": Target("orbax", "x", by_orbax),
    "orbax, zarr v2": Target("orbax", "x", by_orbax, {"layout": regrow.layouts.Orbax(zarr3=False, ocdbt=False)}),
    "flax": Target("flax", "x.msgpack", by_flax),
    "safetensors": Target("safetensors", "x.safetensors", by_safetensors),
    "safetensors, no structure": Target(
        "safetensors", "x.safetensors", by_safetensors, {"layout": regrow.layouts.Safetensors(structure=False)}
    ),
    "npz": Target("npy", "x.npz", by_numpy),
    "npz, no structure": Target("npy", "x.npz", by_numpy, {"layout": regrow.layouts.Npy(structure=False)}),
    "equinox": Target("equinox", "x.eqx", by_equinox),
    "equinox, no trailer": Target(
        "equinox", "x.eqx", by_equinox_bytes_too, {"layout": regrow.layouts.Equinox(trailer=False)}
    ),
    "equinox, as itself": Target(
        "equinox",
        "x.eqx",
        by_equinox_bytes_too,
        {"layout": regrow.layouts.Equinox(trailer=False, strict=True)},
        is_nameless,
    ),
    "npy folder": Target("npy", "x", by_numpy_folder),
    "pytree_data": Target("pytree_data", "x", by_original_pytree),
}


def unlike(target: Target, source: Path, folder: Path, tree: Tree, **options: Any) -> list[str]:
    """Leaves that another tool does not give back though nothing says so."""
    options = {"layout": target.layout} | target.options | options
    report = regrow.convert(source, folder / target.name, lossy=True, **options)
    found = target.read(folder / target.name, tree)
    noted = {loss.key_path for loss in report.losses}
    lost = {loss.key_path for loss in report.losses if loss.kind != "note"}
    if lost:
        # What is lost is refused, by its name, if the caller has not allowed it.
        refused = folder / f"refused_{target.name}"
        with pytest.raises(regrow.errors.UnsupportedError, match=r"help: pass `lossy=True`"):
            regrow.convert(source, refused, **options)
        assert not refused.exists()
    return silent(found, tree, lost, noted)


def silent(found: Tree, tree: Tree, lost: set[str], noted: set[str]) -> list[str]:
    """Leaves that are not what they were, though nothing says so."""
    told = []
    for name, wanted in tree.items():
        like = compared(found.get(name), wanted)
        if not (like is Like.SAME or name in lost or (like is Like.NEAR and name in noted)):
            told.append(f"{name}: {like.value}: {found.get(name, 'missing')!r:.60}")
    return told


def taken(target: Target, folder: Path) -> Tree:
    """The leaves that a save does not refuse for any options."""
    tree = {}
    for name, leaf in kinds().items():
        if not target.is_without(leaf):
            with contextlib.suppress(regrow.errors.UnsupportedError, regrow.errors.LeafTypeError):
                save(target, folder / "each", {name: leaf}, overwrite=True, durable=False)
                tree[name] = leaf
    return tree


def save(target: Target, folder: Path, tree: Tree, **options: Any) -> regrow.reports.SaveReport:
    options = {"lossy": True} | target.options | options
    folder.mkdir(exist_ok=True)
    return regrow.save(folder / target.name, tree, **{"layout": target.layout} | options)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_save_refuses_what_the_tool_of_its_layout_does_not_read_back(tmp_path: Path, target: Target) -> None:
    tree = taken(target, tmp_path)
    assert len(tree) > 40
    report = save(target, tmp_path / "lossy", tree)
    lost = {loss.key_path for loss in report.losses if loss.kind == "value"}
    changed = {loss.key_path for loss in report.losses}
    # The same bits in a leaf of another kind are no loss of a save.
    assert silent(target.read(tmp_path / "lossy" / target.name, tree), tree, changed, set(tree)) == []
    if lost:
        with pytest.raises(regrow.errors.UnsupportedError, match="lossy") as refused:
            save(target, tmp_path / "refused", tree, lossy=False)
        assert not (tmp_path / "refused" / target.name).exists()
        unnamed = [name for name in lost if f"{name}: " not in str(refused.value)]
        assert not unnamed or f"and {len(unnamed)} more" in str(refused.value)
    kept = {name: leaf for name, leaf in tree.items() if name not in lost}
    assert save(target, tmp_path / "kept", kept, lossy=False).leaf_count == len(kept)


SOURCES = [
    ("orbax", "flax"),
    ("orbax", "safetensors, no structure"),
    ("safetensors, no structure", "orbax, zarr v2"),
    ("safetensors, no structure", "npz, no structure"),
    ("flax", "orbax"),
    ("flax", "equinox, no trailer"),
    ("npz, no structure", "safetensors"),
    ("npz, no structure", "flax"),
    ("equinox", "npz"),
    ("equinox", "pytree_data"),
]


@pytest.mark.parametrize(("source", "target"), SOURCES, ids=[f"{source} to {target}" for source, target in SOURCES])
def test_files_of_every_layout_lose_nothing_to_another_tool(tmp_path: Path, source: str, target: str) -> None:
    """What the tool of the source reads is what the tool of the target has to read."""
    written, own = taken(TARGETS[source], tmp_path), TARGETS[source]
    save(own, tmp_path / "source", written)
    path = tmp_path / "source" / own.name
    tree = {name: leaf for name, leaf in own.read(path, written).items() if leaf is not None}
    assert len(tree) > 40
    assert unlike(TARGETS[target], path, tmp_path, tree) == []


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_what_another_tool_does_not_read_back_is_a_loss(tmp_path: Path, target: Target) -> None:
    tree = {name: leaf for name, leaf in kinds().items() if not target.is_without(leaf)}
    regrow.save(tmp_path / "source", tree)
    assert unlike(target, tmp_path / "source", tmp_path, tree) == []


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("file", ["views.pt", "legacy_views.pt", "dtypes.pt"])
def test_files_of_torch_save_lose_nothing_to_another_tool(tmp_path: Path, file: str, target: Target) -> None:
    """Views, transposes, expanded tensors, storages and tied parameters, each in full."""
    source = REPOSITORY / "fixtures" / "torch" / file
    tree = {
        name: leaf
        for name, leaf in regrow.load(source).items()
        if isinstance(leaf, np.ndarray) and not target.is_without(leaf)
    }
    assert len(tree) >= 14
    assert unlike(target, source, tmp_path, tree, only=list(tree)) == []


def test_what_other_tools_read_in_the_default_layout(tmp_path: Path) -> None:
    """It is regrow's own and takes every leaf; docs/formats/regrow-layout.md says what others
    find.
    """
    tree = kinds()
    regrow.save(tmp_path / "x", tree)
    found = by_orbax(tmp_path / "x", tree), by_safetensors(tmp_path / "x", tree)
    lost = set()
    for name, wanted in tree.items():
        if {compared(each.get(name), wanted) for each in found} == {Like.OTHER}:
            lost.add(name)
    escaped = {f"dtype {name}{axes}" for name in ESCAPED for axes in ("", " without axes")}
    assert lost == escaped | {"text array", "bytes array", "record array", "times"}


def test_leaves_without_data_are_refused_by_name(tmp_path: Path) -> None:
    """Tensors of the device meta, placeholders: no load gives ``...`` unless it is asked for."""
    source = REPOSITORY / "fixtures" / "torch" / "refused.pt"
    with pytest.raises(regrow.errors.UnsupportedError, match="meta"):
        regrow.load(source, only=["w", "meta"])
    with pytest.raises(regrow.errors.UnsupportedError, match=r"meta: is left out"):
        regrow.convert(source, tmp_path / "x", only=["w", "meta"])
    report = regrow.convert(source, tmp_path / "x", only=["w", "meta"], lossy=True)
    assert [(loss.key_path, loss.kind) for loss in report.losses] == [("meta", "value")]
    tree = {"w": np.ones(2), "gap": ..., "list": [1, ...]}
    regrow.save(tmp_path / "gaps", tree)
    for options in ({}, {"only": ["w", "gap"]}, {"options": regrow.Options(region={"w": slice(0, 1)})}):
        with pytest.raises(regrow.errors.UnsupportedError, match=r"(?s)gap.*placeholders=True"):
            regrow.load(tmp_path / "gaps", **options)  # type: ignore[arg-type]
    loaded = regrow.load(tmp_path / "gaps", options=regrow.Options(placeholders=True))
    assert loaded["gap"] is ... and loaded["list"][1] is ... and loaded["w"].sum() == 2
    assert regrow.load(tmp_path / "gaps", only=["w", "list/0"])["list"][1] is ...

"""Casts change no value beyond rounding, unless that is allowed: all pairs of dtypes, at the
edges, on all paths.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

import regrow
from regrow import _native

Array = np.ndarray[Any, Any]

DTYPES = [np.dtype(getattr(ml_dtypes, name, None) or name) for name in _native.DTYPES]
LAYOUTS = ["regrow", "orbax", "flax", "equinox", "safetensors", "npy"]


def kind(dtype: np.dtype[Any]) -> str:
    """bool, integer, floating or complex."""
    if dtype.kind in "?bc":
        return {"?": "bool", "b": "bool", "c": "complex"}[dtype.kind]
    try:
        ml_dtypes.iinfo(dtype)
    except ValueError:
        return "floating"
    return "integer"


def edges(dtype: np.dtype[Any]) -> Array:
    """Values at the edges of this dtype and of all others, as far as it has them."""
    wide = [0, 1, -1, 2, 3, 7, 8, 100, 127, 128, 255, 256, 300, 65504, 2**24 + 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1]
    match kind(dtype):
        case "bool":
            return np.array([False, True])
        case "integer":
            info = ml_dtypes.iinfo(dtype)
            ends = [info.min, info.min + 1, info.max - 1, info.max]
            return np.array(
                [v for v in [*wide, *ends] if info.min <= v <= info.max], np.int64 if info.min else np.uint64
            ).astype(dtype)
    part = np.dtype(dtype.type(0).real.dtype) if dtype.kind == "c" else dtype
    with np.errstate(all="ignore"):
        numbers = [
            float("nan"),
            float("inf"),
            -float("inf"),
            -0.0,
            0.5,
            2.7,
            0.1,
            1e-40,
            1e-8,
            6e-8,
            3.4e38,
            1e300,
            65520.0,
            70000.0,
        ]
        info = ml_dtypes.finfo(part)
        ends = [float(info.max), float(info.max) * 0.6, float(info.smallest_normal), -float(info.max)]
        real = np.array([*wide, *numbers, *ends], np.float64).astype(part)
        if dtype.kind != "c":
            return real
        return np.concatenate([real.astype(dtype), (real * 1j).astype(dtype), np.array([3 + 4j], dtype)])


def numpy_cast(values: Array, to: np.dtype[Any]) -> Array:
    """What NumPy makes of them; where ml_dtypes lacks the pair, by float32, as the engine's own
    golden file does.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return values.astype(to)
        except TypeError:
            return values.astype(np.float32).astype(to)


def is_kept(value: Any, to: np.dtype[Any]) -> bool:
    """Whether a cast gives the same number, or, of floats, one that only rounding explains."""
    found = numpy_cast(np.asarray(value), to)[()]
    if kind(to) == "complex" and kind(value.dtype) in ("integer", "bool"):
        return np.isfinite(found.real) and int(value) == int(found.real) and found.imag == 0
    if kind(to) == "complex" or kind(value.dtype) == "complex":
        parts = (complex(value).real, complex(found).real), (complex(value).imag, complex(found).imag)
        if kind(to) not in ("complex", "floating"):
            return parts[0][0] == parts[0][1] and parts[1][0] == 0
        part = to.type(0).real.dtype
        is_dropped = kind(to) == "floating" and parts[1][0] != 0
        return not is_dropped and all(is_rounded(was, now, part) for was, now in parts)
    if kind(value.dtype) == "floating" and kind(to) == "floating":
        return is_rounded(float(value), float(found), to)
    if kind(value.dtype) != "floating" and kind(to) == "floating" and not np.isfinite(float(found)):
        return False
    # Python compares integers and floats exactly.
    plain = [int(x) if kind(x.dtype) in ("integer", "bool") else float(x) for x in (value, found)]
    return plain[0] == plain[1]


def is_rounded(was: float, now: float, to: np.dtype[Any]) -> bool:
    if not np.isfinite(was) or not np.isfinite(now):
        return was == now or (was != was and now != now)
    info = ml_dtypes.finfo(to)
    smallest, largest = float(info.smallest_subnormal), float(info.max)
    if abs(was) > largest:
        return abs(was) - largest < 2.0 ** np.floor(np.log2(largest)) * float(info.eps) / 2
    return abs(was - now) <= max(
        abs(was) * float(info.eps) / 2, smallest if to == ml_dtypes.float8_e8m0fnu else smallest / 2
    )


PAIRS = [(a, b) for a, b in itertools.product(DTYPES, DTYPES) if a != b]


@pytest.fixture(scope="module")
def edges_of() -> dict[str, tuple[Array, dict[str, Array]]]:
    """For each dtype its edges, and for each other one which of them a cast keeps."""
    return {a.name: (edges(a), {b.name: np.array([is_kept(v, b) for v in edges(a)]) for b in DTYPES}) for a in DTYPES}


def lost_kinds(values: Array, kept: Array) -> Iterator[Any]:
    """Of the values that are not kept one of each sort: NaN, infinity, others."""
    seen = set()
    for value in values[~kept]:
        sort = "nan" if value != value else "inf" if abs(complex(value)) == np.inf else "finite"
        if sort not in seen:
            seen.add(sort)
            yield value


def bits(array: Any) -> bytes:
    return np.asarray(array).tobytes()


def same(found: Array, expected: Array) -> bool:
    """The same bits; but a NaN is a NaN, and ml_dtypes leaves bits above those of a small
    integer as they come.
    """
    if expected.dtype.name in ("int2", "int4", "uint2", "uint4"):
        found, expected = found.astype(np.int64), expected.astype(np.int64)
    if found.dtype == expected.dtype and bits(found) == bits(expected):
        return True
    size = expected.dtype.itemsize
    one, other = bits(found), bits(expected)
    differ = [
        at for at in range(expected.size) if one[at * size : at * size + size] != other[at * size : at * size + size]
    ]
    return all(bool((expected[at] != expected[at]) and (found[at] != found[at])) for at in differ)


def test_every_pair_keeps_what_it_can_hold_on_every_path(edges_of: Any, tmp_path: Path) -> None:
    """What is kept comes as NumPy casts it: a save, a load, a conversion, into arrays, into a
    template.
    """
    tree, cast, expected, count = {}, {}, {}, 0
    for a, b in PAIRS:
        values, kept = edges_of[a.name]
        chosen = values[kept[b.name]]
        if chosen.size:
            name = f"{a.name}-{b.name}"
            tree[name], cast[name] = chosen, b
            expected[name] = numpy_cast(chosen, b)
            count += chosen.size
    assert count > 5_000
    regrow.save(tmp_path / "plain", tree, durable=False)
    regrow.save(tmp_path / "saved", tree, cast=cast, durable=False)
    regrow.convert(tmp_path / "plain", tmp_path / "converted", cast=cast, durable=False)
    out = {name: np.zeros_like(value) for name, value in expected.items()}
    regrow.load_into(tmp_path / "plain", out, cast=cast)
    ways = {
        "save": regrow.load(tmp_path / "saved"),
        "convert": regrow.load(tmp_path / "converted"),
        "load": regrow.load(tmp_path / "plain", cast=cast),
        "load into": out,
        "region": regrow.load(tmp_path / "plain", cast=cast, options=regrow.Options(region={"**": (slice(None),)})),
    }
    wrong = [f"{way} {name}" for way, found in ways.items() for name in tree if not same(found[name], expected[name])]
    assert not wrong, wrong[:20]


def test_every_pair_refuses_what_it_cannot_hold(edges_of: Any, tmp_path: Path) -> None:
    """A value that would change beyond rounding is an error with the leaf's name; allowed, it is
    what NumPy makes.
    """
    tree, wanted = {}, []
    for a, b in PAIRS:
        values, kept = edges_of[a.name]
        for value in lost_kinds(values, kept[b.name]):
            name = f"{len(wanted)}"
            # Between values that are kept: one is enough.
            good = values[kept[b.name]][:1]
            tree[name] = np.concatenate([good, np.array([value], a), good])
            wanted.append((name, b))
    assert len(wanted) > 500
    regrow.save(tmp_path / "plain", tree, durable=False)
    checkpoint = regrow.open(tmp_path / "plain")
    silent = []
    for name, b in wanted:
        try:
            checkpoint.load(only=name, cast={name: b}, progress=False)
            silent.append(f"{tree[name]} -> {b}")
        except regrow.errors.UnsupportedError as error:
            assert error.leaf == name
    assert not silent, (len(silent), silent[:20])
    allowed = checkpoint.load(cast=dict(wanted), lossy=True)
    wrong = [(tree[name], b) for name, b in wanted if not same(allowed[name], numpy_cast(tree[name], b))]
    assert not wrong, wrong[:20]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_saves_and_conversions_to_every_layout_refuse_the_same(layout: str, tmp_path: Path) -> None:
    cases = [
        (np.float32(1e6), "float16"),
        (np.float64("nan"), "int32"),
        (np.int32(300), "int8"),
        (np.int64(2**53 + 1), "float64"),
        (np.float32(2.5), "int32"),
        (np.uint8(2), "bool"),
        (np.complex64(1j), "float32"),
        (np.float32("inf"), "float8_e4m3fn"),
    ]
    for value, to in cases:
        tree = {"a": np.array([value, value]), "b": np.zeros(2, np.float32)}
        regrow.save(tmp_path / "plain", tree, overwrite=True, durable=False)
        with pytest.raises(regrow.errors.UnsupportedError, match="would change") as saved:
            regrow.save(tmp_path / "new", tree, cast={"a": to}, layout=layout, durable=False)
        with pytest.raises(regrow.errors.UnsupportedError, match="would change") as converted:
            regrow.convert(tmp_path / "plain", tmp_path / "new", cast={"a": to}, layout=layout)
        assert (saved.value.leaf, converted.value.leaf) == ("a", "a"), to
        assert not (tmp_path / "new").exists()
    told = regrow.convert(tmp_path / "plain", tmp_path / "new", cast={"a": to}, layout=layout, lossy=True)
    assert [loss.key_path for loss in told.losses if "beyond rounding" in loss.what] == ["a"]


def test_a_floating_dtype_is_for_floating_leaves_alone(tmp_path: Path) -> None:
    """The recipe of the guide: counters, masks and keys of an optimizer stay, in every form of the
    cast.
    """
    params = {"w": jnp.ones((4, 4)), "b": jnp.zeros(4)}
    optimizer = optax.chain(optax.adamw(1e-3), optax.apply_every(7), optax.ema(0.9))
    state = optimizer.init(params)
    leaves, structure = jax.tree.flatten(state)
    leaves = [leaf + 100_001 if leaf.dtype == jnp.int32 else leaf for leaf in leaves]
    tree = {
        "opt_state": jax.tree.unflatten(structure, leaves),
        "rng": jax.random.key_data(jax.random.key(2**31 - 1)),
        "mask": jnp.array([True, False]),
        "z": jnp.array([1 + 2j]),
        "step": np.int64(2**53 + 1),
        "params": params,
    }

    def check(found: Any, *, is_cast: Any) -> None:
        for (path, was), now in zip(jax.tree_util.tree_leaves_with_path(tree), jax.tree.leaves(found), strict=True):
            if jnp.issubdtype(was.dtype, jnp.floating) and is_cast(path):
                assert now.dtype == ml_dtypes.bfloat16, path
            else:
                assert now.dtype == was.dtype and bits(now) == bits(was), path

    recipe = {"opt_state/**": "bfloat16"}
    of_opt = lambda path: path[0].key == "opt_state"  # noqa: E731
    regrow.save(tmp_path / "plain", tree)
    for cast, is_cast in [("bfloat16", lambda _: True), (recipe, of_opt)]:
        regrow.save(tmp_path / "saved", tree, cast=cast, overwrite=True)
        check(regrow.load(tmp_path / "saved"), is_cast=is_cast)
        check(regrow.load(tmp_path / "plain", cast=cast), is_cast=is_cast)
        check(regrow.load(tmp_path / "plain", like=tree, cast=cast), is_cast=is_cast)
        regrow.convert(tmp_path / "plain", tmp_path / "converted", cast=cast, overwrite=True)
        check(regrow.load(tmp_path / "converted"), is_cast=is_cast)
        # What another layout makes of the containers is not the question here.
        regrow.convert(tmp_path / "plain", tmp_path / "orbax", layout="orbax", cast=cast, overwrite=True, lossy=True)
        found = {name: leaf.dtype for name, leaf in regrow.open(tmp_path / "orbax").items()}
        assert {
            name for name, dtype in found.items() if "count" in name or "step" in name if dtype.kind != "i"
        } == set()


def test_a_glob_for_leaves_of_other_kinds_alone_is_an_error(tmp_path: Path) -> None:
    tree = {"steps": {"a": np.int32(1), "b": np.int32(2)}, "w": np.ones(2, np.float32), "lr": 0.5, "[x]": np.int32(3)}
    regrow.save(tmp_path / "plain", tree)
    for glob in ["steps/**", "steps", "steps/*", "lr", "st*/a"]:
        cast = {glob: "float32"}
        with pytest.raises(regrow.errors.InvalidArgumentError, match="has no effect"):
            regrow.save(tmp_path / "new", tree, cast=cast)
        with pytest.raises(regrow.errors.InvalidArgumentError, match="has no effect"):
            regrow.load(tmp_path / "plain", cast=cast)
        with pytest.raises(regrow.errors.InvalidArgumentError, match="has no effect"):
            regrow.convert(tmp_path / "plain", tmp_path / "new", cast=cast)
    for path in ["steps/a", r"\[x\]", "[x]"]:
        found = regrow.load(tmp_path / "plain", cast={path: "float32"})
        assert [value.dtype.name for value in (found["steps"]["a"], found["steps"]["b"])] == (
            ["float32", "int32"] if path == "steps/a" else ["int32", "int32"]
        )
    # The first rule that applies to a leaf decides, and `**` applies to all leaves.
    found = regrow.load(tmp_path / "plain", cast={"**": "float16", "steps/**": "int8", "steps/b": "float32"})
    assert [np.asarray(x).dtype.name for x in (found["w"], found["steps"]["a"], found["steps"]["b"])] == [
        "float16",
        "int8",
        "int8",
    ]
    assert regrow.load(tmp_path / "plain", only="steps/**", cast="bfloat16")["steps"]["a"].dtype == np.int32


def test_a_drop_in_casts_as_its_original_does(tmp_path: Path) -> None:
    import orbax.checkpoint as theirs

    from regrow import orbax as ours

    tree = {"step": jnp.array([300, 5], jnp.int32), "w": jnp.array([1e6, 1.0], jnp.float32)}
    sharding = tree["w"].sharding
    theirs.PyTreeCheckpointer().save(tmp_path / "o", tree)
    found = []
    for library in (theirs, ours):
        args = {
            "step": library.ArrayRestoreArgs(sharding=sharding, dtype=np.int8),
            "w": library.ArrayRestoreArgs(sharding=sharding, dtype=np.float16),
        }
        found.append(library.PyTreeCheckpointer().restore(tmp_path / "o", restore_args=args))
    for name in tree:
        assert found[0][name].dtype == found[1][name].dtype and bits(found[0][name]) == bits(found[1][name]), name

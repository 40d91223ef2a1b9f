"""`regrow.diff` beside NumPy: every dtype, layouts, tolerances, pytrees in memory, what is
damaged.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regrow
from regrow._leaves._columns import DTYPES

FLOATS = [dtype for dtype in DTYPES if dtype.kind not in "biuc" and not dtype.name.startswith(("int", "uint"))]
WIDTHS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}
"""Bits of the value, of dtypes below a byte."""


COUNTS = ("element_count", "differing_count", "incomparable_count", "nan_counts", "infinity_counts", "max_ulp")


def random_bits(dtype: np.dtype[Any], count: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Any bits that the dtype has: NaN, infinities and subnormals among them."""
    if dtype == np.bool_:
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.name in ("int2", "int4"):
        half = 1 << (WIDTHS[dtype.name] - 1)
        return rng.integers(-half, half, count).astype(np.int8).astype(dtype)
    if dtype.itemsize >= 8 and dtype.kind in "fc" and rng.random() < 0.5:
        # Of numbers of any exponent the squares leave float64, and there is no cosine.
        return rng.normal(size=count * dtype.itemsize // 8).view(dtype)
    bits = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    if dtype.name in WIDTHS:
        bits &= (1 << WIDTHS[dtype.name]) - 1
    return bits.view(dtype)


def places(array: np.ndarray[Any, Any]) -> list[int]:
    """Where each element stands among the values of its dtype, in Python's integers."""
    dtype = array.dtype
    if dtype.kind in "iub" or dtype.name.startswith(("int", "uint")):
        return [int(value) for value in array.astype(np.uint64 if dtype.kind == "u" else np.int64)]
    words = array.view(f"u{dtype.itemsize}")
    if dtype.name == "float8_e8m0fnu":
        return [int(word) for word in words]
    sign = 1 << (WIDTHS.get(dtype.name, dtype.itemsize * 8) - 1)
    return [-(int(word) & (sign - 1)) if int(word) & sign else int(word) & (sign - 1) for word in words]


def expected(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> dict[str, Any]:
    """What NumPy says of two arrays of one dtype."""
    is_complex = a.dtype.kind == "c"
    wide = np.complex128 if is_complex else np.float64
    with np.errstate(all="ignore"):
        wide_a, wide_b = a.astype(wide), b.astype(wide)
    finite = np.isfinite(wide_a) & np.isfinite(wide_b)
    nan = np.isnan(wide_a), np.isnan(wide_b)
    parts = [x.view(f"f{a.dtype.itemsize // 2}").reshape(-1, 2) if is_complex else x.reshape(-1, 1) for x in (a, b)]
    differs = np.array([x.tobytes() != y.tobytes() for x, y in zip(*parts, strict=True)], bool)
    with np.errstate(all="ignore"):
        same = (nan[0] & nan[1]) | (~nan[0] & ~nan[1] & (wide_a == wide_b))
        sizes = np.abs(np.concatenate([wide_a[finite], wide_b[finite]]))
        # Where squares are subnormal, the order of sums shows.
        has_cosine = not sizes.size or bool(sizes[sizes > 0].min(initial=1) > 1e-100 and sizes.max() < 1e100)
        if a.dtype.name in ("int64", "uint64"):
            away = np.array([abs(int(x) - int(y)) for x, y in zip(a, b, strict=True)], np.float64)
        else:
            away = np.abs(wide_a - wide_b)
        relative = (away / np.abs(wide_b))[finite & (wide_b != 0)]
        cosine = np.vdot(wide_b[finite], wide_a[finite]).real / (
            np.linalg.norm(wide_a[finite]) * np.linalg.norm(wide_b[finite])
        )
    steps = [
        [abs(x - y) for x, y in zip(places(parts[0][:, part].copy()), places(parts[1][:, part].copy()), strict=True)]
        for part in range(parts[0].shape[1])
    ]
    ulps = [max(each) for each, is_finite in zip(zip(*steps, strict=True), finite, strict=True) if is_finite]
    return {
        "element_count": a.size,
        "differing_count": int(differs.sum()),
        "incomparable_count": int((~finite & ~same).sum()),
        "nan_counts": (int(nan[0].sum()), int(nan[1].sum())),
        "infinity_counts": tuple(int((np.isinf(x) & ~np.isnan(x)).sum()) for x in (wide_a, wide_b)),
        "max_abs": float(away[finite].max()) if finite.any() else None,
        "max_relative": float(relative.max(initial=0)) if finite.any() else None,
        "max_ulp": max(ulps, default=None),
        "cosine": float(cosine) if np.isfinite(cosine) else None,
        "has_cosine": has_cosine,
        "away": away,
        "finite": finite,
        "same": same,
        "wide_b": wide_b,
        "ulps": [max(each) for each in zip(*steps, strict=True)],
        "differs": differs,
    }


def close(found: float | None, said: float | None) -> bool:
    if found is None or said is None or not math.isfinite(said):
        return found == said
    return math.isclose(found, said, rel_tol=1e-9, abs_tol=1e-12)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.sampled_from([1, 7, 520]), changed=st.sampled_from([1.0, 0.3, 0.0]))
def test_every_dtype_is_as_far_apart_as_numpy_says(seed: int, count: int, changed: float) -> None:
    rng = np.random.default_rng(seed)
    a = {dtype.name: random_bits(dtype, count, rng) for dtype in DTYPES}
    b = {}
    for dtype in DTYPES:
        other = random_bits(dtype, count, rng)
        b[dtype.name] = np.where(rng.random(count) < changed, other, a[dtype.name])
    atol, rtol, max_ulp = 10.0 ** rng.integers(-3, 3), 10.0 ** rng.integers(-3, 0), int(rng.integers(0, 50))
    exact = {leaf.path: leaf for leaf in regrow.diff(a, b, list_equal=True).leaves}
    near = regrow.diff(a, b, list_equal=True, atol=atol, rtol=rtol, max_ulp=max_ulp)
    within = {leaf.path: leaf for leaf in near.leaves}
    for name in a:
        said = expected(a[name], b[name])
        found = exact[name].distance
        assert found is not None
        for field in (
            "element_count",
            "differing_count",
            "incomparable_count",
            "nan_counts",
            "infinity_counts",
            "max_ulp",
        ):
            assert getattr(found, field) == said[field], (name, field)
        for field in ("max_abs", "max_relative", *(["cosine"] if said["has_cosine"] else [])):
            assert close(getattr(found, field), said[field]), (name, field, getattr(found, field), said[field])
        assert exact[name].status == ("values" if said["differing_count"] else "equal"), name
        with np.errstate(all="ignore"):
            passes = (said["away"] <= atol + rtol * np.abs(said["wide_b"])) | (
                np.array(said["ulps"], object) <= max_ulp
            )
        outside = said["differs"] & np.where(said["finite"], passes.astype(bool), said["same"]).__invert__()
        found = within[name].distance
        assert found is not None and found.outside_count == int(outside.sum()), name
        assert within[name].status == ("values" if outside.any() else "within" if said["differs"].any() else "equal")
    assert near.equal == all(leaf.status != "values" for leaf in near.leaves)


LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "regrow": ("regrow", {}), "orbax": ("orbax", {}), "flax.msgpack": ("flax", {}), "x.eqx": ("equinox", {}),
    "pytree": ("pytree_data", {}), "x.safetensors": ("safetensors", {}), "x.npz": ("npy", {}),
}  # fmt: skip


def test_a_checkpoint_of_any_layout_is_compared_with_a_pytree_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tree = {
        "w": rng.normal(size=(30, 20)).astype(np.float32),
        "h": np.ones(3, np.float16),
        "n": {"0": np.int8([1])},
    }
    moved = {**tree, "w": tree["w"].copy()}
    moved["w"][7, 3] += 1
    strided = {**tree, "w": np.asfortranarray(tree["w"])}
    for name, (layout, options) in LAYOUTS.items():
        regrow.save(tmp_path / name, tree, layout=layout, **options)
        assert regrow.diff(tmp_path / name, strided).equal, name
        report = regrow.diff(moved, regrow.open(tmp_path / name))
        (leaf,) = report.leaves
        assert (leaf.path, leaf.status, report.a) == ("w", "values", ""), name
        assert str(report).startswith("a pytree in memory and "), report
        assert leaf.distance is not None and leaf.distance.worst_index == (7, 3)
        assert leaf.distance.worst_values == (float(moved["w"][7, 3]), float(tree["w"][7, 3]))
    assert regrow.diff(tree, moved, only=["h", "n/*"]).counts["equal"] == 2


def test_jax_arrays_are_compared_where_they_are(path: Path) -> None:
    import jax
    import jax.numpy as jnp

    state = {"w": jnp.arange(12.0).reshape(3, 4), "key": jax.random.key(3), "lr": 0.1, "name": "run"}
    regrow.save(path, state)
    assert regrow.diff(path, state, check_types=True).equal
    as_numpy = {**state, "w": np.asarray(state["w"])}
    report = regrow.diff(path, as_numpy)
    assert report.equal and report.other_kind_count == 1
    assert [leaf.status for leaf in regrow.diff(path, as_numpy, check_types=True).leaves] == ["kind"]
    other = regrow.diff(path, {**state, "name": "walk", "lr": 0.2})
    assert {leaf.path: leaf.status for leaf in other.leaves} == {"lr": "values", "name": "values"}


def test_steps_and_items_of_one_folder(tmp_path: Path) -> None:
    for step in (1, 2):
        regrow.save(tmp_path / str(step), {"w": np.full(3, step, np.float32)})
    assert regrow.diff(tmp_path, tmp_path, step=1).equal
    assert not regrow.diff(tmp_path, tmp_path, step=1, step_b=2).equal
    assert regrow.diff(tmp_path, tmp_path / "2").equal


def test_a_report_says_what_it_is(tmp_path: Path) -> None:
    regrow.save(tmp_path / "a", {"w": np.float32([1, np.nan]), "x": [np.int8([1])]})
    regrow.save(tmp_path / "b", {"w": np.float32([1, 2]), "x": (np.int8([1]),), "y": np.int8([1])})
    report = regrow.diff(tmp_path / "a", tmp_path / "b")
    assert str(report).startswith(f"{tmp_path / 'a'} and {tmp_path / 'b'} differ: 2 of 3 leaves (1 values, 1 only_b)")
    assert [leaf.status for leaf in report.leaves] == ["only_b", "values"]
    assert report.leaves[0].a is None and report.leaves[0].b == ("numpy_array", "int8", (1,))
    distance = report.leaves[1].distance
    assert distance is not None and distance.incomparable_count == 1 and distance.nan_counts == (1, 0)
    assert report.containers == [("x", "list", "tuple")]
    assert not report
    assert not regrow.diff(tmp_path / "a", tmp_path / "b", only="x/*", check_types=True, equality_only=True).counts[
        "values"
    ]


def test_damage_is_a_finding_and_a_wrong_tolerance_an_error(path: Path) -> None:
    tree = {"a": np.zeros(10, np.float32), "b": np.ones(100_000, np.float32)}
    regrow.save(path, tree)
    (file,) = path.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    report = regrow.diff(tree, path)
    assert not report.equal and report.counts["unread"] >= 1
    side, finding = report.findings[0]
    assert (side, finding.kind, finding.file) == ("b", "corrupt", str(file))
    with pytest.raises(regrow.errors.InvalidArgumentError, match="atol"):
        regrow.diff(tree, tree, atol=-1)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="storage_options"):
        regrow.diff(tree, tree, storage_options={"anon": True})
    with pytest.raises(regrow.errors.NotFoundError, match='no leaf matches "c"'):
        regrow.diff(tree, tree, only="c")
    assert regrow.diff({}, {}).equal

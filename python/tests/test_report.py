"""`regrow.report`: its statistics beside NumPy's for every dtype, its page, and what it is made
of.
"""

from __future__ import annotations

import html
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_diff import random_bits

import regrow
from regrow._leaves._columns import DTYPES

TREE = {"params": {"b": np.array([np.nan, 0, np.inf], np.float32), "w": np.arange(6, dtype=np.float32)}, "step": 3}


def expected(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """What NumPy says of an array."""
    is_complex = array.dtype.kind == "c"
    with np.errstate(all="ignore"):
        wide = array.astype(np.complex128 if is_complex else np.float64)
        finite = wide[np.isfinite(wide)]
        has_any = bool(finite.size) and not is_complex
        return {
            "count": array.size,
            "nan_count": int(np.isnan(wide).sum()),
            "infinity_count": int((np.isinf(wide) & ~np.isnan(wide)).sum()),
            "zero_count": int((wide == 0).sum()),
            "min": float(finite.min()) if has_any else math.nan,
            "max": float(finite.max()) if has_any else math.nan,
            "mean": float(np.mean(finite, dtype=np.longdouble)) if has_any else math.nan,
            "std": float(np.std(finite, dtype=np.longdouble)) if has_any else math.nan,
            "l2_norm": float(np.sqrt(np.sum(np.abs(finite).astype(np.longdouble) ** 2))),
            "finite": finite,
        }


def close(found: float, said: float, scale: float) -> bool:
    if math.isnan(said):
        return math.isnan(found)
    return math.isclose(found, said, rel_tol=1e-9, abs_tol=1e-12 * scale)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.sampled_from([0, 1, 7, 520, 3000]), spread=st.booleans())
def test_every_dtype_has_the_statistics_that_numpy_has(seed: int, count: int, spread: bool) -> None:
    rng = np.random.default_rng(seed)
    tree = {dtype.name: random_bits(dtype, count, rng) for dtype in DTYPES}
    if spread:
        tree |= {
            "float64": rng.normal(3, 10.0 ** rng.integers(-6, 6), count),
            "float32": rng.normal(0, 1, count).astype(np.float32),
        }
    page = regrow.report(tree)
    columns, model = page.statistics, page.model
    assert columns is not None
    bins = model["leaves"]["statistics"]["histograms"]
    for at, name in enumerate(columns["path"]):
        said = expected(tree[name])
        for field in ("count", "nan_count", "infinity_count", "zero_count"):
            assert columns[field][at] == said[field], (name, field)
        for field in ("min", "max"):
            assert close(columns[field][at], said[field], 0), (name, field)
        finite = said["finite"]
        largest = float(np.abs(finite).max(initial=0))
        # Where squares leave float64, there is none.
        if 1e-100 < largest < 1e100:
            for field in ("mean", "std", "l2_norm"):
                assert close(columns[field][at], said[field], largest), (name, field, columns[field][at], said[field])
        first, end = bins["first"][at : at + 2]
        lower, upper, counts = (np.array(bins[part][first:end]) for part in ("lower", "upper", "count"))
        if not finite.size or tree[name].dtype.kind == "c":
            assert not counts.size
            continue
        assert counts.sum() == finite.size and len(counts) <= 32
        assert (lower[1:] >= upper[:-1]).all()
        for low, high, number in zip(lower, upper, counts, strict=True):
            # The last edge is the largest float64, where the next power of two is beyond it.
            inside = (finite >= low) & ((finite < high) | (high == np.finfo(np.float64).max))
            assert number == inside.sum(), (name, low, high)
        if tree[name].dtype.kind in "iub" or name.startswith(("int", "uint")):
            assert (upper - lower >= 1).all()
            if len(np.unique(finite)) and finite.max() - finite.min() < 32:
                values, each = np.unique(finite, return_counts=True)
                assert lower.tolist() == values.tolist() and counts.tolist() == each.tolist(), name


def test_a_page_shows_itself_and_is_saved(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", TREE)
    page = regrow.report(tmp_path / "x", out=tmp_path / "page.html")
    assert page.ok and page.title == "x" and repr(page) == "ReportPage('x')"
    assert (tmp_path / "page.html").read_text() == page.html
    with pytest.raises(regrow.errors.AlreadyExistsError, match="overwrite=True"):
        page.save(tmp_path / "page.html")
    with pytest.raises(regrow.errors.AlreadyExistsError):
        regrow.report(tmp_path / "x", out=tmp_path / "page.html")
    page.save(tmp_path / "page.html", overwrite=True)
    regrow.report(tmp_path / "x", out=tmp_path / "page.html", overwrite=True)
    frame = page._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts" ')
    inner = re.fullmatch(r'.* srcdoc="([^"]*)"></iframe>', frame, re.DOTALL)
    assert inner and html.unescape(inner[1]) == page.html
    assert page.model["checkpoint"]["layout"] == "regrow"
    columns = page.statistics
    assert columns is not None and columns["path"] == ["params/b", "params/w", "step"]
    assert columns["nan_count"].tolist() == [1, 0, 0] and columns["max"].tolist() == [0, 5, 3]
    with pytest.raises(regrow.errors.AlreadyExistsError, match="not an HTML file"):
        page.save(tmp_path / "x" / "model.safetensors")
    assert regrow.verify(tmp_path / "x").ok


def test_what_is_opened_and_what_is_in_memory_is_compared(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", TREE)
    other = {"params": {"w": np.zeros(6, np.float32)}}
    page = regrow.report(regrow.open(tmp_path / "x"), other, tmp_path / "x", sample=8)
    first, second = page.model["comparisons"]
    assert (first["is_equal"], second["is_equal"]) == (False, True)
    assert dict(first["counts"]) == {"values": 1, "only_a": 2}
    assert page.model["checkpoint"]["reading"] == "sample"
    columns = page.statistics
    assert columns is not None and columns["count"].tolist() == [2, 2, 1]
    assert regrow.report(tmp_path / "x", statistics=False, title="mine").statistics is None
    assert regrow.report(tmp_path / "x", only="step").model["leaves"]["statistics"]["count"] == [0, 0, 1]
    with pytest.raises(regrow.errors.NotFoundError, match="nothing"):
        regrow.report(tmp_path / "x", only="nothing")


def test_damage_is_on_the_page(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", {"w": np.ones(1000, np.float32)})
    file = tmp_path / "x" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    page = regrow.report(tmp_path / "x")
    assert not page.ok
    (finding,) = page.model["checkpoint"]["findings"]
    assert finding["key_path"] == "w" and finding["file"] == "model.safetensors" and finding["offset_bytes"] is not None
    assert page.model["leaves"]["state"] == ["damaged"]
    assert json.dumps(page.model)


def test_progress_can_stop_it(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", {"w": np.ones(1 << 20, np.float32)})
    seen: list[tuple[int, int]] = []
    regrow.report(tmp_path / "x", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (4 << 20, 4 << 20)

    def stop(done: int, total: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        regrow.report(tmp_path / "x", out=tmp_path / "page.html", progress=stop)
    assert not (tmp_path / "page.html").exists()

"""Parts of arrays as NumPy has them: `region=`, for ranks that shard by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import same_bits

import regrow

W = np.arange(20 * 30, dtype=np.float32).reshape(20, 30)
TREE = {"p": {"w": W, "b": np.arange(7, dtype=np.int16)}, "n": 3, "t": "text", "s": np.float32(2)}


@pytest.fixture(params=["regrow", "orbax", "npy"])
def saved(request: pytest.FixtureRequest, path: Path) -> Path:
    """A small tree in several layouts."""
    regrow.save(path, TREE, layout=request.param)
    return path


def test_slices_by_glob(saved: Path) -> None:
    loaded = regrow.load(
        saved, options=regrow.Options(region={"p/w": (slice(5, 15), slice(None, 10)), "p/*": slice(2, None)})
    )
    assert same_bits(loaded["p"]["w"], W[5:15, :10])
    assert same_bits(loaded["p"]["b"], TREE["p"]["b"][2:])
    assert loaded["n"] == 3
    assert loaded["t"] == "text"


def test_slices_of_a_function(saved: Path) -> None:
    asked: dict[str, tuple[int, ...]] = {}

    def rank_2_of_4(path: str, shape: tuple[int, ...]) -> Any:
        asked[path] = shape
        rows = shape[0] // 4
        return (slice(2 * rows, 3 * rows),) if len(shape) == 2 else None

    loaded = regrow.open(saved).load(cast={"p/w": "float16"}, options=regrow.Options(region=rank_2_of_4))
    assert same_bits(loaded["p"]["w"], W[10:15].astype(np.float16))
    assert same_bits(loaded["p"]["b"], TREE["p"]["b"])
    assert asked["p/w"] == (20, 30)
    assert asked["p/b"] == (7,)


def test_an_empty_region_and_one_from_the_end(saved: Path) -> None:
    loaded = regrow.load(saved, options=regrow.Options(region={"p/w": (slice(4, 4), slice(-3, None))}))
    assert loaded["p"]["w"].shape == (0, 3)
    assert same_bits(regrow.load(saved, options=regrow.Options(region={"p/w": slice(-3, -1)}))["p"]["w"], W[-3:-1])


def test_what_lies_outside_is_refused_or_zero(saved: Path) -> None:
    region = {"p/w": (slice(15, 25), slice(28, 32))}
    with pytest.raises(regrow.errors.MismatchError, match=r"\[20, 30\].*\[25, 32\]") as raised:
        regrow.load(saved, options=regrow.Options(region=region))
    assert raised.value.leaf == "p/w"
    assert "pad_or_truncate" in (raised.value.help or "")
    padded = regrow.load(saved, options=regrow.Options(region=region, pad_or_truncate=True))["p"]["w"]
    expected = np.zeros((10, 4), np.float32)
    expected[:5, :2] = W[15:, 28:]
    assert same_bits(padded, expected)
    behind = regrow.load(saved, options=regrow.Options(region={"p/w": slice(40, 42)}, pad_or_truncate=True))["p"]["w"]
    assert same_bits(behind, np.zeros((2, 30), np.float32))


@pytest.mark.parametrize(
    ("region", "error", "said"),
    [
        ({"q/*": slice(1)}, regrow.errors.NotFoundError, r'"q/\*"'),
        ({"p/w": (slice(1), slice(1), slice(1))}, regrow.errors.MismatchError, "p/w"),
        ({"p/w": slice(0, 4, 2)}, regrow.errors.MismatchError, "steps"),
        ({"p/w": 3}, regrow.errors.InvalidArgumentError, "slices"),
        ({"n": slice(1)}, regrow.errors.LeafTypeError, "scalar"),
        (lambda path, shape: 3, regrow.errors.MismatchError, "slice per axis"),
        (3, regrow.errors.InvalidArgumentError, "region"),
        ({1: slice(1)}, regrow.errors.InvalidArgumentError, "region"),
    ],
)
def test_what_is_no_region_is_refused(saved: Path, region: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        regrow.load(saved, options=regrow.Options(region=region))


def test_keywords_that_do_not_go_together(saved: Path) -> None:
    for options in (
        {"region": {"p/w": slice(1)}, "like": TREE},
        {"region": {"p/w": slice(1)}, "out": TREE},
        {"pad_or_truncate": True},
        {"pad_or_truncate": True, "out": TREE},
    ):
        with pytest.raises(regrow.errors.InvalidArgumentError):
            regrow.load(saved, **options)


def test_results_are_no_views_of_the_file(path: Path) -> None:
    regrow.save(path, {"w": np.ones((1024, 256), np.float32)})
    part = regrow.load(path, options=regrow.Options(region={"w": slice(0, 512)}))["w"]
    (path / "model.safetensors").write_bytes(b"")
    assert float(part.sum()) == 512 * 256

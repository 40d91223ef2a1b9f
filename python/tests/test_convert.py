"""Converting between layouts, from Python."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from conftest import assert_same

import regrow


@pytest.fixture
def orbax_checkpoint(tmp_path: Path) -> Path:
    """A checkpoint that Orbax has written."""
    path = tmp_path / "orbax"
    tree = {
        "params": {
            "dense": {"kernel": jnp.arange(12, dtype=jnp.bfloat16).reshape(3, 4), "bias": jnp.ones(4)},
            "norm": {"scale": jnp.arange(4, dtype=jnp.float32)},
        },
        "step": 7,
    }
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path, tree)
    return path


def test_what_orbax_wrote_comes_out_the_same(orbax_checkpoint: Path, tmp_path: Path) -> None:
    report = regrow.convert(orbax_checkpoint, tmp_path / "new")
    assert report.leaf_count == 4
    assert report.losses == []
    assert_same(regrow.load(tmp_path / "new"), regrow.load(orbax_checkpoint))
    assert regrow.open(tmp_path / "new").layout == "regrow"


def test_selects_renames_casts_transposes_and_reshapes(orbax_checkpoint: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "only": "params/**",
        "rename": {"params/(.*)/kernel": "model/$1/weight", "params/(.*)": "model/$1"},
        "cast": {"**/kernel": "float32"},
        "transpose": {"**/kernel": (1, 0)},
        "reshape": {"params/norm/scale": (2, -1)},
    }
    plan = regrow.convert(orbax_checkpoint, tmp_path / "new", dry_run=True, **options)
    assert not (tmp_path / "new").exists()
    assert plan.lossless
    weight = next(leaf for leaf in plan.leaves if leaf.target_path == "model/dense/weight")
    assert weight.source_path == "params/dense/kernel"
    assert weight.source == ("jax_array", "bfloat16", (3, 4))
    assert weight.target == ("jax_array", "float32", (4, 3))
    regrow.convert(orbax_checkpoint, tmp_path / "new", **options)
    expected = {
        "model": {
            "dense": {
                "bias": np.ones(4, np.float32),
                "weight": np.arange(12, dtype=np.float32).reshape(3, 4).T.copy(),
            },
            "norm": {"scale": np.arange(4, dtype=np.float32).reshape(2, 2)},
        }
    }
    assert_same(regrow.load(tmp_path / "new"), expected)


def test_what_the_target_cannot_hold_is_refused_or_listed(tmp_path: Path) -> None:
    tree = {"a": (np.ones(2), b"bytes"), "n": {3: np.float32(1)}, "i": np.ones(2, ml_dtypes.uint4)}
    regrow.save(tmp_path / "rich", tree)
    with pytest.raises(regrow.errors.UnsupportedError) as caught:
        regrow.convert(tmp_path / "rich", tmp_path / "orbax", layout="orbax")
    message = str(caught.value)
    for what in ("a: a tuple becomes a list", "a/1", "n/3", "i: uint4 becomes uint8"):
        assert what in message, message
    assert not (tmp_path / "orbax").exists()
    report = regrow.convert(tmp_path / "rich", tmp_path / "orbax", layout="orbax", lossy=True)
    paths = {loss.key_path for loss in report.losses}
    assert paths == {"a", "a/1", "n/3", "i"}
    loaded = regrow.load(tmp_path / "orbax")
    assert loaded["a"][1].tobytes() == b"bytes"
    assert loaded["i"].dtype == np.uint8
    assert loaded["n"] == {"3": 1.0}


def test_progress_is_told_and_can_stop(tmp_path: Path) -> None:
    regrow.save(tmp_path / "a", {"x": np.zeros(5_000_000), "y": np.ones(10)})
    told: list[tuple[int, int]] = []
    regrow.convert(tmp_path / "a", tmp_path / "b", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (40_000_080, 40_000_080)
    assert all(one[0] <= other[0] for one, other in itertools.pairwise(told))

    class StopItError(Exception):
        pass

    def stop(_done: int, _total: int) -> None:
        raise StopItError

    with pytest.raises(StopItError):
        regrow.convert(tmp_path / "a", tmp_path / "c", progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_mistakes_are_named(orbax_checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    mistakes: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"only": "nothing/**"}, regrow.errors.NotFoundError, "nothing"),
        ({"cast": {"nothing": "float32"}}, regrow.errors.NotFoundError, "nothing"),
        ({"rename": {"params": "x"}}, regrow.errors.InvalidArgumentError, "matches no key path"),
        ({"rename": {"params/.*": "x"}}, regrow.errors.NameCollisionError, "would get the same key path"),
        ({"transpose": {"**/bias": (1, 0)}}, regrow.errors.InvalidArgumentError, "each axis once"),
        ({"reshape": {"**/bias": (3, -1)}}, regrow.errors.InvalidArgumentError, "elements"),
        ({"reshape": {"step": (1,)}}, regrow.errors.InvalidArgumentError, "no axes"),
        ({"layout": "zip"}, regrow.errors.InvalidArgumentError, "zip"),
        ({"layout": "flax", "level": 3}, regrow.errors.InvalidArgumentError, "level"),
        ({"reshape": {"**": "abc"}}, regrow.errors.InvalidArgumentError, "integers"),
    ]
    for options, error, what in mistakes:
        with pytest.raises(error, match=what):
            regrow.convert(orbax_checkpoint, target, **options)
        assert not target.exists()
    with pytest.raises(regrow.errors.InvalidArgumentError, match="inside the source"):
        regrow.convert(orbax_checkpoint, orbax_checkpoint / "new")
    regrow.convert(orbax_checkpoint, target)
    with pytest.raises(regrow.errors.AlreadyExistsError):
        regrow.convert(orbax_checkpoint, target)
    regrow.convert(target, target, overwrite=True, cast="float64")
    assert regrow.load(target)["params"]["norm"]["scale"].dtype == np.float64


@pytest.mark.parametrize("layout", ["regrow", "flax", "equinox", "pytree_data", "safetensors"])
def test_what_is_private_stays_private(tmp_path: Path, layout: str) -> None:
    path = tmp_path / {"flax": "model.msgpack", "equinox": "model.eqx", "safetensors": "a.safetensors"}.get(
        layout, "model"
    )
    regrow.save(path, {"a": np.ones(2)}, layout=layout)
    files = [file for file in tmp_path.iterdir() if file.name.startswith(path.name)]
    for file in files:
        file.chmod(0o700 if file.is_dir() else 0o600)
    regrow.save(path, {"a": np.zeros(2)}, layout=layout, overwrite=True)
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    assert regrow.load(path)["a"].sum() == 0


def test_none_is_chosen_and_renamed_as_leaves_are(tmp_path: Path) -> None:
    source = tmp_path / "source"
    tree = {"n": None, "o": np.ones(2), "p": {"w": np.zeros(3), "none": None, "empty": []}, "text": "x"}
    regrow.save(source, tree)
    with pytest.raises(regrow.errors.NameCollisionError, match=r"n \(None\) and o would get the same key path"):
        regrow.convert(source, tmp_path / "new", rename={"o": "n/x"})
    for number, only in enumerate(["p/w", "p/**", "n", "**"]):
        regrow.convert(source, tmp_path / str(number), only=only)
        assert_same(regrow.load(tmp_path / str(number)), regrow.load(source, only=only))
    regrow.convert(source, tmp_path / "moved", rename={"(?i)N": "q/none"}, only=["n", "o"])
    assert_same(regrow.load(tmp_path / "moved"), {"o": np.ones(2), "q": {"none": None}})
    with pytest.raises(regrow.errors.InvalidArgumentError, match="has no effect"):
        regrow.convert(source, tmp_path / "new", cast={"text": "float32"})
    with pytest.raises(regrow.errors.NotFoundError, match='"no", "neither"'):
        regrow.convert(source, tmp_path / "new", only=["o", "no"], cast={"neither": "float32"})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("layout", ["regrow", "orbax", "flax"])
def test_a_folder_of_steps_is_refused_without_a_step(tmp_path: Path, layout: str) -> None:
    steps, name = tmp_path / "run", "checkpoint_{}" if layout == "flax" else "{}"
    steps.mkdir()
    for step in (5, 10):
        regrow.save(steps / name.format(step), {"w": np.full(2, step)}, layout=layout)
        if step == 5:
            # Of one step nothing stays behind.
            regrow.convert(steps, tmp_path / "one")
    for options in ({}, {"dry_run": True}, {"options": regrow.Options(salvage=True)}):
        with pytest.raises(
            regrow.errors.InvalidArgumentError,
            match=r"(?s)folder of 2 steps.*found steps 5, 10.*step=N.*all_steps=True",
        ):
            regrow.convert(steps, tmp_path / "x", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()
    regrow.convert(steps, tmp_path / "x", step=5)
    assert regrow.load(tmp_path / "x")["w"].tolist() == [5, 5]

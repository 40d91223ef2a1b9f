"""Loads and conversions of what is intact in a damaged checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

import regrow


def _tree() -> dict[str, Any]:
    chance = np.random.default_rng(3)
    return {
        "params": {"kernel": chance.normal(size=(600, 200)).astype(np.float32), "bias": np.arange(7, dtype=np.int16)},
        "layers": [np.arange(3.0), np.arange(4.0), np.arange(5.0)],
        "step": 12,
    }


def _damage(folder: Path, array: np.ndarray) -> None:
    """Flips a bit in the stored bytes of an array."""
    wanted = array.tobytes()
    for file in folder.rglob("*"):
        data = bytearray(file.read_bytes()) if file.is_file() else bytearray()
        at = data.find(wanted)
        if at >= 0:
            data[at + len(wanted) // 2] ^= 4
            file.write_bytes(data)
            return
    raise AssertionError("no file has the array")


@pytest.fixture(params=["x", "x.npz"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint whose kernel is damaged, under checksums."""
    path: Path = tmp_path / request.param
    regrow.save(path, _tree())
    _damage(tmp_path, _tree()["params"]["kernel"])
    return path


def test_what_is_intact_is_loaded_and_the_rest_is_told(damaged: Path) -> None:
    with pytest.raises(regrow.errors.CorruptError):
        regrow.load(damaged)
    with pytest.warns(regrow.errors.SalvageWarning, match="params/kernel") as caught:
        loaded = regrow.load(damaged, options=regrow.Options(salvage=True))
    assert caught[0].filename == __file__
    (lost,) = caught[0].message.report.lost
    assert lost.leaf == "params/kernel"
    assert lost.kind == "corrupt"
    assert lost.file is not None
    assert loaded["params"]["kernel"] is ...
    np.testing.assert_array_equal(loaded["params"]["bias"], _tree()["params"]["bias"])
    for found, leaf in zip(loaded["layers"], _tree()["layers"], strict=True):
        np.testing.assert_array_equal(found, leaf)


def test_a_template_keeps_its_own_where_a_leaf_is_lost(damaged: Path) -> None:
    told: list[regrow.reports.SalvageReport] = []
    like = jax.tree.map(lambda leaf: np.zeros_like(leaf) if isinstance(leaf, np.ndarray) else leaf, _tree())
    like["params"]["bias"] = jnp.zeros(7, jnp.int16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = regrow.load(damaged, like, options=regrow.Options(salvage=told.append))
    assert told[0].lost_paths == ["params/kernel"]
    assert loaded["params"]["kernel"] is like["params"]["kernel"]
    assert isinstance(loaded["params"]["bias"], jax.Array)
    np.testing.assert_array_equal(loaded["params"]["bias"], _tree()["params"]["bias"])


def test_shardings_and_regions_are_given_of_what_is_intact(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", _tree())
    _damage(tmp_path / "x", _tree()["params"]["kernel"])
    shards = {"params/*": NamedSharding(jax.make_mesh((1,), ("x",)), PartitionSpec())}
    with pytest.warns(regrow.errors.SalvageWarning):
        loaded = regrow.load(tmp_path / "x", shardings=shards, options=regrow.Options(salvage=True))
    assert isinstance(loaded["params"]["bias"], jax.Array)
    assert loaded["params"]["kernel"] is ...
    with pytest.warns(regrow.errors.SalvageWarning):
        loaded = regrow.load(tmp_path / "x", options=regrow.Options(region={"layers/2": (slice(1, 3),)}, salvage=True))
    np.testing.assert_array_equal(loaded["layers"][2], [1.0, 2.0])


def test_a_conversion_leaves_out_what_is_lost(damaged: Path, tmp_path: Path) -> None:
    with pytest.raises(regrow.errors.CorruptError):
        regrow.convert(damaged, tmp_path / "y")
    assert not (tmp_path / "y").exists()
    plan = regrow.convert(damaged, tmp_path / "y", dry_run=True, options=regrow.Options(salvage=True))
    assert [each.leaf for each in plan.damage if each.leaf] == ["params/kernel"]
    report = regrow.convert(damaged, tmp_path / "y", options=regrow.Options(salvage=True))
    assert [each.leaf for each in report.damage if each.leaf] == ["params/kernel"]
    assert regrow.verify(tmp_path / "y")
    with pytest.raises(regrow.errors.UnsupportedError, match="params/kernel"):
        regrow.load(tmp_path / "y")
    loaded = regrow.load(tmp_path / "y", options=regrow.Options(placeholders=True))
    assert loaded["params"]["kernel"] is ...
    np.testing.assert_array_equal(loaded["params"]["bias"], _tree()["params"]["bias"])
    # A layout without placeholders lacks the leaf; other tools read the rest.
    only = {"only": "params/*"}
    report = regrow.convert(
        damaged, tmp_path / "z.safetensors", layout="safetensors", options=regrow.Options(salvage=True), **only
    )
    assert [each.leaf for each in report.damage if each.leaf] == ["params/kernel"]
    (name,) = (tensors := safetensors.numpy.load_file(tmp_path / "z.safetensors"))
    assert name.endswith("bias")
    np.testing.assert_array_equal(tensors[name], _tree()["params"]["bias"])


def test_what_is_whole_is_loaded_without_a_word(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", _tree())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = regrow.load(tmp_path / "x", options=regrow.Options(salvage=True))
    np.testing.assert_array_equal(loaded["params"]["kernel"], _tree()["params"]["kernel"])
    report = regrow.convert(tmp_path / "x", tmp_path / "y", options=regrow.Options(salvage=True))
    assert not report.damage


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", _tree())
    with pytest.raises(regrow.errors.InvalidArgumentError, match="salvage"):
        regrow.load(tmp_path / "x", options=regrow.Options(salvage=True, checksums=False))
    with pytest.raises(regrow.errors.InvalidArgumentError, match="salvage"):
        regrow.load_into(tmp_path / "x", _tree(), options=regrow.Options(salvage=True))
    with pytest.raises(regrow.errors.InvalidArgumentError, match="salvage"):
        regrow.load(tmp_path / "x", options=regrow.Options(salvage="yes"))
    with pytest.raises(regrow.errors.NotFoundError):
        regrow.load(tmp_path / "nowhere", options=regrow.Options(salvage=True))
    regrow.save(tmp_path / "y", {"a": np.arange(9.0)})
    _damage(tmp_path / "y", np.arange(9.0))
    with pytest.raises(regrow.errors.CorruptError, match="nothing can be salvaged"):
        regrow.load(tmp_path / "y", options=regrow.Options(salvage=True))


def _arrays() -> dict[str, np.ndarray]:
    chance = np.random.default_rng(5)
    return {f"w{at}": chance.normal(size=(40 + at, 30)).astype(np.float32) for at in range(6)}


def _by_safetensors(path: Path) -> Path:
    safetensors.numpy.save_file(_arrays(), path / "x.safetensors")
    return path / "x.safetensors"


def _by_numpy(path: Path) -> Path:
    np.savez(path / "x.npz", **_arrays())
    return path / "x.npz"


def _by_numpy_deflated(path: Path) -> Path:
    np.savez_compressed(path / "x.npz", **_arrays())
    return path / "x.npz"


def _by_flax(path: Path) -> Path:
    (path / "x.msgpack").write_bytes(flax.serialization.to_bytes(_arrays()))
    return path / "x.msgpack"


@pytest.mark.parametrize("write", [_by_safetensors, _by_numpy, _by_numpy_deflated, _by_flax])
def test_of_a_file_of_the_originals_that_was_cut_the_arrays_before_the_cut_come_back(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    counts = []
    for cut in range(len(whole) - 1, len(whole) // 10, -len(whole) // 40):
        path.unlink()
        path.write_bytes(whole[:cut])
        with pytest.raises(regrow.errors.CorruptError):
            regrow.load(path)
        try:
            given = regrow.load(path, options=regrow.Options(salvage=lambda report: None))
        except regrow.errors.CorruptError:
            counts.append(0)
            continue
        intact = {name: array for name, array in given.items() if array is not ...}
        for name, array in intact.items():
            np.testing.assert_array_equal(array, _arrays()[name])
        counts.append(len(intact))
    # A directory at the end costs no array; of each further piece there are fewer, and at the half
    # of it some.
    assert counts[0] >= len(_arrays()) - 1
    assert counts == sorted(counts, reverse=True)
    assert counts[len(counts) // 2] >= 2


@pytest.mark.parametrize("ocdbt", [True, False])
def test_what_orbax_has_written_costs_no_more_than_what_is_damaged(ocdbt: bool, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt)) as checkpointer:
        checkpointer.save(path, _arrays())
    seen = set()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        whole = file.read_bytes()
        for cut in {0, len(whole) // 2, max(0, len(whole) - 1)}:
            file.unlink()
            file.write_bytes(whole[:cut])
            try:
                given = regrow.load(path, options=regrow.Options(salvage=lambda report: None))
            except regrow.RegrowError:
                given = {}
            intact = {name: array for name, array in given.items() if array is not ...}
            for name, array in intact.items():
                np.testing.assert_array_equal(array, _arrays()[name])
            seen.add(len(intact))
            # Nothing but the database's only node takes all with it.
            assert len(intact) >= (0 if ocdbt and file.parent.name == "d" else len(_arrays()) - 1), (file, cut)
        file.write_bytes(whole)
    assert len(_arrays()) in seen
    assert len(_arrays()) - 1 in seen or ocdbt

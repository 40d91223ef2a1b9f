"""Both ways, bit for bit: what regrow writes Orbax and TensorStore read, and what Orbax writes
regrow reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
import pytest
from conftest import same_bits
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import regrow

RANDOM = np.random.default_rng(3)
TREE: dict[str, Any] = {
    "params": {
        "dense": {
            "kernel": RANDOM.standard_normal((16, 24)).astype(np.float32),
            "bias": RANDOM.standard_normal(24).astype(ml_dtypes.bfloat16),
        },
        "ids": RANDOM.integers(-100, 100, (3, 5, 7)),
    },
    "layers": [np.arange(4, dtype=np.uint8), {"flag": np.array([True, False])}],
    "half": np.float16([1, 2, 3]),
    "step": 7,
    "rate": 0.25,
}


def assert_same_values(left: Any, right: Any) -> None:
    """The same values and dtypes in the same places, in any containers."""
    ours, theirs = jax.tree.leaves_with_path(left), jax.tree.leaves_with_path(right)
    assert [path for path, _ in ours] == [path for path, _ in theirs]
    for (path, one), (_, other) in zip(ours, theirs, strict=True):
        assert same_bits(one, other), jax.tree_util.keystr(path)


@pytest.mark.parametrize("options", [{}, {"layout": "orbax"}], ids=["regrow", "orbax"])
def test_orbax_restores_ours_into_a_template(path: Path, options: dict[str, Any]) -> None:
    regrow.save(path, TREE, **options)
    target = jax.tree.map(lambda leaf: np.zeros_like(leaf) if isinstance(leaf, np.ndarray) else type(leaf)(0), TREE)
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert_same_values(checkpointer.restore(path, item=target), TREE)


def test_orbax_keeps_our_shardings_and_metadata(path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    sharding = NamedSharding(mesh, PartitionSpec("x", None))
    array = jax.device_put(jnp.arange(32.0).reshape(4, 8), sharding)
    regrow.save(path, {"w": array}, metadata={"who": "me"})
    with ocp.PyTreeCheckpointer() as checkpointer:
        restored = checkpointer.restore(path)["w"]
        assert checkpointer.metadata(path).item_metadata.custom_metadata == {"who": "me"}
    assert restored.sharding.is_equivalent_to(sharding, 2)
    assert same_bits(restored, array)


def test_prng_keys_both_ways(path: Path, tmp_path: Path) -> None:
    keys = {"rng": jax.random.split(jax.random.key(5), 3)}
    regrow.save(path, keys)
    with ocp.PyTreeCheckpointer() as checkpointer:
        restored = checkpointer.restore(path)["rng"]
        checkpointer.save(tmp_path / "theirs", keys)
    assert restored.dtype == keys["rng"].dtype
    assert same_bits(jax.random.key_data(restored), jax.random.key_data(keys["rng"]))
    assert regrow.load(tmp_path / "theirs") == regrow.load(path)


def handler(**options: Any) -> Any:
    return ocp.PyTreeCheckpointer(**options)


@pytest.mark.parametrize("use_ocdbt", [True, False])
@pytest.mark.parametrize("use_zarr3", [True, False])
def test_we_load_what_orbax_saves(path: Path, use_ocdbt: bool, use_zarr3: bool) -> None:
    tree = TREE | {"jax": jnp.arange(100, dtype=jnp.bfloat16).reshape(10, 10), "name": "net"}
    with handler(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3) as checkpointer:
        checkpointer.save(path, tree)
    loaded = regrow.load(path)
    assert loaded.pop("name") == "net"
    assert_same_values(loaded, {key: value for key, value in tree.items() if key != "name"})
    assert regrow.load(path, like=tree)["jax"].sharding == tree["jax"].sharding
    assert regrow.verify(path).ok
    ckpt = regrow.open(path)
    assert ckpt.layout == "orbax"
    assert same_bits(ckpt["params/dense/kernel"][3:5, ::2], TREE["params"]["dense"]["kernel"][3:5, ::2])


def test_we_load_what_orbax_v1_saves(path: Path) -> None:
    tree = {"w": jnp.arange(6.0).reshape(2, 3), "t": (jnp.ones(2), {"n": np.int32([3])})}
    ocp_v1.save_pytree(path, tree)
    loaded = regrow.load(path)
    assert same_bits(loaded["w"], tree["w"])
    assert_same_values(regrow.load(path, like=tree), tree)


def test_we_load_what_the_manager_saves(tmp_path: Path) -> None:
    tree = {"w": np.arange(5, dtype=np.float32)}
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in (1, 5, 3):
            if step > (manager.latest_step() or 0):
                manager.save(step, args=ocp.args.StandardSave({"w": tree["w"] + step}), metrics={"loss": step})
        manager.wait_until_finished()
    ckpt = regrow.open(tmp_path)
    assert (ckpt.step, ckpt.steps) == (5, [1, 5])
    assert same_bits(regrow.load(tmp_path, step=1, like=tree)["w"], tree["w"] + 1)


@pytest.mark.parametrize("use_ocdbt", [True, False])
@pytest.mark.parametrize("scalar", [np.complex128(1.5 - 2j), np.complex64(1.5 - 2j)], ids=["complex128", "complex64"])
def test_numpys_complex_scalars_go_from_orbax_to_orbax(tmp_path: Path, scalar: Any, use_ocdbt: bool) -> None:
    """Orbax stores them and gives back a complex; what regrow converts and saves it gives back
    as well.
    """
    source, target, saved = tmp_path / "source", tmp_path / "target", tmp_path / "saved"
    tree = {"z": scalar, "w": np.arange(3)}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(source, tree)
        restored = checkpointer.restore(source)
        assert type(restored["z"]) is complex
        report = regrow.convert(source, target, layout=regrow.layouts.Orbax(ocdbt=use_ocdbt))
        assert not report.losses
        again = checkpointer.restore(target)
        assert type(again["z"]) is complex and again["z"] == restored["z"] == 1.5 - 2j
        # What regrow loads is a Python number by then, and can be saved as it is.
        loaded = regrow.load(target)
        regrow.save(saved, loaded, layout=regrow.layouts.Orbax(ocdbt=use_ocdbt))
        once_more = checkpointer.restore(saved)
        assert type(once_more["z"]) is complex and once_more["z"] == 1.5 - 2j
        assert loaded["z"] == 1.5 - 2j

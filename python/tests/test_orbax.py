"""Both ways, bit for bit: what regrow writes Orbax and TensorStore read, and what Orbax writes
regrow reads.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
import pytest
import tensorstore as ts
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

WAYS: dict[str, dict[str, Any]] = {
    "regrow": {},
    "regrow, zstd": {"compression": "zstd"},
    "ocdbt, zarr v2": {"layout": "orbax"},
    "ocdbt, zarr v3": {"layout": regrow.layouts.Orbax(zarr3=True)},
    "files, zarr v2": {"layout": regrow.layouts.Orbax(ocdbt=False)},
    "files, zarr v3": {"layout": regrow.layouts.Orbax(ocdbt=False, zarr3=True)},
    "chunked": {"layout": regrow.layouts.Orbax(zarr3=True, chunk_byte_size=256)},
    "small files": {"layout": regrow.layouts.Orbax(ocdbt_target_data_file_size=1024)},
    "uncompressed": {"layout": "orbax", "compression": "none"},
    "by leaf": {"layout": regrow.layouts.Orbax(per_leaf={"**/kernel": {"write_chunk_shape": [8, 12]}})},
}


def assert_same_values(left: Any, right: Any) -> None:
    """The same values and dtypes in the same places, in any containers."""
    ours, theirs = jax.tree.leaves_with_path(left), jax.tree.leaves_with_path(right)
    assert [path for path, _ in ours] == [path for path, _ in theirs]
    for (path, one), (_, other) in zip(ours, theirs, strict=True):
        assert same_bits(one, other), jax.tree_util.keystr(path)


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS.keys())
def test_orbax_restores_ours(path: Path, options: dict[str, Any]) -> None:
    regrow.save(path, TREE, **options)
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert_same_values(checkpointer.restore(path), TREE)
    assert_same_values(regrow.load(path), TREE)


@pytest.mark.parametrize("options", [{}, {"layout": "orbax"}], ids=["regrow", "orbax"])
def test_orbax_restores_ours_into_a_template(path: Path, options: dict[str, Any]) -> None:
    regrow.save(path, TREE, **options)
    target = jax.tree.map(lambda leaf: np.zeros_like(leaf) if isinstance(leaf, np.ndarray) else type(leaf)(0), TREE)
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert_same_values(checkpointer.restore(path, item=target), TREE)


def test_standard_checkpointer_restores_ours(tmp_path: Path, path: Path) -> None:
    """Orbax' StandardCheckpointer looks at the folder itself when it has no item in it."""
    tree = {"w": jnp.arange(6.0).reshape(2, 3), "b": np.ones(2, np.float32)}
    regrow.save(path, tree)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(path, jax.tree.map(jnp.zeros_like, tree))
    assert_same_values(restored, tree)


@pytest.mark.parametrize("options", [{}, {"layout": regrow.layouts.Orbax(zarr3=True, v1=True)}], ids=["regrow", "v1"])
def test_orbax_v1_loads_ours(path: Path, options: dict[str, Any]) -> None:
    tree = {"w": jnp.arange(6.0).reshape(2, 3), "layers": [jnp.ones(2, jnp.bfloat16)]}
    regrow.save(path, tree, **options)
    assert_same_values(ocp_v1.load_pytree(path), tree)


def test_tensorstore_reads_a_leaf_of_ours(path: Path) -> None:
    regrow.save(path, TREE)
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "ocdbt", "base": path.as_uri(), "path": "params.dense.kernel/"},
    }
    found = ts.open(spec, read=True).result()[2:4].read().result()
    assert same_bits(found, TREE["params"]["dense"]["kernel"][2:4])


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


def test_we_load_what_orbax_shards(path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    array = jax.device_put(jnp.arange(64.0).reshape(8, 8), NamedSharding(mesh, PartitionSpec("x", "y")))
    with handler() as checkpointer:
        checkpointer.save(path, {"w": array})
    assert same_bits(regrow.load(path)["w"], np.arange(64, dtype=np.float32).reshape(8, 8))
    assert regrow.open(path)["w"].chunk_shape is not None
    assert same_bits(regrow.open(path)["w"][3:6, 2:7], np.asarray(array)[3:6, 2:7])


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


FIXTURES = Path(__file__).parents[2] / "fixtures" / "orbax"


def expectations() -> list[Any]:
    """Every pytree in the fixtures that are sound: its folder, and the leaves that its writer
    saw in it.
    """
    found = []
    for file in sorted(FIXTURES.glob("*/expected.json")):
        if file.parent.name.startswith("bad_"):
            continue
        for item, expected in json.loads(file.read_text())["items"].items():
            if expected["kind"] in ("pytree", "msgpack"):
                folder = file.parent / "ckpt" / item
                found.append(pytest.param(folder, expected["leaves"], id=f"{file.parent.name}/{item}".rstrip("/")))
    return found


@pytest.mark.parametrize(("folder", "leaves"), expectations())
def test_fixtures(folder: Path, leaves: list[dict[str, Any]]) -> None:
    """Every leaf of every fixture, as the library that wrote it saw it."""
    by_name = {leaf.name: leaf for leaf in regrow.open(folder).values()}
    compared = 0
    for want in leaves:
        name = want["param_name"]
        if "sha256" in want:
            array = by_name[name][...]
            assert (array.dtype.name, list(array.shape)) == (want["dtype"], want["shape"]), name
            assert hashlib.sha256(array.tobytes()).hexdigest() == want["sha256"], name
            compared += 1
        elif want["value_type"] == "string":
            assert by_name[name].read() == want["value"], name
            compared += 1
    # The table of one fixture lacks a Python complex number that its file has.
    assert compared == len(by_name) - ("pyc" in by_name)
    regrow.load(folder)


@pytest.mark.parametrize("folder", sorted(FIXTURES.glob("bad_*")), ids=lambda folder: folder.name)
def test_damaged_fixtures(folder: Path) -> None:
    """Damage is an error of regrow's, never a wrong number nor a crash; an unfinished step is
    not taken for one.
    """
    expected = json.loads((folder / "expected.json").read_text())
    if "expect_error" not in expected:
        assert regrow.open(folder / "ckpt").steps == expected["steps"]
        return
    if any("undetectable" in error["why"] for error in expected["expect_error"]):
        assert not regrow.verify(folder / "ckpt").has_data_checksums, "then a report must not promise anything"
        return
    with pytest.raises(regrow.RegrowError) as caught:
        regrow.load(folder / "ckpt")
    assert caught.value.kind in ("corrupt", "name_collision")


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

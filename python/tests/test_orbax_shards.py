"""Arrays spread over devices, both ways and bit for bit: what regrow writes of them Orbax restores,
and the other way round; by one process, and by several together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import processes
import pytest
import safetensors
from conftest import same_bits
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint._src.metadata import array_metadata_store

import regrow

WAYS: dict[str, dict[str, Any]] = {
    "regrow": {},
    "regrow, chunked": {"layout": regrow.layouts.Regrow(chunk_byte_size=64)},
    "regrow, chunked and compressed": {
        "layout": regrow.layouts.Regrow(chunk_byte_size=4096),
        "compression": "zstd",
    },
    "ocdbt, zarr v2": {"layout": "orbax"},
    "ocdbt, zarr v3": {"layout": regrow.layouts.Orbax(zarr3=True)},
    "files, zarr v2": {"layout": regrow.layouts.Orbax(ocdbt=False)},
    "files, zarr v3": {"layout": regrow.layouts.Orbax(ocdbt=False, zarr3=True)},
    "chunked": {"layout": regrow.layouts.Orbax(zarr3=True, chunk_byte_size=64)},
}


def mesh_of(*shape: int) -> Mesh:
    return jax.make_mesh(shape, ("x", "y"))


def numbers(dtype: Any, *shape: int) -> Any:
    count = int(np.prod(shape))
    return (np.arange(count) % 13 - 6).reshape(shape).astype(dtype)


def sharded_tree(mesh: Mesh) -> dict[str, Any]:
    def put(value: Any, *axes: Any) -> jax.Array:
        return jax.device_put(jnp.asarray(value), NamedSharding(mesh, P(*axes)))

    return {
        "both": put(numbers(np.float32, 8, 12), "x", "y"),
        "columns": put(numbers(np.int16, 6, 8), None, "y"),
        "rows": put(numbers(jnp.bfloat16, 8, 4), "x"),
        "four bits": put(numbers(jnp.int4, 8, 4), "y", "x"),
        "merged": put(numbers(np.int32, 16), ("x", "y")),
        "replicated": put(numbers(np.float16, 5, 3)),
        "scalar": put(np.float32(2.5)),
        "large": put(np.random.default_rng(1).standard_normal((256, 160), np.float32), "x", "y"),
        "keys": jax.device_put(jax.random.split(jax.random.key(3), 8), NamedSharding(mesh, P("x"))),
        "host": numbers(np.int64, 3, 2),
        "step": 7,
    }


def value_of(leaf: Any) -> Any:
    """The content of a leaf, in any kind of array."""
    if isinstance(leaf, regrow.PrngKey):
        return np.asarray(leaf.data)
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return leaf if isinstance(leaf, int) else np.asarray(leaf)


def assert_same_values(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert sorted(left) == sorted(right)
    for name, leaf in left.items():
        assert same_bits(value_of(leaf), value_of(right[name])), name


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS.keys())
def test_orbax_restores_our_shards(path: Path, options: dict[str, Any]) -> None:
    tree = sharded_tree(mesh_of(2, 2))
    regrow.save(path, tree, **options)
    with ocp.PyTreeCheckpointer() as checkpointer:
        restored = checkpointer.restore(path)
        assert_same_values(restored, tree)
        for name, leaf in tree.items():
            if isinstance(leaf, jax.Array):
                assert restored[name].sharding.is_equivalent_to(leaf.sharding, leaf.ndim), name
        # Another mesh, and other axes.
        target = sharded_tree(mesh_of(4, 1))
        arguments = ocp.checkpoint_utils.construct_restore_args(target)
        restored = checkpointer.restore(path, item=target, restore_args=arguments)
        assert_same_values(restored, tree)
        assert restored["both"].sharding.is_equivalent_to(target["both"].sharding, 2)
    assert_same_values(regrow.load(path), tree)
    assert regrow.verify(path).ok


def test_safetensors_reads_every_chunk(path: Path) -> None:
    tree = sharded_tree(mesh_of(2, 2))
    regrow.save(path, tree, layout=regrow.layouts.Regrow(chunk_byte_size=64))
    found = {name: np.zeros((8, 12) if name == "both" else (6, 8), tree[name].dtype) for name in ("both", "columns")}
    counts = dict.fromkeys(found, 0)
    with safetensors.safe_open(path / "model.safetensors", "np") as file:
        for key in file.keys():  # noqa: SIM118
            name, _, region = key.rstrip("]").partition("[")
            if name in found:
                cut = tuple(slice(*map(int, axis.split(":"))) for axis in region.split(","))
                found[name][cut] = file.get_tensor(key)
                counts[name] += 1
    # Of 64 bytes at most, in shards of (4, 6) and (6, 4).
    assert counts == {"both": 8, "columns": 2}
    assert all(same_bits(found[name], np.asarray(tree[name])) for name in found)
    opened = regrow.open(path)
    assert (opened["both"].chunk_shape, opened["both"].write_shape) == ((4, 3), (4, 6))


@pytest.mark.parametrize("options", [{}, {"layout": "orbax"}], ids=["regrow", "orbax"])
def test_standard_checkpointer_restores_our_shards(path: Path, options: dict[str, Any]) -> None:
    tree = sharded_tree(mesh_of(2, 2))
    del tree["step"], tree["host"]
    regrow.save(path, tree, **options)
    target = jax.tree.map(ocp.utils.to_shape_dtype_struct, sharded_tree(mesh_of(1, 4)))
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(path, {name: target[name] for name in tree})
    assert_same_values(restored, tree)


def test_chunks_are_the_shards_as_orbax_cuts_them(tmp_path: Path) -> None:
    """Where Orbax does not spread replicas, both write the same `array_metadatas` and
    `_sharding`.
    """
    tree = sharded_tree(mesh_of(2, 2))
    # Of keys Orbax tells the sharding of their data, which has one axis more.
    del tree["keys"]
    store = array_metadata_store.Store()
    registry = ocp.type_handlers.create_type_handler_registry(
        (int, ocp.type_handlers.ScalarHandler()),
        (np.ndarray, ocp.type_handlers.NumpyHandler()),
        (jax.Array, ocp.type_handlers.ArrayHandler(use_replica_parallel=False, array_metadata_store=store)),
    )
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "theirs", tree)
    regrow.save(tmp_path / "ours", tree, layout="orbax")

    def read(who: str, document: str) -> Any:
        return json.loads((tmp_path / who / document).read_text())

    def cut(who: str) -> dict[str, Any]:
        entries = read(who, "array_metadatas/process_0")["array_metadatas"]
        return {entry["array_metadata"]["param_name"]: entry["array_metadata"] for entry in entries}

    assert read("ours", "_sharding") == read("theirs", "_sharding")
    # Orbax has them in the order of the names; ours are in that of the dict.
    assert cut("ours") == cut("theirs")


# ---- several processes ----------------------------------------------------------------

SAVE = """
    import numpy as np
    import regrow
    sys.path.insert(0, arguments["tests"])
    from test_orbax_shards import shards_of_all
    import orbax.checkpoint as ocp
    tree = shards_of_all()
    for path, (name, form, options) in arguments["ours"].items():
        regrow.save(path, tree, layout=regrow.layouts.of_options(name, form), **options)
    for path, options in arguments["theirs"].items():
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
            checkpointer.save(path, tree)
    done(len(jax.devices()))
"""


def shards_of_all() -> dict[str, Any]:
    """A tree over all devices of a job, the same numbers wherever it is made."""
    mesh = Mesh(np.array(jax.devices()).reshape(-1, 2), ("x", "y"))

    def spread(value: Any, *axes: Any) -> jax.Array:
        value = np.asarray(value)
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P(*axes)), lambda cut: value[cut])

    return {
        "both": spread(numbers(np.float32, 8, 12), "x", "y"),
        "columns": spread(numbers(jnp.bfloat16, 6, 8), None, "y"),
        "rows": spread(numbers(np.int32, 16, 3), "x"),
        "large": spread(np.random.default_rng(1).standard_normal((256, 160), np.float32), "x", "y"),
        "replicated": spread(numbers(np.float16, 5, 3)),
        "scalar": spread(np.float32(2.5)),
        "host": numbers(np.int64, 3, 2),
        "step": 7,
    }


WAYS_OF_TWO = {way: options for way, options in WAYS.items() if way != "regrow, chunked"}


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tree, saved by two processes of four devices each: by regrow in each way
    under its name, by Orbax with and without a database under `theirs-True` and `theirs-False`.
    """
    folder = tmp_path_factory.mktemp("two")
    ours = {}
    for way, options in WAYS_OF_TWO.items():
        layout = regrow.layouts.chosen(options.get("layout", "regrow"))
        others = {name: value for name, value in options.items() if name != "layout"}
        ours[str(folder / way)] = (layout.name, layout._given(), others)
    theirs = {str(folder / f"theirs-{ocdbt}"): {"use_ocdbt": ocdbt, "use_zarr3": False} for ocdbt in (False, True)}
    arguments = {"ours": ours, "theirs": theirs, "tests": str(Path(__file__).parent)}
    four = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    ended = processes.run(2, SAVE, folder / "run", arguments=arguments, jax=True, environment=four)
    assert [each.value for each in ended] == [8, 8]
    return folder


def files_of(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def assert_orbax_restores(path: Path) -> None:
    tree = shards_of_all()
    as_numpy = {
        name: ocp.RestoreArgs(restore_type=np.ndarray if isinstance(leaf, jax.Array) else None)
        for name, leaf in tree.items()
    }
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert_same_values(checkpointer.restore(path, restore_args=as_numpy), tree)
        # Spread over the devices of this process.
        arguments = ocp.checkpoint_utils.construct_restore_args(tree)
        restored = checkpointer.restore(path, item=tree, restore_args=arguments)
    assert_same_values(restored, tree)
    assert restored["both"].sharding == tree["both"].sharding


@pytest.mark.parametrize("way", WAYS_OF_TWO)
def test_orbax_restores_what_two_processes_saved(saved_by_two: Path, way: str) -> None:
    assert_orbax_restores(saved_by_two / way)
    assert_same_values(regrow.load(saved_by_two / way), shards_of_all())
    assert regrow.verify(saved_by_two / way).ok


@pytest.mark.parametrize("use_ocdbt", [False, True])
def test_two_processes_write_the_files_that_those_of_orbax_write(saved_by_two: Path, use_ocdbt: bool) -> None:
    paths = [saved_by_two / f"theirs-{use_ocdbt}", saved_by_two / ("ocdbt, zarr v2" if use_ocdbt else "files, zarr v2")]
    assert_same_values(regrow.load(paths[0]), shards_of_all())
    theirs, ours = map(files_of, paths)
    # Of replicas Orbax writes a slice each, so these have other chunks; and how many data files
    # there are is free.
    folders = ["columns/", "rows/", "replicated/"]

    def kinds(files: list[str]) -> set[str]:
        named = (file if "d/" not in file else file[: file.index("d/") + 2] for file in files)
        return {file for file in named if not file.startswith(tuple(folders))}

    assert kinds(ours) == kinds(theirs)
    assert any(file.startswith("ocdbt.process_1/") for file in ours) == use_ocdbt
    for document in ("array_metadatas/process_0", "array_metadatas/process_1"):
        cut = [
            {entry["array_metadata"]["param_name"]: entry["array_metadata"]["write_shape"] for entry in entries}
            for path in paths
            for entries in [json.loads((path / document).read_text())["array_metadatas"]]
        ]
        assert {name: cut[0][name] for name in ("both", "large", "scalar")} == {
            name: cut[1][name] for name in ("both", "large", "scalar")
        }
        assert sorted(cut[0]) == sorted(cut[1])

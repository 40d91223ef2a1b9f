"""`DTensor`s of real processes of `torch.distributed`: each saves and reads its own part, on any
mesh, bit for bit.

torch is the judge: what a `DTensor` of given placements holds is what `distribute_tensor` puts
there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parent.parent / "tests"))
import processes

import regrow

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"

JOIN = """
    import numpy as np, torch, regrow
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=arguments["init"], rank=rank, world_size=size)
    line = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    grid = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    job = regrow.jobs.Job(timeout=60)

    def full(shape, dtype):
        return torch.arange(int(np.prod(shape))).reshape(shape).to(getattr(torch, dtype))

    def put(value, placements):
        kinds = {"R": Replicate(), "0": Shard(0), "1": Shard(1), "2": Shard(2)}
        mesh = line if len(placements) == 1 else grid
        # Without a collective: those of gloo do not know every dtype.
        return distribute_tensor(value, mesh, [kinds[one] for one in placements], src_data_rank=None)

    def raw(tensor):
        flat = tensor.reshape(-1)
        return flat.view(torch.uint8).tolist() if flat.numel() else []

    def refused(call):
        try:
            call()
        except regrow.RegrowError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"
"""

LEAVES: dict[str, tuple[list[int], str, str]] = {
    "rows": ([16, 6], "float32", "0"),
    "columns": ([6, 16], "bfloat16", "1"),
    "uneven": ([10, 3], "int32", "0"),
    "empty parts": ([2, 3], "float64", "0"),
    "less than ranks": ([5], "int16", "0"),
    "both": ([8, 10], "float32", "01"),
    "swapped": ([8, 10], "float16", "10"),
    "nested": ([16, 3], "uint8", "00"),
    "nested uneven": ([11, 2], "float32", "00"),
    "inner": ([2, 4, 9], "complex64", "2"),
    "partly": ([8, 3], "float64", "R0"),
    "partly uneven": ([7, 3], "float32", "0R"),
    "replicated": ([5, 3], "float32", "RR"),
    "replicated line": ([4], "bool", "R"),
    "number": ([], "float32", "R"),
    "float8": ([4, 8], "float8_e4m3fn", "1"),
    "nothing": ([0, 3], "float32", "0"),
}
"""Shape, dtype, and for each axis of the mesh the axis that it cuts."""

SAVE = (
    JOIN
    + """
    tree = {name: put(full(shape, dtype), how) for name, (shape, dtype, how) in arguments["leaves"].items()}
    turned = full([6, 8], "float32").T.chunk(size)[rank]
    assert not turned.is_contiguous()
    tree["turned"] = DTensor.from_local(turned, line, [Shard(0)], run_check=False, shape=(8, 6), stride=(6, 1))
    tree["tied"] = tree["rows"]
    tree["plain"] = torch.arange(6.0)
    tree["step"], tree["name"], tree["none"] = torch.tensor(3), "net", None
    said = []
    path = arguments["path"]
    report = regrow.save(f"{path}/sync", tree, job=job)
    said.append(report.data_bytes)
    saving = regrow.save_async(f"{path}/async", tree, job=job)
    # What is done to it now is not in the checkpoint.
    tree["rows"]._local_tensor.add_(1)
    saving.result()
    tree["rows"]._local_tensor.sub_(1)
    regrow.save(f"{path}/replicas", tree, job=job, options=regrow.Options(replica_parallel=True))
    # Orbax stores no array without elements.
    stored = {name: leaf for name, leaf in tree.items() if name != "nothing"}
    regrow.save(f"{path}/orbax", stored, job=job, layout="orbax")
    partial = DTensor.from_local(torch.ones(2), line, [Partial()], run_check=False)
    said.append(refused(lambda: regrow.save(f"{path}/no", {"w": {"grad": partial}}, job=job)))
    said.append(refused(lambda: regrow.save(f"{path}/no", {"w": torch.full((2,), rank)}, job=job)))
    odd = DTensor.from_local(torch.ones(1 + 2 * rank), line, [Shard(0)], run_check=False, shape=(16,), stride=(1,))
    said.append(refused(lambda: regrow.save(f"{path}/no", {"w": odd}, job=job)))
    said.append(refused(lambda: regrow.save(f"{path}/no{rank}", {"w": tree["rows"]}, job=regrow.jobs.Job.alone())))
    done(said)
    dist.barrier()
    dist.destroy_process_group()
"""
)

WAYS = ["sync", "async", "replicas", "orbax"]


def names(way: str) -> list[str]:
    """The leaves that were saved so: Orbax stores no array without elements."""
    return [name for name in LEAVES if way != "orbax" or name != "nothing"]


def init() -> str:
    return f"tcp://127.0.0.1:{processes.free_port()}"


def expected(name: str) -> Any:
    shape, dtype, _ = LEAVES[name]
    return np.arange(int(np.prod(shape))).reshape(shape).astype(getattr(ml_dtypes, dtype, None) or dtype)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """Where four processes have saved, and what they say."""
    path = tmp_path_factory.mktemp("saved")
    arguments = {"init": init(), "leaves": LEAVES, "path": str(path)}
    ended = processes.run(4, SAVE, tmp_path_factory.mktemp("run"), arguments=arguments)
    return path, [each.value for each in ended]


@pytest.mark.parametrize("way", WAYS)
def test_numpy_loads_what_four_processes_have_saved(saved: tuple[Path, list[Any]], way: str) -> None:
    loaded = regrow.load(saved[0] / way)
    for name in names(way):
        assert loaded[name].dtype == expected(name).dtype, name
        assert loaded[name].shape == expected(name).shape, name
        assert loaded[name].tobytes() == expected(name).tobytes(), name
    np.testing.assert_array_equal(loaded["turned"], np.arange(48.0).reshape(6, 8).T)
    np.testing.assert_array_equal(loaded["tied"], loaded["rows"])
    np.testing.assert_array_equal(loaded["plain"], np.arange(6.0))
    assert (int(loaded["step"]), loaded["name"], loaded["none"]) == (3, "net", None)
    assert regrow.verify(saved[0] / way).ok


def test_what_is_replicated_is_written_once(saved: tuple[Path, list[Any]]) -> None:
    path, said = saved
    bytes_in_all = sum(expected(name).nbytes for name in LEAVES)
    for way in WAYS:
        stored = regrow.open(path / way)
        chunks = {name: stored[name].chunk_shape for name in names(way)}
        assert chunks["rows"] == (4, 6)
        assert chunks["uneven"] == (3, 3)
        assert chunks["nested uneven"] == (3, 2)
    files = [file.stat().st_size for file in (path / "sync").glob("*.safetensors") if file.name != "model.safetensors"]
    assert sum(files) < bytes_in_all + 4 * 8192
    held = [each[0] for each in said]
    # Of a part that two processes have, the first of them says that it writes it.
    assert held[0] > held[3]


def test_shardings_are_recorded_in_the_words_of_jax(saved: tuple[Path, list[Any]]) -> None:
    stored = regrow.open(saved[0] / "sync")
    sharding = stored["both"].sharding
    assert sharding["axis_names"] == ["dp", "tp"]
    assert sharding is not None and sharding["partition_spec"] == ["dp", "tp"]
    assert sharding["device_mesh"]["mesh"] == [[{"id": 0}, {"id": 1}], [{"id": 2}, {"id": 3}]]
    assert stored["nested"].sharding["partition_spec"] == [["dp", "tp"]]
    assert stored["replicated"].sharding["partition_spec"] == []
    assert stored["uneven"].sharding is None
    assert stored["plain"].sharding is None


def test_what_cannot_be_saved_is_an_error_of_every_process(saved: tuple[Path, list[Any]]) -> None:
    for rank, (_, partial, differ, odd, alone) in enumerate(saved[1]):
        assert "w/grad" in partial and "partial" in partial and "redistribute" in partial
        assert "differ from those of rank 0" in differ
        assert "torch.chunk" in odd and "[16]" in odd, (rank, odd)
        assert "no process has written" in alone and " of w" in alone
    assert sorted(each.name for each in saved[0].iterdir()) == sorted(WAYS)


LOAD = (
    JOIN
    + """
    hows = ["0", "1", "R", "R0", "0R", "01", "10", "00", "1R"]
    read = regrow.jobs.Job.alone()
    checked = 0
    for way in arguments["ways"]:
        path = f"{arguments['path']}/{way}"
        for turn, how in enumerate(hows):
            like, want = {}, {}
            for name, (shape, dtype, _) in arguments["leaves"].items():
                if name == "nothing" and way == "orbax":
                    continue
                if len(shape) <= max(int(one) if one != "R" else 0 for one in how) or (not shape and how.strip("R")):
                    continue
                want[name] = put(full(shape, dtype), how)
                like[name] = put(torch.zeros(shape, dtype=want[name].dtype), how)
            loaded = regrow.load(path, like=like, extra="drop")
            before = {name: each._local_tensor.data_ptr() for name, each in like.items()}
            filled = regrow.load_into(path, like, extra="drop")
            assert filled is like
            for name in want:
                for found in (loaded[name], filled[name]):
                    assert type(found) is DTensor and found.placements == want[name].placements
                    assert found.shape == want[name].shape and found.device_mesh == want[name].device_mesh
                    ours, theirs = found._local_tensor, want[name]._local_tensor
                    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, (name, how)
                    assert raw(ours) == raw(theirs), (way, name, how)
                    checked += 1
                assert filled[name]._local_tensor.data_ptr() == before[name]
                assert not before[name] or loaded[name]._local_tensor.data_ptr() != before[name]

    # What an Orbax of eight devices has written.
    plain = regrow.load(arguments["orbax"])
    arrays = {
        name: leaf for name, leaf in plain.items()
        if isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.name in ("float32", "int32", "float16", "uint8")
    }
    assert len(arrays) >= 3
    dtypes = {name: getattr(torch, leaf.dtype.name) for name, leaf in arrays.items()}
    like = {name: put(torch.zeros(leaf.shape, dtype=dtypes[name]), "0R") for name, leaf in arrays.items()}
    loaded = regrow.load(arguments["orbax"], like=like, extra="drop")
    for name, leaf in arrays.items():
        want = put(torch.from_numpy(leaf.copy()), "0R")
        assert torch.equal(loaded[name]._local_tensor, want._local_tensor), name

    # Other shapes, other dtypes, and what does not fit.
    rows, sync = [16, 6], f"{arguments['path']}/sync"
    padded = regrow.Options(pad_or_truncate=True)
    grown = regrow.load(sync, like={"rows": put(torch.ones(19, 4), "0")}, extra="drop", options=padded)
    value = torch.zeros(19, 4)
    value[:16] = full(rows, "float32")[:, :4]
    assert torch.equal(grown["rows"]._local_tensor, put(value, "0")._local_tensor)
    like = {"rows": put(torch.ones(16, 6, dtype=torch.float64), "1")}
    cast = regrow.load(sync, like=like, cast="float64", extra="drop")
    assert torch.equal(cast["rows"]._local_tensor, put(full(rows, "float64"), "1")._local_tensor)
    out = {"rows": put(torch.full((16, 6), 7.0), "0"), "uneven": put(torch.ones(10, 4, dtype=torch.int32), "0")}
    says = refused(lambda: regrow.load_into(sync, out, extra="drop"))
    assert "uneven" in says and bool((out["rows"]._local_tensor == 7.0).all())
    partial = DTensor.from_local(torch.ones(16, 6), line, [Partial()], run_check=False)
    no = refused(lambda: regrow.load(sync, like={"rows": partial}, extra="drop"))
    assert "partial" in no and "rows" in no
    turned = DTensor.from_local(
        torch.zeros(6, 16).T.chunk(size)[rank], line, [Shard(0)], run_check=False, shape=(16, 6), stride=(1, 16)
    )
    regrow.load_into(sync, {"rows": turned}, extra="drop")
    assert torch.equal(turned._local_tensor, put(full(rows, "float32"), "0")._local_tensor)
    done([checked, says])
    dist.barrier()
    dist.destroy_process_group()
"""
)


@pytest.mark.parametrize("size", [2, 4])
def test_any_mesh_is_filled_from_what_any_mesh_has_saved(
    saved: tuple[Path, list[Any]], tmp_path: Path, size: int
) -> None:
    orbax = FIXTURES / "orbax" / "md8_ocdbt_zarr2" / "ckpt"
    arguments = {"init": init(), "leaves": LEAVES, "path": str(saved[0]), "ways": WAYS[::3], "orbax": str(orbax)}
    ended = processes.run(size, LOAD, tmp_path / "run", arguments=arguments)
    assert all(each.value[0] > 400 for each in ended)


def test_one_process_loads_plain_tensors(saved: tuple[Path, list[Any]]) -> None:
    like = {name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, (shape, dtype, _) in LEAVES.items()}
    loaded = regrow.load(saved[0] / "sync", like=like, extra="drop")
    for name in LEAVES:
        found = loaded[name]
        assert found.dtype == like[name].dtype and found.shape == like[name].shape
        raw = found.reshape(-1).view(torch.uint8).numpy().tobytes() if found.numel() else b""
        assert raw == expected(name).tobytes(), name


READS = (
    JOIN
    + """
    path = arguments["path"]
    rows, columns = 2048, 1024
    value = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)
    regrow.save(path, {"w": put(value, "0")}, job=job)

    def read_bytes():
        with open("/proc/self/io") as file:
            return int(file.readline().split()[1])

    def forget(folder):
        "Has the system drop what it keeps of the files: what it has is looked at where it is, and not read."
        for entry in os.scandir(folder):
            if entry.is_file():
                descriptor = os.open(entry.path, os.O_RDONLY)
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)

    like = {"w": put(torch.zeros(rows, columns), "0")}
    regrow.load(path, like=like)
    forget(path)
    dist.barrier()
    before = read_bytes()
    regrow.load_into(path, like)
    count = read_bytes() - before
    assert torch.equal(like["w"]._local_tensor, put(value, "0")._local_tensor)
    done(count)
    dist.barrier()
    dist.destroy_process_group()
"""
)


def test_each_process_reads_its_part_once_and_no_more(tmp_path: Path) -> None:
    ended = processes.run(2, READS, tmp_path / "run", arguments={"init": init(), "path": str(tmp_path / "x")})
    half = 2048 * 1024 * 4 // 2
    for each in ended:
        # What the system has kept all the same is not read.
        assert 0.8 * half < each.value < half + (1 << 20), each.value

"""One replica reads, the others receive: real processes of JAX, of eight devices each, load what
was saved here.
"""

from __future__ import annotations

import os
import shutil

import ml_dtypes
import numpy as np
import processes
import pytest

import regrow

EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}

DTYPES = [
    "bool", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


def array(dtype, shape=(16, 5)):
    """All bits that there are: negative zeros, NaNs of any payload."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    data = np.random.default_rng(17).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype == np.bool_ or dtype.name in ("int4", "uint4", "float4_e2m1fn"):
        data %= 2 if dtype == np.bool_ else 16
        if dtype.name == "int4":
            return (data.reshape(shape).astype(np.int8) - 8).astype(dtype)
    return data.view(dtype).reshape(shape)


def tree():
    dtypes = {dtype: array(dtype) for dtype in DTYPES}
    zeros = np.array([0.0, -0.0] * 8, np.float32)
    odd = {"scalar": array("float32", ()), "empty": np.zeros((0, 8), np.float32), "zeros": zeros}
    odd |= {"whole": array("bfloat16", (3, 7)), "cut": array("float32", (32, 4)), "columns": array("int32", (3, 16))}
    return {"dtypes": dtypes, "odd": odd, "numpy": np.arange(7.0), "number": 7, "key": np.arange(16, dtype=np.uint32)}


BEGIN = """
    import numpy as np, jax, regrow
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
    from regrow.jobs import SingleReplica

    jax.config.update("jax_enable_x64", True)
    plain = regrow.load(arguments["path"])

    class Hears:
        "A coordinator that hears which broadcasts there are."

        def __init__(self, inner):
            self.inner, self.rank, self.size = inner, inner.rank, inner.size
            self.value_len_max_bytes = inner.value_len_max_bytes
            self.broadcasts = set()

        def put_if_absent(self, key, value):
            self.broadcasts |= {part for part in key.split("/") if part.startswith("read-")}
            return self.inner.put_if_absent(key, value)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    job = regrow.jobs.Job(Hears(regrow.jobs.coordinator()), timeout=30)

    def like(mesh, dtypes=("bool", "bfloat16", "float32")):
        def on(spec, value):
            return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, spec))

        out = {"numpy": np.zeros(7), "number": 0}
        out["dtypes"] = {name: on(P("model"), value) for name, value in plain["dtypes"].items() if name in dtypes}
        specs = {"cut": P(("data", "model")), "columns": P(None, "model"), "zeros": P("model")}
        out["odd"] = {name: on(specs.get(name, P()), value) for name, value in plain["odd"].items()}
        out["key"] = on(P("model"), plain["key"])
        return out

    def bits(value):
        return np.asarray(value).tobytes()

    def check(loaded, wanted, plain=plain):
        assert set(loaded) == set(plain) and set(loaded["dtypes"]) == set(wanted["dtypes"])
        assert (loaded["number"], loaded["numpy"].tolist()) == (7, list(range(7)))
        for at in ("dtypes", "odd"):
            for name, value in loaded[at].items():
                want = wanted[at][name]
                assert (value.dtype, value.shape, value.sharding) == (want.dtype, want.shape, want.sharding), name
                assert len(value.addressable_shards) == 8
                for shard in value.addressable_shards:
                    assert shard.data.dtype == plain[at][name].dtype
                    assert bits(shard.data) == bits(plain[at][name][shard.index]), (at, name, shard)

    def load(wanted, single_replica, **options):
        reports = []
        job.coordinator.broadcasts.clear()
        path = options.pop("path", arguments["path"])
        rare = {"job": job, "single_replica": single_replica, "on_report": reports.append}
        rare |= {name: options.pop(name) for name in ("job", "pad_or_truncate", "in_turns") if name in options}
        if "out" in options:
            return regrow.load_into(path, options["out"], options=regrow.Options(**rare))
        options = {"extra": "drop"} | options
        loaded = regrow.load(path, like=wanted, options=regrow.Options(**rare), **options)
        stages = [stage.stage for stage in reports[0].stages]
        return loaded, reports[0].read_bytes, reports[0].received_bytes, stages, len(job.coordinator.broadcasts)

    def refused(call, *args, **options):
        began = time.monotonic()
        try:
            call(*args, **options)
        except Exception as error:
            assert time.monotonic() - began < 20, "it was waited for"
            return [type(error).__name__, str(error)]
        return ["nothing", ""]

    devices = np.array(jax.devices())
    given = {}
"""

LOADS = """
    mesh = Mesh(devices.reshape(size, 8), ("data", "model"))
    wanted = like(mesh, plain["dtypes"] if size == 2 else ("int16", "float64"))
    # A group takes a quarter of it: eight leaves, or two.
    loaded, *given["groups"] = load(wanted, SingleReplica("data", memory_limit_bytes=4096 if size == 2 else 1024))
    check(loaded, wanted)
    # The last replica reads, and lies along the second axis, of an explicit mesh that the program
    # has set.
    turned = Mesh(devices.reshape(size, 8).T, ("model", "data"), axis_types=(AxisType.Explicit,) * 2)
    wanted = like(turned)
    with jax.set_mesh(turned):
        loaded, *given["turned"] = load(wanted, SingleReplica(1, replica=size - 1))
        check(loaded, wanted)
        assert jax.sharding.get_abstract_mesh().axis_names == ("model", "data")
    _, *given["plain"] = load(like(mesh), None)
    # Of the damaged one, what comes from the replica that reads.
    common = {"dtypes": like(mesh)["dtypes"]}
    given["damaged"] = refused(load, common, SingleReplica("data", replica=1), path=arguments["damaged"])
"""

OTHERS = """
    # Shardings for what has no template, and keys.
    sharding = NamedSharding(mesh, P("model"))
    keys = jax.ShapeDtypeStruct((8,), jax.random.key(0).dtype, sharding=sharding)
    alone = regrow.Options(single_replica=SingleReplica(), job=job)
    found = regrow.load(arguments["keys"], like={"keys": keys}, options=alone)["keys"]
    assert found.sharding == sharding and found.dtype == keys.dtype
    expected = regrow.load(arguments["keys"])["keys"].data
    for shard in found.addressable_shards:
        assert bits(jax.random.key_data(shard.data)) == bits(expected[shard.index])
    whole = NamedSharding(mesh, P())
    opened = regrow.open(arguments["path"])
    every = opened.load(only="dtypes/**", shardings=whole, cast="float32", lossy=True, options=alone)
    assert all(value.is_fully_replicated for value in every["dtypes"].values())
    assert np.array_equal(np.asarray(every["dtypes"]["int4"]), plain["dtypes"]["int4"].astype("float32"))
    by_columns = NamedSharding(mesh, P(None, "model"))
    padded = {"odd": {"columns": jax.ShapeDtypeStruct((4, 24), np.int32, sharding=by_columns)}}
    columns = load(padded, SingleReplica(), pad_or_truncate=True)[0]["odd"]["columns"]
    expected = np.zeros((4, 24), np.int32)
    expected[:3, :16] = plain["odd"]["columns"]
    for shard in columns.addressable_shards:
        assert bits(shard.data) == bits(expected[shard.index])

    # What does not fit is said before anything is read, in every process.
    def no(single_replica, tree=None, **options):
        return refused(load, wanted if tree is None else tree, single_replica, **options)

    wanted = like(mesh)
    mixed = Mesh(devices.reshape(8, 2), ("data", "model"))
    single = {"odd": {"cut": jax.ShapeDtypeStruct((32, 4), np.float32, sharding=NamedSharding(mesh, P("data")))}}
    numpy = {"numpy": np.zeros(7), "number": 0}
    given["refused"] = {
        "axis": no(SingleReplica("replica")),
        "axis number": no(SingleReplica(2)),
        "replica": no(SingleReplica("data", replica=2)),
        "one replica": no(SingleReplica("one"), like(Mesh(devices.reshape(1, 2, 8), ("one", "data", "model")))),
        "share": no(SingleReplica("data"), like(mixed)),
        "cut": no(SingleReplica("data"), single),
        "kinds": no(SingleReplica("data"), plain),
        "job": no(SingleReplica("data"), job=regrow.jobs.Job.alone()),
        "turns": no(SingleReplica("data"), in_turns=True),
        "out": refused(load, None, SingleReplica("data"), out=numpy),
        "differ": no(SingleReplica("data", memory_limit_bytes=4096 + 4096 * rank)),
        "step": no(SingleReplica("data"), path=arguments["steps"], step=rank),
        "absent": no(SingleReplica("data"), path=arguments["steps"], step=5 * (1 - rank)),
        "progress": no(SingleReplica("data"), progress=lambda done, total: 1 // (1 - rank)),
    }
    check(load(wanted, SingleReplica("data"))[0], wanted)
    if rank == 1:
        # It ends while it is to read.
        def ends(done, total):
            os.kill(os.getpid(), 9)
        done(given)
        load(wanted, SingleReplica("data", replica=1), progress=ends, job=regrow.jobs.Job(timeout=4))
    given["dead"] = no(SingleReplica("data", replica=1), job=regrow.jobs.Job(timeout=4))
    done(given)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    regrow.save(folder / "tree", tree())
    for step in range(2):
        regrow.save(folder / f"steps/step_{step}", tree())
    keys = np.random.default_rng(1).integers(0, 2**32, (8, 2), np.uint32)
    regrow.save(folder / "keys", {"keys": regrow.PrngKey(keys, "threefry2x32")})
    shutil.copytree(folder / "tree", folder / "damaged")
    data = max((folder / "damaged").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    os.chmod(data, 0o644)
    bytes_of = bytearray(data.read_bytes())
    bytes_of[len(bytes_of) // 2] ^= 1
    data.write_bytes(bytes_of)
    return folder


def run(saved, tmp_path, size, worker, **options):
    names = ("keys", "steps", "damaged")
    arguments = {"path": str(saved / "tree"), **{name: str(saved / name) for name in names}}
    # Each has eight devices: on a busy machine that takes its time.
    options |= {"jax": True, "environment": EIGHT, "seconds_max": 200}
    return processes.run(size, BEGIN + worker, tmp_path, arguments=arguments, **options)


def len_bytes(dtypes):
    """Bytes of the common leaves, and of the divided ones."""
    every = tree()
    common = [value for name, value in every["dtypes"].items() if name in dtypes]
    common += [value for name, value in every["odd"].items() if name != "cut"]
    return sum(value.nbytes for value in common) + every["key"].nbytes, every["odd"]["cut"].nbytes


def check_given(given, rank, size):
    few = ("bool", "bfloat16", "float32")
    for name, dtypes, reader in [
        ("plain", few, rank),
        ("groups", DTYPES if size == 2 else ("int16", "float64"), 0),
        ("turned", few, size - 1),
    ]:
        common, cut = len_bytes(dtypes)
        read, received, stages, broadcasts = given[name]
        assert read == 7 * 8 + 8 + cut // size + (common if rank == reader else 0), name
        assert received == (0 if rank == reader else common), name
        few_or_many = range(3, 10) if name == "groups" else range(1, 2)
        assert broadcasts == 0 if name == "plain" else broadcasts in few_or_many, (name, broadcasts)
        assert stages == (["read"] if name == "plain" else ["read", "receive", "wait_for_readers"])
    kind, message = given["damaged"]
    assert kind == "CorruptError" and "crc32c" in message, message
    # Receivers learn of it from the reader, instead of waiting in the broadcast.
    assert message.startswith("rank 1 failed in phase `failed`: ") == (rank != 1), message


def test_two_processes(saved, tmp_path):
    ended = run(saved, tmp_path, 2, LOADS + OTHERS, statuses={1: -9})
    for rank, each in enumerate(ended):
        check_given(each.value, rank, 2)
        check_refused(each.value["refused"], rank)
    kind, message = ended[0].value["dead"]
    assert kind == "TimedOutError" and "rank 1" in message and "read-0" in message, message


def check_refused(refused, rank):
    says = {
        "axis": "on a mesh without this axis, of data: 2, model: 8, such as",
        "axis number": "no leaf is replicated along the axis 2",
        "replica": "expected below 2, the length of the axis 'data' of the mesh, found 2",
        "one replica": "the axis 'one' of the mesh has only one replica",
        "share": "process 0 has devices of the replicas 0, 1, 2, 3",
        "cut": "1 leaf cut along data, by P('data',), such as odd/cut",
        "kinds": "the load has no jax.Array",
        "job": "expected 2 processes, found 1 in the job",
        "turns": "pass one of them",
        "out": "not for `load_into`",
        "differ": "rank 1 would receive other arrays than rank 0 requested",
        "step": "rank 1 found another step than rank 0: by rank 0, 1",
    }
    for name, expected in says.items():
        kind, message = refused[name]
        assert kind == "InvalidArgumentError" and expected in message, (name, message)
    kind, message = refused["absent"]
    assert kind == "NotFoundError" and "step 5" in message, message
    assert message.startswith("rank 0 failed") == (rank == 1), message
    kind, message = refused["progress"]
    assert kind == ("ZeroDivisionError" if rank == 1 else "IoError"), message
    assert rank == 1 or "rank 1 failed in phase `failed`: ZeroDivisionError" in message, message


def test_four_processes(saved, tmp_path):
    pairs = """
    pairs = Mesh(devices.reshape(2, 16), ("data", "model"))
    wanted = like(pairs)
    loaded, *given["pairs"] = load(wanted, SingleReplica("data", replica=1))
    check(loaded, wanted)
    # The last process has no device of this mesh: it takes no part in the broadcasts.
    three = Mesh(devices[:24].reshape(3, 8), ("data", "model"))
    common = {"dtypes": like(three)["dtypes"], "odd": {"whole": like(three)["odd"]["whole"]}}
    loaded, *given["three"] = load(common, SingleReplica("data", replica=2, memory_limit_bytes=1))
    for name, value in [*loaded["dtypes"].items(), ("whole", loaded["odd"]["whole"])]:
        assert len(value.addressable_shards) == (8 if rank < 3 else 0)
        for shard in value.addressable_shards:
            assert bits(shard.data) == bits((plain["dtypes"] | plain["odd"])[name][shard.index])
    done(given)
    jax.distributed.shutdown()
    """
    ended = run(saved, tmp_path, 4, LOADS + pairs)
    for rank, each in enumerate(ended):
        check_given(each.value, rank, 4)
        read, received, *_ = each.value["pairs"]
        assert received > read if rank < 2 else received == 0
        read, received, *_ = each.value["three"]
        assert ((read > 0), (received > 0)) == [(False, True), (False, True), (True, False), (False, False)][rank]


def test_one_process_receives_nothing(saved):
    with pytest.raises(regrow.errors.InvalidArgumentError, match="this is one process"):
        regrow.load(saved / "tree", options=regrow.Options(single_replica=regrow.jobs.SingleReplica()))


def test_arguments_are_checked(saved):
    for wrong in (
        "data",
        regrow.jobs.SingleReplica(None),
        regrow.jobs.SingleReplica(replica=-1),
        regrow.jobs.SingleReplica(0, 0, 0),
    ):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="is not valid"):
            regrow.load(saved / "tree", options=regrow.Options(single_replica=wrong))
    for options in ({"in_turns": 1}, {"job": 1, "in_turns": True}, {"on_report": "print"}):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="is not valid"):
            regrow.load(saved / "tree", options=regrow.Options(**options))


def test_the_report_of_a_load(saved, path):
    reports = []
    loaded = regrow.load(saved / "tree", options=regrow.Options(on_report=reports.append))
    assert (reports[0].path, reports[0].received_bytes) == (str(saved / "tree"), 0)
    assert (
        reports[0].read_bytes
        == sum(value.nbytes for value in loaded["dtypes"].values())
        + sum(value.nbytes for value in [*loaded["odd"].values(), loaded["numpy"], loaded["key"]])
        + 8
    )
    assert [stage.stage for stage in reports[0].stages] == ["read"]
    assert str(reports[0]).startswith(f"{saved / 'tree'}: read ")
    out = {"a": np.zeros(4)}
    regrow.save(path, out)
    regrow.load_into(path, out, options=regrow.Options(on_report=reports.append))
    assert reports[1].read_bytes == 32

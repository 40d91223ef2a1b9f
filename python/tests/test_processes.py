"""Saves by several processes: real ones, that find each other through JAX or a folder, and some
that die.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading

import bucket_servers
import numpy as np
import processes
import pytest

import regrow

JAX_SAVE = """
    import numpy as np, jax, regrow
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    def spec(text):
        return P(*[tuple(axis.split("+")) if axis else None for axis in text.split(",")]) if text else P()

    def put(shape, dtype, text):
        value = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        return jax.make_array_from_callback(shape, NamedSharding(mesh, spec(text)), lambda cut: value[cut])

    devices = np.array(jax.devices())
    mesh = Mesh(devices.reshape(arguments["mesh"]), ("x", "y"))
    tree = {name: put(tuple(shape), dtype, text) for name, (shape, dtype, text) in arguments["leaves"].items()}
    tree |= {"step": 7, "note": "text", "table": np.arange(6.0).reshape(2, 3), "none": None, "empty": np.zeros((0, 2))}
    tree["keys"] = jax.jit(
        lambda: jax.random.split(jax.random.key(0), 8), out_shardings=NamedSharding(mesh, P("x"))
    )()
    if arguments["save"] == "async":
        report = regrow.save_async(arguments["path"], tree, job=regrow.jobs.Job(timeout=60)).result()
    else:
        parallel = arguments["save"] == "replicas"
        options = regrow.Options(replica_parallel=parallel)
        report = regrow.save(arguments["path"], tree, job=regrow.jobs.Job(timeout=60), options=options)
    done(str(report))
    jax.distributed.shutdown()
"""

LEAVES = {
    "rows": [[16, 6], "float32", "x"],
    "columns": [[6, 16], "bfloat16", ",x"],
    "both": [[16, 8], "int32", "x,y"],
    "swapped": [[16, 8], "int16", "y,x"],
    "joined": [[32, 3], "uint8", "x+y"],
    "inner": [[2, 4, 8], "float16", ",y,x"],
    "replicated": [[5, 3], "float32", ""],
    "partly": [[8, 3], "float64", "y"],
}


def values():
    def value(shape, dtype):
        import ml_dtypes

        dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
        return np.arange(np.prod(shape)).reshape(shape).astype(dtype)

    # JAX without x64 makes float32 of float64.
    return {
        name: value(shape, "float32" if dtype == "float64" else dtype) for name, (shape, dtype, _) in LEAVES.items()
    }


def check(path):
    loaded = regrow.load(path)
    for name, expected in values().items():
        assert loaded[name].dtype == expected.dtype, name
        assert loaded[name].tobytes() == expected.tobytes(), name
    assert (loaded["step"], loaded["note"], loaded["none"]) == (7, "text", None)
    assert loaded["empty"].shape == (0, 2)
    assert np.array_equal(loaded["table"], np.arange(6.0).reshape(2, 3))
    assert loaded["keys"].data.shape == (8, 2)
    assert regrow.verify(path).ok


@pytest.mark.parametrize(
    ("size", "devices", "mesh", "save"),
    [
        (2, 4, (4, 2), "sync"),
        (4, 2, (2, 4), "sync"),
        (2, 4, (8, 1), "async"),
        (2, 4, (4, 2), "replicas"),
        (1, 8, (4, 2), "sync"),
    ],
)
def test_processes_of_jax_save_their_shards_and_orbax_restores_them(tmp_path, size, devices, mesh, save):
    path = tmp_path / "step_7"
    arguments = {"mesh": mesh, "leaves": LEAVES, "path": str(path), "save": save}
    environment = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    processes.run(size, JAX_SAVE, tmp_path / "run", arguments=arguments, jax=size > 1, environment=environment)
    assert sorted(os.listdir(tmp_path)) == ["run", "step_7"]
    check(path)
    parts = sorted(name for name in os.listdir(path) if name.startswith("regrow.process"))
    assert parts == [f"regrow.process_{rank}.json" for rank in range(size)]
    import jax
    import orbax.checkpoint as ocp

    names = [*values(), "step", "table"]
    numpy_args = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    item = {name: 0 for name in names}
    restored = checkpointer.restore(
        path, args=ocp.args.PyTreeRestore(item=item, restore_args=numpy_args, partial_restore=True)
    )
    for name, expected in values().items():
        assert np.asarray(restored[name]).tobytes() == expected.tobytes(), name
    # Onto the devices of this process, which has fewer.
    sharding = jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.array(jax.devices()[:2]), ("z",)), jax.sharding.PartitionSpec("z")
    )
    args = {"rows": ocp.ArrayRestoreArgs(sharding=sharding)}
    restored = checkpointer.restore(
        path, args=ocp.args.PyTreeRestore(item={"rows": 0}, restore_args=args, partial_restore=True)
    )
    assert restored["rows"].sharding == sharding
    assert np.asarray(restored["rows"]).tobytes() == values()["rows"].tobytes()


SAVE = """
    import os, signal
    import numpy as np, regrow

    class Dies:
        "A coordinator that kills its process in the middle of a phase."

        def __init__(self, inner, before):
            self.inner, self.before = inner, before
            self.rank, self.size = inner.rank, inner.size
            self.value_len_max_bytes = inner.value_len_max_bytes

        def put_if_absent(self, key, value):
            if self.before is not None and f"/{self.before}/" in key + "/":
                os.kill(os.getpid(), signal.SIGKILL)
            return self.inner.put_if_absent(key, value)

        def get(self, key, wait):
            return self.inner.get(key, wait)

        def remove(self, key):
            return self.inner.remove(key)

        def live(self):
            return self.inner.live()

    def tree(step):
        rows = np.full((100, 40), step, np.int32) + np.arange(40, dtype=np.int32) + 1000 * rank
        wrong = arguments.get("wrong") if rank == size - 1 else None
        start = (0 if wrong == "overlap" else 100 * rank, 0)
        shards = [] if wrong == "hole" else [(start, rows)]
        w = regrow.jobs.ShardedArray((100 * size, 40), shards, chunk_shape=(50, 40), dtype=np.int32)
        out = {"w": w, "step": step, "big": np.arange(1000) + step}
        if wrong == "bytes":
            out["big"][17] = -1
        if wrong == "shape":
            out["big"] = out["big"][1:]
        if wrong == "leaf":
            out["odd"] = 1
        if wrong == "type":
            out["big"] = object()
        if wrong == "option":
            options["metadata"] = {"a": 1}
            options["cast"] = "float32"
        return out

    coordinator = regrow.jobs.Folder(arguments["folder"], rank=rank, size=size)
    before = arguments.get("before") if rank == arguments.get("dies") else None
    job = regrow.jobs.Job(Dies(coordinator, before), timeout=arguments.get("timeout", 60))
    options = {"overwrite": True, "job": job} | arguments.get("options", {})
    # All begin at once, however long each took to start: time-outs are short here.
    open(_result + ".ready", "w").close()
    others = [_result.replace(f"result-{rank}", f"result-{other}") + ".ready" for other in range(size)]
    while arguments.get("together", True) and not all(map(os.path.exists, others)):
        time.sleep(0.01)
    if arguments.get("late") == rank:
        time.sleep(1)
    began = time.monotonic()
    after = arguments.get("after", {}).get(str(rank))
    if after:
        # No handler for this signal: the kernel ends the process, during any work.
        signal.setitimer(signal.ITIMER_REAL, after)
    try:
        if arguments.get("async"):
            regrow.save_async(arguments["path"], tree(arguments["step"]), **options).result()
        else:
            regrow.save(arguments["path"], tree(arguments["step"]), **options)
        done(["saved", time.monotonic() - began])
    except regrow.RegrowError as error:
        done([type(error).__name__, str(error), time.monotonic() - began])
"""


def save(tmp_path, size, *, path=None, statuses=None, **arguments):
    arguments = {"folder": str(tmp_path / "meet"), "path": str(path or tmp_path / "step"), **arguments}
    for ready in tmp_path.glob("run/*.ready"):
        ready.unlink()
    ended = processes.run(size, SAVE, tmp_path / "run", arguments=arguments, statuses=statuses)
    return [each.value for each in ended]


def save_cases(folder, cases):
    """A save by two processes for each case, in a folder of its own, all at once: what each
    process gave, by case. A case is its arguments; `statuses` among them is not one.
    """
    given = []
    for name, arguments in cases.items():
        at = folder / name
        arguments = {"folder": str(at / "meet"), "path": str(at / "step"), **arguments}
        statuses = arguments.pop("statuses", {})
        for ready in at.glob("run/*.ready"):
            ready.unlink()
        given.append(processes.Case(at / "run", arguments, statuses))
    ended = processes.run_cases(2, SAVE, folder / "run", given)
    return {name: [each.value for each in ranks] for name, ranks in zip(cases, ended, strict=True)}


@pytest.fixture(scope="module")
def step_1(tmp_path_factory):
    """A checkpoint that two processes saved."""
    folder = tmp_path_factory.mktemp("old")
    assert [each[0] for each in save(folder, 2, step=1)] == ["saved", "saved"]
    return folder / "step"


def check_step(path, size, step):
    loaded = regrow.load(path)
    assert loaded["step"] == step
    expected = [np.full((100, 40), step) + np.arange(40) + 1000 * rank for rank in range(size)]
    assert np.array_equal(loaded["w"], np.concatenate(expected))
    assert np.array_equal(loaded["big"], np.arange(1000) + step)
    assert regrow.verify(path).ok


PHASES = ["here", "check", "probe", "tree", "bytes", "publish", "join", "write", "commit", "end"]
NEVER_PUTS = {(0, "here"), (0, "tree"), (0, "bytes"), (1, "probe"), (1, "publish"), (0, "end")}
"""Phases in which a process says nothing."""
DEATHS = {f"{rank}-{phase}": (rank, phase) for rank in range(2) for phase in PHASES}


@pytest.fixture(scope="module")
def deaths(tmp_path_factory, step_1):
    """For each death an overwrite of step 1, in which one of two processes dies: the folder, and
    what each process gave.
    """
    folder = tmp_path_factory.mktemp("deaths")
    cases = {}
    for name, (rank, phase) in DEATHS.items():
        shutil.copytree(step_1, folder / name / "step")
        statuses = {rank: -9} if (rank, phase) not in NEVER_PUTS else {}
        cases[name] = {"step": 2, "dies": rank, "before": phase, "timeout": 8, "statuses": statuses}
    return folder, save_cases(folder, cases)


@pytest.fixture(scope="module")
def deaths_found(deaths):
    """The step that a load finds after each death, with its check; then the next save."""
    folder, _ = deaths
    found = {}
    for name in DEATHS:
        found[name] = regrow.load(folder / name / "step")["step"]
        check_step(folder / name / "step", 2, found[name])
    return found, save_cases(folder, {name: {"step": 3} for name in DEATHS})


@pytest.mark.parametrize("name", DEATHS)
def test_a_process_that_dies_leaves_the_old_checkpoint_or_the_new_one(deaths, deaths_found, name):
    folder, given = deaths
    found, saved_again = deaths_found
    rank, phase = DEATHS[name]
    survivor = given[name][1 - rank]
    if (rank, phase) in NEVER_PUTS:
        assert found[name] == 2 and [each[0] for each in given[name]] == ["saved", "saved"]
    elif survivor[0] == "saved":
        assert found[name] == 2
    else:
        assert found[name] in (1, 2)
        assert survivor[-1] < 15, "the time-out was not kept"
        assert f"rank {rank}" in survivor[1], survivor
    # The next save succeeds, and nothing of the failed one is left.
    assert [each[0] for each in saved_again[name]] == ["saved", "saved"]
    check_step(folder / name / "step", 2, 3)
    assert sorted(os.listdir(folder / name)) == ["meet", "run", "step"]


WRONGS = {
    "overlap": "have both written [0:50,0:40] of w",
    "hole": "no process has written [100:150,0:40] of w",
    "bytes": "big: rank 1",
    "shape": "big: int64 [1000]",
    "leaf": "a different number of leaves",
    "type": "builtins.object",
    "option": "other options",
}
MODES = ["sync", "async"]


@pytest.fixture(scope="module")
def wrong_saves(tmp_path_factory, step_1):
    """For each mistake of rank 1 an overwrite of step 1 in both modes: the folder, and what each
    process gave.
    """
    folder = tmp_path_factory.mktemp("wrong")
    cases = {}
    for wrong, mode in itertools.product(WRONGS, MODES):
        shutil.copytree(step_1, folder / f"{wrong}-{mode}" / "step")
        cases[f"{wrong}-{mode}"] = {"step": 2, "wrong": wrong, "timeout": 30, "async": mode == "async"}
    return folder, save_cases(folder, cases)


@pytest.mark.parametrize("wrong", WRONGS)
@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_one_process_is_an_error_of_all(wrong_saves, wrong, mode):
    folder, given = wrong_saves
    name = f"{wrong}-{mode}"
    for each in given[name]:
        assert each[0] != "saved" and each[-1] < 10, given[name]
    assert any(WRONGS[wrong] in each[1] for each in given[name]), given[name]
    check_step(folder / name / "step", 2, 1)
    assert sorted(os.listdir(folder / name)) == ["meet", "run", "step"]


ERRORS = """
    import resource, signal
    import numpy as np, regrow, jax

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    here = rank == arguments["rank"]

    @jax.tree_util.register_pytree_with_keys_class
    class Node:
        def tree_flatten_with_keys(self):
            if here:
                raise ValueError("the node of this rank does not flatten")
            return [(jax.tree_util.GetAttrKey("a"), np.ones(3))], None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls()

    class Full:
        "A disk without room on one rank."

        def __enter__(self):
            self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
            if here:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, self.before[1]))

        def __exit__(self, *error):
            resource.setrlimit(resource.RLIMIT_FSIZE, self.before)

    def told(done, of):
        if here:
            raise RuntimeError("the progress of this rank raises")

    # One rank of MPI or of JAX' service finds the others through TCP.
    meets = arguments["service"] == "folder"
    met = regrow.jobs.Folder(arguments["folder"], rank=rank, size=size) if meets else regrow.jobs.coordinator()
    assert type(met).__name__.lower().startswith(arguments["service"]), met
    job = regrow.jobs.Job(met, timeout=20)
    rows = np.arange(1 << 17, dtype=np.float32).reshape(1 << 10, 128)
    w = regrow.jobs.ShardedArray((size << 10, 128), [((rank << 10, 0), rows)], chunk_shape=(1 << 10, 128))
    good = {"w": w, "step": 1}
    at = arguments["at"]
    odd = {"step": object()} if here else {"step": 1}
    wrong_keyword = {"layout": "cannot store such arrays"} if here else {}
    wrong_options = {"options": regrow.SaveOptions(layout="cannot store such arrays")} if here else {}
    unknown_keyword = {"no_such_keyword": 1} if here else {}

    def uneven_tree():
        shard = rows[:7] if here else rows
        parts = [((rank << 10, 0), shard)]
        return {"w": regrow.jobs.ShardedArray((size << 10, 128), parts, chunk_shape=(1 << 10, 128))}

    def full(call):
        with Full():
            return call()

    saves = {
        "save": lambda tree, **more: regrow.save(at, tree, job=job, progress=False, **more),
        "async": lambda tree, **more: regrow.save_async(at, tree, job=job, **more).result(),
        "items": lambda tree, **more: regrow.save_items(
            at, {"first": good, "state": tree, "j": regrow.Json(1)}, job=job, progress=False, **more),
        "items async": lambda tree, **more: regrow.save_items_async(
            at, {"first": good, "state": tree}, job=job, **more).result(),
        "manager": lambda tree, **more: managed(tree, **more),
    }

    def managed(tree, **more):
        more = wrong_options if more else {}
        with regrow.Manager(at + "-run", job=job, background=False, **more) as steps:
            steps.save(1, tree)

    def restored(options=None, **more):
        rare = regrow.Options(in_turns=True, job=job, **(options or {}))
        return regrow.load(at + "-good", progress=False, options=rare, **more)

    def with_metrics():
        with regrow.Manager(at + "-run2", job=job, background=False) as steps:
            steps.save(1, good, metrics={"loss": object() if here else 1.0})

    cases = {}
    for name, save in saves.items():
        cases[name + ": flatten"] = lambda save=save: save({"n": Node()})
        cases[name + ": uneven"] = lambda save=save: save(uneven_tree())
        cases[name + ": leaf"] = lambda save=save: save(odd)
        cases[name + ": keyword"] = lambda save=save: save(good, **wrong_keyword)
        if name != "manager":
            # What a constructor refuses no other process has come to.
            cases[name + ": unknown"] = lambda save=save: save(good, **unknown_keyword)
        cases[name + ": full"] = lambda save=save: full(lambda: save(good))
    cases["save: progress"] = lambda: regrow.save(at, good, job=job, progress=told)
    cases["manager: metrics"] = with_metrics
    cases["load: like"] = lambda: restored(like={"w": np.zeros(3)} if here else None)
    cases["load: only"] = lambda: restored(only="cannot store such arrays" if here else None)
    cases["load: keyword"] = lambda: restored(options={"budget_bytes": "x"} if here else None)
    cases["load: unknown"] = lambda: restored(**unknown_keyword)

    regrow.save(at + "-good", good, job=job, progress=False)
    results = {}
    for name, call in cases.items():
        if arguments["only"] and arguments["only"] not in name:
            continue
        began = time.monotonic()
        try:
            call()
            results[name] = ["done", "", time.monotonic() - began]
        except Exception as error:
            results[name] = [type(error).__name__, str(error), time.monotonic() - began]
        open(_result + ".log", "a").write(f"{name} {results[name]}\\n")
    done(results)
"""


@pytest.mark.parametrize(
    ("service", "size", "rank"), [("folder", 2, 0), ("folder", 3, 1), ("jax", 3, 2), ("mpi", 3, 0)]
)
def test_an_error_at_any_stage_of_one_rank_is_posted_to_all(tmp_path, service, size, rank):
    """No process waits for one that has failed: all end within seconds, and the others say which
    rank and why.
    """
    arguments = {"folder": str(tmp_path / "meet"), "at": str(tmp_path / "c"), "rank": rank}
    # The cases of `save` stand for the others where processes start slowly.
    arguments |= {"service": service, "only": "save" if service == "mpi" else ""}
    if service == "mpi":
        values = processes.run_mpi(size, ERRORS, tmp_path / "run", arguments=arguments)
    else:
        ended = processes.run(size, ERRORS, tmp_path / "run", arguments=arguments, jax=service == "jax")
        values = [each.value for each in ended]
    wrong = []
    others = [other for other in range(size) if other != rank]
    for name, other_rank in itertools.product(values[rank], others):
        own, text, _ = values[rank][name]
        kind, other, seconds = values[other_rank][name]
        first = text.splitlines()[0] if text else ""
        # What a progress raises is a request to stop, to the others.
        text_of_others = "stopped on request" if "progress" in name else first
        is_told = f"rank {rank}" in other and text_of_others in other
        if own == "done" or kind == "done" or seconds > 10 or not is_told:
            wrong.append((name, other_rank, own, first, kind, other, seconds))
    assert not wrong, wrong


def test_a_process_that_never_comes_is_named(tmp_path):
    arguments = {
        "folder": str(tmp_path / "meet"),
        "path": str(tmp_path / "step"),
        "step": 1,
        "timeout": 1,
        "together": False,
    }
    ended = processes.run(1, SAVE.replace("size=size", "size=3"), tmp_path / "run", arguments=arguments)
    kind, message, seconds = ended[0].value
    assert kind == "TimedOutError" and "ranks 1, 2" in message and "begin" in message, message
    assert seconds < 10
    assert not (tmp_path / "step").exists()


def test_a_slow_process_is_waited_for(tmp_path):
    given = save(tmp_path, 3, step=4, late=1)
    assert [each[0] for each in given] == ["saved"] * 3
    check_step(tmp_path / "step", 3, 4)


def test_processes_that_save_to_different_paths_time_out_and_write_nothing(tmp_path):
    # One relative path is two paths: each process has a working folder of its own.
    worker = SAVE.replace("coordinator = ", "os.chdir(f\"{arguments['path']}-{rank}\")\n    coordinator = ")
    worker = worker.replace('arguments["path"],', '"step",')
    arguments = {"folder": str(tmp_path / "meet"), "path": str(tmp_path / "own"), "step": 1, "timeout": 2}
    for rank in range(2):
        (tmp_path / f"own-{rank}").mkdir()
    ended = processes.run(2, worker, tmp_path / "run", arguments=arguments)
    for rank, each in enumerate(ended):
        kind, message, _ = each.value
        assert kind == "TimedOutError" and f"rank {1 - rank} has not come to phase `begin`" in message, message
    assert all(not list((tmp_path / f"own-{rank}").iterdir()) for rank in range(2))


def test_processes_save_into_a_bucket(tmp_path):
    (tmp_path / "server").mkdir()
    with bucket_servers.moto(tmp_path / "server") as server:
        options = {"storage_options": server.options}
        path = f"{server.url}/runs/step_1"
        for step in (1, 2):
            given = save(tmp_path, 2, step=step, path=path, options=options)
            assert [each[0] for each in given] == ["saved", "saved"], given
            loaded = regrow.load(regrow.Location(path, **server.options))
            assert loaded["step"] == step
            assert loaded["w"].shape == (200, 40)
        given = save(tmp_path, 2, step=3, path=path, options=options, wrong="overlap")
        assert all(each[0] != "saved" for each in given)
        assert regrow.load(regrow.Location(path, **server.options))["step"] == 2


def test_threads_stand_for_ranks_and_the_record_says_who_wrote(tmp_path):
    def rank_saves(rank):
        job = regrow.jobs.Job(regrow.jobs.Folder(tmp_path / "meet", rank=rank, size=2), timeout=30)
        rows = np.full((2, 3), rank, np.float32)
        tree = {"w": regrow.jobs.ShardedArray((4, 3), [((2 * rank, 0), rows)])}
        regrow.save(tmp_path / "step", tree, job=job)

    threads = [threading.Thread(target=rank_saves, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(regrow.load(tmp_path / "step")["w"][:, 0], [0, 0, 1, 1])
    record = json.loads((tmp_path / "step" / "regrow.json").read_text())
    assert [part["name"] for part in record["parts"]] == ["regrow.process_0.json", "regrow.process_1.json"]

"""Resuming a training: donated states, the memory that a restored state takes, and jobs of
several processes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow

MIB = 1 << 20

PRELUDE = """
import gc, json, os, sys, threading, time
import jax, numpy as np
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import regrow

def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024

class Peak:
    # The most memory of the program's own, beyond what it had: maps of files are the page cache's.
    def __enter__(self):
        self.most, self.before, self.ends = 0, status("RssAnon"), False
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self):
        while not self.ends:
            self.most = max(self.most, status("RssAnon") - self.before)
            time.sleep(0.001)

    def __exit__(self, *error):
        self.most = max(self.most, status("RssAnon") - self.before)
        self.ends = True
        self.thread.join()

def live():
    def held(array):
        devices = len(array.sharding.addressable_devices)
        return int(np.prod(array.sharding.shard_shape(array.shape))) * array.dtype.itemsize * devices
    return sum(map(held, jax.live_arrays()))

def read_bytes():
    # What read calls have brought, from the page cache as well.
    for line in open("/proc/self/io"):
        if line.startswith("rchar:"):
            return int(line.split()[1])
"""


def run(script: str, *arguments: object, devices: int = 8, timeout: float = 300) -> Any:
    """What a Python program of its own prints, as JSON."""
    process = start(script, *arguments, devices=devices)
    return finish(process, timeout)


def start(script: str, *arguments: object, devices: int) -> subprocess.Popen[str]:
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-c", PRELUDE + script, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], timeout: float) -> Any:
    try:
        out, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def state(leaves: int, shape: tuple[int, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays whose elements tell their own place."""
    size = int(np.prod(shape))
    return {f"w{at:02}": (np.arange(size, dtype=np.float32) + at).reshape(shape) for at in range(leaves)}


MEMORY = """
path, budget, spec = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
sharding = NamedSharding(mesh, P(*spec))
stored = regrow.open(path)
like = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding) for name, leaf in stored.items()}
# Loaded once by any process: the threads and tables of JAX.
jax.block_until_ready(jax.device_put(np.zeros((8, 8), np.float32), sharding))
gc.collect()
before = status("RssAnon")
with Peak() as peak:
    restored = jax.block_until_ready(regrow.load(path, like=like, options=regrow.Options(budget_bytes=budget)))
live_after_load = live()
step = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf * 2, state), donate_argnums=0)
stepped = jax.block_until_ready(step(restored))
deleted = all(leaf.is_deleted() for leaf in restored.values())
live_after_step = live()
gc.collect()
# JAX lets go of host memory in its next call.
jax.block_until_ready(jax.device_put(np.zeros(8, np.float32)))
held = status("RssAnon") - before
right = all(float(np.asarray(leaf)[0, 3]) == 2 * (3 + int(name[1:])) for name, leaf in stepped.items())
print(json.dumps(dict(peak=peak.most, live=live_after_load, deleted=deleted, right=right)
    | dict(stepped=live_after_step, held=held)))
"""


@pytest.mark.parametrize("layout", ["regrow", "zstd", "orbax"])
@pytest.mark.parametrize("spec", [["a", "b"], [None, ["a", "b"]]])
def test_a_resumed_state_is_in_memory_once_and_can_be_donated(path: Path, layout: str, spec: list[Any]) -> None:
    leaves, shape = 12, (1024, 4096)
    options: dict[str, Any] = {"zstd": {"compression": "zstd"}, "orbax": {"layout": "orbax"}}.get(layout, {})
    regrow.save(path, state(leaves, shape), durable=False, **options)
    state_bytes, budget = leaves * 16 * MIB, 16 * MIB
    found = run(MEMORY, path, budget, json.dumps(spec))
    # The threads' own buffers of 4 MiB each count as well; a second copy would be 192 MiB.
    assert found["peak"] < state_bytes + budget + 32 * MIB, found
    assert found["live"] < state_bytes + MIB, found
    assert found["deleted"], found
    assert found["right"], found
    assert found["stepped"] < state_bytes + MIB, found
    # What was donated is given back.
    assert found["held"] < state_bytes + budget + 64 * MIB, found
    # And the checkpoint is what it was.
    assert regrow.verify(path).ok


RESUMED = """
import optax
path, budget, mib = sys.argv[1], int(sys.argv[2]), 1 << 20

def new_state():
    params = {f"w{at:02}": jnp.zeros((1024, 2048)) for at in range(6)}
    return {"params": params, "opt": optax.adam(1e-3).init(params), "step": 0}

@jax.jit
def pointless(number):
    return number + 1

def step(state):
    return jax.tree.map(lambda leaf: leaf + 1, state)

def settled():
    gc.collect()
    # JAX lets go of host memory in its next call.
    jax.block_until_ready(pointless(jnp.zeros(8)))
    return status("RssAnon")

donating = jax.jit(step, donate_argnums=0)
like = jax.eval_shape(new_state)
state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(like))
before, found = settled(), {"state": state_bytes}
with Peak() as peak:
    state = jax.block_until_ready(regrow.load(path, like=like, options=regrow.Options(budget_bytes=budget)))
found["peak"], found["live"] = peak.most, live()
restored = state
state = jax.block_until_ready(donating(restored))
found["deleted"] = all(leaf.is_deleted() for leaf in jax.tree.leaves(restored))
del restored
found["live_stepped"], found["held_stepped"] = live(), settled() - before

# What JAX has made is computed in place: no memory is taken or given back.
pointers = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state) if leaf.ndim}
state = jax.block_until_ready(donating(state))
found["in_place"] = pointers == {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state) if leaf.ndim}
found["right"] = [int(state["step"]), float(state["params"]["w03"][0, 5]), float(state["opt"][0].nu["w05"][0, 7])]

# Back to the checkpoint: of the state that is given up a description is kept, and no array.
like = jax.eval_shape(lambda: state)
state = None
before_again = settled()
with Peak() as peak:
    state = jax.block_until_ready(regrow.load(path, like=like, options=regrow.Options(budget_bytes=budget)))
found["peak_again"], found["live_again"], found["given_up"] = peak.most, live(), before_again - before
found["held_again"] = settled() - before
# Into a state that is still there, the two are held, and nothing beside them.
other = jax.block_until_ready(regrow.load(path, like=state, options=regrow.Options(budget_bytes=budget)))
found["live_both"], found["held_both"] = live(), settled() - before
print(json.dumps(found))
"""


def test_a_training_state_is_resumed_without_a_second_copy(path: Path) -> None:
    import optax

    params = state(6, (1024, 2048))
    adam = optax.adam(1e-3).init({name: np.zeros(1, np.float32) for name in params})[0]
    moments = adam._replace(count=np.int32(0), mu=params, nu=state(6, (1024, 2048)))
    regrow.save(path, {"params": params, "opt": (moments, optax.EmptyState()), "step": 4}, durable=False)
    budget = 16 * MIB
    found = run(RESUMED, path, budget, devices=1)
    whole = found["state"]
    assert whole > 144 * MIB
    for peak in (found["peak"], found["peak_again"]):
        assert whole - MIB < peak < whole + budget + 32 * MIB, found
    for each in (found["live"], found["live_stepped"], found["live_again"]):
        assert each < whole + MIB, found
    for held in (found["held_stepped"], found["held_again"]):
        assert held < whole + budget + 32 * MIB, found
    assert found["deleted"] and found["in_place"], found
    assert found["right"] == [6, 10, 14], found
    assert found["given_up"] < budget + 32 * MIB, found
    assert 2 * whole - MIB < found["live_both"] < 2 * whole + MIB, found
    assert found["held_both"] < 2 * whole + budget + 32 * MIB, found


DONATED_REPLICAS = """
path = sys.argv[1]
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
sharding = NamedSharding(mesh, P("a"))
restored = regrow.load(path, shardings=sharding)
again = regrow.load(path, shardings=sharding)
step = jax.jit(lambda leaf: leaf * 0 - 1, donate_argnums=0)
jax.block_until_ready(step(restored["w00"]))
assert restored["w00"].is_deleted()
# Replicas may be of one piece of host memory; other leaves lie beside it.
data = np.arange(64, dtype=np.float32).reshape(8, 8)
same = [np.array_equal(shard.data, data[shard.index] + 1) for shard in restored["w01"].addressable_shards]
same += [np.array_equal(again["w00"], data), np.array_equal(again["w01"], data + 1)]
one = restored["w01"].addressable_shards
jax.block_until_ready(step(one[0].data))
same += [np.array_equal(shard.data, data[shard.index] + 1) for shard in one[1:]]
print(json.dumps(same))
"""


def test_a_donated_buffer_is_not_shared(path: Path) -> None:
    regrow.save(path, state(2, (8, 8)))
    assert all(run(DONATED_REPLICAS, path))


JOB = """
path, port, rank, spec = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank, initialization_timeout=60)
assert jax.device_count() == 4 and jax.local_device_count() == 2
mesh = Mesh(np.array(jax.devices()), ("x",))
sharding = NamedSharding(mesh, P(*spec))
mine = NamedSharding(Mesh(np.array([device for device in jax.devices() if device.process_index == 0]), ("x",)), P("x"))
shapes = {name: (leaf.shape, leaf.dtype) for name, leaf in regrow.open(path).items() if name.startswith("w")}
like = {name: jax.ShapeDtypeStruct(*each, sharding=sharding) for name, each in shapes.items()}
like["w00"] = jax.ShapeDtypeStruct(*shapes["w00"], sharding=mine)
like["key"] = jax.ShapeDtypeStruct((4,), jax.random.key(0).dtype, sharding=NamedSharding(mesh, P("x")))
like["step"] = 0
before = read_bytes()
restored = regrow.load(path, like=like)
read = read_bytes() - before
size = int(np.prod(shapes["w01"][0]))
right = []
for name, array in restored.items():
    if name.startswith("w"):
        data = (np.arange(size, dtype=np.float32) + int(name[1:])).reshape(shapes[name][0])
        right += [np.array_equal(shard.data, data[shard.index]) for shard in array.addressable_shards]
        right += [array.shape == data.shape, array.sharding == like[name].sharding]
keys = jax.random.split(jax.random.key(3), 4)
for shard in restored["key"].addressable_shards:
    right.append(bool(jnp.array_equal(jax.random.key_data(shard.data), jax.random.key_data(keys[shard.index[0]]))))
right.append(restored["step"] == 7)
# All processes have the same global arrays.
total = jax.jit(lambda w: w.sum(), out_shardings=NamedSharding(mesh, P()))(restored["w01"])
shards = {name: len(array.addressable_shards) for name, array in restored.items() if name.startswith("w")}
print(json.dumps(dict(read=read, right=all(map(bool, right)), shards=shards, total=float(total))))
jax.distributed.shutdown()
"""


def free_port() -> int:
    """An unused port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("layout", ["regrow", "orbax"])
@pytest.mark.parametrize("spec", [["x"], [None, "x"]])
def test_each_process_of_a_job_reads_its_own_part(path: Path, layout: str, spec: list[Any]) -> None:
    import jax

    leaves, shape = 5, (1024, 1024)
    tree = {**state(leaves, shape), "key": jax.random.split(jax.random.key(3), 4), "step": 7}
    if layout == "orbax":
        # Sharded by another program, on a mesh that is not there any more.
        import orbax.checkpoint as ocp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        sharding = NamedSharding(Mesh(np.array(jax.devices()[:8]), ("z",)), PartitionSpec(*(spec[:-1]), "z"))
        for name in list(tree)[:leaves]:
            tree[name] = jax.device_put(tree[name], sharding)
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).save(path, args=ocp.args.PyTreeSave(tree))
    else:
        regrow.save(path, tree)
    port = free_port()
    processes = [start(JOB, path, port, rank, json.dumps(spec), devices=2) for rank in range(2)]
    found = [finish(process, 240) for process in processes]
    leaf_bytes = 4 * MIB
    assert all(each["right"] for each in found), found
    assert found[0]["total"] == found[1]["total"]
    # Two of four devices; of w00, which is on the first process' devices alone, all or nothing.
    assert found[0]["shards"] == {**{f"w{at:02}": 2 for at in range(leaves)}}
    assert found[1]["shards"] == {**{f"w{at:02}": 2 for at in range(leaves)}, "w00": 0}
    half = (leaves - 1) * leaf_bytes // 2
    # Metadata, and blocks at the ends. Of columns, raw rows lie together in blocks: these are read
    # whole.
    slack = MIB
    if layout == "regrow" and spec == [None, "x"]:
        half = (leaves - 1) * leaf_bytes
    assert found[0]["read"] < half + leaf_bytes + slack, found
    assert found[1]["read"] < half + slack, found

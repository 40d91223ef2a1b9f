"""Sharded JAX arrays in four processes: saved by all, restored by two on another mesh.

    python examples/sharded.py [FOLDER]

The program starts the processes itself, as `srun` or Kubernetes would: each is a host with two
devices of the CPU. All call `regrow.save` with the same arguments, each writes the shards that it
holds, and process 0 commits.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS, COLUMNS = 64, 32


def host(folder: Path, rank: int, size: int, port: int) -> None:
    """One of the processes: what a training program does."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import regrow

    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=size, process_id=rank)
    expected = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    # Four processes have eight devices as 4 x 2, two have four devices as 1 x 4.
    mesh = Mesh(np.array(jax.devices()).reshape((4, 2) if size == 4 else (1, 4)), ("data", "model"))
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    if size == 4:
        weights = jax.make_array_from_callback(expected.shape, sharding, lambda index: expected[index])
        moments = jax.jit(jnp.square)(weights)
        report = regrow.save(folder / "step_1", {"weights": weights, "moments": moments, "step": 1})
        if rank == 0:
            print(f"saved by {size} processes on a mesh {dict(mesh.shape)}: {report.leaf_count} leaves")
    else:
        like = jax.ShapeDtypeStruct(expected.shape, np.float32, sharding=sharding)
        state = regrow.load(folder / "step_1", like={"weights": like, "moments": like, "step": 0})
        for shard in state["weights"].addressable_shards:
            np.testing.assert_array_equal(shard.data, expected[shard.index])
        held = sum(shard.data.nbytes for shard in state["weights"].addressable_shards)
        # One write with its end of line: both processes have the same output.
        print(f"process {rank} of {size} has restored {held} of {expected.nbytes} bytes of the weights\n", end="")
    jax.distributed.shutdown()


def start(folder: Path, size: int) -> None:
    """Starts all processes of a job, and waits for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    started = [
        subprocess.Popen([sys.executable, __file__, str(folder), str(rank), str(size), str(port)], env=environment)
        for rank in range(size)
    ]
    if any([each.wait() for each in started]):
        sys.exit("a process has failed; what it said stands above")


def main() -> None:
    """Saves with four processes, restores with two."""
    if len(sys.argv) == 5:
        host(Path(sys.argv[1]), *map(int, sys.argv[2:]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch)
        start(folder, 4)
        start(folder, 2)


if __name__ == "__main__":
    main()

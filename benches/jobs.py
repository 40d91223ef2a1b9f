"""Jobs of several processes of `jax.distributed` on this machine: started together, and ended
together.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from typing import Any


def run_job(command: list[str], job: dict[str, Any], processes: int, devices: int, seconds: float) -> bool:
    """Runs `command` once for each process, with `job`, its rank and a port to meet at as JSON
    behind it.

    Each process has so many devices of the CPU. False if they were ended after `seconds`.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        job = {**job, "processes": processes, "port": listener.getsockname()[1]}
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    commands = [[*command, json.dumps({**job, "rank": rank})] for rank in range(processes)]
    started = [subprocess.Popen(command, env=environment) for command in commands]
    until = time.monotonic() + seconds
    try:
        statuses = [process.wait(max(0.1, until - time.monotonic())) for process in started]
    except subprocess.TimeoutExpired:
        return False
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(statuses):
        raise SystemExit(f"processes ended with {statuses}")
    return True


class Meeting:
    """Where the processes wait for each other between turns."""

    def __init__(self, processes: int) -> None:
        self.processes, self.count = processes, 0

    def meet(self) -> None:
        """Until all are here."""
        if self.processes > 1:
            from jax._src import distributed

            self.count += 1
            client = distributed.global_state.client
            assert client is not None
            client.wait_at_barrier(f"bench-{self.count}", 600_000)

    def end(self) -> None:
        """Until all are here, for the last time."""
        self.meet()
        if self.processes > 1:
            import jax

            jax.distributed.shutdown()


def join_job(job: dict[str, Any]) -> Meeting:
    """What each process of a job calls first."""
    import jax

    if job["processes"] > 1:
        address = f"127.0.0.1:{job['port']}"
        jax.distributed.initialize(address, num_processes=job["processes"], process_id=job["rank"])
    return Meeting(job["processes"])

"""Programs of several processes, for tests: started, watched, and ended in any case.

    def test_x(tmp_path):
        ended = processes.run(4, WORKER, tmp_path)
        assert [each.value for each in ended] == [...]

A worker is the text of a Python program. It finds `rank`, `size` and `arguments`, and calls `done(value)` with what JSON
can say. With `jax_port` it is a process of `jax.distributed`, on the CPU.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS_MAX = 120.0
"""Whoever is not at its end by then is killed, and the test fails."""

_BEGIN = """\
import json, os, sys, time
rank, size, arguments = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
_result = sys.argv[4]
def done(value):
    with open(_result + ".part", "w") as file:
        json.dump(value, file)
    os.rename(_result + ".part", _result)
"""

_JAX = """\
import jax
jax.config.update("jax_platforms", "cpu")
if {recoverable}:
    jax.config.update("jax_enable_recoverability", True)
jax.distributed.initialize(
    "127.0.0.1:{port}", num_processes=size, process_id=rank, initialization_timeout=60,
    heartbeat_timeout_seconds={heartbeat},
)
"""


@dataclass
class Ended:
    """A process that has ended: with which status (negative: by which signal), what it said, what it gave to `done`."""

    status: int
    output: str
    value: Any


def run(
    size: int,
    worker: str,
    folder: Path,
    *,
    arguments: Any = None,
    jax: bool = False,
    recoverable: bool = False,
    heartbeat: int = 100,
    environment: dict[str, str] | None = None,
    seconds_max: float = SECONDS_MAX,
    statuses: dict[int, int] | None = None,
) -> list[Ended]:
    """Runs `worker` in `size` processes; all have ended when it returns. `statuses` says whose is to be other than 0."""
    program = _BEGIN
    if jax:
        program += _JAX.format(port=free_port(), recoverable=recoverable, heartbeat=heartbeat)
    program += textwrap.dedent(worker)
    folder.mkdir(parents=True, exist_ok=True)
    started = []
    try:
        for rank in range(size):
            result, log = folder / f"result-{rank}.json", folder / f"log-{rank}.txt"
            result.unlink(missing_ok=True)
            command = [sys.executable, "-u", "-c", program, str(rank), str(size), json.dumps(arguments), str(result)]
            with log.open("wb") as file:
                process = subprocess.Popen(
                    command,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "JAX_PLATFORMS": "cpu", **(environment or {})},
                    start_new_session=True,
                )
            started.append((process, result, log))
        until = time.monotonic() + seconds_max
        late = [rank for rank, (process, _, _) in enumerate(started) if not _ends(process, until)]
    finally:
        for process, _, _ in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    ended = [
        Ended(
            process.returncode,
            log.read_text(errors="replace"),
            json.loads(result.read_text()) if result.exists() else None,
        )
        for process, result, log in started
    ]
    said = "\n".join(f"---- rank {rank}, status {each.status}\n{each.output}" for rank, each in enumerate(ended))
    assert not late, f"ranks {late} did not end within {seconds_max} s\n{said}"
    expected = [(statuses or {}).get(rank, 0) for rank in range(size)]
    assert [each.status for each in ended] == expected, said
    return ended


def free_port() -> int:
    """A port of this machine that nobody listens at just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _ends(process: subprocess.Popen[bytes], until: float) -> bool:
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True

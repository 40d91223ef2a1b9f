"""Programs of several processes, for tests: started, watched, and ended in any case.

    def test_x(tmp_path):
        ended = processes.run(4, WORKER, tmp_path)
        assert [each.value for each in ended] == [...]

A worker is the text of a Python program. It finds `rank`, `size` and `arguments`, and calls
`done(value)` with what JSON can say. With `jax=True` it is a process of `jax.distributed`, on the
CPU.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS_MAX = 100.0
"""A process that has not ended by then is killed, and the test fails."""

_BEGIN = """\
import json, os, sys, time
rank, size = {rank_and_size}
arguments = json.loads(sys.argv[1])
_result = f"{{sys.argv[2]}}/result-{{rank}}.json"
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
    """A process that has ended: with which status (negative: by which signal), what it said,
    what it gave to `done`.
    """

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
    statuses: dict[int, int | None] | None = None,
) -> list[Ended]:
    """Runs `worker` in `size` processes; all have ended when it returns. `statuses` says whose
    is not 0, or any.
    """
    joins = _JAX.format(port=free_port(), recoverable=recoverable, heartbeat=heartbeat) if jax else ""
    commands = []
    for rank in range(size):
        begin = _BEGIN.format(rank_and_size=(rank, size))
        program = f"{begin}{joins}{textwrap.dedent(worker)}"
        commands.append([sys.executable, "-u", "-c", program, json.dumps(arguments), str(folder)])
    ended = _run(commands, folder, seconds_max, environment or {}, statuses or {})
    return [Ended(*each, _value(folder, rank)) for rank, each in enumerate(ended)]


@dataclass
class Case:
    """One run of a worker among many: its arguments, and the ranks whose status is not 0."""

    folder: Path
    arguments: Any
    statuses: dict[int, int] = field(default_factory=dict)


_FORKS = """\
import json, os, sys, traceback
import numpy, regrow
programs, cases = json.loads(sys.argv[1])

def work(program, arguments, folder, log):
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(1, 2)
    sys.argv[1:] = [json.dumps(arguments), folder]
    status = 1
    try:
        exec(program, {})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)

children = []
for arguments, folder in cases:
    for rank, program in enumerate(programs):
        child = os.fork()
        if child == 0:
            work(program, arguments, folder, f"{folder}/log-{rank}.txt")
        children.append(child)
statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
with open(f"{sys.argv[2]}/result-0.json", "w") as file:
    json.dump(statuses, file)
"""


def run_cases(size: int, worker: str, folder: Path, cases: list[Case]) -> list[list[Ended]]:
    """Runs `worker` in `size` processes for each case, all cases at once: forks of one process,
    which has imported NumPy and regrow.
    """
    programs = [_BEGIN.format(rank_and_size=(rank, size)) + textwrap.dedent(worker) for rank in range(size)]
    for case in cases:
        case.folder.mkdir(parents=True, exist_ok=True)
        for old in case.folder.glob("result-*.json"):
            old.unlink()
    arguments = [programs, [[case.arguments, str(case.folder)] for case in cases]]
    _run([[sys.executable, "-u", "-c", _FORKS, json.dumps(arguments), str(folder)]], folder, SECONDS_MAX, {}, {})
    statuses = iter(_value(folder, 0))
    return [[_ended(case, rank, next(statuses)) for rank in range(size)] for case in cases]


def _ended(case: Case, rank: int, status: int) -> Ended:
    output = (case.folder / f"log-{rank}.txt").read_text(errors="replace")
    assert status == case.statuses.get(rank, 0), f"{case}: process {rank}, status {status}\n{output}"
    return Ended(status, output, _value(case.folder, rank))


def run_mpi(
    size: int,
    worker: str,
    folder: Path,
    *,
    arguments: Any = None,
    environment: dict[str, str] | None = None,
    seconds_max: float = SECONDS_MAX,
) -> list[Any]:
    """Runs `worker` in `size` processes of MPI; what each of them has given to `done`."""
    begin = "from mpi4py import MPI\n" + _BEGIN.format(
        rank_and_size="MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()"
    )
    program = f"{begin}{textwrap.dedent(worker)}"
    mpiexec = [str(Path(sys.executable).parent / "mpiexec"), "-hosts", "127.0.0.1", "-n", str(size)]
    command = [*mpiexec, sys.executable, "-u", "-c", program, json.dumps(arguments), str(folder)]
    _run([command], folder, seconds_max, environment or {}, {})
    return [_value(folder, rank) for rank in range(size)]


def _run(
    commands: list[list[str]],
    folder: Path,
    seconds_max: float,
    environment: dict[str, str],
    statuses: dict[int, int | None],
) -> list[tuple[int, str]]:
    """Starts all commands, and waits for them: status and output of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("result-*.json"):
        old.unlink()
    logs = [folder / f"log-{at}.txt" for at in range(len(commands))]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("wb") as file:
                started.append(
                    subprocess.Popen(
                        command,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
                        start_new_session=True,
                    )
                )
        until = time.monotonic() + seconds_max
        late = [at for at, process in enumerate(started) if not _ends(process, until)]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    ended = [(process.returncode, log.read_text(errors="replace")) for process, log in zip(started, logs, strict=True)]
    said = "\n".join(f"---- process {at}, status {status}\n{output}" for at, (status, output) in enumerate(ended))
    assert not late, f"processes {late} did not end within {seconds_max} s\n{said}"
    for at, (status, _) in enumerate(ended):
        expected = statuses.get(at, 0)
        assert expected is None or status == expected, said
    return ended


def _value(folder: Path, rank: int) -> Any:
    result = folder / f"result-{rank}.json"
    return json.loads(result.read_text()) if result.exists() else None


def free_port() -> int:
    """A port of this machine that is unused just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _ends(process: subprocess.Popen[bytes], until: float) -> bool:
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True

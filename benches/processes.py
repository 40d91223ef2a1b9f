"""What needs a process of its own: peak memory, the time of an import, the command; and what an
installation takes.

Memory is watched from outside, a few hundred times a second: anonymous and shared pages, which have
to be somewhere, and the peak of all resident pages (`VmHWM`), which includes files that are mapped
and can be dropped at any time. *Extra* is what a save, load or conversion needs at its peak beyond
its source and its destination.
"""

from __future__ import annotations

import importlib.util
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from limits import command
from measure import OURS, Clock, Turn, bring_into_page_cache, interleave, memory
from setting import Setting
from workloads import build

CHILD = Path(__file__).resolve().parent / "child.py"
EXTRA, PEAK = "extra memory", "peak memory"
IMPORT, LS = "import", "regrow ls"
HELP, SIZE = "regrow --help", "size"
IMPORTS = {
    OURS: "regrow",
    "orbax": "orbax.checkpoint",
    "safetensors": "safetensors.numpy",
    "tensorstore": "tensorstore",
}
IMPORTS |= {"numpy": "numpy", "jax": "jax", "flax": "flax.serialization", "equinox": "equinox"}
POLL_SECONDS = 0.002
REMEMBERED = ("regrow", "safetensors", "orbax", "flax", "pickle", "torch")


def remembering(setting: Setting) -> None:
    """Peak memory of saves, loads and conversions, once each: it does not vary."""
    workload = setting.scale.main
    tools = [tool.name for tool in setting.tools(workload, 0) if tool.name in REMEMBERED]
    with setting.room("memory") as room:
        for name in tools:
            tasks = ["save", "load", "load into", *([] if name != OURS else ["convert orbax", "convert flax"])]
            for task in tasks:
                _watch(setting, room, workload, name, task)


def _watch(setting: Setting, room: Path, workload: str, name: str, task: str) -> None:
    """What one child needs; a note if it cannot do that."""
    found = extra_memory([sys.executable, str(CHILD), str(room / name), workload, name, task])
    if found is None:
        setting.samples.note(f"{name} has no memory figure for `{task}`: {name} has no such call")
        return
    clock = Clock(setting.samples, workload, name, 1)
    clock.keep(f"{EXTRA}, {task}", found[0], "bytes")
    clock.keep(f"{PEAK}, {task}", found[1], "bytes")


def extra_memory(command: list[str]) -> tuple[int, int] | None:
    """Runs a child, which says when it begins and when it is done: what it needs at its peak beyond
    source and destination, and the peak of all resident pages beyond what there was; `None` if it
    does not begin."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    try:
        if child.stdout.readline() != "ready\n":
            return None
        before = memory(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        peak = _poll(child)
        after = memory(child.pid)
        child.stdin.write("end\n")
        child.stdin.flush()
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()
    held = max(before["anonymous"] + before["shared"], after["anonymous"] + after["shared"])
    return max(0, peak - held), max(0, after["peak"] - before["all"])


def _poll(child: subprocess.Popen[str]) -> int:
    """The most anonymous and shared memory until the child says that it is done."""
    peak = 0
    while True:
        now = memory(child.pid)
        peak = max(peak, now["anonymous"] + now["shared"])
        if select.select([child.stdout], [], [], POLL_SECONDS)[0]:
            assert child.stdout is not None
            if child.stdout.readline() != "done\n":
                raise RuntimeError("the process whose memory was watched has failed")
            return peak


def importing(setting: Setting) -> None:
    """Fresh processes; the clock runs in them, so that the start of Python is not part of it."""
    turns = []
    for who, module in IMPORTS.items():
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            turns.append(Turn(who, _import(module)))
    interleave(setting.samples, "fresh process", turns, max(setting.rounds, 3), IMPORT)


def _import(module: str) -> Callable[[Clock], None]:
    code = f"import time; a = time.perf_counter(); import {module}; print(time.perf_counter() - a)"

    def run(clock: Clock) -> None:
        out = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
        clock.keep(IMPORT, float(out))

    return run


def helping(setting: Setting) -> None:
    """`regrow --help` by the program and by Python, beside Python alone, from the start of the
    process to its end.
    """
    script = "import sys; from regrow.__main__ import main; sys.exit(main())"  # as pip 25.2 writes it
    commands = {
        OURS: [sys.executable, "-c", script, "--help"],
        "the program": [str(command()), "--help"],
        "python": [sys.executable, "-c", "pass"],
    }
    if not command().is_file():
        setting.samples.note(f"the program's --help is left out: {command()} is not built; make bench builds it")
        del commands["the program"]
    turns = [Turn(who, _start(arguments)) for who, arguments in commands.items()]
    interleave(setting.samples, "fresh process", turns, max(setting.rounds, 3), HELP)
    _weigh(setting)


def _start(arguments: list[str]) -> Callable[[Clock], None]:
    def run(clock: Clock) -> None:
        begin = time.perf_counter()
        subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True)
        clock.keep(HELP, time.perf_counter() - begin)

    return run


def _weigh(setting: Setting) -> None:
    """The bytes of the wheel, if `make wheel` has built one."""
    clock = Clock(setting.samples, "wheel", OURS, 1)
    wheels = sorted(command().parents[1].glob("wheels/regrow-*.whl"), key=lambda path: path.stat().st_mtime)
    if wheels:
        clock.keep(SIZE, wheels[-1].stat().st_size, "bytes")
    else:
        setting.samples.note("the size of the wheel is left out: make wheel builds one")


def listing(setting: Setting) -> None:
    """`regrow ls` of 100,000 leaves, from the start of the process to its end."""
    import regrow

    program = command()
    if not program.is_file():
        setting.samples.note(f"regrow ls is left out: {program} is not built; make bench builds it")
        return
    with setting.room("ls") as room:
        regrow.save(room / "many", build("many_small"))
        bring_into_page_cache(room / "many")

        def run(clock: Clock) -> None:
            begin = time.perf_counter()
            subprocess.run([program, "ls", str(room / "many")], stdout=subprocess.DEVNULL, check=True)
            clock.keep(LS, time.perf_counter() - begin)

        interleave(setting.samples, "many_small", [Turn(OURS, run)], max(setting.rounds, 3), LS)

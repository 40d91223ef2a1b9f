"""Saves, rotates, loads and kills in a loop: nothing is lost, and no process grows. `make soak`
runs it for an hour.

Four processes work in one folder, for as long as `SOAK_SECONDS` says:

- trainers save step after step and rotate them; each is killed at a random moment, and another
  takes its place;
- a follower restores the newest step, reads slices and verifies, in 8 threads, beside them;
- a saver saves and loads every layout in turn, beside what it saved before, and in place of it;
- this one, which kills, and looks at what every dead trainer has left.

All values of a step are its number, so that a lost, torn or mixed step shows. The follower and the
saver are never killed: their memory, file descriptors, maps and threads are those of the first
quarter, or the run has failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import regrow

SECONDS = float(os.environ.get("SOAK_SECONDS", "3600"))
SEED = int(os.environ.get("REGROW_SEED", random.SystemRandom().randrange(1 << 32)))

# How long a trainer lives, at most.
LIFE_SECONDS = 6.0

# What a process may grow by between the first quarter of the run and the last.
GROWTH_MAX = {"rss_mib": 24, "fds": 0, "maps": 40, "threads": 0}

# Options of the steps; each trainer takes the next.
RUNS: list[dict[str, Any]] = [
    {},
    {"compression": "zstd"},
    {"layout": "orbax"},
    {"layout": regrow.layouts.Orbax(ocdbt=False)},
    {"layout": "safetensors"},
]

# What the saver saves, and under which name.
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("regrow", {}),
    ("zstd", {"compression": "zstd"}),
    ("orbax", {"layout": "orbax"}),
    ("sealed", {"layout": regrow.layouts.Orbax(ocdbt=False), "seal": True}),
    ("x.msgpack", {"layout": "flax"}),
    ("x.eqx", {"layout": "equinox"}),
    ("pair", {"layout": "pytree_data"}),
    ("x.safetensors", {"layout": "safetensors"}),
    ("x.npz", {"layout": "npy"}),
]


def state(step: int) -> dict[str, Any]:
    """What a training keeps; a part of it never changes, as frozen weights do."""
    layers = {f"layer_{number}": np.full((64, 512), step, np.float32) for number in range(12)}
    return {
        "frozen": np.arange(100_000, dtype=np.float32),
        "step": np.int64(step),
        "params": layers,
        "moments": {name: np.full_like(value, step) for name, value in layers.items()},
        "note": np.full(7, step, np.int32),
    }


def check(tree: dict[str, Any], step: int) -> None:
    """That `tree` is the state of `step`, all of it."""
    expected = state(step)
    assert tree.keys() == expected.keys(), sorted(tree)
    for part in ("params", "moments"):
        assert tree[part].keys() == expected[part].keys(), f"{part} of step {step}"
        for name, value in tree[part].items():
            assert value.shape == (64, 512) and (value == step).all(), f"{part}/{name} of step {step}"
    for part in ("frozen", "step", "note"):
        assert np.array_equal(tree[part], expected[part]), f"{part} of step {step}"


def report(**facts: Any) -> None:
    """One line to the process above."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def used() -> dict[str, float]:
    """What this process holds of the machine."""
    status = Path("/proc/self/status").read_text()
    field = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if len(line.split()) > 1}
    return {
        "rss_mib": int(field["VmRSS"]) / 1024,
        "fds": len(os.listdir("/proc/self/fd")),
        "maps": Path("/proc/self/maps").read_text().count("\n"),
        "threads": int(field["Threads"]),
    }


def train(root: str, run: str) -> None:
    """Saves the next steps, until it is killed. A step is reported once it cannot be lost any
    more.
    """
    with regrow.Manager(root, options=regrow.SaveOptions(link_unchanged=True), keep=3, **RUNS[int(run)]) as steps:
        step = steps.next
        while True:
            steps.save(step, state(step))
            # Some saves have the next one behind them, and some are waited for.
            if step % 3 == 0:
                steps.wait()
                report(committed=step)
            step += 1


def until_told(once: Callable[[], dict[str, Any]]) -> None:
    """Works until the process above closes the pipe; says every few seconds what was done and
    what is held.
    """
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    done: dict[str, int] = {}
    said = time.monotonic()
    while not over.is_set():
        for what, count in once().items():
            done[what] = done.get(what, 0) + count
        if time.monotonic() - said > SECONDS / 400:
            said = time.monotonic()
            report(**done, **used())
    report(**done, **used())


def follow(root: str) -> None:
    """Restores, slices and verifies the newest step beside those who write and delete."""
    pool = ThreadPoolExecutor(8)

    def restored() -> dict[str, int]:
        steps = regrow.Manager(root, read_only=True)
        found = steps.restore()
        check(found, int(found["step"]))
        return {"restored": 1}

    def sliced() -> dict[str, int]:
        # The newest may be deleted or replaced in between; then the error says so.
        with contextlib.suppress(regrow.errors.ReplacedError):
            opened = regrow.open(root)
            for leaf in ("params/layer_3", "moments/layer_7"):
                part = np.asarray(opened[leaf][5:9])
                assert (part == opened.step).all(), f"{leaf}: {part} of {opened.step}"
            return {"sliced": 1}
        return {"sliced of a step that went away": 1}

    def verified() -> dict[str, int]:
        with contextlib.suppress(regrow.errors.ReplacedError):
            found = regrow.verify(root)
            assert found.ok, found
            return {"verified": 1}
        return {"verified a step that went away": 1}

    ways = [restored, sliced, verified, restored, sliced, restored, sliced, sliced]

    def once() -> dict[str, int]:
        done: dict[str, int] = {}
        for each in pool.map(lambda way: way(), ways):
            for what, count in each.items():
                done[what] = done.get(what, 0) + count
        return done

    until_told(once)


def save_all(root: str) -> None:
    """Saves and loads every layout in turn, in place of what it saved before."""
    step = 0

    def once() -> dict[str, int]:
        nonlocal step
        step += 1
        for name, options in LAYOUTS:
            path = Path(root) / name
            regrow.save(path, state(step), overwrite=True, durable=False, **options)
            check(regrow.load(path), step)
        regrow.convert(Path(root) / "orbax", Path(root) / "converted", overwrite=True)
        check(regrow.load(Path(root) / "converted"), step)
        assert regrow.diff(Path(root) / "converted", Path(root) / "x.npz").equal
        return {"rounds of all layouts": 1}

    until_told(once)


ROLES: dict[str, Callable[..., None]] = {"train": train, "follow": follow, "save_all": save_all}


class Child:
    """A process of one role, and what it has reported."""

    def __init__(self, role: str, *arguments: str) -> None:
        self.role = role
        self.reports: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, __file__, role, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        # A daemon: when this program fails its pipes close, and the others end, too.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # A killed process may have written a part of a line.
            if line.endswith("\n"):
                self.reports.append(json.loads(line))

    def kill(self) -> None:
        """Ends it at any instruction."""
        self.process.kill()
        self._ended()

    def finish(self) -> None:
        """Tells it to end, and waits for it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self._ended()
        assert status == 0, f"{self.role} ended with {status}"

    def _ended(self) -> int:
        status = self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return status


def grown(child: Child) -> list[str]:
    """What a process holds more at the end than after the first quarter, as sentences."""
    samples = [each for each in child.reports if "rss_mib" in each]
    assert len(samples) >= 16, f"{child.role} said {len(samples)} times what it holds"
    quarter = len(samples) // 4
    wrong = []
    for what, allowed in GROWTH_MAX.items():
        # A thread or a file may be held at this very moment: the least of a quarter is what stays.
        stays = min if what in ("fds", "threads") else statistics.median
        early = stays([each[what] for each in samples[quarter : 2 * quarter]])
        late = stays([each[what] for each in samples[-quarter:]])
        print(f"  {child.role:9} {what:8} {early:8.1f} -> {late:8.1f}")
        if late > early + allowed:
            wrong.append(f"{child.role}: {what} grew from {early} to {late}")
    return wrong


def main() -> None:
    """Runs all of them, and says what was found."""
    randomly = random.Random(SEED)
    print(f"REGROW_SEED={SEED}, {SECONDS:.0f} s", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="regrow-soak-"))
    run, layouts = folder / "run", folder / "layouts"
    layouts.mkdir()
    with regrow.Manager(run, keep=3) as steps:
        steps.save(0, state(0))
    stay = [Child("follow", str(run)), Child("save_all", str(layouts))]
    begun, said = time.monotonic(), time.monotonic()
    kills = committed = 0
    while time.monotonic() - begun < SECONDS:
        child = Child("train", str(run), str(kills % len(RUNS)))
        time.sleep(randomly.uniform(0.5, LIFE_SECONDS))
        child.kill()
        kills += 1
        committed = max([committed, *(each["committed"] for each in child.reports)])
        # The newest is what was said to be committed, or later; it is whole, and so are those
        # behind it.
        left = regrow.Manager(run, read_only=True).list()
        assert left, "no step is left"
        assert left[-1].number >= committed, f"{committed} was committed, {left[-1].number} is there"
        for step in left:
            check(regrow.load(run / step.name), step.number)
        for each in stay:
            status = each.process.poll()
            assert status is None, f"{each.role} ended with {status}"
        if time.monotonic() - said > 60:
            said = time.monotonic()
            print(f"{said - begun:6.0f} s: {kills} kills, step {left[-1].number}", flush=True)
    for each in stay:
        each.finish()
    with regrow.Manager(run, keep=3) as steps:
        last = steps.next
        steps.save(last, state(last))
    names = sorted(os.listdir(run))
    assert len([name for name in names if name.isdigit()]) == 3, names
    assert not [name for name in names if "tmp" in name], f"left by the dead: {names}"
    check(regrow.load(run), last)
    print(f"{kills} trainers killed, {last + 1} steps, none lost")
    for each in stay:
        done = {what: count for what, count in each.reports[-1].items() if what not in GROWTH_MAX}
        print(f"  {each.role:9} {done}")
    wrong = [line for each in stay for line in grown(each)]
    shutil.rmtree(folder)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        ROLES[sys.argv[1]](*sys.argv[2:])
    else:
        main()

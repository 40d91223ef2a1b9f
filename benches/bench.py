"""Saves and loads the same data with regrow, safetensors and Orbax, and with nothing but disk and memory.

Wall times on a shared machine swing by half, so every figure is a ratio: in each round all tools take their
turn, one after the other, beside the limit measured in the same round; the table shows medians over the
rounds. Memory is the peak of a child process that does the one thing, less that of a child which does all but
that.

    make bench-quick                                  # 0.25 GiB, and 100,000 leaves
    make bench BENCH='--rounds 7 --folder /mnt/disk'  # 1 GiB, and 100,000 leaves

What is compared:

- save: until the data is on the disk (fsync of file and folder; Orbax and regrow do so by themselves).
- load cold: the files' pages dropped from the page cache first; load warm: all of them in it. Loaded means
  usable as NumPy arrays, every page of every large leaf touched, so that a lazy map pays for what it put off.
- limit of saving and of loading cold: the same number of bytes in direct writes or reads of 8 MiB, from and
  into memory that is there already; of loading warm: one memcpy.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
BLOCK = 8 << 20
PAGE = 4096
TOUCHED_FROM_BYTES = 1 << 20
ORBAX_LEAVES_MAX = 10_000  # it takes minutes beyond that

Tree = dict[str, Any]


# ---- workloads -----------------------------------------------------------------------------------------


def expand(entries: list[dict[str, Any]]) -> Iterator[tuple[str, tuple[int, ...], np.dtype]]:
    """Every leaf of a workload: its path, shape and dtype."""
    for entry in entries:
        counts = entry.get("repeat", 1)
        outer, inner = counts if isinstance(counts, list) else (counts, 1)
        for i in range(outer):
            for j in range(inner):
                path = entry["path"].replace("{i}", str(i)).replace("{j}", str(j))
                yield path, tuple(entry["shape"]), np.dtype(entry["dtype"])


def build(workload: str) -> Tree:
    """The workload as nested dicts of NumPy arrays with random numbers in them."""
    random = np.random.default_rng(0)
    tree: Tree = {}
    for path, shape, dtype in expand(json.loads((HERE / "workloads.json").read_text())["workloads"][workload]):
        if dtype.kind == "f":
            leaf = random.standard_normal(shape, np.float32)
            leaf = np.multiply(leaf, np.float32(0.02), out=np.asarray(leaf))
        else:
            leaf = random.integers(0, 100, shape, dtype)
        *folders, name = path.split("/")
        node = tree
        for key in folders:
            node = node.setdefault(key, {})
        node[name] = leaf
    return tree


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    for key, child in tree.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(child, dict):
            yield from leaves(child, name)
        else:
            yield name, child


# ---- tools: save(path, tree) and load(path) ------------------------------------------------------------


class Regrow:
    name = "regrow"
    leaves_max = sys.maxsize

    def __init__(self) -> None:
        import regrow

        self.save = regrow.save
        self.load = regrow.load


class Safetensors:
    name = "safetensors"
    leaves_max = sys.maxsize

    def __init__(self) -> None:
        from safetensors.numpy import load_file, save_file

        self.save_file, self.load_file = save_file, load_file

    def save(self, path: Path, tree: Tree) -> None:
        path.mkdir()
        self.save_file(dict(leaves(tree)), path / "model.safetensors")
        sync(path / "model.safetensors")
        sync(path)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        return self.load_file(path / "model.safetensors")


class Orbax:
    name = "Orbax"
    leaves_max = ORBAX_LEAVES_MAX

    def __init__(self) -> None:
        import orbax.checkpoint as ocp

        checkpointer = ocp.PyTreeCheckpointer()
        self.save, self.load = checkpointer.save, checkpointer.restore


TOOLS = {tool.name: tool for tool in (Regrow, Safetensors, Orbax)}


# ---- limits --------------------------------------------------------------------------------------------


class Limit:
    """What disk and memory give when nothing else is done: no names, no structure, no checks."""

    def __init__(self, folder: Path, len_bytes: int) -> None:
        self.file = folder / "limit"
        self.len_bytes = -(-len_bytes // PAGE) * PAGE
        self.buffer = mmap.mmap(-1, BLOCK)  # anonymous maps start on a page, as direct writes want it
        self.buffer.write(os.urandom(BLOCK))
        self.copy_from = np.ones(len_bytes, np.uint8)
        self.copy_to = np.ones(len_bytes, np.uint8)

    def save(self) -> None:
        fd = open_direct(self.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.posix_fallocate(fd, 0, self.len_bytes)
            with memoryview(self.buffer) as view:
                for offset in range(0, self.len_bytes, BLOCK):
                    os.pwrite(fd, view[: min(BLOCK, self.len_bytes - offset)], offset)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync(self.file.parent)

    def load_cold(self) -> None:
        fd = open_direct(self.file, os.O_RDONLY)
        try:
            with memoryview(self.buffer) as view:
                for offset in range(0, self.len_bytes, BLOCK):
                    os.preadv(fd, [view[: min(BLOCK, self.len_bytes - offset)]], offset)
        finally:
            os.close(fd)

    def load_warm(self) -> None:
        np.copyto(self.copy_to, self.copy_from)


def open_direct(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError:  # tmpfs and some network file systems have no direct reads and writes
        return os.open(path, flags)


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def drop_from_page_cache(path: Path) -> None:
    for file in files_of(path):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def touch(tree: Any) -> int:
    """Reads a byte of each page of the large leaves."""
    total = 0
    for _, leaf in leaves(tree):
        if leaf.nbytes >= TOUCHED_FROM_BYTES:
            total += int(np.asarray(leaf).reshape(-1).view(np.uint8)[::PAGE].sum())
    return total


# ---- measuring -----------------------------------------------------------------------------------------


def seconds(action: Callable[[], Any]) -> float:
    gc.collect()
    begin = time.perf_counter()
    result = action()
    elapsed = time.perf_counter() - begin
    del result
    return elapsed


def measure(workload: str, folder: Path, rounds: int, tools: list[str]) -> dict[str, dict[str, list[float]]]:
    """Operation -> who -> seconds, a round each; `limit` is one of them."""
    tree = build(workload)
    leaf_count, len_bytes = 0, 0
    for _, leaf in leaves(tree):
        leaf_count, len_bytes = leaf_count + 1, len_bytes + leaf.nbytes
    limit = Limit(folder, len_bytes)
    able = [TOOLS[name]() for name in tools if leaf_count <= TOOLS[name].leaves_max]
    times: dict[str, dict[str, list[float]]] = {name: {} for name in ("save", "load cold", "load warm")}

    def note(operation: str, who: str, action: Callable[[], Any]) -> None:
        times[operation].setdefault(who, []).append(seconds(action))

    # One round more than is counted: first writes and first touches of memory are another story.
    for turn in range(rounds + 1):
        print(f"    {workload}: round {turn} of {rounds}", file=sys.stderr)
        if turn == 1:
            times = {name: {} for name in times}
        note("save", "limit", limit.save)
        drop_from_page_cache(limit.file)
        note("load cold", "limit", limit.load_cold)
        note("load warm", "limit", limit.load_warm)
        for tool in able:
            path = folder / tool.name
            shutil.rmtree(path, ignore_errors=True)
            note("save", tool.name, lambda tool=tool, path=path: tool.save(path, tree))
            drop_from_page_cache(path)
            note("load cold", tool.name, lambda tool=tool, path=path: touch(tool.load(path)))
            for file in files_of(path):
                file.read_bytes()
            note("load warm", tool.name, lambda tool=tool, path=path: touch(tool.load(path)))
    return times


def peak_memory(workload: str, folder: Path, tool: str, operation: str) -> int:
    """Bytes at the peak of `operation`, beyond what a process has that only prepares for it."""
    return child_peak(workload, folder, tool, operation) - child_peak(workload, folder, tool, f"before {operation}")


def child_peak(workload: str, folder: Path, tool: str, task: str) -> int:
    command = [sys.executable, __file__, "--folder", str(folder), "--child", workload, tool, task]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if child.returncode != 0:
        sys.exit(f"{tool}, {task}: the child process failed")
    return int(child.stdout.splitlines()[-1])


def own_peak() -> int:
    """The highest resident size of this program, in bytes.

    Not `ru_maxrss`: across fork and exec that one starts at the size of the parent, which is large here.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def run_child(folder: Path, workload: str, tool_name: str, task: str) -> None:
    tool = TOOLS[tool_name]()
    path = folder / tool_name
    if task.endswith("save"):
        tree = build(workload)
        if task == "save":
            shutil.rmtree(path, ignore_errors=True)
            tool.save(path, tree)
    elif task == "load":
        touch(tool.load(path))
    print(own_peak())


# ---- tables --------------------------------------------------------------------------------------------


def ratio(of: list[float], to: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def print_times(results: dict[str, dict[str, dict[str, list[float]]]], tools: list[str]) -> None:
    others = [name for name in tools if name != Regrow.name]
    print("\nTimes: seconds, and as multiples of the limit; then the others, as multiples of regrow.\n")
    heads = " | ".join(f"{name} / regrow" for name in others)
    print(f"| workload | operation | limit s | regrow s | regrow / limit | {heads} |")
    print("|---|---|---|---|---|" + "---|" * len(others))
    for workload, times in results.items():
        for operation, by_who in times.items():
            limit, own = by_who["limit"], by_who[Regrow.name]
            cells = [f"{ratio(by_who[name], own):.2f}" if name in by_who else "-" for name in others]
            figures = f"{statistics.median(limit):.3f} | {statistics.median(own):.3f} | {ratio(own, limit):.2f}"
            print(f"| {workload} | {operation} | {figures} | {' | '.join(cells)} |")


def print_memory(rows: dict[tuple[str, str], dict[str, int]], tools: list[str]) -> None:
    print("\nPeak memory in MiB, beyond the tree to be saved; of a load, with the tree that was loaded.\n")
    print(f"| workload | operation | {' | '.join(tools)} |")
    print("|---|---|" + "---|" * len(tools))
    for (workload, operation), by_tool in rows.items():
        cells = [f"{by_tool[name] / 2**20:.0f}" if name in by_tool else "-" for name in tools]
        print(f"| {workload} | {operation} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="0.25 GiB instead of 1 GiB, three rounds")
    parser.add_argument("--rounds", type=int, help="rounds that count (5; 3 with --quick)")
    parser.add_argument("--folder", type=Path, help="where to write (a new folder below the current one)")
    parser.add_argument("--workloads", nargs="+", help="names from workloads.json")
    parser.add_argument("--tools", nargs="+", choices=sorted(TOOLS), default=list(TOOLS))
    parser.add_argument("--no-memory", action="store_true", help="times only")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments.folder, *arguments.child)
        return

    if Regrow.name not in arguments.tools:
        parser.error("regrow is what the others are compared with: name it among --tools")
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    gpt2 = "gpt2_adam@0.25GiB" if arguments.quick else "gpt2_adam@1GiB"
    workloads = arguments.workloads or [gpt2, "many_small"]
    parent = arguments.folder or Path.cwd()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as name:
        folder = Path(name)
        print(f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs, {rounds} rounds, in {parent}")
        results = {name: measure(name, folder, rounds, arguments.tools) for name in workloads}
        print_times(results, arguments.tools)
        if not arguments.no_memory:
            rows: dict[tuple[str, str], dict[str, int]] = {}
            for workload, times in results.items():
                for operation in ("save", "load"):
                    for tool in arguments.tools:
                        if tool in times["save"]:
                            peak = peak_memory(workload, folder, tool, operation)
                            rows.setdefault((workload, operation), {})[tool] = peak
            print_memory(rows, arguments.tools)
    if Orbax.name in arguments.tools:
        print(f"\n`-`: Orbax is left out beyond {ORBAX_LEAVES_MAX} leaves, where it takes minutes.")


if __name__ == "__main__":
    main()

"""One tool does one thing, and is watched while it does: `child.py PATH WORKLOAD TOOL TASK`.

Says `ready` when all is prepared (modules imported, one small checkpoint saved and loaded, the
source there), waits for a line, does the task, says `done`, and holds what it has got until the
next line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from setting import TOOLS, remove
from tools import Tool
from workloads import build, like, touch


def main() -> None:
    """Prepares, waits, acts, waits."""
    path, workload, name, task = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    tool = TOOLS[name]()
    rehearse(tool, path.with_name(f"{path.name}-small"), task)
    action = prepare(tool, path, workload, task)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    print("ready", flush=True)
    sys.stdin.readline()
    result = action()
    print("done", flush=True)
    sys.stdin.readline()
    del result


def rehearse(tool: Tool, path: Path, task: str) -> None:
    """What a first call costs beyond a second one is modules and pools, not the data's."""
    tree = {"w": np.zeros(4096, np.float32)}
    tool.save(path, tree)
    tool.load(path)
    if task.startswith("convert"):
        convert(path, path.with_name(f"{path.name}-converted"), task)
    remove(path)


def prepare(tool: Tool, path: Path, workload: str, task: str) -> Callable[[], Any]:
    """The action, its source being there already."""
    if task == "save":
        tree = build(workload)
        remove(path)
        return lambda: tool.save(path, tree)
    if task == "load":
        return lambda: loaded(tool, path)
    if task == "load into":
        if tool.load_into is None:
            sys.exit()
        fill, into = tool.load_into, like(build(workload))
        return lambda: fill(path, into)
    return lambda: convert(path, path.with_name("converted"), task)


def loaded(tool: Tool, path: Path) -> Any:
    """Every page of it."""
    tree = tool.load(path)
    touch(tree)
    return tree


def convert(path: Path, target: Path, task: str) -> None:
    """`convert LAYOUT`."""
    import regrow

    layout = task.removeprefix("convert ")
    options: dict[str, Any] = {"compression": "none"} if layout == "orbax" else {}
    regrow.convert(path, target, layout=layout, lossy=True, **options)
    remove(target)


main()

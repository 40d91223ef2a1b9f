"""Measures regrow against the tools its users have today, and against what disk and memory can do.

    make bench                                            # 1 GiB; 40 minutes, and 9 GiB of disk
    make bench-quick                                      # 0.25 GiB; under five minutes
    make bench-long                                       # 4 GiB, a million leaves
    make bench BENCH='--only flax equinox --rounds 9'     # some of it
    make bench BENCH='--folder /mnt/disk --workloads many_small --tools regrow safetensors --only storing'

How: `measure.py`. What: `operations.py`, `asynchronous.py`, `interop.py`, `processes.py`,
`growth.py`, `same_calls.py`, `trak_stores.py`, `protection.py`. Rivals: `tools.py`, `chunked.py`,
`limits.py`. What it should come to: `targets.py`. Into the folder `--out` go `results.json` (every
sample), `results.md` (the targets, and all medians) and pictures.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType

import asynchronous
import growth
import interop
import operations
import processes
import protection
import report
import same_calls
import trak_stores
from measure import OURS, say
from setting import GIB, SCALES, TOOLS, Setting
from workloads import shapes

GROUPS = {
    "storing": operations.storing,
    "opening": operations.opening,
    "slice": operations.slicing,
    "async": asynchronous.saving,
    "convert": interop.converting,
    "orbax": interop.orbax_forms,
    "calls": same_calls.calling,
    "flax": interop.flax,
    "equinox": interop.equinox,
    "base": operations.reusing,
    "protection": protection.protecting,
    "memory": processes.remembering,
    "import": processes.importing,
    "ls": processes.listing,
    "help": processes.helping,
    "trak": trak_stores.featurizing,
    "growth": growth.growing,
}


def main() -> None:
    """Everything that was asked for, then the results; also those of a run that was interrupted."""
    arguments = parse()
    signal.signal(signal.SIGTERM, interrupt)
    logging.disable(logging.WARNING)  # Orbax and JAX tell stories
    scale = SCALES[arguments.scale]
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    check_room(arguments.folder, scale.needs_bytes)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="regrow-bench-", dir=arguments.folder) as name:
        rounds = arguments.rounds or scale.rounds
        workloads = arguments.workloads or scale.workloads
        setting = Setting(scale, Path(name).resolve(), rounds, arguments.tools, workloads)
        is_whole = run(setting, arguments.only)
        text = report.write(setting, out, time.monotonic() - begin)
    print(text)
    if importlib.util.find_spec("matplotlib") is None:
        say("bench: no pictures: matplotlib is not installed")
    else:
        import plots

        for path in plots.draw(setting.samples, scale, out):
            say(f"wrote {path}")
    say(f"wrote {out / 'results.json'} and {out / 'results.md'}, after {time.monotonic() - begin:.0f} s")
    if not is_whole:
        sys.exit(1)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--scale", choices=SCALES, default="full", help="0.25, 1 or 4 GiB")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="OPERATION",
                        help=f"some of: {', '.join(GROUPS)}")  # fmt: skip
    parser.add_argument(
        "--workloads", nargs="+", choices=shapes(), metavar="NAME", help="for storing: names from workloads.json"
    )
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), metavar="TOOL",
                        help=f"some of: {', '.join(TOOLS)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, help="rounds that count, after one that does not (5; quick: 2)")
    parser.add_argument(
        "--folder", type=Path, default=Path.cwd(), help="where to write what is measured; emptied afterwards"
    )
    parser.add_argument("--out", type=Path, default=Path("bench-output"), help="where to write the results")
    arguments = parser.parse_args()
    if OURS not in arguments.tools:
        parser.error("regrow is what the others are compared with: name it among --tools")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds is at least 1")
    return arguments


def run(setting: Setting, only: list[str]) -> bool:
    """All groups in their order; whether none failed or was interrupted. Groups clean up after
    themselves.
    """
    is_whole = True
    for name in (name for name in GROUPS if name in only):
        say(f"{name}:")
        begin = time.monotonic()
        try:
            GROUPS[name](setting)
        except KeyboardInterrupt:
            setting.samples.note(f"interrupted during {name}; what comes after it was not measured")
            return False
        except Exception as error:
            traceback.print_exc()
            setting.samples.note(f"{name} has failed: {type(error).__name__}: {error}")
            is_whole = False
        say(f"{name}: {time.monotonic() - begin:.0f} s")
    return is_whole


def check_room(folder: Path, needs_bytes: int) -> None:
    """Says at once what would only turn out after some minutes."""
    free = shutil.disk_usage(folder).free
    if free < needs_bytes:
        sys.exit(
            f"bench: {folder} has {free / GIB:.1f} GiB free, and {needs_bytes / GIB:.0f} GiB are needed; "
            "make room, or say where with BENCH='--folder /another/disk'"
        )


def interrupt(number: int, frame: FrameType | None) -> None:
    """Being asked to end is like Ctrl-C: what was written is removed."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()

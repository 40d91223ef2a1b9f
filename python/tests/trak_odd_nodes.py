"""A file of a TRAK store is something else than a file: see `test_trak_nodes.py`.

Each step has half a minute; then the alarm ends the process in any state. The last line names the
step.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from trak_stores import METADATA, Saver

import regrow

LOCK = ".regrow.lock"
PAIRS_MAX = 64


def pipe(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(path.parent)  # the address of a socket is short
        bound.bind(path.name)
        os.chdir(here)


NODES: dict[str, Callable[[Path], object]] = {
    "pipe": pipe,
    "socket": bound_socket,
    "folder": Path.mkdir,
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "link to /dev/full": lambda path: path.symlink_to("/dev/full"),
    "link to a pipe": lambda path: (os.mkfifo(path.with_name("a pipe")), path.symlink_to("a pipe")),
}


def resume(folder: Path) -> None:
    """As a program that is started again."""
    saver = Saver(folder, METADATA, 6, 4, True, logging.CRITICAL, True)
    try:
        if 0 in saver.model_ids:
            saver.load_current_store(0)
        else:
            saver.register_model_id(0)
        saver.check_checkpoint(0, "sha256:0")
        saver.init_experiment("val", 3, 0)
        saver.flush()
    finally:
        saver.close()


def verify(folder: Path) -> None:
    report = regrow.verify(folder)
    if not report.ok:
        raise regrow.errors.CorruptError("\n".join(finding.message for finding in report.findings))


STEPS: dict[str, Callable[[Path], object]] = {
    "open": regrow.open,
    "load": regrow.load,
    "verify": verify,
    "resume": resume,
}


def finish(folder: Path) -> None:
    """A store with all files that there are."""
    with Saver(folder, METADATA, 6, 4, True, logging.CRITICAL, True) as saver:
        saver.register_model_id(0)
        for key in ("grads", "out_to_loss", "features", "is_featurized"):
            saver.current_store[key][:] = 1
        saver.model_ids[0]["is_finalized"] = 1
        saver.serialize_current_model_id_metadata()
        saver.check_checkpoint(0, "sha256:0")
        saver.init_experiment("val", 3, 0)
        saver.current_store["val_grads"][:] = 1
        saver.current_store["val_scores"][:] = 1
        saver.save_scores("val")
    for step in STEPS.values():
        step(folder)


def main(folder: Path) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    sound, store = folder / "sound", folder / "store"
    finish(sound)
    files = sorted(path.relative_to(sound) for path in sound.rglob("*") if path.is_file())
    assert len(files) == 12, files
    silent = []
    # A sample of files and what they are, each time the same.
    pairs = [(file, kind) for file in files for kind in NODES]
    for file, kind in random.Random(0).sample(pairs, PAIRS_MAX):
        for name, step in STEPS.items():
            print(f"{name}: {file} is a {kind}", flush=True)
            shutil.rmtree(store, ignore_errors=True)
            shutil.copytree(sound, store)
            (store / file).unlink()
            NODES[kind](store / file)
            # Opening looks at arrays only when they are read; the lock is for those who write.
            may_pass = name == "open" or (file.name == LOCK and name != "resume")
            signal.alarm(30)
            try:
                step(store)
            except regrow.RegrowError as error:
                named = file.name in str(error)
            else:
                named = may_pass
            signal.alarm(0)
            if not named:
                silent.append(f"{name}: {file} is a {kind}")
            assert (store / file).is_symlink() or not (store / file).is_file(), "it was written over"
    assert not (store / "nowhere").exists()
    assert not silent, f"{len(silent)} without an error that names the file:\n" + "\n".join(silent)
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

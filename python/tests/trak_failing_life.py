"""One saver's life while its system calls fail, in a process of its own: see
`test_trak_failing_calls.py`.

The preloaded library keeps a book of what was written and which syncs succeeded. From it follows
what is on the disk after each call, were the power to fail then: a sync that fails loses what was
written since the last. The rule: no row is marked as done, on the disk or in the page cache, unless
the disk has all of it; no flag speaks of what the disk does not have.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import logging
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import regrow
from regrow.trak import MmapSaver

ROWS, COLUMNS, TARGETS = 6, 4, 3
METADATA = {"JL dimension": COLUMNS, "JL matrix type": "rademacher", "train set size": ROWS}
HEADER_BYTES = 128
FOR_EVER = 1 << 40
LIVES_MAX = 400

Array = np.ndarray[Any, Any]


class Life:
    """What is asked of the saver, and what it answered."""

    def __init__(self, folder: Path, interval: float) -> None:
        self.folder = folder
        self.interval = interval
        self.written: set[int] = set()
        self.errors = 0

    def attempt(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except regrow.RegrowError:
            self.errors += 1
            return False
        return True

    def run(self) -> None:
        class Saver(MmapSaver):
            sync_interval = self.interval

        # After a failed sync a saver refuses writes. The program starts again and goes on.
        for _ in range(2):
            self.written.clear()
            opened: list[MmapSaver] = []
            for _ in range(3):
                arguments = (self.folder, METADATA, ROWS, COLUMNS, True, logging.CRITICAL, False)
                if self.attempt(lambda: opened.append(Saver(*arguments))):  # noqa: B023
                    break
            if not opened:
                return
            self.whole(opened.pop())
            gc.collect()

    def whole(self, saver: MmapSaver) -> None:
        if any(self.attempt(lambda: self.load(saver)) for _ in range(2)):
            self.work(saver)
        for _ in range(2):
            self.attempt(saver.close)

    def load(self, saver: MmapSaver) -> None:
        """As TRAKer does: a registered model keeps its rows."""
        if 0 in saver.model_ids:
            saver.load_current_store(0)
        else:
            saver.register_model_id(0, False)

    def work(self, saver: MmapSaver) -> None:
        store = saver.current_store
        for batch in ([0, 1], [4, 5], [0, 1], [2, 3], [4, 5], [2, 3]):
            self.attempt(lambda: self.featurize(saver, np.array(batch), 0))  # noqa: B023
        self.mark(saver)
        # Rows that are done are written again.
        self.attempt(lambda: self.put(saver, np.array([1, 2]), 100))
        self.mark(saver)
        for _ in range(2):
            self.attempt(saver.flush)
        self.mark(saver)
        self.attempt(saver.serialize_current_model_id_metadata)
        self.finish(saver)
        if self.attempt(lambda: saver.init_experiment("val", TARGETS, 0)):
            for rows in ([0], [1, 2]):
                self.attempt(lambda: store["val_grads"].__setitem__(np.array(rows), 5))  # noqa: B023
            if self.attempt(lambda: store["val_scores"].__setitem__(slice(None), 7)):
                for _ in range(2):
                    self.attempt(lambda: saver.save_scores("val"))
            self.attempt(lambda: saver.load_current_store(0, "val"))
        # The same model once more: all that follows from marks that should not be there.
        if self.attempt(lambda: saver.load_current_store(0)):
            self.attempt(saver.serialize_current_model_id_metadata)
        self.attempt(lambda: saver.missing_rows(0))

    def featurize(self, saver: MmapSaver, rows: Array, version: int) -> None:
        """As TRAKer does."""
        done = (saver.current_store["is_featurized"][rows] == 1).reshape(-1)
        rows = rows[~done]
        if len(rows):
            self.put(saver, rows, version)
            saver.current_store["is_featurized"][rows] = 1
            saver.serialize_current_model_id_metadata()

    def put(self, saver: MmapSaver, rows: Array, version: int) -> None:
        self.written -= set(rows.tolist())
        values = (rows + 1 + version).reshape(-1, 1).astype(np.float32)
        saver.current_store["grads"][rows] = values
        saver.current_store["out_to_loss"][rows] = values
        self.written |= set(rows.tolist())

    def mark(self, saver: MmapSaver) -> None:
        """Says of all rows that were written without an error that they are done, one by one and
        together.
        """
        for rows in ([row] for row in sorted(self.written)):
            self.attempt(lambda: saver.current_store["is_featurized"].__setitem__(np.array(rows), 1))  # noqa: B023
        if self.written:
            index = np.array(sorted(self.written))
            self.attempt(lambda: saver.current_store["is_featurized"].__setitem__(index, 1))

    def finish(self, saver: MmapSaver) -> None:
        """Finalizes the model; says so again without writing its features again."""
        features = saver.current_store["features"]
        if self.attempt(lambda: features.__setitem__(slice(None), 9)):
            for _ in range(3):
                saver.model_ids[0]["is_finalized"] = 1
                self.attempt(lambda: saver.serialize_current_model_id_metadata(already_exists=False))


class Disk:
    """What a file holds in the page cache, and on the disk."""

    def __init__(self) -> None:
        self.cache: dict[int, bytearray] = {}
        self.disk: dict[int, bytearray] = {}
        self.dirty: dict[int, list[slice]] = {}

    def replay(self, book: Path, watched: set[int]) -> Iterator[None]:
        """Goes on to the next call that changes the disk, or what a watched file holds."""
        for line in book.read_text().splitlines():
            event, *rest = line.split()
            if event == "wrote":
                inode, at, data = int(rest[0]), int(rest[1]), bytes.fromhex(rest[2])
                part = slice(at, at + len(data))
                self.of(self.cache, inode)[part] = data
                self.dirty.setdefault(inode, []).append(part)
                if inode in watched:
                    yield
            elif rest[0] == "file":
                inode = int(rest[1])
                parts = self.dirty.pop(inode, [])
                for part in parts if event == "synced" else []:
                    self.of(self.disk, inode)[part] = self.of(self.cache, inode)[part]
                if parts:
                    yield

    @staticmethod
    def of(files: dict[int, bytearray], inode: int) -> bytearray:
        return files.setdefault(inode, bytearray(4096))

    def array(self, files: dict[int, bytearray], path: Path, dtype: Any, columns: int, rows: int) -> Array:
        data = self.of(files, path.stat().st_ino)[HEADER_BYTES:]
        return np.frombuffer(bytes(data), dtype, rows * columns).reshape(rows, columns)


def check(folder: Path, book: Path) -> int:
    """The rule, after each call; how many marks were looked at."""
    disk, marks_seen = Disk(), 0
    model = folder / "0"
    masks = [
        ("_is_featurized", ROWS, ("grads", COLUMNS), ("out_to_loss", 1)),
        ("_targets_val", TARGETS, ("val_grads", COLUMNS)),
    ]
    masks = [entry for entry in masks if (model / f"{entry[0]}.mmap").exists()]
    watched = {(model / f"{entry[0]}.mmap").stat().st_ino for entry in masks}
    for _ in disk.replay(book, watched):
        for name, rows, *arrays in masks:
            marked = np.zeros(rows, bool)
            for files in (disk.disk, disk.cache):
                marked |= disk.array(files, model / f"{name}.mmap", np.int32, 1, rows).reshape(-1) != 0
            marks_seen += int(marked.sum())
            for row in np.flatnonzero(marked):
                found = [
                    disk.array(disk.disk, model / f"{key}.mmap", np.float32, columns, rows)[row].tolist()
                    for key, columns in arrays
                ]
                values = {value for part in found for value in part}
                allowed = {5.0} if name == "_targets_val" else {row + 1.0, row + 101.0}
                assert len(values) == 1 and values <= allowed, f"{name}, row {row}: on the disk is {found}"
    if (folder / "id_0.json").exists() and masks:
        flags = json.loads((folder / "id_0.json").read_text())["0"]
        if flags["is_featurized"]:
            marks = disk.array(disk.disk, model / "_is_featurized.mmap", np.int32, 1, ROWS)
            assert marks.all(), f"said to be featurized: the marks on the disk are {marks.tolist()}"
        if flags["is_finalized"]:
            features = disk.array(disk.disk, model / "features.mmap", np.float32, COLUMNS, ROWS)
            assert (features == 9).all(), f"final features: on the disk is {features}"
    records = folder / "experiments.json"
    if records.exists() and json.loads(records.read_text()).get("val", {}).get("scores_finalized"):
        scores = disk.array(disk.disk, folder / "scores/val.mmap", np.float32, TARGETS, ROWS)
        assert (scores == 7).all(), f"final scores: on the disk is {scores}"
    return marks_seen


def main(library: str, folder: Path) -> None:
    """Calls fail, some with their neighbour, some with all that follow: a sample, each time the
    same.
    """
    calls = ctypes.CDLL(library)
    calls.failing_calls_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    calls.failing_calls_disarm.restype = ctypes.c_long
    book, broken, lives, failures, seen = folder / "book", [], 0, 0, 0

    def live(first: int, last: int, number: int, interval: float) -> tuple[int, int]:
        nonlocal failures
        root = folder / "store"
        shutil.rmtree(root, ignore_errors=True)
        life = Life(root, interval)
        calls.failing_calls_arm(os.fsencode(book), first, last, number)
        try:
            life.run()
        finally:
            count = calls.failing_calls_disarm()
        failures += life.errors
        return count, check(root, book) if (root / "0").exists() else 0

    sample = random.Random(0)
    for interval in (0.0, 3600.0):
        count, marks_seen = live(0, 0, 0, interval)
        assert count > 40 and marks_seen > 20, (count, marks_seen)
        assert failures == 0 or interval, failures
        deaths = [
            (first, last, number)
            for first in range(1, count + 1)
            for last, number in ((first + first % 2, errno.EIO), (FOR_EVER, errno.ENOSPC))
        ]
        for first, last, number in sample.sample(deaths, min(len(deaths), LIVES_MAX // 2)):
            lives += 1
            try:
                _, marks_seen = live(first, last, number, interval)
                seen += marks_seen
            except AssertionError as error:
                broken.append(f"calls {first} to {last} fail, interval {interval}: {error}")
    print(f"{lives} lives, {failures} errors, {seen} marks")
    assert failures > lives // 2 and seen > 10 * lives
    assert not broken, f"{len(broken)} of {lives}: " + "\n".join(broken[:20])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

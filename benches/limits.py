"""What disk and memory give when nothing else is done: no names, no structure, no checks.

A ratio to these says how far a tool is from what the machine can do, on any machine:

- writing: one file, its blocks set aside first, direct writes of 8 MiB from one buffer of large
  pages, one fsync;
- reading cold: direct reads of 8 MiB into that buffer;
- memcpy: from memory to memory, all pages touched before;
- memcpy with crc32c: the same with every block hashed while it is in the cache
  (`crates/regrow/examples/limits.rs`).
"""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

import numpy as np
from measure import BLOCK, sync

PAGE = 4096
COPIED_BYTES = 512 << 20
ROOT = Path(__file__).resolve().parent.parent


class Limit:
    """The limits for so many bytes. Holds two buffers for the copies."""

    def __init__(self, folder: Path, len_bytes: int) -> None:
        self.file = folder / "limit"
        self.second = folder / "limit-copy"
        self.len_bytes = -(-len_bytes // PAGE) * PAGE
        # Anonymous maps start on a page, as direct I/O wants it; in large pages a request has fewer
        # pieces, which is up to twice as fast on a virtual disk.
        self.buffer = mmap.mmap(-1, BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.buffer.madvise(mmap.MADV_HUGEPAGE)
        self.buffer.write(os.urandom(BLOCK))
        part_bytes = min(len_bytes, COPIED_BYTES)
        self.copies = len_bytes / part_bytes
        self.copy_from = np.ones(part_bytes, np.uint8)
        self.copy_to = np.ones(part_bytes, np.uint8)

    def save(self) -> None:
        """Direct writes into a preallocated file, synced."""
        self._write(self.file)

    def load_cold(self) -> None:
        """Direct reads of what `save` wrote."""
        descriptor = open_direct(self.file, os.O_RDONLY)
        try:
            with memoryview(self.buffer) as view:
                for offset in range(0, self.len_bytes, BLOCK):
                    os.preadv(descriptor, [view[: min(BLOCK, self.len_bytes - offset)]], offset)
        finally:
            os.close(descriptor)

    def copy_files(self) -> None:
        """Both, a block after the other: what a conversion cannot beat without doing them at the
        same time.
        """
        source = open_direct(self.file, os.O_RDONLY)
        try:
            self._write(self.second, source)
        finally:
            os.close(source)

    def memcpy(self) -> None:
        """Memory to memory: a part that no cache holds, as often as it takes."""
        for _ in range(int(self.copies)):
            np.copyto(self.copy_to, self.copy_from)
        rest = int((self.copies % 1) * self.copy_from.size)
        np.copyto(self.copy_to[:rest], self.copy_from[:rest])

    def remove(self) -> None:
        """Removes its files."""
        self.file.unlink(missing_ok=True)
        self.second.unlink(missing_ok=True)

    def _write(self, path: Path, source: int | None = None) -> None:
        path.unlink(missing_ok=True)
        descriptor = open_direct(path, os.O_WRONLY | os.O_CREAT)
        try:
            os.posix_fallocate(descriptor, 0, self.len_bytes)
            with memoryview(self.buffer) as view:
                for offset in range(0, self.len_bytes, BLOCK):
                    block = view[: min(BLOCK, self.len_bytes - offset)]
                    if source is not None:
                        os.preadv(source, [block], offset)
                    os.pwrite(descriptor, block, offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync(path.parent)


class CopyAndHash:
    """Memcpy with crc32c, measured by a Rust program that stays there for the whole run."""

    def __init__(self, len_bytes: int) -> None:
        command = [str(helper()), str(len_bytes)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, operation: str) -> float:
        """How long `copy` or `copy-crc32c` takes; the program has its own clock."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{operation}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def __del__(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def helper() -> Path:
    """The Rust program, which `make bench` builds."""
    return _target() / "debug" / "examples" / "limits"


def command() -> Path:
    """The `regrow` command, which `make bench` builds."""
    return _target() / "release" / "regrow"


def _target() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def open_direct(path: Path, flags: int) -> int:
    """Opens past the page cache where the file system can."""
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError:  # tmpfs and some network file systems have no direct reads and writes
        return os.open(path, flags)

"""File systems that lack calls for good: every operation works there, or an error says what is
missing.

`docs/limits.md` has the same as a table: which calls, which file systems, what regrow does, which
promise is weaker.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SHIM = Path(__file__).parents[2] / "crates" / "testkit" / "src" / "lacking.c"
LIFE = Path(__file__).with_name("lacking_life.py")

# Errors of real file systems: FUSE (mergerfs, sshfs, s3fs, gcsfuse), CIFS, exFAT, NFS, Ceph, ...
ERRORS: dict[str, list[int]] = {
    "mmap": [errno.ENODEV, errno.EACCES, errno.EINVAL],
    "chmod": [errno.EPERM, errno.ENOTSUP],
    "chown": [errno.EPERM],
    "link": [errno.EPERM, errno.ENOTSUP, errno.EINVAL, errno.EMLINK],
    "fallocate": [errno.ENOTSUP, errno.ENOSYS],
    "direct": [errno.EINVAL],
    "flock": [errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL],
    "record_lock": [errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS],
    "fsync_folder": [errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS],
    "syncfs": [errno.ENOSYS],
    "exchange": [errno.EINVAL, errno.ENOSYS],
    "noreplace": [errno.EINVAL, errno.ENOSYS],
    "statvfs": [errno.ENOSYS, errno.ENOTSUP],
    "xattr": [errno.ENOTSUP],
    "copy_range": [errno.ENOSYS, errno.EINVAL],
    "clone": [errno.ENOTSUP],
    "fadvise": [errno.ENOSYS, errno.EINVAL],
    "preadv2": [errno.ENOSYS, errno.ENOTSUP],
    "statx": [errno.ENOSYS],
    "mincore": [errno.ENOSYS],
    "madvise": [errno.ENOSYS, errno.EINVAL],
    "utimes": [errno.EPERM, errno.ENOSYS],
    "symlink": [errno.EPERM],
}


def lack(*calls: str) -> str:
    """Several calls at once, each with the first of its errors."""
    return "+".join(f"{call}={ERRORS[call][0]}" for call in calls)


CIFS = lack("chmod", "chown", "link", "exchange", "noreplace", "fsync_folder", "xattr", "utimes", "symlink")
FUSE = lack("mmap", "direct", "fallocate", "flock", "record_lock", "exchange", "noreplace", "statvfs", "copy_range")
HINTS = lack("fadvise", "preadv2", "mincore", "madvise", "direct", "fallocate", "syncfs", "statvfs", "clone", "utimes")
LACKS = [
    f"mmap={errno.EACCES}",
    f"chmod={errno.EPERM}",
    f"fsync_folder={errno.ENOTSUP}",
    CIFS,
    f"{FUSE}+link={errno.EINVAL}",
    HINTS,
    lack(*(call for call in ERRORS if call != "statx")),
]
if os.environ.get("REGROW_LONG") == "1":
    LACKS += [f"{call}={error}" for call, errors in ERRORS.items() for error in errors]

# Stores of TRAK are live maps, under a lock: there is no other way, and the error says so.
REFUSED = {
    ("mmap", "trak_store"): "this one has no shared maps",
    ("flock", "trak_store"): "the file system has no locks",
}


def is_expected(failure: dict[str, Any]) -> bool:
    """Whether an error is one of those that say which promise cannot be kept."""
    lacking = {call.split("=")[0] for call in failure["lack"].split("+")}
    return failure.get("error") == "UnsupportedError" and any(
        call in lacking and failure["name"] == name and text in failure["text"]
        for (call, name), text in REFUSED.items()
    )


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("shim") / "lacking.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SHIM, "-lpthread"], check=True)
    return library


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder on a file system that syncs at once."""
    folder = Path("/dev/shm", f"regrow-lacking-{os.getpid()}")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(1200)
def test_operations_work_where_calls_are_missing(shim: Path, memory: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(LIFE), str(shim), str(memory), "none", *LACKS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    told = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    failures = [record for record in told if "error" in record and not is_expected(record)]
    assert not failures, json.dumps(failures, indent=1)[:8000]
    # Each was reached, so that calls have failed, and the operations that are refused were.
    counts = {record["lack"]: record["count"] for record in told if "count" in record}
    assert list(counts) == ["none", *LACKS] and counts.pop("none") == 0
    never_made = {call for call, count in counts.items() if count == 0}
    assert not never_made, f"nothing was tested by {never_made}"
    assert any(is_expected(record) for record in told)
    assert not any("panicked at" in line for line in run.stderr.splitlines())

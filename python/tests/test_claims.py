"""Work is bounded by what is stored, whatever a file claims: every operation, each in a process with a time limit."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import regrow

SECONDS_MAX = 30
"""For a process that imports regrow and reads a few bytes, on a busy machine."""

WORK = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
import regrow
path, target = sys.argv[1:]
work = {
    "ls": lambda: regrow.open(path).overview() and "told",
    "verify": lambda: "sound" if regrow.verify(path, progress=False).ok else "damaged",
    "diff": lambda: "equal" if regrow.diff(path, path, progress=False).equal else "other",
    "report": lambda: regrow.report(path, out=target + ".html", progress=False) and "told",
    "convert": lambda: regrow.convert(path, target, layout="npy") and "converted",
    "load": lambda: regrow.load(path) and "loaded",
}
for name, call in work.items():
    try:
        print(json.dumps([name, call()]), flush=True)
    except (regrow.RegrowError, MemoryError) as error:
        print(json.dumps([name, getattr(error, "kind", "memory")]), flush=True)
"""


def zarr(path: Path, shape: int, chunk: int, *, may_lack_chunks: bool) -> Path:
    """A checkpoint of Orbax whose array claims another shape."""
    regrow.save(path, {"x": np.arange(4, dtype=np.float32)}, layout="orbax", use_ocdbt=False, use_zarr3=False)
    file = path / "x" / ".zarray"
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "shape": [shape], "chunks": [chunk], "fill_value": 0, "compressor": None}))
    (path / "x" / "0").write_bytes(np.arange(min(chunk, 4), dtype="<f4").tobytes())
    document = path / "_METADATA"
    said = json.loads(document.read_text())
    said["store_array_data_equal_to_fill_value"] = not may_lack_chunks
    document.write_text(json.dumps(said))
    for beside in path.glob("array_metadatas/*"):
        beside.unlink()
    return path


def torch_expanded(path: Path, dims: list[int], strides: list[int]) -> Path:
    """A file as `torch.save` writes it, of one tensor over a storage of eight numbers."""

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    def integers(values: list[int]) -> bytes:
        return b"(" + b"".join(b"\x8a\x08" + value.to_bytes(8, "little") for value in values) + b"t"

    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x08tQ"
    made = b"(" + storage + b"K\x00" + integers(dims) + integers(strides) + b"\x89ccollections\nOrderedDict\n)Rt"
    pickle = b"\x80\x02}" + text("x") + b"ctorch._utils\n_rebuild_tensor_v2\n" + made + b"Rs."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/data/0", np.arange(8, dtype="<f4").tobytes())
        archive.writestr("archive/version", "3\n")
    return path


CLAIMS = {
    "zarr_2_to_62_bytes": lambda path: zarr(path, 2**60, 4, may_lack_chunks=True),
    "zarr_of_which_none_may_lack": lambda path: zarr(path, 2**60, 4, may_lack_chunks=False),
    "zarr_millions_of_chunks": lambda path: zarr(path, 3_000_000, 1, may_lack_chunks=True),
    "zarr_one_chunk": lambda path: zarr(path, 2**50, 2**50, may_lack_chunks=True),
    "torch_expanded": lambda path: torch_expanded(path, [2**40], [0]),
    "torch_expanded_inside": lambda path: torch_expanded(path, [2, 2**38, 4], [4, 0, 1]),
    "torch_windows": lambda path: torch_expanded(path, [2**38, 4], [0, 1]),
}


@pytest.mark.parametrize("claim", list(CLAIMS))
def test_reads_are_bounded_by_what_is_stored(path: Path, claim: str) -> None:
    path.parent.mkdir(exist_ok=True)
    source = CLAIMS[claim](path.with_suffix(".pt") if claim.startswith("torch") else path)
    command = [sys.executable, "-c", WORK, str(source), str(path.parent / "target")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    told = dict(json.loads(line) for line in done.stdout.splitlines())
    # What would take the memory or the disk that the claim names says so; all else is told.
    refused = "limit" if claim == "zarr_one_chunk" else "storage_full"
    expected = {
        "ls": {"told", "limit"},
        "verify": {"limit"} if claim == "zarr_one_chunk" else {"damaged" if "none_may" in claim else "sound"},
        "diff": {"equal"} if "torch" in claim or "millions" in claim else {"other", "limit"},
        "report": {"told", "limit"},
        "convert": {"converted" if "millions" in claim else refused},
        "load": {"loaded" if "millions" in claim else "limit"},
    }
    assert told.keys() == expected.keys() and all(told[name] in expected[name] for name in told), told

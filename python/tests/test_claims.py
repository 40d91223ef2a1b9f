"""Work is bounded by the stored bytes, for any claim of a file: every operation, each in a process
with a time limit.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import original_pytree
import pytest
import tensorstore
from conftest import REPOSITORY

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
    regrow.save(path, {"x": np.arange(4, dtype=np.float32)}, layout=regrow.layouts.Orbax(ocdbt=False, zarr3=False))
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


HUGE = [2**40, 2**60]
"""Sizes that files claim: more than any memory or disk, and more than an address has."""

TREE = {"x": np.arange(64, dtype=np.float32).reshape(8, 8), "y": np.int32(7)}


def saved(path: Path, layout: str, **options: Any) -> Path:
    regrow.save(path, TREE, layout=regrow.layouts.of_options(layout, options), lossy=True)
    return path


def changed(file: Path, change: Callable[[bytes], bytes]) -> None:
    before = file.read_bytes()
    after = change(before)
    assert after != before, file
    file.write_bytes(after)


def claimed(document: Any, huge: int) -> Any:
    """A JSON document in which every shape is another one: of the first axis, or with its
    chunks.
    """
    if isinstance(document, list):
        return [claimed(each, huge) for each in document]
    if not isinstance(document, dict):
        return document
    told = {}
    for name, value in document.items():
        is_shape = name in ("shape", "write_shape", "proj_dim", "num_train") or ("chunk" in name and huge == 2**60)
        if is_shape and isinstance(value, list) and all(isinstance(each, int) for each in value) and value:
            told[name] = [huge, *value[1:]]
        elif is_shape and isinstance(value, int):
            told[name] = huge
        else:
            told[name] = claimed(value, huge)
    return told


def documents(path: Path, huge: int) -> Path:
    """Of every JSON document below a folder."""
    files = [file for file in path.rglob("*") if file.name in (".zarray", "zarr.json", "_METADATA", ".metadata.json")]
    files += [file for file in path.rglob("*.json") if file not in files]
    count = 0
    for file in files:
        document = json.loads(file.read_bytes())
        count += claimed(document, huge) != document
        file.write_text(json.dumps(claimed(document, huge)))
    assert count, path
    return path


def ocdbt(path: Path, huge: int) -> Path:
    """Of the metadata of arrays in a database."""
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{path}/"}).result()
    keys = [key for key in store.list().result() if key.endswith((b".zarray", b"zarr.json"))]
    assert keys, path
    for key in keys:
        document = json.loads(store.read(key).result().value)
        store.write(key, json.dumps(claimed(document, huge)).encode()).result()
    return path


def without_record(path: Path) -> Path:
    """The default layout as Orbax reads it."""
    (path / "regrow.json").unlink()
    return path


def npy_header(data: bytes, huge: int) -> bytes:
    """The first header of NumPy's form with another shape, as long as before."""
    found = re.search(rb"'shape': \(([^)]*)\), \}( *)\n", data)
    assert found
    inner = str(huge).encode() + b"," + found[1].partition(b",")[2]
    text = b"'shape': (" + inner + b"), }"
    return data[: found.start()] + text.ljust(found.end() - found.start() - 1) + b"\n" + data[found.end() :]


def npz(path: Path, huge: int) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        array = path.with_suffix(".npy")
        np.save(array, TREE["x"])
        archive.writestr("x.npy", npy_header(array.read_bytes(), huge))
        array.unlink()
    return path


def zip_sizes(path: Path, huge: int) -> Path:
    """An archive whose directory says more than 4 GiB of its member, in the form of 64 bits if
    it is more.
    """
    with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w", force_zip64=True) as member:
        np.save(member, TREE["x"])
    size = (64 * 4 + 128).to_bytes(8, "little")
    data = path.read_bytes()
    assert data.count(size) >= 1
    path.write_bytes(data.replace(size, huge.to_bytes(8, "little")))
    at = path.read_bytes().index(b"PK\x01\x02")
    changed(path, lambda data: data[: at + 20] + struct.pack("<II", 2**32 - 2, 2**32 - 2) + data[at + 28 :])
    return path


def safetensors_of(path: Path, huge: int, *, header: bool = False) -> Path:
    offsets = [0, huge * 4]
    text = json.dumps({"x": {"dtype": "F32", "shape": [huge], "data_offsets": offsets}}).encode()
    path.write_bytes((huge if header else len(text)).to_bytes(8, "little") + text + bytes(256))
    return path


def msgpack(path: Path, huge: int, form: str) -> Path:
    """Flax' forms of an array, and containers and texts of msgpack, each with a length that is
    not there.
    """
    shape = b"\x92\xcf" + huge.to_bytes(8, "big") + b"\x04"
    inner = b"\x93" + shape + b"\xa7float32" + b"\xc4\x10" + bytes(16)
    size = min(huge, 2**32 - 1).to_bytes(4, "big")
    chunked = b"\x83\xb5__msgpack_chunked_array__\xc3\xa5shape\x81\xa10\xcf" + huge.to_bytes(8, "big")
    path.write_bytes(b"\x81\xa1x" + {
        "array": b"\xc7" + bytes([len(inner), 1]) + inner,
        "ext": b"\xc9" + size + b"\x01" + inner,
        "bin": b"\xc6" + size + bytes(16),
        "text": b"\xdb" + size + b"text",
        "list": b"\xdd" + size + b"\x01",
        "dict": b"\xdf" + size + b"\xa1a\x01",
        "chunks": chunked + b"\xa6chunks\x81\xa10\x01",
    }[form])  # fmt: skip
    return path


def pickled(path: Path, huge: int, form: str) -> Path:
    """A pickle of an array, or one whose opcodes claim a length."""
    long = huge.to_bytes(8, "little")
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01bt R".replace(b" ", b"")
        + b"(K\x01\x8a\x08" + long + b"\x85cnumpy\ndtype\n(X\x02\x00\x00\x00f4\x89\x88tR"
        + b"(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89C\x10" + bytes(16) + b"tb"
    )  # fmt: skip
    path.write_bytes(b"\x80\x04}X\x01\x00\x00\x00x" + {
        "array": array,
        "bytes": b"\x8e" + long + b"ab",
        "text": b"\x8d" + long + b"ab",
        "bytearray": b"\x96" + long + b"ab",
        "long": b"\x8b" + (2**31 - 1).to_bytes(4, "little") + b"ab",
        "frame": b"\x95" + long + b"K\x01",
        "memo": b"K\x01r" + (2**32 - 1).to_bytes(4, "little"),
    }[form] + b"s.")  # fmt: skip
    return path


def torch_storage(path: Path, huge: int) -> Path:
    """An archive of torch whose storage says more elements than its file has."""
    torch_expanded(path, [huge], [1])
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    pickle = members["archive/data.pkl"].replace(b"K\x08tQ", b"\x8a\x08" + huge.to_bytes(8, "little") + b"tQ")
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (members | {"archive/data.pkl": pickle}).items():
            archive.writestr(name, data)
    return path


def trak(path: Path, huge: int) -> Path:
    shutil.copytree(REPOSITORY / "fixtures" / "trak" / "c_scores_missing", path)
    arrays = sorted(path.rglob("*.mmap"))
    assert arrays
    changed(arrays[0], lambda data: npy_header(data, huge))
    return path


def data_and_manifest(path: Path, huge: int) -> Path:
    original_pytree.save(path, {"x": TREE["x"]})
    changed(
        path.with_name(path.name + ".manifest"),
        lambda text: re.sub(rb"\(8, 8\)|\[8, 8\]|8x8", f"({huge}, 8)".encode(), text, count=1),
    )
    return path


def dialect(name: str) -> Callable[[Path, int], Path]:
    def make(path: Path, huge: int) -> Path:
        shutil.copytree(REPOSITORY / "fixtures" / "dialects" / name, path)
        return path

    return make


SIZES: dict[str, Callable[[Path, int], Path]] = {
    **{
        f"orbax zarr v{3 if zarr3 else 2}": lambda path, huge, zarr3=zarr3: documents(
            saved(path, "orbax", ocdbt=False, zarr3=zarr3), huge
        )
        for zarr3 in (False, True)
    },
    **{
        f"ocdbt zarr v{3 if zarr3 else 2}": lambda path, huge, zarr3=zarr3: ocdbt(
            saved(path, "orbax", zarr3=zarr3), huge
        )
        for zarr3 in (False, True)
    },
    "default layout": lambda path, huge: ocdbt(without_record(saved(path, "regrow")), huge),
    "jax paths": lambda path, huge: documents(dialect("jax_paths")(path, huge), huge),
    "jax ocdbt": lambda path, huge: ocdbt(dialect("jax_ocdbt")(path, huge), huge),
    "levanter": lambda path, huge: documents(dialect("levanter")(path, huge), huge),
    "t5x": lambda path, huge: documents(dialect("t5x")(path, huge), huge),
    "npz": lambda path, huge: npz(path.with_suffix(".npz"), huge),
    "zip": lambda path, huge: zip_sizes(path.with_suffix(".npz"), huge),
    "safetensors": lambda path, huge: safetensors_of(path.with_suffix(".safetensors"), huge),
    "safetensors header": lambda path, huge: safetensors_of(path.with_suffix(".safetensors"), huge, header=True),
    "torch": lambda path, huge: torch_storage(path.with_suffix(".pt"), huge),
    "trak": trak,
    "data and manifest": data_and_manifest,
    **{
        f"msgpack {form}": lambda path, huge, form=form: msgpack(path.with_suffix(".msgpack"), huge, form)
        for form in ("array", "ext", "bin", "text", "list", "dict", "chunks")
    },
    **{
        f"pickle {form}": lambda path, huge, form=form: pickled(path.with_suffix(".pkl"), huge, form)
        for form in ("array", "bytes", "text", "bytearray", "long", "frame", "memo")
    },
}


def npy(path: Path, huge: int) -> Path:
    np.save(path.with_suffix(".npy"), TREE["x"])
    changed(path.with_suffix(".npy"), lambda data: npy_header(data, huge))
    return path.with_suffix(".npy")


def equinox(path: Path, huge: int) -> Path:
    saved(path.with_suffix(".eqx"), "equinox")
    changed(path.with_suffix(".eqx"), lambda data: npy_header(data, huge))
    return path.with_suffix(".eqx")


SIZES |= {"npy": npy, "equinox": equinox}

MANY = (
    WORK.replace("path, target = sys.argv[1:]", "where, target = sys.argv[1:]")
    .replace(
        "for name, call in work.items():",
        "for path, name, call in [(at, *each) for at in json.loads(open(where).read()) for each in work.items()]:",
    )
    .replace("[name, ", "[path, name, ")
)


def sizes(folder: Path) -> Iterator[tuple[str, Path]]:
    for name, make in SIZES.items():
        for huge in HUGE:
            at = folder / f"{name} {huge}".replace(" ", "_")
            at.mkdir()
            yield f"{name} {huge}", make(at / "step_100", huge)


def test_no_size_in_a_file_is_taken_at_its_word(tmp_path: Path) -> None:
    """In every layout that says sizes: each operation ends in time, with an answer or an error
    of regrow.
    """
    made = dict(sizes(tmp_path))
    (tmp_path / "paths.json").write_text(json.dumps([str(path) for path in made.values()]))
    command = [sys.executable, "-c", MANY, str(tmp_path / "paths.json"), str(tmp_path / "target")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS_MAX, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (told[-1:], done.stderr)
    assert len(told) == 6 * len(made)
    # What a pickle's memo is numbered by claims nothing: that file is read as Python reads it.
    read = (["load", "loaded"], ["convert", "converted"])
    wrong = [each for each in told if each[2] == "memory" or (each[1:] in read and "pickle_memo" not in each[0])]
    assert not wrong, wrong

"""Files of other programs are named by every error, and files of a known layout are read, with any
suffix.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import equinox
import flax.serialization
import numpy as np
import pytest
import safetensors.numpy

import regrow
from regrow import _native

TREE = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float64)}


def zipped(*members: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in members:
            archive.writestr(name, b"{}")
    return out.getvalue()


def tarred() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.txt"))
    return out.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4" * 64 + b"\nsize 548105171\n"
FOREIGN: dict[str, tuple[bytes, str]] = {
    "git-lfs": (POINTER, "git-lfs pointer"),
    "html": (b"<!DOCTYPE html><html><head><title>404</title></head>" + b" " * 600 + b"</html>", "HTML page"),
    "xml": (b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code></Error>', "XML document"),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(100), "GGUF"),
    "ggml": (b"tjgg\x03\0\0\0" + bytes(100), "GGML"),
    "hdf5": (b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0\x04\0\x10\0" + bytes(500), "HDF5"),
    "keras": (zipped("metadata.json", "config.json", "model.weights.h5"), "Keras"),
    "onnx": (b"\x08\x07\x12\x07pytorch\x1a\x052.1.0:\x8a\x02" + bytes(300), "ONNX"),
    "tflite": (b"\x1c\0\0\0TFL3\x14\0\x20\0" + bytes(300), "TensorFlow Lite"),
    "gzip": (gzip.compress(bytes(2000)), "gzip"),
    "tar.gz": (gzip.compress(tarred()), "gzip"),
    "tar": (tarred(), "tar archive"),
    "zip": (zipped("weights/a.txt", "b.txt"), "zip archive"),
    "parquet": (b"PAR1" + bytes(100) + b"PAR1", "Parquet"),
    "empty": (b"", "empty file"),
    "zeros": (bytes(4096), "zeros"),
}

SUFFIXES = ["", ".safetensors", ".npz", ".npy", ".msgpack", ".eqx", ".pt", ".bin"]


def opened(path: Path) -> None:
    regrow.open(path)


def loaded(path: Path) -> None:
    regrow.load(path)


def verified(path: Path) -> None:
    regrow.verify(path)


def converted(path: Path) -> None:
    regrow.convert(path, path.parent / "converted")


WAYS: list[Callable[[Path], None]] = [opened, loaded, verified, converted]


def assert_named(path: Path, what: str, capfd: pytest.CaptureFixture[str]) -> None:
    for way in WAYS:
        with pytest.raises(regrow.RegrowError) as raised:
            way(path)
        assert what in str(raised.value), f"{way.__name__} of {path.name}: {raised.value}"
        assert "help:" in str(raised.value)
    capfd.readouterr()
    assert _native.command(["regrow", "ls", str(path)], list) != 0
    said = capfd.readouterr()
    assert what in said.err and "panicked" not in said.err, said.err


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_of_another_program_is_named_under_any_suffix(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data, what = FOREIGN[kind]
    for suffix in SUFFIXES:
        if (kind, suffix) == ("empty", ".eqx"):
            continue  # Equinox' file of a tree without leaves.
        path = tmp_path / f"model{suffix}"
        path.write_bytes(data)
        assert_named(path, what, capfd)


def indexed(folder: Path) -> Path:
    folder.mkdir()
    safetensors.numpy.save_file({"w": TREE["w"]}, folder / "model-00001-of-00002.safetensors")
    safetensors.numpy.save_file({"b": TREE["b"]}, folder / "model-00002-of-00002.safetensors")
    files = {"w": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = {"metadata": {"total_size": 48}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_shard_that_is_a_file_of_another_program_is_named(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data, what = FOREIGN[kind]
    for name in ("model-00002-of-00002.safetensors", "model.safetensors.index.json"):
        folder = indexed(tmp_path / name)
        (folder / name).write_bytes(data)
        assert_named(folder, what, capfd)
        with pytest.raises(regrow.RegrowError, match=name):
            regrow.open(folder)


def test_folders_of_tensorflow_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved_model = tmp_path / "saved_model"
    (saved_model / "variables").mkdir(parents=True)
    (saved_model / "saved_model.pb").write_bytes(b"\x08\x01\x12")
    (saved_model / "variables" / "variables.index").write_bytes(b"\0")
    assert_named(saved_model, "SavedModel", capfd)
    checkpoint = tmp_path / "tf"
    checkpoint.mkdir()
    (checkpoint / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"\n')
    (checkpoint / "ckpt-1.index").write_bytes(b"\0\0\x01")
    (checkpoint / "ckpt-1.data-00000-of-00001").write_bytes(bytes(10))
    assert_named(checkpoint, "checkpoint of TensorFlow", capfd)


def test_files_in_a_folder_without_a_checkpoint_are_named(tmp_path: Path) -> None:
    (tmp_path / "weights.h5").write_bytes(FOREIGN["hdf5"][0])
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(regrow.errors.NotACheckpointError, match=r'"notes.txt", "weights.h5" \(an HDF5 file'):
        regrow.open(tmp_path)


def test_the_message_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(POINTER)
    with pytest.raises(regrow.errors.CorruptError) as raised:
        regrow.load(path)
    assert "git lfs pull" in str(raised.value) and str(path) in str(raised.value)
    assert "2336927755350992246" not in str(raised.value)


# ---- known layouts under other names --------------------------------------------------


def torch_zip() -> bytes:
    """What ``torch.save({"w": ..., "b": ...})`` writes."""
    pickled = b"\x80\x02}q\0("
    for name, storage, dims in (("w", b"FloatStorage", (2, 3)), ("b", b"DoubleStorage", (3,))):
        count = int(np.prod(dims))
        strides = (3, 1)[-len(dims) :]
        numbers = lambda values: b"(" + b"".join(b"K" + bytes([value]) for value in values) + b"t"  # noqa: E731
        text = lambda value: b"X" + len(value).to_bytes(4, "little") + value  # noqa: E731
        key = text(b"0" if name == "w" else b"1")
        pickled += text(name.encode()) + b"ctorch._utils\n_rebuild_tensor_v2\n("
        pickled += (
            b"(" + text(b"storage") + b"ctorch\n" + storage + b"\n" + key + text(b"cpu") + b"K" + bytes([count]) + b"tQ"
        )
        pickled += b"K\0" + numbers(dims) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("model/data.pkl", pickled + b"u.")
        archive.writestr("model/byteorder", "little")
        archive.writestr("model/data/0", TREE["w"].tobytes())
        archive.writestr("model/data/1", TREE["b"].tobytes())
        archive.writestr("model/version", "3\n")
    return out.getvalue()


def of_numpy(save: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    out = io.BytesIO()
    save(out, *arrays, **named)
    return out.getvalue()


def of_equinox() -> bytes:
    out = io.BytesIO()
    equinox.tree_serialise_leaves(out, list(TREE.values()))
    return out.getvalue()


KNOWN: dict[str, tuple[bytes, str]] = {
    "safetensors": (safetensors.numpy.save(TREE), "safetensors"),
    "npz": (of_numpy(np.savez, **TREE), "npy"),
    "npy": (of_numpy(np.save, TREE["w"]), "npy"),
    "msgpack": (flax.serialization.msgpack_serialize(TREE), "flax"),
    "eqx": (of_equinox(), "equinox"),
    "pt": (torch_zip(), "torch"),
    "pkl": (pickle.dumps(TREE, 4), "torch"),
}


@pytest.mark.parametrize("kind", KNOWN)
@pytest.mark.parametrize("suffix", [*SUFFIXES, ".ckpt", ".sft", ".dat", ".pkl"])
def test_a_file_of_a_known_layout_is_read_under_any_name(tmp_path: Path, kind: str, suffix: str) -> None:
    data, layout = KNOWN[kind]
    path = tmp_path / f"x{suffix}"
    path.write_bytes(data)
    found = regrow.load(path)
    if kind == "npy":
        found = found if isinstance(found, np.ndarray) else found[0]
        np.testing.assert_array_equal(found, TREE["w"])
    else:
        arrays = dict(zip(TREE, found, strict=True)) if kind == "eqx" else found
        for name, array in TREE.items():
            np.testing.assert_array_equal(arrays[name], array)
    # One array alone is also the first leaf of an Equinox file.
    assert regrow.open(path).layout in ({"npy", "equinox"} if kind == "npy" else {layout})
    assert regrow.verify(path).ok
    regrow.convert(path, tmp_path / "converted")


def test_blobs_of_the_hub_are_read(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    blob = blobs / ("a" * 64)
    blob.write_bytes(KNOWN["safetensors"][0])
    (snapshot / "model.safetensors").symlink_to(blob)
    for path in (blob, snapshot, snapshot / "model.safetensors"):
        np.testing.assert_array_equal(regrow.load(path)["w"], TREE["w"])


# ---- indexes --------------------------------------------------------------------------


def test_a_stale_index_names_the_shards_that_are_there(tmp_path: Path) -> None:
    folder = indexed(tmp_path / "x")
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(regrow.errors.CorruptError) as raised:
        regrow.load(folder)
    assert 'the index names 2 files, but only "model-00001-of-00002.safetensors"' in str(raised.value)
    (folder / "model-00001-of-00002.safetensors").unlink()
    safetensors.numpy.save_file(TREE, folder / "model.safetensors")
    with pytest.raises(regrow.errors.CorruptError) as raised:
        regrow.load(folder)
    assert "are missing" in str(raised.value) and 'does not name "model.safetensors"' in str(raised.value)
    np.testing.assert_array_equal(regrow.load(folder / "model.safetensors")["w"], TREE["w"])


def test_a_model_beside_an_index_is_mentioned(tmp_path: Path) -> None:
    folder = indexed(tmp_path / "x")
    assert not any("beside" in note for note in regrow.open(folder).notes)
    safetensors.numpy.save_file({"other": TREE["w"]}, folder / "model.safetensors")
    assert any("model.safetensors" in note and "not read" in note for note in regrow.open(folder).notes)
    assert sorted(regrow.load(folder)) == ["b", "w"]


def test_headers_that_are_padded_with_nul_are_named(tmp_path: Path) -> None:
    data = safetensors.numpy.save(TREE)
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip() + b"\0" * 16
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    with pytest.raises(regrow.errors.CorruptError, match="padded with NUL bytes"):
        regrow.load(path)


def test_the_command_says_it_too(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(POINTER)
    for words in (["ls"], ["verify"], ["info"], ["convert", str(tmp_path / "y")]):
        shell = [sys.executable, "-m", "regrow", words[0], str(path), *words[1:]]
        done = subprocess.run(shell, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "git-lfs pointer" in done.stderr, done.stderr

"""Parity and repair in Python, beside what other libraries wrote: these read what was healed,
bit for bit.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
from test_seal import LIBRARIES, TREE

import regrow


def _files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _data(files: dict[Path, bytes]) -> dict[Path, bytes]:
    return {file: data for file, data in files.items() if not file.name.startswith("regrow.parity.")}


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_library_reads_what_is_healed(library: str, tmp_path: Path) -> None:
    name, write, read = LIBRARIES[library]
    path = tmp_path / name
    write(path)
    files = _files(tmp_path)
    report = regrow.protect.add_parity(path, "1/4")
    assert (report.file_count, report.bytes) == (len(files), sum(map(len, files.values())))
    assert report.has_changed
    assert 0 < report.parity_bytes < report.bytes
    read(path)  # The library does not mind what lies there.
    chance = random.Random(library)
    for round_ in range(4):
        largest = max(files, key=lambda file: len(files[file]))
        damaged = bytearray(files[largest])
        start = chance.randrange(len(damaged))
        if round_ == 0:
            damaged[start] ^= 1 << chance.randrange(8)
        elif round_ == 1:
            span = slice(start, start + len(damaged) // 8)
            damaged[span] = bytes(len(damaged[span]))
        elif round_ == 2:
            del damaged[-len(damaged) // 8 :]
        else:
            damaged += b"more"
        largest.write_bytes(damaged)
        check = regrow.protect.repair(path, check=True)
        assert check.is_check
        assert largest.read_bytes() == damaged, "a check writes nothing"
        report = regrow.protect.repair(path)
        assert report, report
        if damaged != files[largest]:
            assert [file.path for file in report.healed] == [str(largest)]
        assert _data(_files(tmp_path)) == files
    assert "nothing to do" in str(regrow.protect.repair(path))
    read(path)


def test_a_save_writes_its_parity(tmp_path: Path) -> None:
    path = tmp_path / "x"
    regrow.save(path, TREE, layout="orbax", parity="1/1")
    files = _files(tmp_path)
    assert len(files) > len(_data(files)) == regrow.protect.add_parity(path, "1/1").file_count
    for file in _data(files):
        file.unlink()
    assert regrow.protect.repair(path).is_sound
    assert _data(_files(tmp_path)) == _data(files)


def test_a_replica_heals_what_parity_cannot(tmp_path: Path) -> None:
    path, other = tmp_path / "x", tmp_path / "copy"
    regrow.save(path, TREE, parity="1/64")
    shutil.copytree(path, other)
    files = _files(path)
    largest = max(files, key=lambda file: len(files[file]))
    largest.write_bytes(bytes(len(files[largest])))
    report = regrow.protect.repair(path)
    assert not report
    assert {finding.kind for finding in report.lost} == {"corrupt"}
    assert str(largest) in {finding.file for finding in report.lost}
    assert "lost" in str(report)
    with pytest.raises(regrow.errors.CorruptError):
        regrow.load(path)
    assert regrow.protect.repair(path, from_=other).is_sound
    assert _files(path) == files


def test_what_was_converted_can_be_healed(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", TREE)
    target = tmp_path / "y.safetensors"
    regrow.convert(tmp_path / "x", target, layout="safetensors", parity="1/1")
    before = safetensors.numpy.load_file(target)
    target.unlink()
    assert regrow.protect.repair(target).is_sound
    after = safetensors.numpy.load_file(target)
    assert all(np.array_equal(before[name], after[name]) for name in before | after)


def test_orbax_and_safetensors_read_rebuilt_files(tmp_path: Path) -> None:
    path = tmp_path / "x"
    state = {"w": np.arange(3000, dtype=np.float32), "layers": [np.ones((3, 4), np.int16), {"n": 7}], "name": "regrown"}
    regrow.save(path, state)
    documents = [file for file in _files(path) if file.suffix != ".safetensors"]
    assert len(documents) >= 6
    record, metadata = path / "regrow.json", path / "_METADATA"
    for lost in [documents[:1], documents[1:2], documents[:-1], [record], [record, metadata]]:
        for file in lost:
            file.unlink()
        report = regrow.protect.repair(path)
        assert report.is_sound, report
        made = {Path(file.path).name for file in report.recovered}
        assert made >= {file.name for file in lost if file.parent.name != "d"}
        assert str(regrow.load(path)) == str(state)
        restored = ocp.PyTreeCheckpointer().restore(path)
        assert np.array_equal(restored["w"], state["w"])
        assert np.array_equal(restored["layers"][0], np.ones((3, 4)))
        assert restored["name"] == "regrown"
        assert np.array_equal(safetensors.numpy.load_file(path / "model.safetensors")["w"], state["w"])
        documents = [file for file in _files(path) if file.suffix != ".safetensors"]


def test_orbax_reads_its_own_checkpoint_whose_root_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "x"
    state = {"a": {"w": np.arange(3000, dtype=np.float32)}, "b": np.arange(7)}
    ocp.PyTreeCheckpointer().save(path, state)
    shutil.rmtree(path / "d")
    (path / "manifest.ocdbt").unlink()
    (path / "_METADATA").unlink()
    check = regrow.protect.repair(path, check=True)
    assert not (path / "manifest.ocdbt").exists()
    assert check.recovered
    report = regrow.protect.repair(path)
    assert report.is_sound, report
    assert any("rebuilt from the names" in file.how and file.is_guess for file in report.recovered)
    restored = ocp.PyTreeCheckpointer().restore(path)
    assert np.array_equal(restored["a"]["w"], state["a"]["w"])
    assert np.array_equal(restored["b"], state["b"])


def test_refusals(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", TREE)
    assert "nothing to do" in str(regrow.protect.repair(tmp_path / "x"))
    with pytest.raises(regrow.errors.InvalidArgumentError, match="ratio is not valid"):
        regrow.protect.add_parity(tmp_path / "x", "2/1")
    with pytest.raises(regrow.errors.NotFoundError):
        regrow.protect.repair(tmp_path / "y")
    assert not regrow.protect.add_parity(tmp_path / "x", remove=True).has_changed


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "x"
    regrow.save(path, TREE)

    def command(*arguments: str | Path) -> tuple[int, str]:
        ran = subprocess.run([sys.executable, "-m", "regrow", *arguments], capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout + ran.stderr

    assert command("parity", path, "--ratio", "1/8")[0] == 0
    files = _files(path)
    largest = max(files, key=lambda file: len(files[file]))
    largest.write_bytes(files[largest][:-100])
    assert command("verify", path)[0] == 1
    code, said = command("repair", path, "--check")
    assert code == 1
    assert largest.name in said
    code, said = command("repair", path)
    assert code == 0, said
    assert "1 file healed" in said
    assert command("verify", path)[0] == 0
    assert _files(path) == files
    largest.write_bytes(b"")
    code, said = command("repair", path)
    assert code == 1
    assert "lost" in said
    assert command("parity", path, "--ratio", "1")[0] == 2

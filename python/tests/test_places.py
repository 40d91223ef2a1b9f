"""Where checkpoints are saved to and read from: URLs of unknown schemes are refused, half-named
pairs are found.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow
import regrow.equinox
import regrow.flax.checkpoints
import regrow.pytree
import regrow.safetensors
import regrow.safetensors.numpy
import regrow.trak
from regrow import _native

TREE = {"w": np.arange(6, dtype=np.float32)}
OTHER = {"w": np.arange(9, dtype=np.float64) + 0.5}
TRAK = {"JL dimension": 4, "JL matrix type": "normal", "train set size": 3}

Call = Callable[[Any], Any]

SAVES: dict[str, Call] = {
    **{f"save {name}": lambda path, name=name: regrow.save(path, TREE, layout=name) for name in _native.LAYOUTS},
    "save_async": lambda path: regrow.save_async(path, TREE).result(),
    "AsyncSaver": lambda path: regrow.jobs.AsyncSaver().save(path, TREE),
    "base": lambda path: regrow.save("elsewhere", TREE, base=path),
    "convert to": lambda path: regrow.convert("sound", path),
    "copy to": lambda path: regrow.copy("sound", path),
    "safetensors": lambda path: regrow.safetensors.numpy.save_file(TREE, path),
    "equinox": lambda path: regrow.equinox.tree_serialise_leaves(path, TREE),
    "pytree": lambda path: regrow.pytree.model_save(TREE, path),
    "flax": lambda path: regrow.flax.checkpoints.save_checkpoint(path, TREE, 1),
    "flax multiprocess": lambda path: regrow.flax.checkpoints.save_checkpoint_multiprocess(path, TREE, 1),
    "trak": lambda path: regrow.trak.MmapSaver(path, TRAK, 3, 4),
}
LOADS: dict[str, Call] = {
    "open": regrow.open,
    "load": regrow.load,
    "load like": lambda path: regrow.load(path, TREE),
    "verify": regrow.verify,
    "overview": regrow.overview,
    "convert from": lambda path: regrow.convert(path, "elsewhere"),
    "copy from": lambda path: regrow.copy(path, "elsewhere"),
    "remove": regrow.remove,
    "list_checkpoints": regrow.list_checkpoints,
    "dry run": lambda path: regrow.convert("sound", path, dry_run=True),
    "safetensors": regrow.safetensors.numpy.load_file,
    "safe_open": lambda path: regrow.safetensors.safe_open(path, framework="numpy").__enter__().keys(),
    "equinox": lambda path: regrow.equinox.tree_deserialise_leaves(path, TREE),
    "pytree": regrow.pytree.model_load,
    "flax": lambda path: regrow.flax.checkpoints.restore_checkpoint(path, TREE),
    "flax latest": regrow.flax.checkpoints.latest_checkpoint,
    "flax steps": regrow.flax.checkpoints.available_steps,
    "trak repair": regrow.trak.repair,
}


@pytest.mark.parametrize("address", ["hdfs://host/x", "sftp://host/x", Path("gs://bucket/x"), Path("memory://name/x")])
@pytest.mark.parametrize(
    "call", [*SAVES.values(), *LOADS.values()], ids=[*SAVES, *(f"{name} (load)" for name in LOADS)]
)
def test_addresses_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, address: str | Path
) -> None:
    monkeypatch.chdir(tmp_path)
    regrow.save("sound", TREE)
    scheme = str(address).split(":")[0]
    # The drop-in for safetensors has one class for all that is wrong, as the original.
    refused = (regrow.errors.UnsupportedError, regrow.safetensors.SafetensorError)
    with pytest.raises(refused, match=f"scheme {scheme}://"):
        call(address)
    assert [path.name for path in tmp_path.iterdir()] == ["sound"]


def test_a_folder_of_such_a_name_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    regrow.save("./gs:/x", TREE)
    assert (tmp_path / "gs:" / "x" / "regrow.json").is_file()
    assert np.array_equal(regrow.load("./gs:/x")["w"], TREE["w"])


@pytest.mark.parametrize("moves", [1, 2, 3])
@pytest.mark.parametrize("suffixes", [(".data", ".manifest"), (".d", ".m")])
def test_a_pair_whose_save_was_killed_loads(tmp_path: Path, suffixes: tuple[str, str], moves: int) -> None:
    stem = tmp_path / "model"
    named = dict(zip(("data_suffix", "manifest_suffix"), suffixes, strict=True))
    data, manifest = (tmp_path / f"model{suffix}" for suffix in suffixes)
    # A save that died after so many of its moves: old manifest, old data aside; new data, new
    # manifest in. Under its own name only when all saves are done: each removes what others have
    # left.
    staged, kept = tmp_path / "model.orbax-checkpoint-tmp-1-0123456789abcdef", tmp_path / "kept"
    for name in (".regrow-replaced", ".regrow-0", ".regrow-1"):
        (kept / name).mkdir(parents=True)
    regrow.pytree.model_save(OTHER, stem, **named)
    data.rename(kept / ".regrow-0" / data.name)
    manifest.rename(kept / ".regrow-1" / manifest.name)
    regrow.pytree.model_save(TREE, stem, **named)
    kept.rename(staged)
    steps = [
        lambda: manifest.rename(staged / ".regrow-replaced" / manifest.name),
        lambda: data.rename(staged / ".regrow-replaced" / data.name),
        lambda: (staged / ".regrow-0" / data.name).rename(data),
    ]
    for step in steps[:moves]:
        step()
    before = sorted(tmp_path.rglob("*"))
    for mmapped in (True, False):
        assert np.array_equal(regrow.pytree.model_load(stem, mmapped, **named)["w"], OTHER["w"])
    if suffixes == (".data", ".manifest"):
        for path in (stem, data, manifest):
            assert np.array_equal(regrow.load(path)["w"], OTHER["w"]), path
        assert regrow.verify(stem).ok
    assert sorted(tmp_path.rglob("*")) == before, "reading changes nothing"
    regrow.pytree.model_save(TREE, stem, **named)
    assert np.array_equal(regrow.pytree.model_load(stem, **named)["w"], TREE["w"])
    assert sorted(tmp_path.iterdir()) == sorted([data, manifest])


def test_a_file_beyond_the_limit_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import resource, sys, numpy, regrow\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "try: regrow.save(sys.argv[1], {'w': numpy.zeros(1 << 20)})\n"
        "except regrow.errors.StorageFullError as error: sys.exit(7 if 'ulimit' in str(error) else 1)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] in (resource.RLIM_INFINITY, -1)
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path / "x")], check=False)
    assert ended.returncode == 7
    assert list(tmp_path.iterdir()) == []

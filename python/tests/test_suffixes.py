"""The suffix of a path chooses the layout of a save, and no folder has the name of a file."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import equinox
import flax.serialization
import numpy as np
import pytest
import safetensors.numpy

import regrow

TREE = {"b": np.arange(6, dtype=np.float32).reshape(2, 3)}
ONE = np.arange(6, dtype=np.float32)

READ_BY: dict[str, tuple[object, Callable[[Path], object]]] = {
    "safetensors": (TREE, lambda path: safetensors.numpy.load_file(path)["b"]),
    "npz": (TREE, lambda path: np.load(path)["b"]),
    "npy": (ONE, np.load),
    "msgpack": (TREE, lambda path: flax.serialization.msgpack_restore(path.read_bytes())["b"]),
    "eqx": (TREE, lambda path: equinox.tree_deserialise_leaves(path, TREE)["b"]),
}

OTHERS = [
    "pt",
    "pth",
    "bin",
    "ckpt",
    "h5",
    "hdf5",
    "keras",
    "gguf",
    "onnx",
    "tflite",
    "pkl",
    "joblib",
    "zip",
    "tar",
    "gz",
]


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    shell = [sys.executable, "-m", "regrow", *map(str, arguments)]
    return subprocess.run(shell, capture_output=True, text=True, check=False)


def saved(path: Path, tree: object, way: str, **options: object) -> None:
    if way == "save":
        regrow.save(path, tree, **options)
    elif way == "save_async":
        regrow.save_async(path, tree, **options).result()
    else:
        source = path.parent / "source"
        regrow.save(source, tree, overwrite=True)
        if way == "convert":
            regrow.convert(source, path, **options)
        else:
            layout = ["--layout", options["layout"]] if "layout" in options else []
            done = command("convert", source, path, *layout)
            if done.returncode:
                raise regrow.RegrowError(done.stderr)


WAYS = ["save", "save_async", "convert", "command"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("suffix", READ_BY)
def test_a_suffix_chooses_one_file_that_its_own_tool_reads(tmp_path: Path, suffix: str, way: str) -> None:
    tree, read = READ_BY[suffix]
    path = tmp_path / f"x.{suffix}"
    saved(path, tree, way)
    assert path.is_file()
    want = tree if isinstance(tree, np.ndarray) else tree["b"]
    np.testing.assert_array_equal(read(path), want)
    np.testing.assert_array_equal(np.asarray(regrow.load(path)) if tree is ONE else regrow.load(path)["b"], want)


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_regrow_does_not_write_is_refused(tmp_path: Path, way: str) -> None:
    for suffix in OTHERS if way != "command" else ["pt"]:
        path = tmp_path / f"x.{suffix}"
        with pytest.raises(regrow.RegrowError, match=rf"does not write \.{suffix} files"):
            saved(path, TREE, way)
        assert not path.exists()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", ["regrow", "orbax"])
def test_no_layout_makes_a_folder_under_the_name_of_a_file(tmp_path: Path, layout: str, way: str) -> None:
    for suffix in [*READ_BY, *OTHERS] if way != "command" else ["npz", "pt"]:
        path = tmp_path / f"x.{suffix}"
        with pytest.raises(regrow.RegrowError, match="writes a folder"):
            saved(path, TREE, way, layout=layout)
        assert not path.exists()


def test_items_are_no_file(tmp_path: Path) -> None:
    for save in (regrow.save_items, regrow.save_items_async):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="writes a folder"):
            save(tmp_path / "x.safetensors", {"a": TREE})
    assert not list(tmp_path.iterdir())


def test_a_layout_that_makes_one_file_may_have_another_suffix(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x.bin", TREE, layout="flax")
    regrow.save(tmp_path / "x.ckpt", TREE, layout=regrow.layouts.Safetensors(one_file=True))
    assert (tmp_path / "x.bin").is_file() and (tmp_path / "x.ckpt").is_file()


@pytest.mark.parametrize("name", ["run", "step_1.5", "checkpoint_7", "a.npz.d", "npz"])
def test_any_other_name_is_a_folder(tmp_path: Path, name: str) -> None:
    regrow.save(tmp_path / name, TREE)
    assert regrow.open(tmp_path / name).layout == "regrow" and (tmp_path / name).is_dir()


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    regrow.save("~/a", TREE)
    regrow.save_async(Path("~/b"), TREE).result()
    regrow.convert("~/a", "~/c.safetensors")
    regrow.save_items("~/items", {"state": TREE})
    assert command("convert", "~/a", "~/d").returncode == 0
    with regrow.Manager("~/runs") as steps:
        steps.save(1, TREE)
    assert sorted(path.name for path in home.iterdir()) == ["a", "b", "c.safetensors", "d", "items", "runs"]
    assert not list(here.iterdir())
    for name in ("a", "b", "c.safetensors", "d", "runs"):
        assert list(regrow.load(f"~/{name}")) == ["b"]
        assert regrow.verify(f"~/{name}").ok
    assert (regrow.Location("~") / "a").url == str(home / "a")
    assert len(regrow.list_checkpoints("~")) == 6
    regrow.copy("~/a", "~/e")
    regrow.remove("~/e")
    assert not (home / "e").exists()


def test_a_folder_called_tilde_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    regrow.save("./~/a", TREE)
    assert (tmp_path / "~" / "a").is_dir()


def test_the_signature_says_that_no_layout_is_the_default() -> None:
    for function in (regrow.save, regrow.save_async, regrow.convert):
        assert inspect.signature(function).parameters["layout"].default is None

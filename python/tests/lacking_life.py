"""What a user does with checkpoints, on a file system that lacks a call: one line of JSON for each
thing that fails.

    python lacking_life.py SHIM FOLDER mmap=19 chmod=1 ...     # `none` for a file system that lacks nothing

Each lack has a process of its own: once a process lacks a call, it stays so.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import logging
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import flax
import numpy as np
import orbax.checkpoint as originals
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import regrow
import regrow.safetensors.numpy
from regrow import _native, orbax, pytree, trak
from regrow import equinox as eqx_io
from regrow import flax as flax_io
from regrow import safetensors as safetensors_io
from regrow.flax import checkpoints
from regrow.orbax import v1

FIXTURES = Path(__file__).parents[2] / "fixtures"

OTHER_TOOLS = ("torch/training.pt", "torch/legacy_training.pt", "torch/dcp_sharded")

Do = Callable[[Path], None]
LAYOUTS: dict[str, dict[str, Any]] = {
    "regrow": {},
    "zstd": {"compression": "zstd"},
    "orbax": {"layout": "orbax"},
    "folders": {"layout": regrow.layouts.Orbax(ocdbt=False)},
    "x.safetensors": {"layout": "safetensors"},
    "sharded": {"layout": "safetensors"},
    "pair": {"layout": "pytree_data"},
    "npy": {"layout": "npy"},
    "x.npz": {"layout": "npy"},
    "x.msgpack": {"layout": "flax"},
    "x.eqx": {"layout": "equinox"},
}
# More than one direct write, one that is not, and more files than are synced one by one.
TREE = {"big": np.arange(300_000, dtype=np.float32).reshape(300, 1000), "small": np.arange(10, dtype=np.int16)}
MANY = {f"leaf_{at}": np.full(3, at, np.int32) for at in range(70)}
OTHER = {name: value + 1 for name, value in TREE.items()}


def same(found: Any, tree: Any) -> None:
    assert set(found) == set(tree), (set(found), set(tree))
    for name, value in tree.items():
        assert np.asarray(found[name]).tobytes() == value.tobytes(), f"other values of {name}"


def in_layout(name: str) -> Iterator[tuple[str, Do]]:
    """All operations on a checkpoint of one layout, in order: each works on the result of the one
    before.
    """
    options = LAYOUTS[name]

    def at(folder: Path) -> Path:
        return folder / name

    def save(folder: Path) -> None:
        at(folder).parent.mkdir(exist_ok=True)
        regrow.save(at(folder), OTHER, **options)

    def overwrite(folder: Path) -> None:
        regrow.save(at(folder), TREE, overwrite=True, **options)

    def load(folder: Path) -> None:
        same(regrow.load(at(folder)), TREE)

    def load_in_other_ways(folder: Path) -> None:
        like = {name: np.empty_like(value) for name, value in TREE.items()}
        same(regrow.load(at(folder), options=regrow.Options(mmap=True)), TREE)
        same(regrow.load_into(at(folder), like), TREE)
        same(regrow.load(at(folder), like=like), TREE)
        same(regrow.load(at(folder), only="small"), {"small": TREE["small"]})
        assert regrow.load(at(folder), cast={"big": "float64"})["big"].dtype == np.float64
        same(regrow.load(at(folder), options=regrow.Options(salvage=True)), TREE)

    def slices(folder: Path) -> None:
        opened = regrow.open(at(folder))
        opened.overview()
        assert np.array_equal(opened["big"][10:290:7, 3:5], TREE["big"][10:290:7, 3:5])
        same({key: leaf[...] for key, leaf in regrow.open(at(folder), options=regrow.Options(mmap=True)).items()}, TREE)

    def verify(folder: Path) -> None:
        assert regrow.verify(at(folder)).ok
        assert regrow.diff(at(folder), TREE).equal

    def copy(folder: Path) -> None:
        target = folder / "copies" / name
        regrow.copy(at(folder), target)
        same(regrow.load(target), TREE)
        regrow.copy(at(folder), target, overwrite=True)

    def convert(folder: Path) -> None:
        regrow.convert(at(folder), folder / f"{name}_converted", compression="zstd")
        same(regrow.load(folder / f"{name}_converted"), TREE)
        regrow.convert(folder / f"{name}_converted", at(folder), overwrite=True, **options)

    def protect(folder: Path) -> None:
        regrow.protect.seal(at(folder))
        signed = regrow.protect.sign(at(folder), folder / "key.pem")
        same(regrow.load(at(folder)), TREE)
        same(regrow.load(at(folder), options=regrow.Options(trusted_keys=signed.signers)), TREE)
        assert regrow.verify(at(folder)).ok

    def repair(folder: Path) -> None:
        target = folder / "repaired" / name
        regrow.save(target, TREE, parity="1/4", **options)
        files = target.rglob("*") if target.is_dir() else target.parent.glob(f"{name}*")
        damaged = max((path for path in files if path.is_file() and ".parity." not in path.name), key=size)
        good = damaged.read_bytes()
        damaged.write_bytes(good[:5000] + bytes(50) + good[5050:])
        assert regrow.protect.repair(target).is_sound and damaged.read_bytes() == good
        assert regrow.protect.repair(target, from_=at(folder)).is_sound

    def background(folder: Path) -> None:
        regrow.save_async(folder / "later" / name, TREE, **options).result()
        same(regrow.load(folder / "later" / name), TREE)

    def remove(folder: Path) -> None:
        regrow.remove(at(folder))
        assert not list(folder.glob(f"{name}.*")), list(folder.glob(f"{name}*"))

    steps = [save, overwrite, load, load_in_other_ways, slices, verify, copy, convert, protect, repair, background]
    for step in (*steps, remove):
        yield f"{name}: {step.__name__}", step


def size(path: Path) -> int:
    return path.stat().st_size


def with_base(folder: Path) -> None:
    regrow.save(folder / "base_0", TREE)
    regrow.save(folder / "base_1", {**TREE, "small": OTHER["small"]}, base=folder / "base_0")
    same(regrow.load(folder / "base_1"), {**TREE, "small": OTHER["small"]})


def many_files(folder: Path) -> None:
    regrow.save(folder / "many", MANY, layout="npy")
    regrow.save(folder / "many", MANY, layout="npy", overwrite=True)
    same(regrow.load(folder / "many"), MANY)


def other_owner_and_mode(folder: Path) -> None:
    """Of a checkpoint that is replaced: where modes cannot be changed, the new one may be more
    private.
    """
    regrow.save(folder / "mode", OTHER)
    before = (folder / "mode").stat().st_mode
    regrow.save(folder / "mode", TREE, overwrite=True)
    assert (folder / "mode").stat().st_mode & ~before == 0
    same(regrow.load(folder / "mode"), TREE)


def items(folder: Path) -> None:
    given = {"state": TREE, "config": regrow.Json({"a": 1}), "words": regrow.Files({"words": b"some"})}
    for overwrite in (False, True):
        regrow.save_items(folder / "items", given, metrics={"loss": 1.0}, overwrite=overwrite)
    found = regrow.load_items(folder / "items")
    same(found["state"], TREE)
    assert found["config"] == {"a": 1}, found


def manager(folder: Path) -> None:
    with regrow.Manager(folder / "run", keep=2) as steps:
        for step in range(4):
            steps.save(step, TREE, metrics={"loss": 1.0 - step})
        steps.wait()
        same(steps.restore(), TREE)
    assert len(regrow.list_checkpoints(folder / "run")) == 2
    regrow.remove(folder / "run" / "2")
    same(regrow.load(folder / "run"), TREE)


def orbax_checkpointer(folder: Path) -> None:
    checkpointer = orbax.PyTreeCheckpointer()
    checkpointer.save(folder / "orbax_0", OTHER)
    checkpointer.save(folder / "orbax_0", TREE, force=True)
    same(checkpointer.restore(folder / "orbax_0"), TREE)
    same(originals.PyTreeCheckpointer().restore(folder / "orbax_0"), TREE)
    with orbax.AsyncCheckpointer(orbax.StandardCheckpointHandler()) as background:
        background.save(folder / "orbax_1", args=orbax.args.StandardSave(TREE))


def orbax_manager(folder: Path) -> None:
    options = orbax.CheckpointManagerOptions(max_to_keep=2)
    with orbax.CheckpointManager(folder / "managed", options=options) as steps:
        for step in range(4):
            save = orbax.args.Composite(state=orbax.args.StandardSave(TREE), data=orbax.args.JsonSave({"at": step}))
            steps.save(step, args=save)
        steps.wait_until_finished()
        assert sorted(steps.all_steps()) == [2, 3], steps.all_steps()
        found = steps.restore(
            3, args=orbax.args.Composite(state=orbax.args.StandardRestore(), data=orbax.args.JsonRestore())
        )
        same(found.state, TREE)
        steps.delete(2)
        assert list(steps.all_steps()) == [3]


def orbax_v1(folder: Path) -> None:
    for tree in (OTHER, TREE):
        v1.save(folder / "v1", tree, overwrite=True)
    same(v1.load(folder / "v1"), TREE)
    v1.save_checkpointables(folder / "v1_items", {"a": TREE})
    with v1.training.Checkpointer(folder / "v1_run") as steps:
        for step in range(3):
            steps.save(step, TREE)
        same(steps.load(2), TREE)


def flax_steps(folder: Path) -> None:
    for legacy in (True, False):
        flax.config.update("flax_use_orbax_checkpointing", not legacy)
        place = folder / f"flax_{legacy}"
        for step in range(3):
            checkpoints.save_checkpoint(str(place), TREE, step, keep=2)
        checkpoints.save_checkpoint(str(place), TREE, 2, keep=2, overwrite=True)
        same(checkpoints.restore_checkpoint(str(place), None), TREE)
    data = flax_io.to_bytes(TREE)
    same(flax_io.from_bytes(None, data), TREE)


def safetensors_files(folder: Path) -> None:
    path = folder / "dropin.safetensors"
    for tree in (OTHER, TREE):
        safetensors_io.numpy.save_file(tree, path)
    same(safetensors_io.numpy.load_file(path), TREE)
    with safetensors_io.safe_open(path, framework="np") as file:
        assert np.array_equal(file.get_slice("big")[3:5], TREE["big"][3:5])
        same({name: file.get_tensor(name) for name in file.keys()}, TREE)  # noqa: SIM118


def equinox_files(folder: Path) -> None:
    for tree in (OTHER, TREE):
        eqx_io.tree_serialise_leaves(folder / "dropin.eqx", tree)
    like = {name: np.zeros_like(value) for name, value in TREE.items()}
    same(eqx_io.tree_deserialise_leaves(folder / "dropin.eqx", like), TREE)
    same(eqx.tree_deserialise_leaves(folder / "dropin.eqx", like), TREE)


def data_and_manifest(folder: Path) -> None:
    for tree in (OTHER, TREE):
        pytree.model_save(tree, folder / "model")
    for mode in ("r", "c"):
        same(pytree.model_load(folder / "model", mode=mode), TREE)
    same(pytree.model_load(folder / "model", mmapped=False), TREE)


def trak_store(folder: Path) -> None:
    metadata = {"JL dimension": 4, "JL matrix type": "rademacher", "train set size": 6}
    for first in range(0, 6, 3):
        saver = trak.MmapSaver(folder / "trak", metadata, 6, 4, first > 0, logging.CRITICAL, True)
        saver.load_current_store(0) if first else saver.register_model_id(0, False)
        store = saver.current_store
        rows = list(range(first, first + 3))
        store["grads"][rows] = first + 1
        store["out_to_loss"][rows] = 1
        store["is_featurized"][rows] = 1
        saver.serialize_current_model_id_metadata()
        saver.flush()
        del saver, store
    saver = trak.MmapSaver(folder / "trak", metadata, 6, 4, True, logging.CRITICAL, True)
    saver.load_current_store(0)
    assert np.asarray(saver.current_store["grads"])[:, 0].tolist() == [1, 1, 1, 4, 4, 4]
    saver.init_experiment("e", 2, 0)
    assert regrow.verify(folder / "trak").ok


def other_tools_files(folder: Path) -> None:
    for name in OTHER_TOOLS:
        regrow.load(folder / name)
        assert regrow.verify(folder / name).ok


def command(folder: Path) -> None:
    regrow.save(folder / "shell", TREE)
    (folder / "shell.orbax-checkpoint-tmp-1-0123456789abcdef").mkdir()
    for line in ("ls", "info", "verify", "doctor", "rm --unfinished --yes --force", "rm --yes"):
        target = folder if line == "doctor" else folder / "shell"
        code = _native.command(["regrow", *line.split(), str(target)], list)
        assert code == 0, (line, code)


def operations() -> Iterator[tuple[str, Do]]:
    for name in LAYOUTS:
        yield from in_layout(name)
    for do in (
        with_base,
        many_files,
        other_owner_and_mode,
        items,
        manager,
        orbax_checkpointer,
        orbax_manager,
        orbax_v1,
        flax_steps,
        safetensors_files,
        equinox_files,
        data_and_manifest,
        trak_store,
        other_tools_files,
        command,
    ):
        yield do.__name__, do


def attempt(lack: str, name: str, do: Do, folder: Path) -> None:
    said = io.StringIO()
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(said):
            warnings.simplefilter("always")
            do(folder)
        told = [str(warning.message) for warning in caught if "regrow" in type(warning.message).__module__]
        if told:
            print(json.dumps({"lack": lack, "name": name, "warned": told}), flush=True)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[1:]
        line = place[0].line if place else ""
        failure = {"lack": lack, "name": name, "error": type(error).__name__, "text": str(error), "line": line}
        print(json.dumps(failure), flush=True)


def main(shim: str, root: Path, lacks: list[str]) -> None:
    for at, lack in enumerate(lacks):
        if os.fork():
            _, status = os.wait()
            if status:
                print(json.dumps({"lack": lack, "name": "all", "error": "ended", "text": str(status)}), flush=True)
            continue
        folder = root / f"{at}_{lack}"
        folder.mkdir()
        key = Ed25519PrivateKey.generate()
        form = serialization.PrivateFormat.PKCS8
        (folder / "key.pem").write_bytes(
            key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        )
        for name in OTHER_TOOLS:
            (folder / name).parent.mkdir(exist_ok=True)
            copy = shutil.copytree if (FIXTURES / name).is_dir() else shutil.copy
            copy(FIXTURES / name, folder / name)
        if lack != "none":
            error = ctypes.CDLL(shim).lack_calls(str(folder).encode(), lack.replace("+", " ").encode())
            assert error == 0, os.strerror(error)
        for name, do in operations():
            attempt(lack, name, do, folder)
        failed = ctypes.CDLL(shim).lacked_calls()
        print(json.dumps({"lack": lack, "count": failed}), flush=True)
        sys.stdout.flush()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3:])

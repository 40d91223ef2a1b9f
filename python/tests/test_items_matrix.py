"""Every kind of item under every operation: what guide/items.md promises.

    kind       pytree, Json, Files, metrics, metadata, and an item that Orbax wrote with a handler of a user's own
    operation  save, load, verify, diff, convert, cp, seal, sign, parity, repair, salvage, steps --verify

A kind says where its bytes are, how its value is read and what else its value may be; an operation
is a law of these. A cell that does not hold is in `LIMITS`, and in docs/limits.md.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orbax.checkpoint as ocp
import pytest

import regrow

KEYS = Path(__file__).parents[2] / "fixtures" / "keys"
COMMAND = [sys.executable, "-m", "regrow"]

RESERVED = [
    "_CHECKPOINT_METADATA", "_METADATA", "_sharding", "_strings.json", ".zarray", ".zattrs", ".metadata",
    "array.npy", "arrays.npz", "checkpoint", "checkpoint.eqx", "checkpoint.msgpack", "commit_success.txt",
    "config.json", "d/0", "data.json", "jax_random_key/x", "manifest.ocdbt", "metadata", "metadata.json", "metrics",
    "model.safetensors", "model.safetensors.index.json", "model.pt", "np_random_key/x", "ocdbt.process_0/x",
    "orbax.checkpoint", "process_0.json", "proto.pbtxt", "pytorch_model.bin", "regrow-structure.json",
    "regrow.items.json", "regrow.json", "regrow.process_0.json", "x.data", "x.manifest", "zarr.json",
]  # fmt: skip
"""Names by which some layout knows its own files."""

FILES = {name: f"{number}".encode() for number, name in enumerate(RESERVED)}


class Handler(ocp.CheckpointHandler):
    """A user's own: it writes what the iterators of TensorFlow write."""

    def save(self, directory: Any, args: Any) -> None:
        (directory / "checkpoint").write_text(args.item)

    def restore(self, directory: Any, args: Any = None) -> Any:
        return (directory / "checkpoint").read_text()


@ocp.args.register_with_handler(Handler, for_save=True, for_restore=True)
class HandlerArgs(ocp.args.CheckpointArgs):
    def __init__(self, item: Any = None) -> None:
        self.item = item


def state(width: int = 4) -> dict[str, Any]:
    return {"w": np.arange(width * 100, dtype=np.float32), "step": 7}


def save(path: Path, changed: str = "", without: str = "", **options: Any) -> None:
    """A checkpoint of all kinds; one of them with another value, or not there at all."""
    items: dict[str, Any] = {
        "state": state() if changed != "state" else {"w": state()["w"] + 1, "step": 7},
        "config": regrow.Json({"width": 1025 if changed == "config" else 1024}),
        "iterator": regrow.Files(FILES | ({"checkpoint": b"another"} if changed == "iterator" else {})),
    }
    metrics = {"loss": 0.75 if changed == "metrics" else 0.25}
    options["metadata"] = {"commit": 2 if changed == "metadata" else 1}
    items.pop(without, None)
    if without == "metadata":
        options.pop("metadata")
    regrow.save_items(path, items, metrics=None if without == "metrics" else metrics, **options)


def save_foreign(path: Path, changed: str = "", without: str = "", **options: Any) -> None:
    """The same by Orbax, with an item of a handler of its own."""
    items: dict[str, Any] = {"state": ocp.args.PyTreeSave(state())}
    if without != "iterator":
        items["iterator"] = HandlerArgs("another" if changed else "model_checkpoint_path: 1")
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(path.absolute(), ocp.args.Composite(**items))


def files_of(path: Path) -> dict[str, bytes]:
    loaded = regrow.load_items(path, ["iterator"])["iterator"]
    assert isinstance(loaded, regrow.Files) and isinstance(loaded.source, dict)
    return dict(loaded.source)


def tree_of(path: Path) -> str:
    loaded = regrow.load(path, at="state")
    return repr((loaded["w"].tobytes(), loaded["w"].dtype, loaded["step"]))


class Kind(NamedTuple):
    """A kind of item."""

    item: str
    """By which name `save` takes it."""
    file: str
    """A file of it, and some bytes in that, which mean something."""
    part: bytes
    read: Callable[[Path], Any]
    save: Callable[..., None] = save


KINDS = {
    "pytree": Kind("state", "state/model.safetensors", np.float32(399).tobytes(), tree_of),
    "json": Kind("config", "config/metadata", b"1024", lambda path: regrow.load(path, at="config")),
    "files": Kind("iterator", "iterator/checkpoint", FILES["checkpoint"], files_of),
    "metrics": Kind("metrics", "metrics/metrics", b"0.25", lambda path: regrow.open(path).metrics),
    "metadata": Kind("metadata", "_CHECKPOINT_METADATA", b'"commit": 1', lambda path: regrow.open(path).metadata),
    "foreign": Kind("iterator", "iterator/checkpoint", b"path: 1", files_of, save_foreign),
}

LIMITS = {
    # Orbax has no checksums, and only its handlers know what they write.
    ("foreign", "verify"), ("foreign", "repair"), ("foreign", "salvage"), ("foreign", "steps --verify"),
}  # fmt: skip


def flip(path: Path, kind: Kind) -> None:
    """Changes one digit, or one bit."""
    file = path / kind.file
    data = file.read_bytes()
    at = data.rindex(kind.part) + len(kind.part) - 1
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def lose(path: Path, kind: Kind) -> None:
    lost = path / kind.file if kind.item == "metadata" else path / kind.item
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()


def run(*args: Any) -> tuple[int, Any]:
    done = subprocess.run([*COMMAND, "--json", *map(str, args)], capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def refuses(kind: Kind, path: Path, good: Any) -> bool:
    """Whether the kind's reader says that something is wrong, instead of another value. Metrics
    are kept twice.
    """
    try:
        found = kind.read(path)
        return found is None or (kind.item == "metrics" and found == good)
    except regrow.RegrowError:
        return True


# ---- the operations -------------------------------------------------------------------


def saves(kind: Kind, path: Path) -> None:
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler(state=ocp.PyTreeCheckpointHandler())) as orbax:
        restored = orbax.restore(path.absolute(), ocp.args.Composite(state=ocp.args.PyTreeRestore()))
    assert np.array_equal(restored["state"]["w"], state()["w"])
    assert (path / kind.file).is_file()


def loads(kind: Kind, path: Path) -> None:
    good = kind.read(path)
    kind.save(path.parent / "other", kind.item)
    assert kind.read(path.parent / "other") != good
    # What is wrong with another item is no error of this one.
    for other in KINDS.values():
        if other.item == kind.item or other.save is not kind.save or other.item == "metadata":
            continue
        hurt = path.parent / f"without_{other.item}"
        shutil.copytree(path, hurt)
        (hurt / other.file).write_bytes(b"no such thing")
        assert kind.read(hurt) == good


def verifies(kind: Kind, path: Path) -> None:
    assert regrow.verify(path).ok
    good = kind.read(path)
    lost = shutil.copytree(path, path.parent / "lost")
    lose(lost, kind)
    assert not regrow.verify(lost).ok
    flip(path, kind)
    assert not regrow.verify(path).ok
    assert refuses(kind, path, good)


def differs(kind: Kind, path: Path) -> None:
    one, other, less = (path.parent / name for name in ("one", "other", "less"))
    kind.save(one)
    kind.save(other, kind.item)
    assert regrow.diff(path, one).equal
    assert not regrow.diff(path, other).equal
    if kind.item != "state":
        kind.save(less, without=kind.item)
        assert not regrow.diff(path, less).equal and not regrow.diff(less, path).equal
    lose(one, kind)
    with contextlib.suppress(regrow.RegrowError):
        assert not regrow.diff(path, one).equal


def copies(kind: Kind, path: Path) -> None:
    assert run("cp", path, path.parent / "copy")[0] == 0
    assert kind.read(path.parent / "copy") == kind.read(path)
    assert regrow.verify(path.parent / "copy").ok and run("ls", path.parent / "copy")[0] == 0


def seals(kind: Kind, path: Path) -> None:
    assert regrow.protect.seal(path).has_changed
    good = kind.read(path)
    if kind.save is save:
        kind.save(path.parent / "own", seal=True)
        assert (path.parent / "own" / "regrow.seal.json").is_file()
    flip(path, kind)
    assert not regrow.verify(path).ok and refuses(kind, path, good)


def signs(kind: Kind, path: Path) -> None:
    regrow.protect.sign(path, KEYS / "alice.pem")
    trusted = regrow.Options(trusted_keys=KEYS / "alice.pub.pem")
    assert regrow.verify(path, options=trusted).signer and regrow.verify(path, options=trusted).ok
    flip(path, kind)
    assert not regrow.verify(path, options=trusted).ok
    if kind.item in ("config", "state", "iterator"):
        with pytest.raises(regrow.RegrowError):
            regrow.load_items(path, [kind.item], options=trusted)


def heals_by_parity(kind: Kind, path: Path) -> None:
    good = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    regrow.protect.add_parity(path, "1/2")
    flip(path, kind)
    report = regrow.protect.repair(path)
    assert report.healed and report.is_whole
    assert all(file.read_bytes() == data for file, data in good.items())


def heals_by_copy(kind: Kind, path: Path) -> None:
    copy = shutil.copytree(path, path.parent / "copy")
    good = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    for damage in (flip, lose):
        damage(path, kind)
        report = regrow.protect.repair(path, from_=copy)
        assert report.healed and report.is_whole, damage
        assert all(file.read_bytes() == data for file, data in good.items()), damage


def salvages(kind: Kind, path: Path) -> None:
    kinds = {name: other for name, other in KINDS.items() if other.save is kind.save}
    good = {name: other.read(path) for name, other in kinds.items()}
    flip(path, kind)
    told: list[Any] = []
    loaded = regrow.load(path, options=regrow.Options(salvage=told.append))
    if kind.item in ("state", "config"):
        # Not a leaf of the others is lost.
        with pytest.raises(regrow.errors.CorruptError):
            regrow.load(path)
        assert [leaf for leaf in told[0].lost_paths if leaf.split("/")[0] != kind.item] == [] and told[0].lost
    assert loaded.keys() == {"state", "config"}
    for name, other in kinds.items():
        if other is not kind and "metadata" not in (kind.item, other.item):
            assert other.read(path) == good[name], name


def lists_steps(kind: Kind, path: Path) -> None:
    def states() -> list[str]:
        return [step["state"] for step in run("steps", path.parent, "--verify")[1]["steps"]]

    assert states() == ["committed"]
    lost = shutil.copytree(path, path.parent / "2")
    lose(lost, kind)
    flip(path, kind)
    assert states() == ["damaged", "damaged"]


def converts(kind: Kind, path: Path) -> None:
    for layout in ("regrow", "orbax"):
        target = path.parent / layout
        assert [loss for loss in regrow.convert(path, target, layout=layout).losses if loss.kind != "note"] == []
        assert kind.read(target) == kind.read(path)
        assert regrow.diff(path, target).equal and regrow.verify(target).ok
    if kind.item in ("iterator", "metrics"):
        # A file of arrays has no place for it.
        with pytest.raises(regrow.errors.UnsupportedError, match=kind.item):
            regrow.convert(path, path.parent / "x.npz")


OPERATIONS: dict[str, Callable[[Kind, Path], None]] = {
    "save": saves,
    "load": loads,
    "verify": verifies,
    "diff": differs,
    "convert": converts,
    "cp": copies,
    "seal": seals,
    "sign": signs,
    "parity": heals_by_parity,
    "repair": heals_by_copy,
    "salvage": salvages,
    "steps --verify": lists_steps,
}

CELLS = [(kind, operation) for kind in KINDS for operation in OPERATIONS if (kind, operation) not in LIMITS]


@pytest.mark.filterwarnings("ignore::regrow.errors.IncompleteCheckpointWarning")
@pytest.mark.parametrize(("kind", "operation"), CELLS, ids=[f"{kind}-{operation}" for kind, operation in CELLS])
def test_every_kind_of_item_holds_under_every_operation(kind: str, operation: str, tmp_path: Path) -> None:
    path = tmp_path / "1"
    KINDS[kind].save(path)
    OPERATIONS[operation](KINDS[kind], path)


def test_the_guide_lists_the_operations_and_the_exceptions() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "items.md").read_text()
    section = guide.partition("## What works with items\n")[2].partition("\n\n- ")[0]
    everything, _, exception = (" ".join(part.split()) for part in section.strip().partition("\n\n"))
    listed = everything.lower().partition(" work with every kind")[0].replace("`", "")
    assert listed.replace(" and ", ", ").split(", ") == list(OPERATIONS)
    assert {kind for kind, _ in LIMITS} == {"foreign"}
    limited = [operation for operation in OPERATIONS if ("foreign", operation) in LIMITS]
    assert f"{', '.join(limited[:-1])} and `{limited[-1]}` cannot check" in exception

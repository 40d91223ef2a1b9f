"""Checkpointables of v1 beside the original: handlers of one's own, objects that save
themselves, deletions.
"""

from __future__ import annotations

import contextvars
import dataclasses
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as originals
import pytest

from regrow.orbax import v1 as ours

theirs = originals.v1
MODULES = {"orbax": theirs, "regrow": ours}
PAIRS = [("orbax", "regrow"), ("regrow", "orbax"), ("regrow", "regrow")]
TREE = {"w": np.arange(6.0).reshape(2, 3), "step": 3}


@dataclasses.dataclass
class Words:
    """An object of one's own."""

    text: str


@dataclasses.dataclass
class Letters:
    """Another one, in the same files."""

    text: str


class WordsHandler:
    """Saves `Words` in a file; a class in the place of an object is a target."""

    kind: Any = Words

    async def save(self, directory: Any, checkpointable: Any) -> Any:
        text = checkpointable.text

        async def write() -> None:
            if text == "broken":
                raise OSError("the background has failed")
            (await directory.await_creation() / "words.txt").write_text(text)

        return write()

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Any:
        async def read() -> Any:
            return self.kind((directory / "words.txt").read_text())

        return read()

    async def metadata(self, directory: Any) -> Any:
        return self.kind

    def is_handleable(self, checkpointable: Any) -> bool:
        return type(checkpointable) is self.kind

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        return abstract_checkpointable is self.kind


class LettersHandler(WordsHandler):
    """The same for `Letters`."""

    kind = Letters


class LoudHandler(WordsHandler):
    """Another one for `Words`."""


class Counter:
    """An object that saves itself."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    async def save(self, directory: Any) -> Any:
        at = self.at

        async def write() -> None:
            (await directory.await_creation() / "at").write_text(str(at))

        return write()

    async def load(self, directory: Any) -> Any:
        async def read() -> None:
            self.at = int((directory / "at").read_text())

        return read()


def context(v1: Any, *handlers: Any, **by_name: Any) -> Any:
    """A context with handlers of one's own."""
    registry = v1.handlers.local_registry()
    for handler in handlers:
        registry.add(handler)
    for name, handler in by_name.items():
        registry.add(handler, checkpointable_name=name)
    made = v1.Context()
    made.checkpointables.registry = registry
    return made


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_handlers_of_ones_own(tmp_path: Path, writer: str, reader: str) -> None:
    """Each loads what the other has saved: by the handler that has saved it, by the target, by
    the name.
    """
    one, other = MODULES[writer], MODULES[reader]
    with context(one, WordsHandler, LettersHandler, config=one.handlers.JsonHandler):
        one.save_checkpointables(
            tmp_path / "x", {"a": Words("hi"), "state": TREE, "config": {"rate": 0.5}, "c": Counter(4)}
        )
    with context(other, WordsHandler, LettersHandler):
        loaded = other.load_checkpointables(tmp_path / "x", {"a": None, "state": None, "config": None})
        assert loaded["a"] == Words("hi") and loaded["config"] == {"rate": 0.5}
        assert loaded["state"]["step"] == 3 and loaded["state"]["w"].tolist() == TREE["w"].tolist()
        assert other.load_checkpointables(tmp_path / "x", {"a": Letters})["a"] == Letters("hi")
        assert other.checkpointables_metadata(tmp_path / "x").metadata["a"] is Words
        assert other.load(tmp_path / "x")["step"] == 3
        counter = other.load_checkpointables(tmp_path / "x", {"c": Counter()})["c"]
        assert counter.at == 4
        with pytest.raises(ValueError, match="StatefulCheckpointable"):
            other.load_checkpointables(tmp_path / "x")
    with context(other, WordsHandler, a=LettersHandler):
        assert other.load_checkpointables(tmp_path / "x", {"a": None})["a"] == Letters("hi")


@pytest.mark.parametrize("v1", MODULES.values(), ids=MODULES)
def test_registries(tmp_path: Path, v1: Any) -> None:
    registry = v1.handlers.local_registry(include_global_registry=False)
    assert registry.add(WordsHandler, checkpointable_name="a", secondary_typestrs=["an.old.Name"]) is registry
    assert registry.has("a") and not registry.has("b") and registry.get("a") is WordsHandler
    assert registry.get_all_entries() == [(WordsHandler, "a")]
    assert registry.get_secondary_typestrs(WordsHandler) == ["an.old.Name"]
    with pytest.raises(KeyError):
        registry.get("b")
    with pytest.raises(ValueError, match="already"):
        registry.add(LettersHandler, checkpointable_name="a")
    with pytest.raises(NotImplementedError):
        v1.Context().checkpointables.registry.add(WordsHandler)
    with pytest.raises(KeyError, match="valid handler"):
        v1.save_checkpointables(tmp_path / "x", {"a": Words("hi")})
    with pytest.raises(ValueError, match="None"):
        v1.save_checkpointables(tmp_path / "x", {"a": None})
    for name in ("", "metrics", "AUTO", "_CHECKPOINT_DELETION"):
        with pytest.raises(ValueError):
            v1.save_checkpointables(tmp_path / "x", {name: TREE})
    assert not list(tmp_path.iterdir())
    with context(v1, WordsHandler, LoudHandler, a=WordsHandler):
        v1.save_checkpointables(tmp_path / "x", {"a": Words("by name"), "b": Words("by the last that can")})
    handlers = json.loads((tmp_path / "x" / "_CHECKPOINT_METADATA").read_text())["item_handlers"]
    assert handlers["a"].endswith(".WordsHandler") and handlers["b"].endswith(".LoudHandler")


def test_a_handler_that_is_registered_globally(tmp_path: Path) -> None:
    entries = ours.handlers.global_registry().get_all_entries()
    try:
        assert ours.handlers.register_handler(WordsHandler) is WordsHandler
        ours.save_checkpointables_async(tmp_path / "x", {"a": Words("hi"), "tree": TREE}).result()
        assert ours.load_checkpointables(tmp_path / "x")["a"] == Words("hi")
        with pytest.raises(ValueError, match="already"):
            ours.handlers.register_handler(WordsHandler)
    finally:
        entries[:] = [entry for entry in entries if entry[0] is not WordsHandler]
    with pytest.raises(KeyError, match="valid handler"):
        ours.save_checkpointables(tmp_path / "y", {"a": Words("hi")})


BESIDE = pytest.mark.parametrize("tree", [{}, {"tree": TREE}], ids=["alone", "beside a pytree"])

OPTION: contextvars.ContextVar[str] = contextvars.ContextVar("option")


@dataclasses.dataclass
class Awaited:
    """An object whose handler writes it when it may."""

    may: threading.Event


class AwaitedHandler(WordsHandler):
    """Writes in the background, with the options of the call."""

    async def save(self, directory: Any, checkpointable: Any) -> Any:
        async def write() -> None:
            if not checkpointable.may.wait(30):
                raise TimeoutError("the save waits for its handler")
            (await directory.await_creation() / "words.txt").write_text(OPTION.get())

        return write()

    def is_handleable(self, checkpointable: Any) -> bool:
        return isinstance(checkpointable, Awaited)


@BESIDE
def test_handlers_write_in_the_background(tmp_path: Path, tree: dict[str, Any]) -> None:
    may = threading.Event()
    OPTION.set("of the call")
    with context(ours, AwaitedHandler):
        begun = ours.save_checkpointables_async(tmp_path / "x", {"a": Awaited(may), **tree})
        OPTION.set("of later")
        assert not begun.done() and not (tmp_path / "x").exists()
        may.set()
        begun.result()
        with ours.training.Checkpointer(tmp_path / "run") as checkpointer:
            may.clear()
            checkpointer.save_checkpointables_async(1, {"a": Awaited(may), **tree})
            assert checkpointer.is_saving_in_progress() and checkpointer.latest.step == 1
            assert not (tmp_path / "run" / "1").exists()
            may.set()
            checkpointer.wait()
            assert [found.step for found in checkpointer.checkpoints] == [1]
    assert (tmp_path / "x" / "a" / "words.txt").read_text() == "of the call"
    if tree:
        assert ours.load(tmp_path / "x", checkpointable_name="tree")["step"] == 3


class Nested(Counter):
    """An object that saves a checkpoint of its own in the background."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def save(self, directory: Any) -> Any:
        async def write() -> None:
            ours.save_async(self.path, TREE).result(timeout=20)

        return write()


def test_a_handler_may_save_in_the_background_itself(tmp_path: Path) -> None:
    ours.save_checkpointables_async(tmp_path / "x", {"a": Nested(tmp_path / "y"), "tree": TREE}).result()
    for name in "xy":
        assert ours.load(tmp_path / name)["step"] == 3


@BESIDE
def test_a_handler_that_fails_leaves_nothing(tmp_path: Path, tree: dict[str, Any]) -> None:
    with context(ours, WordsHandler):
        begun = ours.save_checkpointables_async(tmp_path / "x", {"a": Words("broken"), **tree})
        with pytest.raises(OSError, match="background has failed"):
            begun.result()
    assert not list(tmp_path.iterdir())


@BESIDE
def test_a_step_that_fails_is_told_once(tmp_path: Path, tree: dict[str, Any]) -> None:
    with context(ours, WordsHandler), ours.training.Checkpointer(tmp_path / "run") as checkpointer:
        checkpointer.save_checkpointables_async(1, {"a": Words("broken"), **tree})
        with pytest.raises(OSError, match="background has failed"):
            checkpointer.wait()
        begun = checkpointer.save_checkpointables_async(1, {"a": Words("broken"), **tree})
        with pytest.raises(OSError, match="background has failed"):
            begun.result()
        assert not checkpointer.checkpoints and not list((tmp_path / "run").iterdir())
        assert checkpointer.save_checkpointables(1, {"a": Words("well"), **tree})
        assert [found.step for found in checkpointer.checkpoints] == [1]


def test_messages_of_protocol_buffers(tmp_path: Path) -> None:
    from google.protobuf.struct_pb2 import Struct

    message = Struct()
    message["rate"] = 0.5
    ours.save_checkpointables(tmp_path / "x", {"config": message, "tree": TREE})
    for v1 in MODULES.values():
        assert v1.load_checkpointables(tmp_path / "x", {"config": Struct})["config"] == message
    with pytest.raises(ValueError, match="class of the message"):
        ours.load_checkpointables(tmp_path / "x", {"config": None})


# ---- deletions ------------------------------------------------------------------------


def saved(v1: Any, path: Path) -> dict[str, Any]:
    """A checkpoint of two checkpointables; what it says of itself."""
    v1.save_checkpointables(path, {"state": TREE, "optimizer": {"m": jnp.ones(3)}}, custom_metadata={"by": "me"})
    told: dict[str, Any] = json.loads((path / "_CHECKPOINT_METADATA").read_text())
    return told


@pytest.mark.parametrize(("writer", "deleter"), PAIRS)
def test_one_of_several_is_deleted(tmp_path: Path, writer: str, deleter: str) -> None:
    one, other = MODULES[writer], MODULES[deleter]
    path = tmp_path / "x"
    told = saved(one, path)
    assert other.delete(path, checkpointable_name="optimizer") is True
    del told["item_handlers"]["optimizer"]
    assert json.loads((path / "_CHECKPOINT_METADATA").read_text()) == told
    assert not (path / "optimizer").exists() and not (path / "_CHECKPOINT_DELETION").exists()
    assert other.delete_async(path, checkpointable_name="optimizer", missing_ok=True).result() is False
    for v1 in MODULES.values():
        assert list(v1.load_checkpointables(path)) == ["state"]
    with pytest.raises(FileNotFoundError):
        other.delete(path, checkpointable_name="optimizer")
    with pytest.raises(ValueError, match="final checkpointable"):
        other.delete(path, checkpointable_name="state")
    for name in ("", "..", "a/b", "metrics", "_CHECKPOINT_METADATA"):
        with pytest.raises(ValueError):
            other.delete(path, checkpointable_name=name)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ValueError, match="symlink"):
        other.delete(tmp_path / "link")
    for part in (tmp_path, path / "state"):
        with pytest.raises(other.errors.InvalidLayoutError):
            other.delete(part)
    assert other.delete(path) is True and not path.exists()
    assert other.delete(path, missing_ok=True) is False
    with pytest.raises(FileNotFoundError):
        other.delete(path)


@pytest.mark.parametrize("finisher", MODULES)
def test_a_deletion_that_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finisher: str) -> None:
    """What is half deleted is gone for all readers; nothing else may be done before the same
    deletion has ended.
    """
    path = tmp_path / "x"
    saved(ours, path)

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("interrupted")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", fails)
        with pytest.raises(OSError, match="interrupted"):
            ours.delete(path, checkpointable_name="optimizer")
    for v1 in MODULES.values():
        assert list(v1.load_checkpointables(path)) == ["state"]
        assert list(v1.checkpointables_metadata(path).metadata) == ["state"]
        with pytest.raises(v1.errors.DeletionInProgressError):
            v1.load(path, checkpointable_name="optimizer")
        with pytest.raises(v1.errors.DeletionInProgressError):
            v1.load_checkpointables(path, {"optimizer": None})
        with pytest.raises(v1.errors.DeletionInProgressError):
            v1.save(path, TREE, overwrite=True)
        with pytest.raises(v1.errors.DeletionRecoveryError):
            v1.delete(path, checkpointable_name="state")
    assert MODULES[finisher].delete(path, checkpointable_name="optimizer") is True
    assert not (path / "optimizer").exists() and not (path / "_CHECKPOINT_DELETION").exists()
    ours.save(path, TREE, overwrite=True)
    (path / "_CHECKPOINT_DELETION").write_text("{")
    with pytest.raises(ours.errors.DeletionRecoveryError):
        ours.load(path)
    assert ours.delete(path)

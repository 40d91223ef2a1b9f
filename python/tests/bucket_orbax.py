"""What `regrow.orbax` does in a bucket: for each kind of path that callers give.

class TestInMemory(OrbaxInBuckets):       # and a fixture `at`, where `at("x")` is a path
    pass
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import same_bits

from regrow import orbax as ocp
from regrow.orbax import v1
from regrow.orbax._paths import as_path

At = Callable[[str], Any]

TREE: dict[str, Any] = {"w": jnp.arange(6.0).reshape(2, 3), "deep": {"n": np.arange(3), "count": 7}}


def check(restored: Any) -> None:
    assert same_bits(restored["w"], TREE["w"])
    assert same_bits(restored["deep"]["n"], TREE["deep"]["n"])
    assert restored["deep"]["count"] == 7


def names(path: Any) -> list[str]:
    return sorted(each.name for each in as_path(path).iterdir())


@dataclasses.dataclass(frozen=True)
class Config:
    """A leaf that is no array."""

    width: int


class ConfigHandler(ocp.type_handlers.TypeHandler):
    """A folder for each leaf; the futures are written in the background."""

    def typestr(self) -> str:
        return "Config"

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        async def write(value: Any, path: Any) -> None:
            path.mkdir(parents=True, exist_ok=True)
            (path / "config.json").write_text(json.dumps(dataclasses.asdict(value)))

        futures = ocp.future.CommitFutureAwaitingContractedSignals
        return [futures(write(value, info.path)) for value, info in zip(values, infos, strict=True)]

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        return [Config(**json.loads((info.path / "config.json").read_text())) for info in infos]

    async def metadata(self, infos: Any) -> Any:
        return [ocp.metadata.Metadata(name=info.name, directory=info.path) for info in infos]


class Note:
    """An object that saves itself, in the background."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    async def save(self, directory: Any) -> Any:
        async def write() -> None:
            (await directory.await_creation() / "note.txt").write_text(self.text)

        return write()

    async def load(self, directory: Any) -> Any:
        async def read() -> None:
            self.text = (directory / "note.txt").read_text()

        return read()


class OrbaxInBuckets:
    def test_checkpointers(self, at: At) -> None:
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(at("a"), {"w": 1})
            with pytest.raises(ValueError, match="already"):
                checkpointer.save(at("a"), TREE)
            checkpointer.save(at("a"), TREE, force=True)
            check(checkpointer.restore(at("a")))
            assert checkpointer.metadata(at("a")).item_metadata["w"].shape == (2, 3)
            with pytest.raises(FileNotFoundError):
                checkpointer.restore(at("nothing"))
        with ocp.StandardCheckpointer() as standard:
            standard.save(at("b"), TREE)
            standard.wait_until_finished()
            check(standard.restore(at("b"), jax.tree.map(ocp.utils.to_shape_dtype_struct, TREE)))
        items = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
        items.save(
            at("c"), args=ocp.args.Composite(state=ocp.args.StandardSave(TREE), config=ocp.args.JsonSave({"width": 4}))
        )
        restored = items.restore(at("c"))
        check(restored.state)
        assert restored.config == {"width": 4}
        assert names(at("c")) == ["_CHECKPOINT_METADATA", "commit_success.txt", "config", "state"]

    def test_leaves_of_own_types(self, at: At) -> None:
        types = ocp.type_handlers
        standard = [(kind, types.get_type_handler(kind)) for kind in types.supported_types()]
        registry = types.create_type_handler_registry((Config, ConfigHandler()), *standard)
        handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
        tree = {**TREE, "config": Config(3)}
        for checkpointer in (ocp.Checkpointer(handler), ocp.AsyncCheckpointer(handler)):
            name = type(checkpointer).__name__
            checkpointer.save(at(name), args=ocp.args.PyTreeSave(tree))
            restored = checkpointer.restore(at(name))
            check(restored)
            assert restored["config"] == Config(3)
            known = checkpointer.metadata(at(name)).item_metadata
            assert known["config"].name == "config" and known["w"].shape == (2, 3)
            assert names(as_path(at(name)) / "config") == ["config.json"]
            some = ocp.args.PyTreeRestore(item={**TREE, "config": ...}, partial_restore=True)
            assert checkpointer.restore(at(name), args=some)["config"] is ...
        with ocp.CheckpointManager(at("run"), item_handlers={"state": handler}) as manager:
            for step in range(2):
                saved = ocp.args.PyTreeSave({**tree, "config": Config(step)})
                manager.save(step, args=ocp.args.Composite(state=saved))
            assert manager.restore(1).state["config"] == Config(1)

    def test_the_manager(self, at: At) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=2, best_fn=lambda metrics: metrics["loss"], best_mode="min")
        with ocp.CheckpointManager(at("run"), options=options) as manager:
            assert manager.latest_step() is None
            for step in range(4):
                assert manager.save(step, args=ocp.args.StandardSave(TREE), metrics={"loss": float(step)})
            manager.wait_until_finished()
            assert (manager.all_steps(read=True), manager.latest_step(), manager.best_step()) == ([0, 1], 1, 0)
            check(manager.restore(0, args=ocp.args.StandardRestore(TREE)))
            assert manager.item_metadata(1)["w"].shape == (2, 3)
            manager.delete(0)
            with pytest.raises(FileNotFoundError):
                manager.restore(0)
        again = ocp.CheckpointManager(at("run"), ocp.PyTreeCheckpointer())
        assert again.all_steps() == [1] and again.directory == as_path(at("run"))
        check(again.restore(1))
        assert again.save(5, TREE) and ocp.utils.checkpoint_steps(at("run")) == [1, 5]

    def test_v1(self, at: At) -> None:
        v1.save(at("a"), TREE)
        with pytest.raises(ValueError, match="already"):
            v1.save(at("a"), TREE)
        v1.save_async(at("a"), TREE, overwrite=True).result()
        check(v1.load(at("a"), TREE))
        assert v1.metadata(at("a")).metadata["w"].shape == (2, 3)
        both = {"state": TREE, "note": Note("hello"), "config": {"text": "json"}}
        v1.save_checkpointables_async(at("b"), both).result()
        note = Note()
        loaded = v1.load_checkpointables(at("b"), {"state": None, "note": note, "config": None})
        check(loaded["state"])
        assert note.text == "hello" and loaded["config"] == {"text": "json"}
        v1.delete(at("b"))
        with pytest.raises(FileNotFoundError):
            v1.load(at("b"))
        with v1.training.Checkpointer(at("run")) as steps:
            for step in range(2):
                steps.save(step, TREE, metrics={"loss": 1.0})
            assert [found.step for found in steps.checkpoints] == [0, 1]
            check(steps.load(1))
            steps.delete(0)
        with v1.training.Checkpointer(at("run")) as steps:
            assert steps.latest is not None and steps.latest.step == 1

    def test_saves_of_v1_in_parts(self, at: At) -> None:
        v1.partial.save(at("x"), {"w": TREE["w"]})
        v1.partial.save(at("x"), {"deep": TREE["deep"]})
        v1.partial.finalize(at("x"))
        check(v1.load(at("x")))

"""Handlers that write their own files, under `regrow.orbax` and under the original: when, and
what is left.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as theirs
import pytest
from conftest import same_bits

import regrow
from regrow import orbax as ours
from regrow._save._items import WHOLE, ItemsSave
from regrow._save._writing import Writing

MODULES = {"orbax": theirs, "regrow": ours}
TREE: dict[str, Any] = {"a": jnp.arange(4.0), "b": np.arange(3)}


@pytest.fixture(params=MODULES)
def ocp(request: pytest.FixtureRequest) -> Any:
    """The original, and ours."""
    return MODULES[request.param]


class Own:
    """A handler of texts that writes when it is told to, the class of its arguments, and what it
    has done.
    """

    def __init__(self, ocp: Any) -> None:
        self.may_write, self.fails = threading.Event(), False
        self.done: list[str] = []
        own = self

        class Handler(ocp.AsyncCheckpointHandler):
            async def async_save(self, directory: Any, args: Any) -> Any:
                own.done.append("called")

                async def write() -> None:
                    assert own.may_write.wait(60)
                    if own.fails:
                        raise OSError("the disk is gone")
                    self.save(directory, args)

                return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="write")]

            def save(self, directory: Any, args: Any) -> None:
                (directory / "own.txt").write_text(args.text)
                (directory / "deep").mkdir()
                (directory / "deep" / "own.txt").write_text(args.text)
                own.done.append("written")

            def restore(self, directory: Any, args: Any = None) -> Any:
                return (directory / "own.txt").read_text() + (directory / "deep" / "own.txt").read_text()

            def finalize(self, directory: Any) -> None:
                own.done.append("finalized" if (directory / "own.txt").exists() else "finalized too early")

        @ocp.args.register_with_handler(Handler, for_save=True)
        class Save(ocp.args.CheckpointArgs):  # type: ignore[misc, name-defined]
            def __init__(self, text: str) -> None:
                self.text = text

        @ocp.args.register_with_handler(Handler, for_restore=True)
        class Restore(ocp.args.CheckpointArgs): ...  # type: ignore[misc, name-defined]

        self.handler, self.Save, self.Restore = Handler(), Save, Restore


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# ---- in the background ----------------------------------------------------------------


def test_futures_of_a_handler_are_waited_for_in_the_background(ocp: Any, tmp_path: Path) -> None:
    own, path = Own(ocp), tmp_path / "x"
    with ocp.AsyncCheckpointer(own.handler) as checkpointer:
        checkpointer.save(path, args=own.Save("one"))
        # It has returned, and nothing is there yet.
        assert own.done == ["called"] and not path.exists()
        own.may_write.set()
        checkpointer.wait_until_finished()
        assert own.done == ["called", "written", "finalized"]
        assert checkpointer.restore(path, args=own.Restore()) == "oneone"
        assert names_in(path) == ["_CHECKPOINT_METADATA", "commit_success.txt", "deep", "own.txt"]
        with pytest.raises(ValueError, match="already exists"):
            checkpointer.save(path, args=own.Save("two"))
        checkpointer.save(path, args=own.Save("two"), force=True)
        checkpointer.wait_until_finished()
        assert checkpointer.restore(path, args=own.Restore()) == "twotwo"
    assert names_in(tmp_path) == ["x"]


def test_futures_of_an_item_are_waited_for_in_the_background(ocp: Any, tmp_path: Path) -> None:
    own = Own(ocp)
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    registry.add("own", own.Save, own.handler)
    registry.add("own", own.Restore, own.handler)
    array = np.arange(5)
    with ocp.CheckpointManager(tmp_path / "m", handler_registry=registry) as manager:
        manager.save(1, args=ocp.args.Composite(state=ocp.args.StandardSave({"w": array}), own=own.Save("one")))
        assert own.done == ["called"] and not (tmp_path / "m" / "1").exists()
        array += 1
        own.may_write.set()
        manager.wait_until_finished()
        assert own.done == ["called", "written", "finalized"]
        restored = manager.restore(1, args=ocp.args.Composite(state=ocp.args.StandardRestore(), own=own.Restore()))
        assert restored["own"] == "oneone" and restored["state"]["w"].tolist() == [0, 1, 2, 3, 4]


def test_a_future_that_fails_leaves_no_step(tmp_path: Path) -> None:
    """The original lists the step until it lists again."""
    own = Own(ours)
    own.fails = True
    handlers = {"own": own.handler, "state": ours.StandardCheckpointHandler()}
    with ours.CheckpointManager(tmp_path / "m", item_handlers=handlers) as manager:
        manager.save(1, args=ours.args.Composite(state=ours.args.StandardSave(TREE), own=own.Save("one")))
        own.may_write.set()
        with pytest.raises(OSError, match="the disk is gone"):
            manager.wait_until_finished()
        assert manager.all_steps() == [] and "1" not in names_in(tmp_path / "m")
        own.fails = False
        assert manager.save(1, args=ours.args.Composite(own=own.Save("two")))
        manager.wait_until_finished()
        assert manager.all_steps() == [1]
    assert own.done == ["called", "called", "written", "finalized"]


# ---- a checkpoint of its own ----------------------------------------------------------


def test_files_of_others_in_such_a_checkpoint_stay(tmp_path: Path) -> None:
    own = Own(ours)
    checkpointer = ours.Checkpointer(own.handler)
    checkpointer.save(tmp_path / "x", args=own.Save("one"))
    (tmp_path / "x" / "notes.txt").write_text("mine")
    checkpointer.save(tmp_path / "x", args=own.Save("two"), force=True)
    assert (tmp_path / "x" / "notes.txt").read_text() == "mine"
    assert checkpointer.restore(tmp_path / "x", args=own.Restore()) == "twotwo"
    (tmp_path / "x" / "notes.txt").unlink()
    assert regrow.verify(tmp_path / "x").ok
    opened = regrow.open(tmp_path / "x")
    assert any("own.txt" in note and "Handler" in note for note in opened.notes)


def test_a_pytree_with_metadata_is_what_the_original_writes(tmp_path: Path) -> None:
    told = {}
    for name, ocp in MODULES.items():
        path = tmp_path / name
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            for version in (1, 2):
                args = ocp.args.StandardSave(TREE)
                checkpointer.save(path, args=args, custom_metadata={"version": version}, force=True)
            told[name] = json.loads((path / "_CHECKPOINT_METADATA").read_text())
            assert checkpointer.metadata(path).custom_metadata == {"version": 2}
        for reader in MODULES.values():
            with reader.Checkpointer(reader.StandardCheckpointHandler()) as checkpointer:
                restored = checkpointer.restore(path, args=reader.args.StandardRestore(TREE))
                assert all(same_bits(restored[key], TREE[key]) for key in TREE)
                assert checkpointer.metadata(path).custom_metadata == {"version": 2}
    for key in ("item_handlers", "metrics", "performance_metrics", "custom_metadata"):
        assert told["regrow"][key] == told["orbax"][key]
    assert told["regrow"].keys() == told["orbax"].keys()
    # Ours, which has checksums of what lies beside the arrays.
    ours.use_layout("regrow")
    try:
        with ours.Checkpointer(ours.StandardCheckpointHandler()) as checkpointer:
            args = ours.args.StandardSave(TREE)
            checkpointer.save(tmp_path / "regrow", args=args, custom_metadata={"version": 3}, force=True)
            assert checkpointer.metadata(tmp_path / "regrow").custom_metadata == {"version": 3}
    finally:
        ours.use_layout("orbax")
    assert regrow.verify(tmp_path / "regrow").ok and regrow.open(tmp_path / "regrow").layout == "regrow"


def test_json_of_each_is_replaced_by_the_other(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for version, ocp in enumerate((theirs, ours, theirs, ours)):
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
            checkpointer.save(path, {"version": version}, force=True, custom_metadata={"by": ocp.__name__})
        for reader in (theirs, ours):
            with reader.Checkpointer(reader.JsonCheckpointHandler()) as checkpointer:
                assert checkpointer.restore(path) == {"version": version}
                assert checkpointer.metadata(path).custom_metadata == {"by": ocp.__name__}
    assert regrow.load(path) == {"version": 3}


def test_a_handler_that_saves_a_pytree_into_its_folder(ocp: Any, tmp_path: Path) -> None:
    """A subclass with a `save` of its own, which is called: it may save by the class that it is
    made of.
    """

    class Named(ocp.PyTreeCheckpointHandler):  # type: ignore[misc, name-defined]
        def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
            super().save(directory, *args, **kwargs)
            (directory / "name.txt").write_text("me")

    with ocp.Checkpointer(Named()) as checkpointer:
        checkpointer.save(tmp_path / "x", TREE, custom_metadata={"by": "me"})
        assert (tmp_path / "x" / "name.txt").read_text() == "me"
        assert all(same_bits(value, TREE[key]) for key, value in checkpointer.restore(tmp_path / "x").items())
        assert checkpointer.metadata(tmp_path / "x").custom_metadata == {"by": "me"}
    assert regrow.verify(tmp_path / "x").ok


def test_folders_have_the_mode_that_is_asked_for(ocp: Any, tmp_path: Path) -> None:
    options = ocp.options.FileOptions(path_permission_mode=0o750)
    with ocp.Checkpointer(ocp.JsonCheckpointHandler(), file_options=options) as checkpointer:
        checkpointer.save(tmp_path / "x", {})
    manager_options = ocp.CheckpointManagerOptions(file_options=options, enable_async_checkpointing=False)
    with ocp.CheckpointManager(tmp_path / "m", options=manager_options) as manager:
        manager.save(1, args=ocp.args.Composite(state=ocp.args.PyTreeSave(TREE)))
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("x", "m/1", "m/1/state")] == [0o750] * 3


def test_a_checkpoint_of_files_in_a_bucket() -> None:
    for text in ("one", "two"):
        with ItemsSave("memory://own-handlers/x", Writing(overwrite=True, metadata={"by": "me"})) as save:
            (save.folder(WHOLE) / "own.txt").write_text(text)
            save.handler(WHOLE, "my.Handler")
            save.commit()
    opened = regrow.open("memory://own-handlers/x")
    assert opened.metadata == {"by": "me"} and any("own.txt" in note for note in opened.notes)
    assert regrow.verify("memory://own-handlers/x").ok

"""More of what two processes of JAX do with `regrow.orbax`: cases that `orbax_workers.run` runs
after its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import jax
from orbax_workers import case, check, refused, state, structs

from regrow import orbax as ocp
from regrow.flax import checkpoints
from regrow.orbax import v1


def odd() -> Any:
    """A leaf that process 1 cannot save."""
    return object() if jax.process_index() == 1 else 1


@case
def partial_of_v1(folder: Path, _: Any) -> list[Any]:
    arrays = state(3)["params"]
    parts = [{"params": {name: arrays[name] for name in names}} for names in (("both", "rows"), ("columns", "same"))]
    v1.partial.save(folder / "a", parts[0])
    v1.partial.save_async(folder / "a", {**parts[1], **state(3), "params": parts[1]["params"]}).result()
    wrong = refused(lambda: v1.partial.save(folder / "a", {"odd": odd()}))
    errors = [
        refused(lambda: v1.partial.save(folder / "a", {"step": 4})),
        refused(lambda: v1.partial.finalize(folder / "nothing")),
    ]
    v1.partial.finalize(folder / "a")
    errors.append(refused(lambda: v1.partial.save(folder / "a", {"more": 1})))
    check(v1.load(folder / "a", structs()), 3)
    return [[error for error, _ in errors], wrong[1], sorted(os.listdir(folder))]


@case
def flax_folders(folder: Path, _: Any) -> list[Any]:
    wrong = refused(lambda: checkpoints.save_checkpoint_multiprocess(folder, {"a": odd()}, 1))
    for step in (1, 2, 3):
        checkpoints.save_checkpoint_multiprocess(folder, state(step), step)
    twice = refused(lambda: checkpoints.save_checkpoint_multiprocess(folder, state(4), 3))
    check(checkpoints.restore_checkpoint(folder, structs()), 3)
    return [wrong, twice[0], sorted(os.listdir(folder))]


class Failing:
    """An object that process 1 cannot save in the background."""

    async def save(self, directory: Any) -> Any:
        async def write() -> None:
            if jax.process_index() == 1:
                raise OSError("it is odd")

        return write()

    async def load(self, directory: Any) -> Any:
        raise NotImplementedError


@case
def errors_of_v1(folder: Path, _: Any) -> list[Any]:
    wrong = {**state(), "odd": odd()}
    told = [
        refused(lambda: v1.save(folder / "a", wrong)),
        refused(lambda: v1.save_async(folder / "a", wrong).result()),
    ]
    for beside in ({}, {"state": state(1)}):
        own = {"own": Failing(), **beside}
        told.append(refused(lambda own=own: v1.save_checkpointables_async(folder / "b", own).result()))
        told.append(refused(lambda own=own: v1.save_checkpointables(folder / "b", own)))
    with v1.training.Checkpointer(folder / "run") as checkpointer:
        told.append(refused(lambda: checkpointer.save(1, wrong)))
        assert checkpointer.latest is None
        assert checkpointer.save(1, state(1))
    return [*told, sorted(os.listdir(folder))]


@case
def leased(folder: Path, _: Any) -> list[Any]:
    def save(step: int) -> None:
        manager.save(step, args=ocp.args.StandardSave(state(step)))
        manager.wait_until_finished()

    options = ocp.CheckpointManagerOptions(max_to_keep=1)
    with ocp.CheckpointManager(folder / "run", options=options) as manager:
        save(0)
        with manager._folder.reading(0) if jax.process_index() == 1 else contextlib.nullcontext():
            ocp.multihost.sync_global_processes("it is being read")
            save(1)
            between = manager.all_steps()
            told = refused(lambda: manager.delete(0))
        ocp.multihost.sync_global_processes("it is not being read")
        save(2)
        return [between, told[1], manager.all_steps()]


# ---- who comes late -------------------------------------------------------------------


class Late:
    """Something that process 1 writes when process 0 has ceased to wait for it."""

    def __init__(self, folder: Path) -> None:
        self._may = folder / "may"

    async def write(self) -> None:
        until = time.monotonic() + 60
        while jax.process_index() == 1 and not self._may.exists() and time.monotonic() < until:
            time.sleep(0.02)

    def wait_for(self, save: Any) -> list[str]:
        """The error that a save ends with."""
        told = refused(save)
        if jax.process_index() == 0:
            self._may.touch()
        ocp.multihost.sync_global_processes(str(self._may))
        return told

    async def save(self, directory: Any) -> Any:
        return self.write()

    async def load(self, directory: Any) -> Any:
        raise NotImplementedError


class LateHandler(ocp.AsyncCheckpointHandler):
    async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        return [ocp.future.CommitFutureAwaitingContractedSignals(item.write())]

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        raise NotImplementedError

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> None:
        raise NotImplementedError


@case
def late(folder: Path, _: Any) -> list[list[str]]:
    for name in ("checkpointer", "manager", "v1"):
        (folder / name).mkdir(exist_ok=True)
    told = []
    one = Late(folder / "checkpointer")
    with ocp.AsyncCheckpointer(LateHandler(), timeout_secs=1) as checkpointer:

        def save() -> None:
            checkpointer.save(folder / "checkpointer" / "a", one)
            checkpointer.wait_until_finished()

        told.append(one.wait_for(save))
    options = ocp.CheckpointManagerOptions(async_options=ocp.AsyncOptions(timeout_secs=1))
    two = Late(folder / "manager")
    with ocp.CheckpointManager(folder / "manager", {"x": ocp.AsyncCheckpointer(LateHandler())}, options) as manager:

        def step() -> None:
            manager.save(0, {"x": two})
            manager.wait_until_finished()

        told.append(two.wait_for(step))
        assert manager.all_steps() == []
    context = v1.Context()
    context.asynchronous.timeout_secs = 1
    three = Late(folder / "v1")
    with context:
        told.append(three.wait_for(lambda: v1.save_checkpointables_async(folder / "v1" / "a", {"x": three}).result()))
    return told

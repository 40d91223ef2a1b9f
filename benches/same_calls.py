"""Orbax' own calls, made of Orbax and of `regrow.orbax`: only the import differs.

A training state (a step, parameters, Adam's moments; arrays of JAX) of large leaves, and one of
many: saves, restores onto the shapes and devices of the state, restores of the parameters alone.
Beside them what a call of a manager costs with tiny leaves, and the start of a manager of a folder
with a thousand steps. `regrow.orbax` runs twice: with the files that Orbax writes by default, and
with regrow's own layout, which has checksums.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from asynchronous import of_jax
from limits import Limit
from measure import LIMIT, OURS, Clock, Turn, bring_into_page_cache, drop_from_page_cache, interleave
from setting import Setting, remove
from workloads import Tree

SAVE, COLD, WARM, PART = "ocp save", "ocp restore cold", "ocp restore warm", "ocp restore of parameters"
SAVE_STEP, BLOCKED = "ocp manager save", "ocp manager save blocked"
START = "ocp manager start"
STEPS = "1,000 steps"
STEP_COUNT = 1_000
OWN_LAYOUT = "regrow layout"
MANY = "moe_128x48@0.25GiB"
SLOW_FROM = 5_000
TINY = "3 tiny leaves"
RESTORE_STEP = "ocp manager restore"
TINY_REPEATS = 10


def calling(setting: Setting) -> None:
    """Both states, and the managers."""
    for workload in (setting.scale.main, MANY):
        with setting.tree(workload) as (tree, leaf_count, len_bytes), setting.room("calls") as room:
            state = training_state(of_jax(tree))
            turns = [
                Turn(LIMIT, _limits(Limit(room, len_bytes))),
                Turn(OURS, _life(_ours("orbax"), room / "ours", state)),
                Turn(OWN_LAYOUT, _life(_ours("regrow"), room / "own", state)),
            ]
            if "orbax" in setting.tool_names and leaf_count <= setting.scale.chunked_max:
                rounds = 1 if leaf_count > SLOW_FROM else None
                if rounds is not None:
                    setting.samples.note(
                        f"orbax runs only one round of {workload}, without warm-up, because a round takes minutes"
                    )
                turns.append(Turn("orbax", _life(_theirs, room / "theirs", state), rounds))
            interleave(setting.samples, workload, turns, setting.rounds, "Orbax' calls")
    with setting.room("tiny") as room:
        turns = [
            Turn(OURS, _tiny(_ours("orbax"), room / "ours")),
            Turn(OWN_LAYOUT, _tiny(_ours("regrow"), room / "own")),
        ]
        if "orbax" in setting.tool_names:
            turns.append(Turn("orbax", _tiny(_theirs, room / "theirs")))
        interleave(setting.samples, TINY, turns, setting.rounds)
    with setting.room("steps") as room:
        _write_steps(room / "steps")
        turns = [Turn(OURS, _start(_ours("orbax"), room / "steps"))]
        if "orbax" in setting.tool_names:
            turns.append(Turn("orbax", _start(_theirs, room / "steps")))
        interleave(setting.samples, STEPS, turns, setting.rounds)


def training_state(tree: Tree) -> Any:
    """A `TrainState` of flax. Trees that hold `params`, and what an optimiser keeps of each,
    become its fields.
    """
    import optax
    from flax.training.train_state import TrainState

    params = tree.get("params", tree)
    rest = {name: child for name, child in tree.items() if name != "params"} if "params" in tree else {}
    state = TrainState.create(apply_fn=len, params=params, tx=optax.identity())
    return state.replace(opt_state=rest)


def _theirs() -> ModuleType:
    import orbax.checkpoint as ocp

    return ocp


def _ours(layout: str) -> Callable[[], ModuleType]:
    def module() -> ModuleType:
        import regrow.orbax as ocp

        ocp.use_layout(layout)
        return ocp

    return module


def _limits(limit: Limit) -> Callable[[Clock], None]:
    def run(clock: Clock) -> None:
        clock.time(SAVE, limit.save)
        drop_from_page_cache(limit.file)
        clock.time(COLD, limit.load_cold)
        clock.time(WARM, limit.memcpy)
        limit.remove()

    return run


def _life(module: Callable[[], ModuleType], path: Path, state: Any) -> Callable[[Clock], None]:
    """Saves, restores and removes one checkpoint, then one step of a manager."""
    import jax

    abstract = jax.tree.map(_abstract, state)

    def run(clock: Clock) -> None:
        ocp = module()
        remove(path)
        try:
            with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
                clock.time(SAVE, lambda: checkpointer.save(path, args=ocp.args.StandardSave(state)))

                def restore() -> None:
                    jax.block_until_ready(checkpointer.restore(path, args=ocp.args.StandardRestore(abstract)))

                drop_from_page_cache(path)
                clock.time(COLD, restore)
                bring_into_page_cache(path)
                clock.time(WARM, restore)
            with ocp.PyTreeCheckpointer() as checkpointer:
                target = {"params": abstract.params}
                args = ocp.args.PyTreeRestore(
                    item=target,
                    restore_args=ocp.checkpoint_utils.construct_restore_args(target),
                    partial_restore=True,
                )
                clock.time(PART, lambda: jax.block_until_ready(checkpointer.restore(path, args=args)))
            remove(path)
            with ocp.CheckpointManager(path) as manager:

                def whole() -> None:
                    clock.time(BLOCKED, lambda: manager.save(0, args=ocp.args.StandardSave(state)))
                    manager.wait_until_finished()

                clock.time(SAVE_STEP, whole)
        finally:
            remove(path)

    return run


def _tiny(module: Callable[[], ModuleType], path: Path) -> Callable[[Clock], None]:
    """The fixed cost of a call: steps of three tiny leaves, each call a few times,
    one after another.
    """
    import jax
    import jax.numpy as jnp

    state = {"kernel": jnp.ones((4, 4)), "bias": jnp.zeros(4), "step": jnp.asarray(1)}
    abstract = jax.tree.map(_abstract, state)

    def run(clock: Clock) -> None:
        ocp = module()
        remove(path)
        try:
            with ocp.CheckpointManager(path, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:

                def save(step: int) -> None:
                    manager.save(step, args=ocp.args.StandardSave(state))
                    manager.wait_until_finished()

                args = ocp.args.StandardRestore(abstract)
                for step in range(TINY_REPEATS):
                    clock.time(SAVE_STEP, lambda step=step: save(step))
                    clock.time(RESTORE_STEP, lambda step=step: jax.block_until_ready(manager.restore(step, args=args)))
        finally:
            remove(path)

    return run


def _abstract(leaf: Any) -> Any:
    import jax

    if not isinstance(leaf, jax.Array):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _write_steps(root: Path) -> None:
    """A thousand small steps with metrics, by `regrow.orbax`, in the form that Orbax writes."""
    import numpy as np

    ocp = _ours("orbax")()
    with ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions(enable_async_checkpointing=False)) as manager:
        for step in range(STEP_COUNT):
            manager.save(step, args=ocp.args.StandardSave({"w": np.zeros(4)}), metrics={"loss": 1.0 / (step + 1)})


def _start(module: Callable[[], ModuleType], root: Path) -> Callable[[Clock], None]:
    def run(clock: Clock) -> None:
        ocp = module()
        options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"], best_mode="min")

        def start() -> None:
            manager = ocp.CheckpointManager(root, options=options)
            assert manager.latest_step() == STEP_COUNT - 1
            assert manager.best_step() == STEP_COUNT - 1
            manager.close()

        clock.time(START, start)

    return run

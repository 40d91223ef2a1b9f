"""Saves in the background: for how long the program that trains stands still.

Measured is the call, until it returns; then each tool waits until its save is on the disk. Arrays
of JAX cannot change and may be kept by reference, those of NumPy have to be copied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from limits import Limit
from measure import LIMIT, OURS, Clock, Turn, interleave
from setting import Setting, remove
from workloads import Tree

BLOCKED = "async blocked"
DURABLE = "async until durable"
JAX, NUMPY = "jax", "numpy"


def saving(setting: Setting) -> None:
    """One workload of large leaves, and one of many."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    for workload in (setting.scale.main, "moe_128x48@0.25GiB"):
        with setting.tree(workload) as (tree, leaf_count, len_bytes), setting.room("async") as room:
            limit = Limit(room, len_bytes)
            turns = [Turn(LIMIT, lambda clock, limit=limit: clock.time(f"{BLOCKED}, {NUMPY}", limit.memcpy))]
            for kind, data in ((JAX, of_jax(tree)), (NUMPY, tree)):
                turns.append(Turn(OURS, _ours(room / "ours", kind, data)))
                if "orbax" in setting.tool_names and leaf_count <= setting.scale.chunked_max:
                    rounds = 1 if leaf_count > 5_000 else None
                    turns.append(Turn("orbax", _orbax(room / "orbax", kind, data), rounds))
            interleave(setting.samples, workload, turns, setting.rounds, "async")


def of_jax(tree: Tree) -> Tree:
    """The same with arrays of JAX, which own their memory."""
    import jax.numpy as jnp

    return {key: of_jax(child) if isinstance(child, dict) else jnp.array(child) for key, child in tree.items()}


def _ours(path: Path, kind: str, tree: Tree) -> Callable[[Clock], None]:
    def run(clock: Clock) -> None:
        import regrow

        remove(path)

        def whole() -> None:
            handle = clock.time(f"{BLOCKED}, {kind}", lambda: regrow.save_async(path, tree))
            handle.result()

        clock.time(f"{DURABLE}, {kind}", whole)
        remove(path)

    return run


def _orbax(path: Path, kind: str, tree: Tree) -> Callable[[Clock], None]:
    import orbax.checkpoint as ocp

    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())

    def run(clock: Clock) -> None:
        remove(path)

        def whole() -> None:
            clock.time(f"{BLOCKED}, {kind}", lambda: checkpointer.save(path, args=ocp.args.PyTreeSave(tree)))
            checkpointer.wait_until_finished()

        clock.time(f"{DURABLE}, {kind}", whole)
        remove(path)

    return run

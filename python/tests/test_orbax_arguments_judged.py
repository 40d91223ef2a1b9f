"""`regrow.orbax` and the original given the same arguments: what each refuses, at which call,
with which exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_orbax_dropin import MODULES

import regrow.orbax

TREE = {"w": np.arange(4, dtype=np.float32)}


@pytest.fixture(params=MODULES)
def ocp(request: pytest.FixtureRequest) -> Any:
    """The original, and ours."""
    return MODULES[request.param]


# ---- one item without a name, or several ----------------------------------------------


def test_arguments_of_several_items_are_refused_after_one_without_a_name(ocp: Any, tmp_path: Path) -> None:
    one, several = ocp.args.StandardSave(TREE), ocp.args.Composite(state=ocp.args.StandardSave(TREE))
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        assert manager.save(0, args=one)
        manager.wait_until_finished()
        with pytest.raises(ValueError, match="Cannot provide `args` of type `Composite`"):
            manager.save(1, args=several)
        with pytest.raises(ValueError, match="Cannot provide `args` of type `Composite`"):
            manager.restore(0, args=ocp.args.Composite(state=ocp.args.StandardRestore()))
        assert manager.all_steps() == [0]


def test_one_item_without_a_name_is_refused_after_several(ocp: Any, tmp_path: Path) -> None:
    one, several = ocp.args.StandardSave(TREE), ocp.args.Composite(state=ocp.args.StandardSave(TREE))
    for told, names in enumerate(({}, {"item_names": ("state",)})):
        with ocp.CheckpointManager(tmp_path / str(told), **names) as manager:
            assert manager.save(0, args=several)
            manager.wait_until_finished()
            with pytest.raises(ValueError, match="Must provide `args` of type `Composite`"):
                manager.save(1, args=one)
            with pytest.raises(ValueError, match="Must provide `args` of type `Composite`"):
                manager.restore(0, args=ocp.args.StandardRestore())


def test_arguments_in_the_place_of_bare_items_are_refused(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        assert manager.save(0, args=ocp.args.StandardSave(TREE))
        manager.wait_until_finished()
        with pytest.raises(ValueError, match="Found an instance of `CheckpointArgs`"):
            manager.save(1, ocp.args.StandardSave(TREE))
        with pytest.raises(ValueError, match="Found an instance of `CheckpointArgs`"):
            manager.restore(0, ocp.args.StandardRestore())


# ---- arguments and handlers -----------------------------------------------------------

REFUSED = "does not match with any registered handler"


def test_an_item_that_is_not_among_the_names_is_refused(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "m", item_names=("state",)) as manager:
        with pytest.raises(ValueError, match=REFUSED):
            manager.save(0, args=ocp.args.Composite(other=ocp.args.StandardSave(TREE)))
        assert manager.all_steps() == []


def test_arguments_of_another_handler_than_the_items_are_refused(ocp: Any, tmp_path: Path) -> None:
    told = {"params": ocp.PyTreeCheckpointHandler()}
    with ocp.CheckpointManager(tmp_path / "m", item_handlers=told) as manager, pytest.raises(ValueError, match=REFUSED):
        manager.save(0, args=ocp.args.Composite(params=ocp.args.StandardSave(TREE)))
    # The first call decides where nothing was told.
    with ocp.CheckpointManager(tmp_path / "n") as manager:
        assert manager.save(0, args=ocp.args.StandardSave(TREE))
        manager.wait_until_finished()
        with pytest.raises(ValueError, match=REFUSED):
            manager.save(1, args=ocp.args.PyTreeSave(TREE))
        with pytest.raises(ValueError, match=REFUSED):
            manager.restore(0, args=ocp.args.PyTreeRestore(TREE))


def test_arguments_that_a_registry_does_not_have_are_refused(ocp: Any, tmp_path: Path) -> None:
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    handler = ocp.StandardCheckpointHandler()
    registry.add("state", ocp.args.StandardSave, handler)
    registry.add("state", ocp.args.StandardRestore, handler)
    with ocp.CheckpointManager(tmp_path / "m", handler_registry=registry) as manager:
        assert manager.save(0, args=ocp.args.Composite(state=ocp.args.StandardSave(TREE)))
        manager.wait_until_finished()
        with pytest.raises(ValueError, match=REFUSED):
            manager.save(1, args=ocp.args.Composite(state=ocp.args.JsonSave({"a": 1})))
        with pytest.raises(ValueError, match=REFUSED):
            manager.restore(0, args=ocp.args.Composite(state=ocp.args.JsonRestore()))


def test_strict_args_of_an_array_ask_for_the_shape_of_the_target(ocp: Any, tmp_path: Path) -> None:
    stored = jnp.arange(16)
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(tmp_path / "a", {"a": stored})
    sharding = stored.sharding

    def restore(target: Any, **options: Any) -> Any:
        told = ocp.ArrayRestoreArgs(sharding=sharding, **options)
        args = ocp.args.PyTreeRestore(item={"a": target}, restore_args={"a": told})
        return checkpointer.restore(tmp_path / "a", args=args)["a"].shape

    for target in (jnp.arange(8), jax.ShapeDtypeStruct((8,), stored.dtype), np.zeros(8, stored.dtype)):
        with pytest.raises(ValueError, match="not compatible with the stored shape"):
            restore(target)
        assert restore(target, strict=False) == restore(target, global_shape=(16,)) == (16,)
    assert restore(0) == (16,)


def test_keys_are_restored_on_the_devices_that_they_were_saved_from(ocp: Any, tmp_path: Path) -> None:
    mesh = jax.sharding.Mesh(jax.devices(), ("x",))
    cut, whole = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in (("x",), ()))
    keys = jax.random.split(jax.random.key(0), len(jax.devices()))
    tree = {"keys": jax.device_put(keys, cut), "key": jax.device_put(jax.random.key(1), whole)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", tree)
        checkpointer.wait_until_finished()
        for target in (None, jax.eval_shape(lambda: tree)):
            restored = checkpointer.restore(tmp_path / "a", target)
            for name, key in tree.items():
                assert restored[name].sharding.is_equivalent_to(key.sharding, key.ndim), name
                assert jnp.array_equal(jax.random.key_data(restored[name]), jax.random.key_data(key))


# ---- what goes wrong in the background ------------------------------------------------


def test_metrics_that_cannot_be_ranked_raise_in_save_and_delete_nothing(ocp: Any, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"], max_to_keep=2)
    with ocp.CheckpointManager(tmp_path / "m", options=options) as manager:
        for step in range(2):
            assert manager.save(step, args=ocp.args.StandardSave(TREE), metrics={"los": 1.0})
        for step in range(2, 4):
            with pytest.raises(KeyError):
                manager.save(step, args=ocp.args.StandardSave(TREE), metrics={"los": 1.0})
        manager.wait_until_finished()
        assert manager.all_steps() == [0, 1, 2, 3]


def test_steps_that_are_deleted_in_the_background_are_in_no_list(ocp: Any, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_background_delete=True)
    with ocp.CheckpointManager(tmp_path / "m", options=options) as manager:
        for step in range(6):
            manager.save(step, args=ocp.args.StandardSave(TREE))
            manager.wait_until_finished()
            assert manager.all_steps() == [step]


def _handler(ocp: Any, seconds: float) -> Any:
    class Slow(ocp.handlers.AsyncCheckpointHandler):  # type: ignore[misc]
        def __init__(self) -> None:
            self._executor = ThreadPoolExecutor(1)

        async def async_save(self, directory: Any, item: Any) -> list[Any]:
            return [self._executor.submit(time.sleep, seconds)]

        def save(self, directory: Any, item: Any) -> None:
            raise NotImplementedError

        def restore(self, directory: Any, item: Any = None) -> None:
            raise NotImplementedError

        def finalize(self, directory: Any) -> None:
            pass

        def close(self) -> None:
            self._executor.shutdown()

    return Slow()


def test_a_handler_that_writes_longer_than_the_time_out_ends_the_save_in_time(ocp: Any, tmp_path: Path) -> None:
    checkpointer = ocp.AsyncCheckpointer(_handler(ocp, 3), timeout_secs=1)
    began = time.monotonic()
    checkpointer.save(tmp_path / "a", 1)
    with pytest.raises(TimeoutError, match=r"completed \d+/\d+ futures but timed out after"):
        checkpointer.wait_until_finished()
    assert time.monotonic() - began < 2.9
    checkpointer.close()
    assert not (tmp_path / "a").exists()


# ---- trees ----------------------------------------------------------------------------


class Pair(NamedTuple):
    """A node that is no list."""

    one: Any
    two: Any


MERGED: dict[str, tuple[list[Any], bool]] = {
    "keys": ([{"a": 1, "b": {"c": 2}}, {"d": 3, "b": {"e": [4]}}], False),
    "none": ([], False),
    "children of lists": ([{"a": [{"x": 1}]}, {"a": [{"y": 2}]}], False),
    "a leaf of both": ([{"a": 1}, {"a": 2}], False),
    "the later leaf": ([{"a": 1, "b": (1, 2)}, {"a": 2, "b": (3, 4)}], True),
    "tuples with names": ([{"a": Pair(1, 2)}, {"a": Pair(3, 4)}], True),
    "a leaf and a node": ([{"a": 1}, {"a": {"b": 2}}], True),
    "two types": ([[1], {"a": 1}], False),
    "two lengths": ([{"a": [1, 2]}, {"a": [1]}], True),
}


@pytest.mark.parametrize("case", MERGED)
def test_trees_are_merged_in_their_containers(case: str) -> None:
    trees, overwrite = MERGED[case]

    def told(merge: Callable[..., Any]) -> Any:
        try:
            return merge(*trees, overwrite=overwrite)
        except ValueError as error:
            return str(error).partition(":")[0].partition(" at ")[0].split()[:3]

    from orbax.checkpoint._src.tree import structure_utils as theirs

    assert told(regrow.orbax.tree.merge_trees) == told(theirs.merge_trees)


DIFFERENT: list[tuple[Any, Any]] = [
    ({"x": [1, 2, 3], "z": {"q": 4, "r": 6}}, {"x": [1, 3], "z": {"q": 5, "s": 6}}),
    ([1, "2", 3], [1, 2, 3]),
    (Pair(1, {"a": 1}), Pair(1, {"a": "1"})),
    ({"a": None}, {"a": 1}),
    ({"a": (1,)}, {"a": [1]}),
    ({"a": np.zeros(2)}, {"a": np.ones(2)}),
    (1, "1"),
]


@pytest.mark.parametrize("at", range(len(DIFFERENT)))
def test_the_difference_of_trees_is_a_tree(at: int) -> None:
    from orbax.checkpoint import tree as theirs

    assert regrow.orbax.tree.tree_difference(*DIFFERENT[at]) == theirs.tree_difference(*DIFFERENT[at])

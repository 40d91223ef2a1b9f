"""`regrow.orbax.CheckpointManager` beside the original, with its old constructor and keywords
too; policies; loops.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as theirs
import pytest
from test_orbax_dropin import MODULES, TREE, assert_same

from regrow import orbax as ours
from regrow.orbax import checkpoint_managers as policies


@pytest.fixture(params=MODULES)
def ocp(request: pytest.FixtureRequest) -> Any:
    """The original, and ours."""
    return MODULES[request.param]


def test_an_empty_folder(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        assert (manager.latest_step(), manager.best_step(), list(manager.all_steps())) == (None, None, [])
        assert manager.reached_preemption(3) is False
        with pytest.raises(FileNotFoundError):
            manager.restore(None)
        with pytest.raises(FileNotFoundError):
            manager.restore(7)
        with pytest.raises(FileNotFoundError):
            manager.item_metadata(7)
        with pytest.raises(ValueError, match="args"):
            manager.save(7)


def test_steps_of_one_item(ocp: Any, tmp_path: Path) -> None:
    args = ocp.args
    with ocp.CheckpointManager(tmp_path / "m", options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
        for step in range(3):
            assert manager.save(step, args=args.StandardSave(TREE), custom_metadata={"by": "me"})
        manager.wait_until_finished()
        manager.wait_until_finished()
        assert list(manager.all_steps()) == [1, 2] and manager.latest_step() == 2
        assert manager.should_save(2) is False and manager.should_save(3) is True
        assert manager.save(1, args=args.StandardSave(TREE)) is False
        with pytest.raises(ValueError) as error:
            manager.save(2, args=args.StandardSave(TREE), force=True)
        assert type(error.value).__name__ == "StepAlreadyExistsError"
        assert_same(manager.restore(2), TREE)
        assert_same(manager.restore(None, args=args.StandardRestore(TREE)), TREE)
        assert_same(manager.restore(str(tmp_path / "m" / "2")), TREE)
        assert manager.metadata(2).custom_metadata == {"by": "me"}
        assert manager.item_metadata(2)["a"].shape == (4,)
        assert (manager.directory / "2").exists() and manager.directory.as_posix() == str(tmp_path / "m")
        manager.delete(2)
        assert manager.latest_step() == 1
        with pytest.raises(FileNotFoundError):
            manager.delete(2)


def test_the_older_constructor_and_keywords(ocp: Any, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(
        save_interval_steps=2, best_fn=lambda metrics: metrics["loss"], best_mode="min", max_to_keep=2
    )
    manager = ocp.CheckpointManager(tmp_path / "one", ocp.PyTreeCheckpointer(), options)
    saved = [manager.save(step, TREE, metrics={"loss": (step - 3) ** 2}) for step in range(5)]
    assert saved == [True, False, True, False, True]
    assert (list(manager.all_steps()), manager.best_step()) == ([2, 4], 4)
    assert manager.metrics(2) == {"loss": 1}
    restore_args = ocp.checkpoint_utils.construct_restore_args(TREE)
    assert_same(manager.restore(2, items=TREE, restore_kwargs={"restore_args": restore_args}), TREE)
    manager.close()

    several = {"a": ocp.PyTreeCheckpointer(), "j": ocp.Checkpointer(ocp.JsonCheckpointHandler())}
    options = ocp.CheckpointManagerOptions(step_prefix="ck", step_format_fixed_length=6)
    manager = ocp.CheckpointManager(tmp_path / "two", several, options, metadata={"version": 1})
    save_args = jax.tree.map(lambda _: ocp.SaveArgs(), TREE)
    manager.save(5, {"a": TREE, "j": {"x": 1}}, save_kwargs={"a": {"save_args": save_args}})
    assert (tmp_path / "two" / "ck_000005" / "a").is_dir()
    restored = manager.restore(5)
    assert_same(restored["a"], TREE)
    assert restored["j"] == {"x": 1}
    assert set(manager.restore(5, items={"a": TREE}).keys()) == {"a"}
    assert manager.metadata().custom_metadata == {"version": 1}
    manager.close()
    with pytest.raises(ValueError, match="mutually exclusive"):
        ocp.CheckpointManager(tmp_path / "x", ocp.PyTreeCheckpointer(), item_names=("a",))


def test_several_items(ocp: Any, tmp_path: Path) -> None:
    args = ocp.args
    items = args.Composite(state=args.StandardSave(TREE), it=args.JsonSave([1, 2]))
    with ocp.CheckpointManager(tmp_path / "m", item_names=("state", "it")) as manager:
        assert manager.save(0, args=items)
        manager.wait_until_finished()
        restored = manager.restore(0)
        assert restored.it == [1, 2] and "state" in restored and set(restored.keys()) == {"it", "state"}
        only = manager.restore(0, args=args.Composite(state=args.StandardRestore(TREE)))
        assert_same(dict(**only), {"state": TREE})
        for ask in (lambda: restored["other"], lambda: restored.other):
            with pytest.raises(KeyError):
                ask()
        with pytest.raises(KeyError):
            manager.restore(0, args=args.Composite(other=args.StandardRestore(TREE)))


def test_both_take_turns_in_one_folder(tmp_path: Path) -> None:
    order = [ours, theirs, ours]
    for step, ocp in enumerate(order):
        with ocp.CheckpointManager(tmp_path / "m") as manager:
            assert list(manager.all_steps()) == list(range(step))
            if step:
                assert_same(manager.restore(step - 1), {**TREE, "c": step - 1})
            manager.save(step, args=ocp.args.StandardSave({**TREE, "c": step}))


# ---- where the original does harm -----------------------------------------------------


def test_a_restore_of_an_absent_step_decides_no_item_mode(tmp_path: Path) -> None:
    # With Orbax the save after it is refused: it has to be one of several items.
    args = ours.args
    with ours.CheckpointManager(tmp_path / "m") as manager:
        with pytest.raises(FileNotFoundError):
            manager.restore(7)
        assert manager.save(0, args=args.StandardSave(TREE))
        assert_same(manager.restore(0), TREE)
    with ours.CheckpointManager(tmp_path / "m") as manager:
        # No handler is told: items are read by their content.
        assert_same(manager.restore(0, args=args.PyTreeRestore(TREE)), TREE)
    assert "a" in ours.CheckpointManager(tmp_path / "m").item_metadata(0)


def test_metrics_are_kept_also_without_a_best_fn(tmp_path: Path) -> None:
    with ours.CheckpointManager(tmp_path / "m") as manager:
        manager.save(0, args=ours.args.StandardSave(TREE), metrics={"loss": 0.5})
        manager.wait_until_finished()
        assert_same(manager.restore(0), TREE)
    again = ours.CheckpointManager(tmp_path / "m")
    assert again.metrics(0) == again.metadata(0).metrics == {"loss": 0.5}
    best = ours.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    assert (
        theirs.CheckpointManager(
            tmp_path / "m", options=theirs.CheckpointManagerOptions(best_fn=best.best_fn)
        ).best_step()
        == 0
    )


def test_a_step_that_failed_is_in_no_list(tmp_path: Path) -> None:
    class Failing(ours.CheckpointHandler):
        def save(self, directory: Any, item: Any) -> None:
            (directory / "half").write_text("half")
            raise OSError("the disk is gone")

        def restore(self, directory: Any, item: Any = None) -> None:
            raise NotImplementedError

    handlers = {"x": Failing(), "state": ours.StandardCheckpointHandler()}
    with ours.CheckpointManager(tmp_path / "m", item_handlers=handlers) as manager:
        with pytest.raises(OSError, match="the disk is gone"):
            manager.save(5, {"state": TREE, "x": 1})
        assert manager.latest_step() is None and manager.should_save(3)
        assert manager.save(3, {"state": TREE})
        manager.wait_until_finished()
        assert manager.all_steps() == [3] == manager.all_steps(read=True)
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["3"]


def test_a_closed_manager_refuses_to_save(tmp_path: Path) -> None:
    manager = ours.CheckpointManager(tmp_path / "m")
    manager.close()
    with pytest.raises(RuntimeError, match="after close"):
        manager.save(0, args=ours.args.StandardSave(TREE))
    assert list((tmp_path / "m").iterdir()) == []


def test_an_older_step_that_is_saved_again_is_kept(tmp_path: Path) -> None:
    with ours.CheckpointManager(tmp_path / "m", options=ours.CheckpointManagerOptions(max_to_keep=1)) as manager:
        manager.save(5, args=ours.args.StandardSave(TREE))
        manager.save(2, args=ours.args.StandardSave(TREE), force=True)
        manager.wait_until_finished()
        assert manager.all_steps() == [2]


def test_options_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="best_mode"):
        ours.CheckpointManagerOptions(best_mode="most")
    with pytest.raises(ValueError, match="max_to_keep"):
        ours.CheckpointManagerOptions(max_to_keep=-1)
    with pytest.raises(ValueError, match="todelete"):
        ours.CheckpointManagerOptions(todelete_subdir="old", todelete_full_path="/old")


def test_deleted_steps_go_where_the_options_say(tmp_path: Path) -> None:
    options = ours.CheckpointManagerOptions(max_to_keep=1, todelete_subdir="old")
    with ours.CheckpointManager(tmp_path / "m", options=options) as manager:
        for step in range(2):
            manager.save(step, args=ours.args.StandardSave(TREE))
    assert [path.name for path in (tmp_path / "m" / "old").iterdir()] == ["0"]
    read_only = ours.CheckpointManager(tmp_path / "m", options=ours.CheckpointManagerOptions(read_only=True))
    assert read_only.save(9, args=ours.args.StandardSave(TREE)) is False
    read_only.delete(1)
    assert read_only.all_steps() == [1]


# ---- policies -------------------------------------------------------------------------

INFOS = [
    policies.PolicyCheckpointInfo(step, datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=10 * step), metrics)
    for step, metrics in enumerate([{"loss": 3}, {"loss": 1}, None, {"loss": 2}])
]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (policies.LatestN(2), [2, 3]),
        (policies.LatestN(), [0, 1, 2, 3]),
        (policies.EveryNSteps(2), [0, 2]),
        (policies.EveryNSteps(1, max_to_keep=1), [3]),
        (policies.EveryNSeconds(20), [0, 2]),
        (policies.CustomSteps([1, 7]), [1]),
        (policies.BestN(get_metric_fn=lambda metrics: metrics["loss"], reverse=True, n=1), [1, 2]),
        (
            policies.BestN(get_metric_fn=lambda metrics: metrics["loss"], n=2, keep_checkpoints_without_metrics=False),
            [0, 3],
        ),
        (policies.AnyPreservationPolicy([policies.LatestN(1), policies.CustomSteps([0])]), [0, 3]),
    ],
)
def test_what_policies_keep(policy: Any, kept: list[int]) -> None:
    said = policy.should_preserve(INFOS, context=policies.PreservationContext())
    assert [info.step for info, is_kept in zip(INFOS, said, strict=True) if is_kept] == kept


def test_when_policies_save() -> None:
    now = policies.PolicyCheckpointInfo(4, datetime.datetime(2026, 1, 1, 0, 0, 40))
    quiet = policies.DecisionContext(is_saving_in_progress=False, reached_preemption=False)
    busy = policies.DecisionContext(is_saving_in_progress=True, reached_preemption=True)
    said = {
        "interval": policies.FixedIntervalPolicy(3).should_save(now, INFOS, context=quiet),
        "steps": policies.SpecificStepsPolicy([4]).should_save(now, INFOS, context=quiet),
        "first": policies.InitialSavePolicy().should_save(now, INFOS, context=quiet),
        "soon": policies.ContinuousCheckpointingPolicy(minimum_interval_secs=11).should_save(now, INFOS, context=quiet),
        "now": policies.ContinuousCheckpointingPolicy(minimum_interval_secs=10).should_save(now, INFOS, context=quiet),
        "busy": policies.ContinuousCheckpointingPolicy().should_save(now, INFOS, context=busy),
        "preempted": policies.PreemptionCheckpointingPolicy().should_save(now, INFOS, context=busy),
        "any": policies.AnySavePolicy([policies.FixedIntervalPolicy(3), policies.FixedIntervalPolicy(2)]).should_save(
            now, INFOS, context=quiet
        ),
    }
    assert [name for name, is_saved in said.items() if is_saved] == ["steps", "now", "preempted", "any"]


# ---- loops in the shape of others' ----------------------------------------------------


class DataIterator:
    """An iterator of data, whose state is a number."""

    def __init__(self) -> None:
        self.at = 0

    def __next__(self) -> int:
        self.at += 1
        return self.at


@pytest.fixture
def iterator_handler() -> Any:
    """A handler of such iterators, with arguments of its own, as grain's."""

    class Handler(ours.CheckpointHandler):
        def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
            item = item if args is None else args.item
            (directory / "process_0.json").write_text(str(item.at))

        def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
            item = item if args is None else args.item
            item.at = int((directory / "process_0.json").read_text())
            return item

    return Handler


def test_a_loop_as_maxtexts(tmp_path: Path, iterator_handler: Any) -> None:
    """Several items with a handler each, saving every few steps, a step that is there not saved
    again; then resumed with part of the state."""
    args = ours.args

    @args.register_with_handler(iterator_handler, for_save=True, for_restore=True)
    class IteratorArgs(args.CheckpointArgs):
        def __init__(self, item: Any) -> None:
            self.item = item

    def manager() -> Any:
        return ours.CheckpointManager(
            tmp_path / "run",
            item_names=("items", "iter"),
            item_handlers={
                "items": ours.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, save_concurrent_gb=96),
                "iter": iterator_handler(),
            },
            options=ours.CheckpointManagerOptions(
                save_decision_policy=policies.FixedIntervalPolicy(2),
                preservation_policy=policies.LatestN(2),
                enable_async_checkpointing=True,
            ),
        )

    state, data = {"params": {"w": jnp.zeros(8)}, "step": jnp.array(0)}, DataIterator()
    with manager() as saver:
        for step in range(6):
            next(data)
            state = {"params": {"w": state["params"]["w"] + 1}, "step": jnp.array(step)}
            if step in saver.all_steps():
                continue
            save_args = jax.tree.map(lambda _: ours.SaveArgs(chunk_byte_size=2**31), state)
            items = args.PyTreeSave(state, save_args=save_args, ocdbt_target_data_file_size=2**31)
            saver.save(step, args=args.Composite(items=items, iter=IteratorArgs(data)))
    with manager() as loader:
        assert loader.all_steps() == [2, 4]
        abstract = {"params": jax.tree.map(ours.tree.to_shape_dtype_struct, state["params"])}
        restored = loader.restore(
            loader.latest_step(),
            args=args.Composite(
                items=args.PyTreeRestore(
                    abstract,
                    restore_args=ours.checkpoint_utils.construct_restore_args(abstract),
                    partial_restore=True,
                ),
                iter=IteratorArgs(DataIterator()),
            ),
        )
        assert np.asarray(restored["items"]["params"]["w"]).tolist() == [5] * 8
        assert restored.iter.at == 5


def test_a_loop_as_nanodos(tmp_path: Path, iterator_handler: Any) -> None:
    """The older constructor, with a handler without arguments of its own handed in."""
    checkpointers = {
        "state": ours.AsyncCheckpointer(ours.PyTreeCheckpointHandler()),
        "data": ours.Checkpointer(iterator_handler()),
    }
    options = ours.CheckpointManagerOptions(max_to_keep=1, save_interval_steps=2)
    state, data = {"w": jnp.zeros(3)}, DataIterator()
    manager = ours.CheckpointManager(str(tmp_path / "run"), checkpointers, options)
    assert manager.latest_step() is None
    for step in range(1, 5):
        next(data)
        state = {"w": state["w"] + 1}
        manager.save(step, items={"state": state, "data": data})
    manager.wait_until_finished()
    again = ours.CheckpointManager(str(tmp_path / "run"), checkpointers, options)
    restored = again.restore(
        again.latest_step(),
        items={"state": {"w": jnp.zeros(3)}, "data": DataIterator()},
        restore_kwargs={"state": {"restore_args": ours.checkpoint_utils.construct_restore_args(state)}},
    )
    assert_same(restored["state"], state)
    assert restored["data"].at == 4


def test_policies_as_brax_saves_them(tmp_path: Path) -> None:
    """Over a folder just made, with flax' arguments; read back as NumPy, with a file of its own
    beside the arrays.
    """
    from flax.training import orbax_utils

    params = ({"mean": jnp.zeros(3)}, {"kernel": jnp.ones((2, 2))})
    path = tmp_path / "000000010"
    path.mkdir()
    ours.PyTreeCheckpointer().save(path, params, force=True, save_args=orbax_utils.save_args_from_target(params))
    (path / "config.json").write_text("{}")
    checkpointer = ours.PyTreeCheckpointer()
    known = checkpointer.metadata(path).item_metadata
    restore_args = jax.tree.map(lambda _: ours.RestoreArgs(restore_type=np.ndarray), known)
    target = checkpointer.restore(path, ours.args.PyTreeRestore(restore_args=restore_args), item=None)
    assert [type(leaf) for leaf in jax.tree.leaves(target)] == [np.ndarray, np.ndarray]
    assert (path / "config.json").read_text() == "{}"


def test_a_function_as_an_item_as_openpis(tmp_path: Path) -> None:
    """A bare item goes to the handler of its name, whose arguments it becomes; files are written
    by a function.
    """
    args = ours.args

    class CallbackHandler(ours.AsyncCheckpointHandler):
        async def async_save(self, directory: Any, args: Any) -> Any:
            async def write() -> None:
                args.callback(directory)

            return [ours.future.CommitFutureAwaitingContractedSignals(write())]

        def save(self, directory: Any, args: Any) -> None:
            args.callback(directory)

        def restore(self, directory: Any, args: Any = None) -> Any:
            raise NotImplementedError("files are restored by their writer")

    @args.register_with_handler(CallbackHandler, for_save=True)
    class CallbackSave(args.CheckpointArgs):
        def __init__(self, callback: Any) -> None:
            self.callback = callback

    @args.register_with_handler(CallbackHandler, for_restore=True)
    class CallbackRestore(args.CheckpointArgs): ...

    handlers = {"assets": CallbackHandler(), "params": ours.PyTreeCheckpointHandler()}
    with ours.CheckpointManager(tmp_path / "m", item_handlers=handlers) as manager:
        manager.save(3, {"assets": lambda folder: (folder / "norm.txt").write_text("0.5"), "params": {"params": TREE}})
        manager.wait_until_finished()
        assert (tmp_path / "m" / "3" / "assets" / "norm.txt").read_text() == "0.5"
        restored = manager.restore(3, items={"params": {"params": TREE}})
        assert_same(restored["params"]["params"], TREE)


def test_an_evaluation_job(tmp_path: Path) -> None:
    """Steps as they come, until none has come for a while."""
    with ours.CheckpointManager(tmp_path / "m", options=ours.CheckpointManagerOptions(step_prefix="ckpt")) as manager:
        manager.save(4, args=ours.args.StandardSave(TREE))
    seen = list(ours.checkpoint_utils.checkpoints_iterator(tmp_path / "m", timeout=0, step_prefix="ckpt"))
    assert seen == [4]

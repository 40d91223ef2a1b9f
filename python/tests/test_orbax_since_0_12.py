"""What Orbax' releases since 0.12.0 and its repository changed: failed saves, skipped overwrites,
atomicity, policies.

Where the installed release (0.12.8) has the change it is the judge, and the test runs with both.
"""

from __future__ import annotations

import datetime
import os
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as theirs
import pytest
from orbax.checkpoint import v1 as their_v1
from orbax.checkpoint.checkpoint_managers import PreservationContext

from regrow import orbax as ours
from regrow.orbax import v1 as our_v1

BOTH = pytest.mark.parametrize("ocp", [theirs, ours], ids=["original", "regrow"])
BOTH_V1 = pytest.mark.parametrize("ocp", [their_v1, our_v1], ids=["original", "regrow"])


def state(step: int) -> dict[str, Any]:
    return {"w": np.full(3, step)}


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# ---- a save that fails in the background, and an overwrite that is passed over --------


class Failing:
    """What a handler writes in the background fails."""

    def result(self, timeout: float | None = None) -> None:
        raise OSError("the disk is gone")


class FailingHandler(ours.AsyncCheckpointHandler):
    """Begins to save, and fails."""

    async def async_save(self, directory: Any, args: Any) -> Any:
        return [Failing()]

    def save(self, directory: Any, args: Any) -> None:
        raise AssertionError("saves in the background only")

    def restore(self, directory: Any, args: Any = None) -> None:
        return None


@ours.args.register_with_handler(FailingHandler, for_save=True, for_restore=True)
class FailingArgs(ours.args.CheckpointArgs):
    """Arguments of that handler."""


@pytest.mark.parametrize(
    "options",
    [{"max_to_keep": 2}, {"preservation_policy": ours.checkpoint_managers.LatestN(2)}, {"keep_period": 3}],
    ids=lambda options: next(iter(options)),
)
def test_a_failed_save_keeps_the_steps_before(options: dict[str, Any], tmp_path: Path) -> None:
    if "keep_period" in options:
        options = {**options, "max_to_keep": 2}
    with ours.CheckpointManager(tmp_path, options=ours.CheckpointManagerOptions(**options)) as steps:
        for step in (1, 2):
            steps.save(step, args=ours.args.Composite(state=ours.args.StandardSave(state(step))))
        steps.wait_until_finished()
        args = ours.args.Composite(state=ours.args.StandardSave(state(4)), odd=FailingArgs())
        assert steps.save(4, args=args)
        with pytest.raises(OSError, match="the disk is gone"):
            steps.wait_until_finished()
        assert steps.all_steps() == steps.all_steps(read=True) == [1, 2]
        assert names(tmp_path) == ["1", "2"]
        assert steps.save(5, args=ours.args.Composite(state=ours.args.StandardSave(state(5))))
        steps.wait_until_finished()
        assert steps.all_steps() == [2, 5]


class FailingObject:
    """An object of v1 that cannot be written."""

    async def save(self, directory: Any) -> Any:
        async def write() -> None:
            raise OSError("the disk is gone")

        return write()

    async def load(self, directory: Any) -> Any:
        raise NotImplementedError


def run_of_v1(ocp: Any, folder: Path) -> Any:
    """Keeps two, and saves even steps."""
    training = ocp.training
    return training.Checkpointer(
        folder,
        preservation_policy=training.preservation_policies.LatestN(2),
        save_decision_policy=training.save_decision_policies.FixedIntervalPolicy(2),
    )


def test_a_failed_save_of_v1_keeps_the_steps_before(tmp_path: Path) -> None:
    with run_of_v1(our_v1, tmp_path) as steps:
        for step in (0, 2):
            steps.save(step, state(step))
        for overwritten in (4, 2):
            wrong = {"state": state(9), "odd": FailingObject()}
            response = steps.save_checkpointables_async(overwritten, wrong, overwrite=True, force=True)
            with pytest.raises(OSError, match="the disk is gone"):
                response.result()
            assert [found.step for found in steps.checkpoints] == [0, 2]
            assert names(tmp_path) == ["0", "2"]
        assert steps.load(2)["w"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("step", [3, 2, 4], ids=["not due", "below the latest", "not due, the latest"])
def test_an_overwrite_that_is_passed_over_keeps_the_step(step: int, tmp_path: Path) -> None:
    with run_of_v1(our_v1, tmp_path) as steps:
        steps.save(2, state(2))
        steps.save(3 if step == 3 else 5, state(3 if step == 3 else 5), force=True)
        if step == 4:
            step = 5
        assert not steps.save(step, state(9), overwrite=True)
        assert steps.load(step)["w"].tolist() == [step] * 3
        assert steps.save(step, state(9), overwrite=True, force=True)
        assert steps.load(step)["w"].tolist() == [9] * 3


@BOTH_V1
def test_an_overwrite_that_is_due_replaces_the_step(ocp: Any, tmp_path: Path) -> None:
    with run_of_v1(ocp, tmp_path) as steps:
        for step in (0, 2):
            steps.save(step, state(step))
        assert steps.save(2, state(9), overwrite=True)
        assert steps.load(2)["w"].tolist() == [9] * 3


class Slow:
    """What a handler writes in the background waits for this."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def result(self, timeout: float | None = None) -> None:
        assert self.may_end.wait(60)


class SlowHandler(FailingHandler):
    """Begins to save, and is slow."""

    async def async_save(self, directory: Any, args: Any) -> Any:
        return [args.slow]


@ours.args.register_with_handler(SlowHandler, for_save=True, for_restore=True)
class SlowArgs(ours.args.CheckpointArgs):
    """Arguments of that handler."""

    def __init__(self, slow: Slow) -> None:
        self.slow = slow


def test_a_save_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    with ours.AsyncCheckpointer(SlowHandler()) as checkpointer:
        slow = Slow()
        checkpointer.save(tmp_path / "x", args=SlowArgs(slow))
        timer = threading.Timer(0.2, slow.may_end.set)
        timer.start()
        checkpointer.cancel()
        timer.join()
        checkpointer.wait_until_finished()
        assert names(tmp_path) == []
        slow.may_end.set()
        checkpointer.save(tmp_path / "x", args=SlowArgs(slow))
        checkpointer.wait_until_finished()
        checkpointer.cancel()
        assert names(tmp_path) == ["x"]


# ---- what callers are told of a save --------------------------------------------------


class Events:
    """A callback of v1 that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def on_transfer_end(self, path: Any) -> None:
        self.told.append(("transferred", jax.tree_util.keystr(path)))

    def on_write_end(self, path: Any) -> None:
        self.told.append(("written", jax.tree_util.keystr(path)))


@BOTH_V1
@pytest.mark.parametrize("in_background", [False, True])
def test_the_callback_of_v1_is_told_of_each_array(ocp: Any, in_background: bool, tmp_path: Path) -> None:
    events, context = Events(), ocp.Context()
    context.memory.serialization_status_callback = events
    tree = {"a": {"x": jnp.ones(3)}, "b": [jnp.zeros(2)], "n": np.ones(2), "i": 3, "t": "text"}
    with context:
        if in_background:
            ocp.save_async(tmp_path / "x", tree).result()
        else:
            ocp.save(tmp_path / "x", tree)
    paths = ["['a']['x']", "['b'][0]"]
    assert sorted(events.told) == [(what, path) for what in ("transferred", "written") for path in paths]
    assert events.told.index(("transferred", paths[0])) < events.told.index(("written", paths[0]))


def test_the_callback_of_v1_is_not_told_that_a_failed_save_has_written(tmp_path: Path) -> None:
    events, context = Events(), our_v1.Context()
    context.memory.serialization_status_callback = events
    with context, pytest.raises(OSError, match="the disk is gone"):
        our_v1.save_checkpointables(tmp_path / "x", {"state": {"a": jnp.ones(2)}, "odd": FailingObject()})
    assert [what for what, _ in events.told] in ([], ["transferred"])


class Logger:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def log_entry(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)


def test_a_logger_of_v1_is_told_what_that_of_orbax_is_told(tmp_path: Path) -> None:
    told = []
    for ocp in (their_v1, our_v1):
        logger = Logger()
        with ocp.training.Checkpointer(tmp_path / ocp.__name__, logger=logger) as steps:
            steps.save(1, state(1))
            steps.save_async(2, state(2)).result()
            steps.load(1)
            steps.load_checkpointables()
        keys = ("event_type", "step", "synchronous", "reached_preemption")
        told.append([({key: entry.get(key) for key in keys}, entry.keys()) for entry in logger.entries])
        for entry in logger.entries:
            assert entry["directory"] == str(tmp_path / ocp.__name__)
    assert told[1] == told[0]


# ---- what makes a folder a checkpoint -------------------------------------------------

MODES = [(mode, legacy) for mode in ("AUTO", "COMMIT_FILE", "ATOMIC_RENAME") for legacy in (False, True)]


@pytest.fixture
def unmarked(tmp_path: Path) -> Path:
    """A run whose second step has no marker."""
    with theirs.CheckpointManager(tmp_path) as steps:
        for step in (1, 2):
            steps.save(step, args=theirs.args.StandardSave(state(step)))
    (tmp_path / "2" / "commit_success.txt").unlink()
    return tmp_path


@BOTH
@pytest.mark.parametrize(("mode", "legacy"), MODES)
def test_a_step_without_its_marker_is_read_as_the_options_say(
    ocp: Any, mode: str, legacy: bool, unmarked: Path
) -> None:
    options = ocp.options.AtomicityOptions(ocp.options.AtomicityMode[mode], allow_legacy_atomic_rename=legacy)
    is_read = mode != "COMMIT_FILE" or legacy
    with ocp.CheckpointManager(unmarked, options=ocp.CheckpointManagerOptions(atomicity_options=options)) as steps:
        assert sorted(steps.all_steps()) == ([1, 2] if is_read else [1])
        if is_read:
            assert steps.restore(2)["w"].tolist() == [2] * 3
        else:
            with pytest.raises(ValueError, match="Found incomplete checkpoint"):
                steps.restore(2, args=ocp.args.StandardRestore())
            assert steps.save(2, args=ocp.args.StandardSave(state(8)))
            steps.wait_until_finished()
            assert steps.restore(2)["w"].tolist() == [8] * 3
    form = ocp.path.step.standard_name_format(atomicity_options=options)
    assert sorted(found.step for found in form.find_all(unmarked)) == [1, 2]


@BOTH
def test_a_checkpointer_reads_as_the_options_say(ocp: Any, unmarked: Path) -> None:
    mode = ocp.options.AtomicityMode
    for options, is_read in (
        (None, True),
        (ocp.options.AtomicityOptions(mode=mode.COMMIT_FILE), False),
        (ocp.options.AtomicityOptions(mode=mode.COMMIT_FILE, allow_legacy_atomic_rename=True), True),
    ):
        handler = ocp.CompositeCheckpointHandler()
        with ocp.Checkpointer(handler, atomicity_options=options) as checkpointer:
            args = ocp.args.Composite(default=ocp.args.StandardRestore())
            if is_read:
                assert checkpointer.restore(unmarked / "2", args=args)["default"]["w"].tolist() == [2] * 3
            else:
                with pytest.raises(ValueError, match="Found incomplete checkpoint"):
                    checkpointer.restore(unmarked / "2", args=args)


@BOTH_V1
@pytest.mark.parametrize(("mode", "legacy"), MODES)
def test_v1_reads_as_its_context_says(ocp: Any, mode: str, legacy: bool, unmarked: Path) -> None:
    context = ocp.Context()
    context.atomicity.mode = ocp.options.AtomicityMode[mode]
    context.atomicity.allow_legacy_atomic_rename = legacy
    is_read = mode != "COMMIT_FILE" or legacy
    with ocp.training.Checkpointer(unmarked, context=context) as steps:
        assert [found.step for found in steps.checkpoints] == ([1, 2] if is_read else [1])
    with context:
        if is_read:
            assert ocp.load(unmarked / "2", checkpointable_name="default")["w"].tolist() == [2] * 3
        else:
            with pytest.raises(ocp.errors.InvalidLayoutError):
                ocp.load(unmarked / "2", checkpointable_name="default")


@BOTH
def test_a_mode_that_there_is_not_is_refused(ocp: Any, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(atomicity_options=ocp.options.AtomicityOptions(mode="rename"))
    with pytest.raises(ValueError, match=r"Unsupported atomicity_mode: rename\."):
        ocp.CheckpointManager(tmp_path, options=options).save(1, args=ocp.args.StandardSave(state(1)))


@pytest.mark.parametrize(("mode", "legacy"), MODES)
def test_orbax_reads_with_the_same_options_what_was_saved_with_them(mode: str, legacy: bool, tmp_path: Path) -> None:
    for ocp in (ours, theirs):
        options = ocp.options.AtomicityOptions(ocp.options.AtomicityMode[mode], allow_legacy_atomic_rename=legacy)
        with ocp.CheckpointManager(tmp_path, options=ocp.CheckpointManagerOptions(atomicity_options=options)) as steps:
            if ocp is ours:
                steps.save(3, args=ocp.args.StandardSave(state(3)))
            else:
                assert steps.restore(3)["w"].tolist() == [3] * 3


# ---- policies -------------------------------------------------------------------------


def policies(ocp: Any) -> dict[str, Any]:
    own = ocp.checkpoint_managers
    seconds = datetime.timedelta(seconds=1)
    return {
        **{f"closest {n} {m}": own.EveryNStepsClosest(n, m) for n in (1, 3, 10, -4) for m in (None, 0, 1, 3)},
        **{f"duration {n}": own.LatestDuration(n * seconds) for n in (0, 40, 1000)},
        **{
            f"every {n} {exact} {m}": own.EveryNSteps(n, exact, m)
            for n in (1, 3, 10)
            for exact in (True, False)
            for m in (None, 0, 2)
        },
        **{f"seconds {n}": own.EveryNSeconds(n) for n in (0, 7, 50)},
        **{f"latest {n}": own.LatestN(n) for n in (None, 0, 1, 4)},
        "steps": own.CustomSteps([3, 5, 8]),
        "any": own.AnyPreservationPolicy([own.LatestN(1), own.EveryNStepsClosest(10)]),
    }


@pytest.mark.parametrize("seed", range(8))
def test_policies_keep_what_those_of_orbax_keep(seed: int) -> None:
    random = np.random.default_rng(seed)
    steps = np.unique(random.integers(0, 60, size=int(random.integers(0, 15))))
    now = datetime.datetime.now(tz=datetime.UTC)
    when = [now - datetime.timedelta(seconds=float(x)) for x in sorted(random.integers(1, 90, len(steps)) + 0.5)[::-1]]
    there = [
        ours.checkpoint_managers.PolicyCheckpointInfo(int(step), time) for step, time in zip(steps, when, strict=True)
    ]
    context = PreservationContext()
    original = policies(theirs)
    for name, policy in policies(ours).items():
        kept, expected = (list(each.should_preserve(there, context=context)) for each in (policy, original[name]))
        assert kept == expected, (name, steps)


@BOTH
def test_steps_closest_to_an_interval_stay(ocp: Any, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(preservation_policy=ocp.checkpoint_managers.EveryNStepsClosest(10))
    with ocp.CheckpointManager(tmp_path, options=options) as steps:
        for step in (1, 8, 11, 14, 19, 22, 27):
            steps.save(step, args=ocp.args.StandardSave(state(step)))
            steps.wait_until_finished()
        assert names(tmp_path) == ["1", "11", "19", "27"]


# ---- one checkpoint in parts ----------------------------------------------------------

PAIRS: list[tuple[Any, Any]] = [
    ({"a": 1}, {"b": {"c": 2}}),
    ({"a": [1]}, {"b": (1,)}),
    ({"a": {"b": 1}}, {"a": {"c": None, "d": {}}}),
    ({"a": {"b": 1}}, {"a": {"b": 2}}),
    ({"a": {"b": 1}}, {"a": 2}),
    ({"a": 2}, {"a": {"b": 1}}),
    ({"a": {}}, {"a": {"b": 1}}),
    ({"a": {"b": 1}}, {"a": {}}),
    ({"a": {"b": 1}}, {"a": []}),
    ({"a": {}}, {"a": {}}),
    ({"a": None}, {"a": None}),
    ({"a": None}, {"a": 1}),
    ({"a": 1}, {}),
    ({"a": 1}, None),
    ({"a": [1, 2]}, {"a": {"0": 5}}),
    ([1], [2]),
    (np.ones(3), {"a": 1}),
    ({"a": 1}, np.ones(3)),
    ({1: np.ones(2)}, {"1": np.ones(2)}),
]
REFUSED_HERE: list[tuple[Any, Any]] = [
    ({"a": 1}, {"a": None}),
    ({"a": {"b": 1}}, {"a": None}),
    ({"a": {}}, {"a": []}),
]
"""Orbax takes these, and loses one of the two."""
PLACEHOLDERS: list[tuple[Any, Any, Any]] = [
    ({"a": {"x": 1}}, {"a": {"y": ..., "z": 2}}, {"a": {"x": 1, "z": 2}}),
    ({"a": ...}, {"a": 1}, {"a": 1}),
    ({"a": 1}, {"a": ..., "b": 2}, {"a": 1, "b": 2}),
]


def in_two_parts(ocp: Any, path: Path, first: Any, second: Any) -> str:
    """What the second part ended with."""
    ended = "saved"
    ocp.partial.save(path, first)
    try:
        ocp.partial.save(path, second)
    except Exception as error:
        ended = "Found empty item." if "Found empty item." in str(error) else "does not support REPLACEMENT."
        assert ended in str(error)
    ocp.partial.finalize(path)
    return ended


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("at", range(len(PAIRS)), ids=lambda at: " + ".join(map(str, PAIRS[at])))
def test_two_parts_make_what_they_make_in_orbax(at: int, tmp_path: Path) -> None:
    ended = [in_two_parts(ocp, tmp_path / ocp.__name__, *PAIRS[at]) for ocp in (their_v1, our_v1)]
    assert ended[1] == ended[0]
    expected, found = (their_v1.load(tmp_path / ocp.__name__) for ocp in (their_v1, our_v1))
    assert str(found) == str(expected)
    assert our_v1.__name__ in names(tmp_path) and not (tmp_path / f"{our_v1.__name__}.partial_save").exists()


def random_tree(random: np.random.Generator, depth: int = 3) -> Any:
    if depth == 0 or random.random() < 0.3:
        leaves: list[Any] = [np.arange(3.0), jnp.ones(2), 7, "text", None, {}]
        return leaves[int(random.integers(len(leaves)))]
    return {f"k{at}": random_tree(random, depth - 1) for at in range(int(random.integers(1, 4)))}


def without(tree: Any, random: np.random.Generator, other: bool) -> tuple[Any, Any]:
    """The tree in two, each with what the other has not."""
    if not isinstance(tree, dict) or not tree:
        return (tree, ...) if other else (..., tree)
    halves = {key: without(child, random, bool(random.random() < 0.5)) for key, child in tree.items()}
    one, two = ({key: half[at] for key, half in halves.items() if half[at] is not ...} for at in (0, 1))
    return one or ..., two or ...


@pytest.mark.parametrize("seed", range(6))
def test_two_halves_make_the_whole(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    tree = {"first": 1, "second": 2, "rest": random_tree(random)}
    one, two = without(tree, random, True)
    for part in (one, two):
        if part is not ...:
            our_v1.partial.save(tmp_path / "x", part)
    our_v1.partial.finalize(tmp_path / "x")
    our_v1.save(tmp_path / "whole", tree)
    expected, found = (jax.tree.map(str, their_v1.load(tmp_path / name)) for name in ("whole", "x"))
    assert found == expected


@pytest.mark.parametrize("at", range(len(REFUSED_HERE)), ids=lambda at: " + ".join(map(str, REFUSED_HERE[at])))
def test_a_part_that_would_replace_a_leaf_by_nothing_is_refused(at: int, tmp_path: Path) -> None:
    assert in_two_parts(our_v1, tmp_path / "x", *REFUSED_HERE[at]) == "does not support REPLACEMENT."
    assert their_v1.load(tmp_path / "x") == REFUSED_HERE[at][0]


@pytest.mark.parametrize("at", range(len(PLACEHOLDERS)), ids=lambda at: " + ".join(map(str, PLACEHOLDERS[at][:2])))
def test_placeholders_of_parts_take_no_place(at: int, tmp_path: Path) -> None:
    *parts, expected = PLACEHOLDERS[at]
    assert in_two_parts(our_v1, tmp_path / "x", *parts) == "saved"
    assert their_v1.load(tmp_path / "x") == our_v1.load(tmp_path / "x") == expected

"""`regrow.orbax` in a job of two processes of JAX, of two devices each; the original reads what
they save.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as theirs
import orbax_workers as workers
import processes
import pytest
from conftest import REPOSITORY

pytestmark = pytest.mark.timeout(300)  # the first test waits for all that both processes do

WORKER = """
    import sys
    sys.path.insert(0, arguments["tests"])
    import orbax_workers, orbax_workers_more
    done(orbax_workers.run(arguments))
    jax.distributed.shutdown()
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folders of the cases, and what each process has given of them: one start for all."""
    folder = tmp_path_factory.mktemp("orbax")
    arguments = {
        "folder": str(folder),
        "tests": str(Path(__file__).parent),
        "fixtures": str(REPOSITORY / "fixtures" / "orbax"),
    }
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    ran = processes.run(2, WORKER, folder / "run", arguments=arguments, jax=True, environment=two, seconds_max=200)
    return folder, [each.value for each in ran]


def given(ended: Any, name: str) -> list[Any]:
    """What both processes gave of a case."""
    found = [each[name] for each in ended[1]]
    for each in found:
        assert not isinstance(each, dict) or "raised" not in each, each["raised"]
    return found


def check(path: Path, step: int) -> None:
    """The original restores all of it, in one process."""
    handler = theirs.PyTreeCheckpointHandler()
    known = handler.metadata(path)
    args = jax.tree.map(lambda _: theirs.RestoreArgs(restore_type=np.ndarray), known.tree)
    restored = theirs.Checkpointer(handler).restore(path, args=theirs.args.PyTreeRestore(restore_args=args))
    for name, value in workers.values(step).items():
        assert np.array_equal(restored["params"][name], value), name
    assert np.array_equal(restored["table"], np.arange(3) + step)
    assert int(restored["step"]) == step


def test_pytrees(ended: Any) -> None:
    given(ended, "pytrees")
    check(ended[0] / "pytrees" / "a", 2)


def test_saves_in_the_background(ended: Any) -> None:
    for error, text in given(ended, "background"):
        assert error == "DestinationExistsError", text
    for name, step in (("1", 1), ("2", 2), ("standard", 3)):
        check(ended[0] / "background" / name, step)


def test_handlers_that_write_their_own_files(ended: Any) -> None:
    for files in given(ended, "own_files"):
        assert {"process_0.json", "process_1.json"} <= set(files)
    folder = ended[0] / "own_files"
    check(folder / "items" / "state", 5)
    assert theirs.Checkpointer(theirs.JsonCheckpointHandler()).restore(folder / "json") == {"width": 4}


def test_leaves_of_own_types(ended: Any) -> None:
    given(ended, "own_leaves")
    for item in (ended[0] / "own_leaves" / "alone", ended[0] / "own_leaves" / "run" / "0" / "state"):
        assert [(item / "data" / f"worker_{rank}").read_text() for rank in (0, 1)] == ["20", "21"]


def test_the_manager(ended: Any) -> None:
    for saved, steps, again in given(ended, "manager"):
        assert saved == [True, False] * 3 + [True]
        assert (steps, again) == ([4, 6], [6, 8])
    with theirs.CheckpointManager(ended[0] / "manager" / "run") as manager:
        assert manager.all_steps() == [6, 8]
        config = manager.restore(6, args=theirs.args.Composite(config=theirs.args.JsonRestore()))["config"]
        assert config == {"at": 6}
    check(ended[0] / "manager" / "run" / "6" / "state", 6)


def test_one_replica_reads(ended: Any) -> None:
    # Two of the four arrays are not divided along the axis of the replicas.
    common = 2 * 4 * 8 * 4
    (none, whole), (received, read) = given(ended, "single_replica")
    assert (none, received) == ([0, 0], [common, common // 2])
    # The receiver reads its parts of the others, and of the rest.
    assert [at - own for at, own in zip(whole, read, strict=True)] == [common, common // 2]
    assert given(ended, "single_replica_of_v1") == [[0], [common]]


def test_saves_of_v1_in_parts(ended: Any) -> None:
    for errors, wrong, files in given(ended, "partial_of_v1"):
        assert errors == ["PartialSaveReplacementError", "FileNotFoundError", "FileExistsError"]
        assert "odd" in wrong
        assert files == ["a"]
    check(ended[0] / "partial_of_v1" / "a" / "state", 3)


def test_flax_folders_have_what_processes_hold_together(ended: Any) -> None:
    for (kind, text), twice, files in given(ended, "flax_folders"):
        assert kind.startswith("Unsupported") and "leaf a" in text
        # As in Flax: the older step goes before the save is refused.
        assert (twice, files) == ("InvalidCheckpointError", ["checkpoint_3"])
    check(ended[0] / "flax_folders" / "checkpoint_3", 3)


def test_a_step_that_one_process_reads_is_in_the_list_of_all(ended: Any) -> None:
    for between, told, steps in given(ended, "leased"):
        assert (between, steps) == ([0, 1], [2])
        assert "being read" in told


def test_who_does_not_come_in_time_is_named(ended: Any) -> None:
    waited, late = given(ended, "late")
    for error, text in waited:
        assert error == "TimedOutError" and "rank 1" in text, text
    assert all(error != "nothing" for error, _ in late), late


def test_an_error_of_one_process_is_one_of_all(ended: Any) -> None:
    for told in given(ended, "errors"):
        *errors, left = told
        for error, text in errors:
            assert error != "nothing"
            assert "odd" in text, text
        assert left == ["good", "run", "0"]
    for told in given(ended, "errors_of_v1"):
        *errors, left = told
        for error, text in errors:
            assert error != "nothing"
            assert "odd" in text, text
        assert left == ["run"]


def test_what_two_processes_of_the_original_have_saved(ended: Any) -> None:
    one, other = given(ended, "of_the_original")
    assert one == other
    assert all(0 < arrays <= leaves for arrays, leaves in one.values()), one


def test_helpers(ended: Any) -> None:
    assert given(ended, "helpers") == [[2, True, True], [2, False, True]]

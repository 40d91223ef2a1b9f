"""What a manager says of its own save while it is in flight, and of folders of steps: as the
original.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as theirs
import pytest

from regrow import orbax as ours

MODULES = {"orbax": theirs, "regrow": ours}
TREE = {"w": np.arange(6, dtype=np.float32)}


@pytest.fixture(params=MODULES)
def ocp(request: pytest.FixtureRequest) -> Any:
    """The original, and ours."""
    return MODULES[request.param]


def waiting(ocp: Any, may: threading.Event) -> tuple[Any, Callable[[], Any]]:
    """A handler whose files are written when they may be, and its arguments."""

    pool = ThreadPoolExecutor(1)

    class Later(ocp.AsyncCheckpointHandler):
        async def async_save(self, directory: Any, args: Any) -> Any:
            def write() -> None:
                assert may.wait(20)
                # The original makes it in the background.
                while not directory.exists():
                    time.sleep(0.001)
                (directory / "x.txt").write_text("x")

            return [pool.submit(write)]

        def save(self, directory: Any, args: Any) -> None:
            raise NotImplementedError

        def restore(self, directory: Any, args: Any = None) -> Any:
            return (directory / "x.txt").read_text()

    @ocp.args.register_with_handler(Later, for_save=True, for_restore=True)
    class Args(ocp.args.CheckpointArgs):
        pass

    return Later(), Args


def test_the_list_has_the_managers_own_save(ocp: Any, tmp_path: Path) -> None:
    may = threading.Event()
    handler, args = waiting(ocp, may)
    may.set()
    with ocp.CheckpointManager(tmp_path, item_handlers=handler) as manager:
        assert manager.save(1, args=args())
        manager.wait_until_finished()
        may.clear()
        try:
            assert manager.save(2, args=args(), metrics={"loss": 1.0})
            assert manager.is_saving_in_progress() and not (tmp_path / "2").exists()
            assert (manager.latest_step(), list(manager.all_steps())) == (2, [1, 2])
            assert not manager.should_save(2)
        finally:
            may.set()
        assert manager.restore(2, args=args()) == "x"
        manager.wait_until_finished()
        assert list(manager.all_steps()) == [1, 2]
        # As tunix ends its loops.
        if manager.latest_step() != 2:
            manager.save(2, args=args(), force=True)
        with pytest.raises(ValueError, match="already exists"):
            manager.save(2, args=args(), force=True)


def test_a_save_in_flight_keeps_no_older_step_from_being_kept(tmp_path: Path) -> None:
    """Which steps go is decided by those that are committed."""
    may = threading.Event()
    may.set()
    handler, args = waiting(ours, may)
    options = ours.CheckpointManagerOptions(max_to_keep=2)
    with ours.CheckpointManager(tmp_path, item_handlers=handler, options=options) as manager:
        for step in range(3):
            manager.save(step, args=args())
            if step == 1:
                manager.wait_until_finished()
                may.clear()
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.isdigit()) == ["0", "1"]
        may.set()
        manager.wait_until_finished()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


@pytest.mark.parametrize("kind", ["PyTree", "Standard"])
def test_a_folder_of_steps_is_no_checkpoint(ocp: Any, kind: str, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.StandardSave(TREE))
    restore = getattr(ocp.args, f"{kind}Restore")
    with ocp.Checkpointer(getattr(ocp, f"{kind}CheckpointHandler")()) as checkpointer:
        for target in (None, TREE):
            with pytest.raises(FileNotFoundError):
                checkpointer.restore(tmp_path, args=restore(target))
        assert checkpointer.metadata(tmp_path).item_metadata is None
        assert checkpointer.restore(tmp_path / "2" / "default", args=restore())["w"].tolist() == TREE["w"].tolist()

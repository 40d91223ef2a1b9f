"""Several processes that coordinate through the store of `torch.distributed`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch.distributed as distributed

sys.path.append(str(Path(__file__).parent.parent / "tests"))
import coordinators
import processes

import regrow
from regrow._jobs import _coordination
from regrow._jobs._coordination_torch import TorchCoordinator

ROUNDS = """
    import torch.distributed
    import regrow
    from regrow._jobs._coordination import Session

    torch.distributed.init_process_group("gloo", init_method=arguments["init"], rank=rank, world_size=size)
    coordinator = regrow.jobs.coordinator()
    assert type(coordinator).__name__ == "TorchCoordinator"
    assert (coordinator.rank, coordinator.size) == (rank, size)
    given = []
    for fails in (None, 1, None):
        with Session(coordinator, arguments["target"], "save", timeout=60) as session:
            session.shares_storage(arguments["target"])
            gathered = session.gather("index", bytes([rank, 0, 255]) * 5_000_000)
            if rank == 0:
                assert gathered == [bytes([each, 0, 255]) * 5_000_000 for each in range(size)]
            given.append(session.broadcast("plan", b"plan of %d" % rank).decode())
            try:
                session.agree("written", "no space" if fails == rank else None)
                given.append("agreed")
            except regrow.RegrowError as error:
                given.append(f"{type(error).__name__}: {error}")
    done(given)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


def test_a_coordinator_keeps_its_promises(tmp_path):
    init = f"tcp://127.0.0.1:{processes.free_port()}"
    joins = (
        "import torch.distributed\n"
        f"torch.distributed.init_process_group('gloo', init_method={init!r}, rank=rank, world_size=size)\n"
    )
    ended = processes.run(2, joins + coordinators.promises("regrow.jobs.coordinator()"), tmp_path / "run")
    assert ended[0].value == ended[1].value
    assert set(ended[0].value) <= {0, 1}


def test_processes_gather_broadcast_and_agree(tmp_path):
    arguments = {"init": f"tcp://127.0.0.1:{processes.free_port()}", "target": str(tmp_path / "step_1")}
    ended = processes.run(3, ROUNDS, tmp_path / "run", arguments=arguments)
    for rank, each in enumerate(ended):
        error = "IoError: no space" if rank == 1 else "IoError: rank 1 failed in phase `written`: no space"
        assert each.value == ["plan of 0", "agreed", "plan of 0", error, "plan of 0", "agreed"]


@pytest.mark.parametrize("kind", ["tcp", "hash", "file", "prefix"])
def test_every_store_keeps_the_protocol(tmp_path, kind):
    match kind:
        case "hash":
            store = distributed.HashStore()
        case "file":
            store = distributed.FileStore(str(tmp_path / "store"), 1)
        case _:
            store = distributed.TCPStore("127.0.0.1", processes.free_port(), is_master=True, wait_for_workers=False)
    if kind == "prefix":
        store = distributed.PrefixStore("p", store)
    each = TorchCoordinator(store, 0, 2)
    assert isinstance(each, _coordination.Coordinator)
    value = bytes(range(256))
    assert each.put_if_absent("a/b", value)
    assert not each.put_if_absent("a/b", value), "the same value, but not put by this call"
    assert each.get("a/b", 0) == value
    assert each.get("a", 0.01) is None
    threading.Timer(0.1, each.put_if_absent, ("c", b"late")).start()
    assert each.get("c", 30) == b"late"
    longest = bytes(range(256)) * (each.value_len_max_bytes // 256) + b"z" * (each.value_len_max_bytes % 256)
    assert each.put_if_absent("longest", longest)
    assert each.get("longest", 30) == longest
    each.remove("a")
    assert each.get("a/b", 0) is None
    assert each.put_if_absent("a/b", b"new")


LEAVES_AT_ONCE = """
    import os
    import torch, torch.distributed
    import regrow
    from regrow._jobs._coordination_torch import find

    torch.distributed.init_process_group("gloo", init_method=arguments["init"], rank=rank, world_size=size)

    class Slow:
        "Looks for the end of the save when rank 0 is gone, and the store with it."

        def __init__(self, inner):
            self.inner, self.rank, self.size = inner, inner.rank, inner.size
            self.value_len_max_bytes = inner.value_len_max_bytes
            self.put_if_absent, self.remove, self.live = inner.put_if_absent, inner.remove, inner.live

        def get(self, key, wait):
            if rank and "/commit/" in key:
                time.sleep(3)
            return self.inner.get(key, wait)

    report = regrow.save(arguments["target"], {"w": torch.arange(5)}, job=regrow.jobs.Job(Slow(find()), timeout=30))
    done(report.leaf_count)
    os._exit(0)
"""


def test_a_save_has_succeeded_for_all_if_rank_0_ends_right_after_it(tmp_path):
    arguments = {"init": f"tcp://127.0.0.1:{processes.free_port()}", "target": str(tmp_path / "step_1")}
    ended = processes.run(2, LEAVES_AT_ONCE, tmp_path / "run", arguments=arguments)
    assert [each.value for each in ended] == [1, 1]
    assert regrow.load(tmp_path / "step_1")["w"].tolist() == [0, 1, 2, 3, 4]

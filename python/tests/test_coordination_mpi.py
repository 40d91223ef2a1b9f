"""Several processes that coordinate through MPI: mpi4py with MPICH, as PyPI has them."""

from __future__ import annotations

import coordinators
import processes

ROUNDS = """
    import regrow
    from regrow._jobs._coordination import Session

    coordinator = regrow.jobs.coordinator()
    assert type(coordinator).__name__ == "MpiCoordinator"
    assert (coordinator.rank, coordinator.size) == (rank, size)
    assert regrow.jobs.coordinator() is coordinator, "a copy of the communicator is made once"
    given = []
    for fails in (None, 1, None):
        with Session(coordinator, arguments, "save", timeout=60) as session:
            session.shares_storage(arguments)
            gathered = session.gather("index", b"%d" % rank * 5_000_000)
            if rank == 0:
                assert gathered == [b"%d" % each * 5_000_000 for each in range(size)]
            given.append(session.broadcast("plan", b"plan of %d" % rank).decode())
            try:
                session.agree("written", "no space" if fails == rank else None)
                given.append("agreed")
            except regrow.RegrowError as error:
                given.append(f"{type(error).__name__}: {error}")
    # Messages of the program's own are not taken for others.
    MPI.COMM_WORLD.send(rank, dest=(rank + 1) % size, tag=1)
    given.append(MPI.COMM_WORLD.recv(tag=1))
    done(given)
"""


def test_a_coordinator_keeps_its_promises(tmp_path):
    values = processes.run_mpi(2, coordinators.promises("regrow.jobs.coordinator()"), tmp_path / "run")
    assert values[0] == values[1]
    assert set(values[0]) <= {0, 1}


def test_processes_gather_broadcast_and_agree(tmp_path):
    values = processes.run_mpi(3, ROUNDS, tmp_path / "run", arguments=str(tmp_path / "step_1"))
    for rank, value in enumerate(values):
        error = "IoError: no space" if rank == 1 else "IoError: rank 1 failed in phase `written`: no space"
        assert value == ["plan of 0", "agreed", "plan of 0", error, "plan of 0", "agreed", (rank - 1) % 3]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_process_that_does_not_come_is_named_in_time(tmp_path):
    worker = """
        import regrow
        from regrow._jobs._coordination import Session
        with Session(regrow.jobs.coordinator(), arguments, "save", timeout=2) as session:
            if rank == 1:
                time.sleep(3.5)
            try:
                session.agree("written")
            except regrow.errors.TimedOutError as error:
                done(str(error))
    """
    values = processes.run_mpi(3, worker, tmp_path / "run", arguments=str(tmp_path / "step_1"))
    for value in values:
        assert "rank 1 has not come to phase `written` within 2" in value


def test_an_mpi_without_threads_is_refused_with_a_way_out(tmp_path):
    worker = """
        import regrow
        try:
            regrow.jobs.coordinator()
        except regrow.errors.UnsupportedError as error:
            done(error.help)
    """
    environment = {"MPI4PY_RC_THREAD_LEVEL": "serialized"}
    values = processes.run_mpi(2, worker, tmp_path / "run", environment=environment)
    assert all("regrow.jobs.Folder" in value for value in values)

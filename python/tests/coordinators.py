"""The promises of every coordinator, as a program that its processes run: with JAX, torch, MPI and
a folder.

processes.run(2, 'coordinator = regrow.jobs.coordinator()' + coordinators.PROMISES, tmp_path,
jax=True)
"""

from __future__ import annotations

import textwrap


def promises(make: str) -> str:
    """The program; `make` is the text that makes a coordinator."""
    return f"import regrow\ncoordinator = {make}\n{textwrap.dedent(PROMISES)}"


PROMISES = """
    def all_come(phase):
        assert coordinator.put_if_absent(f"{phase}/{rank}", b"come")
        for each in range(size):
            assert coordinator.get(f"{phase}/{each}", 60) == b"come"

    for turn in range(100):
        key, value = f"told/{turn}", b"value %d" % turn
        if rank == 0:
            assert coordinator.put_if_absent(key, value)
        else:
            assert coordinator.get(key, 60) == value
        # A process that asks for an existing value gets it, also if it must not wait.
        assert coordinator.get(key, 0) == value, f"turn {turn}: what is there is not found"
        assert not coordinator.put_if_absent(key, b"another")
        assert coordinator.get(f"never/{turn}", 0) is None

    # One of all who put at once wins, and all see the same.
    won = [coordinator.put_if_absent(f"one/{turn}", b"%d" % rank) for turn in range(20)]
    all_come("put")
    seen = [int(coordinator.get(f"one/{turn}", 0)) for turn in range(20)]
    assert [each == rank for each in seen] == won

    began = time.monotonic()
    assert coordinator.get("never", 0.3) is None
    assert 0.25 < time.monotonic() - began < 10

    large = bytes(range(256)) * (min(coordinator.value_len_max_bytes, 3 << 20) // 256)
    if rank == 0:
        assert coordinator.put_if_absent("large", large)
    assert coordinator.get("large", 60) == large

    # Many values in one call: all of them when all are there, and never one that is not.
    keys = [f"many/{each}/0" for each in range(size)]
    assert coordinator.put_if_absent(f"many/{rank}/0", b"of %d" % rank)
    all_come("many-put")
    expected = {key: b"of %d" % each for each, key in enumerate(keys)}
    assert coordinator.get_many(keys) == expected
    some = coordinator.get_many([*keys, "many/never/0"])
    assert some.items() <= expected.items(), some
    assert coordinator.get_many(["never/0", "never/1"]) == {}

    all_come("read")
    if rank == 0:
        coordinator.remove("told")
        assert coordinator.get("told/0", 0) is None
        assert coordinator.get("large", 0) == large
    all_come("removed")
    assert coordinator.get("told/99", 0) is None
    all_come("end")
    done(seen)
"""

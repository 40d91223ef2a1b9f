"""A process of a job is killed at any instruction of a save, a hundred times; `make test-long`.

The kernel ends the process when a timer is over, so no moment is left out. The times are spread
over what a save takes. The same `REGROW_SEED` makes a run again.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))
import pytest
from test_processes import check_step, save

import regrow

ROUNDS = 100
TIMEOUT_SECONDS = 2
SEED = int(os.environ.get("REGROW_SEED", random.SystemRandom().randrange(1 << 32)))


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.timeout(3600)
def test_a_job_that_loses_processes_loses_no_checkpoint(tmp_path, size, mode):
    print(f"REGROW_SEED={SEED}")
    randomly = random.Random(f"{SEED} {size} {mode}")
    options = {"async": mode == "async", "timeout": TIMEOUT_SECONDS}
    given = save(tmp_path, size, step=0, **options)
    assert [each[0] for each in given] == ["saved"] * size
    took = max(each[-1] for each in given)
    step, died, old, new = 0, 0, 0, 0
    for round_ in range(ROUNDS // 4):
        doomed = randomly.sample(range(size), randomly.randint(1, size))
        after = {str(rank): randomly.uniform(0.0001, 1.2 * took) for rank in doomed}
        attempted = step + 1
        what = f"round {round_}, killed after {after}"
        given = save(tmp_path, size, step=attempted, after=after, statuses=dict.fromkeys(doomed), **options)
        died += sum(given[rank] is None for rank in doomed)
        held = regrow.load(tmp_path / "step")["step"]
        assert held in (step, attempted), what
        check_step(tmp_path / "step", size, held)
        for rank, each in enumerate(given):
            if each is None:
                continue
            if each[0] == "saved":
                assert held == attempted, f"{what}: rank {rank} says that it is saved"
            else:
                assert each[-1] < TIMEOUT_SECONDS + 12, f"{what}: {each}"
                assert "rank" in each[1], f"{what}: {each}"
        if all(each is not None for each in given):
            assert held == attempted, what
        old, new = old + (held == step), new + (held == attempted)
        # The next save goes well, and removes what the dead have left.
        step = attempted + 1
        assert [each[0] for each in save(tmp_path, size, step=step, **options)] == ["saved"] * size, what
        check_step(tmp_path / "step", size, step)
        assert sorted(os.listdir(tmp_path)) == ["meet", "run", "step"], what
    print(f"{died} processes died; {old} times the old checkpoint was there, {new} times the new one")
    assert died > ROUNDS // 8
    assert old > 0

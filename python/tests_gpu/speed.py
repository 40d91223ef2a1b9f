"""How fast arrays of a GPU are saved: `python speed.py GIB ROUNDS`.

Rounds are interleaved. It prints medians, and ratios to a plain write of the same bytes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np
import orbax.checkpoint as ocp
import torch

import regrow
import regrow.torch

MATRIX = (4096, 4096)


def main(gib: float, rounds: int) -> None:
    count = int(gib * (1 << 30) / (MATRIX[0] * MATRIX[1] * 4))
    root = Path(tempfile.mkdtemp())
    torch_state = {str(at): torch.randn(MATRIX, device="cuda") for at in range(count)}
    jax_state = {str(at): jax.random.normal(jax.random.key(at), MATRIX) for at in range(count)}
    jax.block_until_ready(jax_state)
    host = [np.array(array) for array in jax_state.values()]

    def fresh() -> dict[str, jax.Array]:
        # JAX keeps what it has copied to the host once.
        return jax.block_until_ready({name: array + 0 for name, array in jax_state.items()})

    def plain(path: Path) -> None:
        with path.open("wb") as file:
            for array in host:
                file.write(array.data)
            os.fsync(file.fileno())

    def orbax(path: Path, state: dict[str, jax.Array]) -> None:
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            checkpointer.save(path, args=ocp.args.StandardSave(state))

    def torch_save(path: Path) -> None:
        with path.open("wb") as file:
            torch.save(torch_state, file)
            file.flush()
            os.fsync(file.fileno())

    def timed(work: Callable[[Path], object]) -> float:
        path = root / "x"
        began = time.perf_counter()
        work(path)
        took = time.perf_counter() - began
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return took

    times: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        for name, work in {
            "write of the host's bytes, with fsync": plain,
            "regrow.torch.save": lambda path: regrow.torch.save(path, torch_state, progress=False),
            "torch.save, with fsync": torch_save,
        }.items():
            times.setdefault(name, []).append(timed(work))
        state = fresh()
        times.setdefault("regrow.save of JAX arrays", []).append(
            timed(lambda path, state=state: regrow.save(path, state, progress=False))
        )
        state = fresh()
        times.setdefault("Orbax' save", []).append(timed(lambda path, state=state: orbax(path, state)))
        state = fresh()
        began = time.perf_counter()
        saving = regrow.save_async(root / "a", state)
        times.setdefault("regrow.save_async returns", []).append(time.perf_counter() - began)
        saving.result()
        shutil.rmtree(root / "a")
    limit = statistics.median(times["write of the host's bytes, with fsync"][1:])
    for name, took in times.items():
        median = statistics.median(took[1:])
        print(f"{name}: {median:.3f} s, {median / limit:.2f} of the plain write")
    shutil.rmtree(root)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))

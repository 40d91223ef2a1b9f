"""What one run of the benchmark is: where, how large, how often, and who takes part."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chunked import Orbax, OrbaxRaw, OrbaxZarr3, OrbaxZarr3Raw, TensorStore
from measure import OURS, Samples, say
from tools import (
    Equinox,
    Flax,
    Numpy,
    Pickle,
    Regrow,
    RegrowDcp,
    RegrowTorch,
    Safetensors,
    Tool,
    Torch,
    TorchDcp,
    is_there,
)
from workloads import Tree, build, size

TOOLS: dict[str, type[Tool]] = {
    tool.name: tool
    for tool in (
        Regrow,
        Safetensors,
        Orbax,
        OrbaxRaw,
        TensorStore,
        Flax,
        Equinox,
        Numpy,
        Pickle,
        Torch,
        TorchDcp,
        RegrowTorch,
        RegrowDcp,
    )
}
"""Those that take part in saves and loads."""
FORMS: tuple[type[Orbax], ...] = (Orbax, OrbaxZarr3, OrbaxRaw, OrbaxZarr3Raw)
"""Orbax' own forms, for what both can read and write."""


@dataclass(frozen=True)
class Scale:
    """How large things are."""

    name: str
    rounds: int
    suffix: str
    """Of the names of workloads: gpt2_adam@1GiB."""
    slice_bytes: int
    """The leaf that a slice is read of."""
    growth_bytes: tuple[int, ...]
    growth_leaves: tuple[int, ...]
    growth_steps: tuple[int, ...]
    chunked_max: int
    """Beyond so many leaves Orbax and TensorStore do not take part."""
    is_quick: bool
    """Whether all rivals meet at the first workload only, safetensors alone at the others, and
    a million leaves are never opened."""
    needs_bytes: int
    """Free space on the disk: the largest tree, twice, and what the limits write beside it."""

    @property
    def main(self) -> str:
        """The workload of all operations that are measured with one."""
        return f"gpt2_adam@{self.suffix}"

    @property
    def workloads(self) -> list[str]:
        """Those of saves and loads."""
        sized = [f"{name}@{self.suffix}" for name in ("gpt2_adam", "llama_bf16", "mlperf_llama3_8b", "one_giant")]
        return [*sized, "moe_128x48@0.25GiB", "many_small", "mixed_dtypes"]


MIB, GIB = 1 << 20, 1 << 30
SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "quick",
            2,
            "0.25GiB",
            256 * MIB,
            (8 * MIB, 64 * MIB, 512 * MIB),
            (1_000, 10_000, 100_000),
            (10, 100, 1_000),
            2_000,
            True,
            2 * GIB,
        ),
        Scale(
            "full",
            5,
            "1GiB",
            4 * GIB,
            (16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB),
            (10, 100, 1_000, 10_000, 100_000, 1_000_000),
            (10, 100, 1_000, 10_000),
            20_000,
            False,
            9 * GIB,
        ),
        Scale(
            "long",
            5,
            "4GiB",
            4 * GIB,
            (64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB),
            (10, 100, 1_000, 10_000, 100_000, 1_000_000),
            (10, 100, 1_000, 10_000),
            20_000,
            False,
            14 * GIB,
        ),
    )
}


@dataclass
class Setting:
    """One run."""

    scale: Scale
    folder: Path
    rounds: int
    tool_names: list[str]
    workloads: list[str]
    samples: Samples = field(default_factory=Samples)

    def tools(self, workload: str, leaf_count: int) -> list[Tool]:
        """Who takes part with this workload; notes say why the others do not."""
        out = []
        for name in self.tool_names:
            tool = TOOLS[name]
            if not is_there(tool):
                self.samples.note(f"{name} is not installed")
                continue
            most = tool.leaves_max
            if most is not None and tool.slow_from is not None:
                most = min(most, self.scale.chunked_max)
            if most is not None and leaf_count > most:
                self.samples.note(f"{name} is left out of {workload}: beyond {most:,} leaves it takes too long")
                continue
            is_first = workload == self.workloads[0]
            if self.scale.is_quick and not is_first and name not in {OURS, Safetensors.name}:
                continue
            out.append(tool())
        return out

    @contextmanager
    def tree(self, workload: str) -> Iterator[tuple[Tree, int, int]]:
        """The data, how many leaves and how many bytes; out of the garbage collector's sight
        while it is used.
        """
        say(f"  {workload}: building")
        tree = build(workload)
        gc.collect()
        gc.freeze()
        try:
            yield tree, *size(tree)
        finally:
            gc.unfreeze()

    @contextmanager
    def room(self, name: str) -> Iterator[Path]:
        """A folder that is gone afterwards."""
        path = self.folder / name
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """A file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

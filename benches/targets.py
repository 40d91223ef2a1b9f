"""What is aimed at: each row of the table is a ratio to the best rival or to the limit, or an
absolute time.

A ratio is how many times as long the other takes: 0.85 of a limit means that the limit takes 0.85
of our time, 6 of a rival that it takes six times as long as we do. Absolute times are of a machine
with a fast local disk; the ratios are what travels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asynchronous import BLOCKED, JAX, NUMPY
from growth import BYTES, INTO, LEAVES, LOAD, OPEN, SAVE
from interop import EQUINOX_LOAD, EQUINOX_SAVE, FLAX_ENCODE, FLAX_LOAD, FLAX_SAVE
from measure import LIMIT, OURS, Samples
from operations import COLD, MEMCPY, MILLION, OPEN_ALONE, SLICE, SLICE_BYTES, VERIFY, WARM
from operations import INTO as LOAD_INTO
from operations import SAVE as SAVED
from processes import EXTRA, HELP, IMPORT, LS, SIZE
from same_calls import COLD as CALLS_COLD
from same_calls import PART as CALLS_PART
from same_calls import RESTORE_STEP as CALLS_RESTORE_STEP
from same_calls import SAVE as CALLS_SAVE
from same_calls import SAVE_STEP as CALLS_STEP
from same_calls import START, STEPS, TINY
from same_calls import WARM as CALLS_WARM
from setting import MIB, Scale
from trak_stores import FEATURIZE, STORE, THEIRS

Value = Callable[[Samples], float | None]


@dataclass(frozen=True)
class Target:
    """One figure, and what it has to be."""

    row: str
    what: str
    value: Value
    bound: float
    at_least: bool
    unit: str

    def verdict(self, found: float) -> str:
        """Whether it is there."""
        return "hit" if (found >= self.bound if self.at_least else found <= self.bound) else "miss"

    def bound_text(self) -> str:
        """The bound, as the table shows it."""
        return f"{'>=' if self.at_least else '<='} {shown(self.bound, self.unit)}"


def shown(value: float, unit: str) -> str:
    """A value with its unit."""
    match unit:
        case "x":
            return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"
        case "ms":
            return f"{value * 1e3:.3g} ms"
        case "MiB":
            return f"{value / MIB:.1f} MiB"
        case _:
            return f"{value:.3g} {unit}"


def targets(scale: Scale) -> list[Target]:
    """Every row of the table, for the workloads of this scale."""
    sized = [f"{name}@{scale.suffix}" for name in ("gpt2_adam", "llama_bf16", "one_giant")]
    main, moe, many = scale.main, "moe_128x48@0.25GiB", "many_small"
    out: list[Target] = []

    def faster(row: str, operation: str, workload: str, than: str, bound: float, ours: str = OURS) -> None:
        what = f"{workload}: {operation}, {than}{'' if ours == OURS else f' to {ours}'}"
        out.append(Target(row, what, lambda s: s.ratio(operation, workload, than, ours), bound, True, "x"))

    def within(row: str, operation: str, workload: str, bound: float, unit: str) -> None:
        what = f"{workload}: {operation}"
        out.append(Target(row, what, lambda s: s.median(operation, workload, OURS), bound, False, unit))

    for workload in sized:
        row = "durable, checksummed save"
        faster(row, SAVED, workload, LIMIT, 0.85)
        faster(row, SAVED, workload, "safetensors", 1.7)
        faster(row, SAVED, workload, "orbax", 6)
    for workload in sized:
        row = "cold verified load"
        faster(row, COLD, workload, LIMIT, 0.85)
        faster(row, COLD, workload, "safetensors", 1.8)
        faster(row, COLD, workload, "orbax", 3)
    for workload in sized:
        row = "warm verified load into given arrays"
        faster(row, LOAD_INTO, workload, MEMCPY, 0.5)
        faster(row, LOAD_INTO, workload, "safetensors", 1.3)
    for workload, bound in ((main, 2e-3), (many, 50e-3), (MILLION, 600e-3)):
        within("open + map", OPEN_ALONE, workload, bound, "ms")
    for operation in (SAVED, COLD, WARM):
        row = "save / load 18,867 leaves"
        faster(row, operation, moe, "safetensors", 2)
        faster(row, operation, moe, "orbax", 100)
    for operation in (SAVED, COLD, WARM):
        faster("save / load 100,000 leaves of 1 KiB", operation, many, "safetensors", 2.5)
    row = "async save, blocked time"
    within(row, f"{BLOCKED}, {JAX}", main, 5e-3, "ms")
    within(row, f"{BLOCKED}, {JAX}", moe, 25e-3, "ms")
    copied = f"{BLOCKED}, {NUMPY}"
    what = f"{main}: {copied}, ours to memcpy"
    out.append(Target(row, what, lambda s: s.ratio(copied, main, OURS, LIMIT), 1.2, False, "x"))
    for form in ("orbax", "orbax zarr3"):
        for state in ("cold", "warm"):
            faster("loading what Orbax wrote", f"load {state} {form}", main, "orbax", 1.5)
    for form, bound in (("orbax", 1.5), ("orbax zarr3", 1.5), ("orbax raw", 2.5), ("orbax zarr3 raw", 2.5)):
        faster("saving in Orbax's own forms", f"save {form}", main, "orbax", bound)
    for workload, bound in ((main, 4), (moe, 50)):
        for operation in (CALLS_SAVE, CALLS_COLD, CALLS_WARM, CALLS_PART, CALLS_STEP):
            faster("Orbax' own calls", operation, workload, "orbax", bound)
    for operation in (CALLS_STEP, CALLS_RESTORE_STEP):
        faster("Orbax' own calls", operation, TINY, "orbax", 1)
    faster("Orbax' own calls", START, STEPS, "orbax", 4)
    faster("flax", FLAX_ENCODE, main, "flax", 8)
    faster("flax", FLAX_SAVE, main, "flax", 8)
    faster("flax", FLAX_SAVE, main, "flax", 8, "regrow.save")
    faster("flax", FLAX_LOAD, main, "flax", 8)
    faster("equinox", EQUINOX_SAVE, main, "equinox", 1.3)
    faster("equinox", EQUINOX_LOAD, main, "equinox", 3)
    what = f"{STORE}: {FEATURIZE}, ours to {THEIRS}"
    out.append(Target("TRAK store", what, lambda s: s.ratio(FEATURIZE, STORE, OURS, THEIRS), 1, False, "x"))
    giant = f"a leaf of {scale.slice_bytes // MIB} MiB"
    out.append(Target("one 64 KiB slice, cold", f"{giant}: bytes read to bytes asked", _read(giant), 2, False, "x"))
    for workload in sized:
        what = f"{workload}: {VERIFY} cold, limit of the cold read"
        out.append(Target("verify", what, _verify(workload), 0.85, True, "x"))
    for task in ("save", "load", "load into", "convert orbax", "convert flax"):
        within("extra memory", f"{EXTRA}, {task}", main, 64 * MIB, "MiB")
    what = "fresh process: import, ours to orbax.checkpoint"
    out.append(Target("import", what, lambda s: s.ratio(IMPORT, "fresh process", OURS, "orbax"), 0.15, False, "x"))
    within("regrow ls", LS, many, 150e-3, "ms")
    what = "fresh process: the script of the package, to python alone"
    out.append(Target("regrow --help", what, lambda s: s.ratio(HELP, "fresh process", OURS, "python"), 1.5, False, "x"))
    # 12.2 MiB without symbols, nearly all of it code of the extension; the rest is for what comes.
    within("wheel", SIZE, "wheel", 13 * MIB, "MiB")
    small, *_, large = scale.growth_bytes
    for operation in (SAVE, INTO):
        what = f"{operation}: a byte at {large // small}x to one at 1x"
        value = _growth(BYTES, operation, f"{small // MIB}", f"{large // MIB}")
        out.append(Target("growth", what, value, 1.2, False, "x"))
    # Below 10,000 leaves, the fixed cost of a call is most of its time.
    small, large = (count for count in scale.growth_leaves[-3::2])
    for operation in (SAVE, LOAD, OPEN):
        what = f"{operation}: a leaf of {large:,} to one of {small:,}"
        out.append(Target("growth", what, _growth(LEAVES, operation, str(small), str(large)), 1.2, False, "x"))
    return out


def _read(workload: str) -> Value:
    def value(samples: Samples) -> float | None:
        key = (SLICE, workload, OURS)
        read = [row.read_bytes for row in samples.rows if (row.operation, row.workload, row.who) == key]
        most = max((each for each in read if each is not None), default=None)
        return None if most is None else most / SLICE_BYTES

    return value


def _verify(workload: str) -> Value:
    def value(samples: Samples) -> float | None:
        return samples.ratio_between((COLD, workload, LIMIT), (VERIFY, workload, OURS))

    return value


def _growth(workload: str, operation: str, small: str, large: str) -> Value:
    return lambda samples: samples.ratio(operation, workload, large, small)

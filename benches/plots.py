"""Pictures of a run: who takes how many times as long as regrow, growth, memory. PNG, for the
documentation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from growth import BYTES, LEAVES
from measure import LIMIT, OURS, Samples
from operations import COLD, INTO, SAVE, WARM
from processes import EXTRA
from setting import MIB, Scale

COLOURS = {
    LIMIT: "#9e9e9e",
    "memcpy": "#9e9e9e",
    "memcpy + crc32c": "#616161",
    OURS: "#2e7d32",
    "safetensors": "#1565c0",
    "orbax": "#c62828",
    "orbax raw": "#ef9a9a",
    "tensorstore": "#ad1457",
    "flax": "#f9a825",
    "equinox": "#6a1b9a",
    "numpy": "#00838f",
    "pickle": "#795548",
    "torch": "#e65100",
    "torch dcp": "#ffb74d",
    "regrow.torch": "#66bb6a",
    "regrow dcp": "#a5d6a7",
}
DPI = 120


def draw(samples: Samples, scale: Scale, out: Path) -> list[Path]:
    """One file for each picture that there are figures for."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    made = []
    for operation in (SAVE, COLD, WARM, INTO):
        made.append(_ratios(samples, operation, out))
    made.append(_growth(samples, out))
    made.append(_memory(samples, scale, out))
    return [path for path in made if path is not None]


def _ratios(samples: Samples, operation: str, out: Path) -> Path | None:
    """Bars: how many times as long as regrow, by workload; the line is regrow."""
    workloads = [workload for name, workload in samples.pairs() if name == operation and "growth" not in workload]
    rows: dict[str, list[tuple[str, float]]] = {}
    for workload in workloads:
        for who in samples.contestants(operation, workload):
            ratio = samples.ratio(operation, workload, who)
            if ratio is not None and who != OURS:
                rows.setdefault(workload, []).append((who, ratio))
    if not rows:
        return None
    figure, axes = _figure(8, 0.5 + 0.2 * sum(len(bars) + 1 for bars in rows.values()))
    place, ticks, names = 0, [], []
    for workload, bars in rows.items():
        axes.text(0, place, f" {workload}", transform=axes.get_yaxis_transform(), weight="bold", va="center")
        place += 1
        for who, ratio in sorted(bars, key=lambda bar: bar[1]):
            axes.barh(place, ratio, color=COLOURS.get(who, "#000000"))
            axes.text(ratio, place, f" {ratio:.2f}", va="center", fontsize=7)
            ticks.append(place)
            names.append(who)
            place += 1
    axes.set_yticks(ticks, names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1, color=COLOURS[OURS], linewidth=1.5)
    axes.set_xlabel(f"{operation}: time as a multiple of regrow's (green line)")
    return _saved(figure, out / f"{operation.replace(' ', '-')}.png")


def _growth(samples: Samples, out: Path) -> Path | None:
    """Curves: what a byte and a leaf costs, from 1x to 16x."""
    pairs = [pair for pair in samples.pairs() if pair[1] in (BYTES, LEAVES)]
    if not pairs:
        return None
    figure, both = _figure(9, 3.4, columns=2)
    for axes, kind, unit in ((both[0], BYTES, "MiB"), (both[1], LEAVES, "leaves")):
        for operation, workload in pairs:
            if workload != kind:
                continue
            for prefix, style in (("", "o-"), (f"{LIMIT} ", "x--")):
                points = [
                    (int(who.removeprefix(prefix)), samples.median(operation, workload, who))
                    for who in samples.contestants(operation, workload)
                    if who.removeprefix(prefix).isdigit()
                ]
                if points:
                    axes.plot(*zip(*sorted(points), strict=True), style, label=f"{prefix}{operation}")
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(unit)
        axes.set_ylabel("s / GiB" if kind == BYTES else "µs / leaf")
        axes.legend(fontsize=7)
    return _saved(figure, out / "growth.png")


def _memory(samples: Samples, scale: Scale, out: Path) -> Path | None:
    """Bars: memory beyond source and destination."""
    operations = [name for name, workload in samples.pairs() if name.startswith(EXTRA) and workload == scale.main]
    if not operations:
        return None
    figure, axes = _figure(8, 4)
    place, ticks, names = 0, [], []
    for operation in operations:
        for who in samples.contestants(operation, scale.main):
            value = samples.median(operation, scale.main, who)
            assert value is not None
            axes.barh(place, value / MIB, color=COLOURS.get(who, "#000000"))
            axes.text(value / MIB, place, f" {value / MIB:.0f}", va="center", fontsize=7)
            ticks.append(place)
            names.append(f"{operation.removeprefix(f'{EXTRA}, ')}: {who}")
            place += 1
    axes.set_yticks(ticks, names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(64, color="#000000", linewidth=0.8, linestyle="--")
    axes.set_xlabel(f"MiB beyond source and destination, {scale.main} (dashed: 64)")
    return _saved(figure, out / "memory.png")


def _figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, height), layout="constrained")


def _saved(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)
    return path

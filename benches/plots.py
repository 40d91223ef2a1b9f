"""Pictures of a run as PNG, for the documentation: bars from 0 on linear axes.

    python benches/plots.py bench-output/results.json docs/performance

`front.png` has the seconds of a save and a cold load by the best-known tools. `save.png` and the
pictures of the loads have all tools: how many times as long as regrow. `growth.png`, `memory.png`.
The background is transparent, and the colours can be read on white and on black.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from growth import BYTES, LEAVES, MEMORY, NEXT, STEPS
from measure import LIMIT, OURS, Sample, Samples
from operations import COLD, INTO, SAVE, WARM
from processes import EXTRA
from setting import MIB, SCALES, Scale

GREY, GREEN, BLUE = "#7a7a7a", "#2e9e4f", "#4a86c5"
DPI = 200
WIDTH = 8
"""Inches: of the column of the README, with a font that can be read there."""
BAR = 0.24
"""Inches of height, with the gap."""
CUT = 12
"""A bar that is longer than so many times regrow's is cut. Its number is printed in any case."""

FRONT = (OURS, "safetensors", "torch", "torch dcp", "orbax")
TITLES = {SAVE: "Durable save", COLD: "Cold load", WARM: "Warm load", INTO: "Warm load into given arrays"}
NAMES = {
    "orbax": "Orbax",
    "orbax raw": "Orbax, no compression",
    "tensorstore": "TensorStore (zarr)",
    "tensorstore ocdbt": "TensorStore (OCDBT)",
    "flax": "Flax",
    "equinox": "Equinox",
    "numpy": "NumPy",
    "torch": "torch.save",
    "torch dcp": "torch DCP",
    "regrow dcp": "regrow for torch DCP",
}
WORKLOADS = {
    "gpt2_adam": "GPT-2 with Adam, 447 arrays",
    "llama_bf16": "Llama in bfloat16, 291 arrays",
    "mlperf_llama3_8b": "MLPerf Storage: Llama 3 8B with Adam, 1,164 arrays",
    "one_giant": "one array",
    "moe_128x48": "mixture of experts, 18,867 arrays",
    "many_small": "100,000 arrays of 1 KiB",
    "many_small_0.25KiB_1M": "1,000,000 arrays of 0.25 KiB",
    "mixed_dtypes": "arrays of every dtype",
}


def draw(samples: Samples, scale: Scale, out: Path) -> list[Path]:
    """One file for each picture that there are figures for."""
    import matplotlib

    matplotlib.use("Agg")
    colours = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    matplotlib.rcParams.update({name: GREY for name in colours})
    matplotlib.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    made = [_front(samples, scale.main, out)]
    for operation in (SAVE, COLD, WARM, INTO):
        made.append(_ratios(samples, operation, out))
    made.append(_growth(samples, out))
    made.append(_memory(samples, scale, out))
    return [path for path in made if path is not None]


def _front(samples: Samples, workload: str, out: Path) -> Path | None:
    """Bars in seconds: a save and a cold load of the main workload."""
    tools = [who for who in FRONT if samples.of(SAVE, workload, who) and samples.of(COLD, workload, who)]
    if len(tools) < 2:
        return None
    figure, both = _figure(0.7 + BAR * len(tools), columns=2)
    for axes, operation in zip(both, (SAVE, COLD), strict=True):
        bars = []
        for who in tools:
            seconds, ratio = samples.median(operation, workload, who), samples.ratio(operation, workload, who)
            assert seconds is not None and ratio is not None
            times = "" if who == OURS else f"  ({_number(ratio)}×)"
            bars.append((who, seconds, f"{seconds:.2f} s{times}"))
        _bars(axes, bars)
        axes.set_title(TITLES[operation], loc="left", fontsize=9, weight="bold")
        axes.set_xlim(0, 1.35 * max(seconds for _, seconds, _ in bars))
    figure.supxlabel(f"seconds: {_title(workload)}", fontsize=9)
    return _saved(figure, out / "front.png")


def _ratios(samples: Samples, operation: str, out: Path) -> Path | None:
    """Bars: how many times as long as regrow, a panel for each workload."""
    panels: dict[str, list[tuple[str, float, str]]] = {}
    for workload in (workload for name, workload in samples.pairs() if name == operation and "growth" not in workload):
        found = {who: samples.ratio(operation, workload, who) for who in samples.contestants(operation, workload)}
        bars = sorted((ratio, who) for who, ratio in found.items() if ratio is not None)
        if len(bars) > 1:
            panels[workload] = [(who, ratio, _number(ratio)) for ratio, who in bars]
    if not panels:
        return None
    heights = [len(bars) + 1.6 for bars in panels.values()]
    figure, all_axes = _figure(0.5 + BAR * sum(heights), rows=heights)
    for axes, (workload, bars) in zip(all_axes, panels.items(), strict=True):
        _bars(axes, bars, CUT)
        axes.set_title(_title(workload), loc="left", fontsize=9, weight="bold")
        axes.set_xlim(0, CUT * 1.08)
        axes.axvline(1, color=GREEN, linewidth=1, linestyle=":")
        axes.tick_params(axis="x", labelbottom=axes is all_axes[-1])
    all_axes[-1].set_xlabel(f"{TITLES[operation]}: times as long as regrow")
    return _saved(figure, out / f"{operation.replace(' ', '-')}.png")


def _growth(samples: Samples, out: Path) -> Path | None:
    """Curves: what a byte, a leaf and a step cost as their number grows."""
    kinds = {BYTES: ("MiB", "s / GiB"), LEAVES: ("leaves", "µs / leaf"), STEPS: ("steps", "µs / step")}
    pairs = [
        pair for pair in samples.pairs() if pair[1] in kinds and not pair[0].startswith(MEMORY) and pair[0] != NEXT
    ]
    if not pairs:
        return None
    figure, all_axes = _figure(3, columns=3)
    for axes, (kind, (unit, label)) in zip(all_axes, kinds.items(), strict=True):
        for operation, workload in pairs:
            if workload != kind:
                continue
            for prefix, style in (("", "o-"), (f"{LIMIT} ", "x--")):
                points = [
                    (int(who.removeprefix(prefix)), samples.median(operation, workload, who))
                    for who in samples.contestants(operation, workload)
                    if who.startswith(prefix) and who.removeprefix(prefix).isdigit()
                ]
                if points:
                    axes.plot(*zip(*sorted(points), strict=True), style, label=f"{prefix}{operation}")
        axes.set_xscale("log")
        axes.set_yscale("log" if kind != BYTES else "linear")
        axes.set_xlabel(unit)
        axes.set_ylabel(label)
        axes.legend(fontsize=8, frameon=False)
    return _saved(figure, out / "growth.png")


def _memory(samples: Samples, scale: Scale, out: Path) -> Path | None:
    """Bars: memory beyond source and destination, a panel for each operation."""
    panels = []
    for operation in (name for name, workload in samples.pairs() if name.startswith(EXTRA) and workload == scale.main):
        bars = []
        for who in samples.contestants(operation, scale.main):
            value = samples.median(operation, scale.main, who)
            assert value is not None
            bars.append((who, value / MIB, f"{value / MIB:.0f}"))
        panels.append((operation.removeprefix(f"{EXTRA}, "), bars))
    if not panels:
        return None
    heights = [len(bars) + 1.6 for _, bars in panels]
    figure, all_axes = _figure(0.5 + BAR * sum(heights), rows=heights)
    most = max(value for _, bars in panels for _, value, _ in bars)
    for axes, (operation, bars) in zip(all_axes, panels, strict=True):
        _bars(axes, bars)
        axes.set_title(operation, loc="left", fontsize=9, weight="bold")
        axes.set_xlim(0, 1.1 * most)
        axes.tick_params(axis="x", labelbottom=axes is all_axes[-1])
    all_axes[-1].set_xlabel(f"MiB beyond source and destination, {_title(scale.main)}")
    return _saved(figure, out / "memory.png")


def _bars(axes: Any, bars: list[tuple[str, float, str]], cut: float = math.inf) -> None:
    """Bars from the top down, each with its number. A gap shows that a bar is cut."""
    for place, (who, value, text) in enumerate(bars):
        colour = GREEN if who == OURS else GREY if _is_limit(who) else BLUE
        if value > cut:
            axes.barh(place, 0.03 * cut, left=0.97 * cut, height=0.75, color=colour)
        axes.barh(place, 0.95 * cut if value > cut else value, height=0.75, color=colour)
        end = value if cut == math.inf else max(1, min(value, cut))  # the number is right of the line at 1
        axes.text(end, place, f" {text}", va="center")
    axes.set_yticks(range(len(bars)), [_name(who) for who, _, _ in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(bars) - 0.4, -0.6)


def _number(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}" if ratio >= 1.995 else f"{ratio:.2f}"


def _is_limit(who: str) -> bool:
    return who == LIMIT or who.startswith("memcpy")


def _name(who: str) -> str:
    return "limit of the machine" if who == LIMIT else NAMES.get(who, who)


def _title(workload: str) -> str:
    """`gpt2_adam@1GiB` in words."""
    name, _, size = workload.partition("@")
    words = WORKLOADS.get(name, name)
    return f"{words}, {size.removesuffix('GiB')} GiB" if size else words


def _figure(height: float, columns: int = 1, rows: list[float] | None = None) -> tuple[Any, Any]:
    """A figure and its axes, side by side, or below each other with the given heights."""
    from matplotlib import pyplot

    count = len(rows or [1])
    figure, axes = pyplot.subplots(
        count, columns, figsize=(WIDTH, height), layout="constrained", squeeze=False, height_ratios=rows
    )
    return figure, axes[0] if rows is None else axes[:, 0]


def _saved(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=DPI, transparent=True)
    pyplot.close(figure)
    return path


def main() -> None:
    """The pictures of a file of results."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    results = json.loads(Path(sys.argv[1]).read_text())
    samples = Samples([Sample(**row) for row in results["samples"]])
    for path in draw(samples, SCALES[results["machine"]["scale"]], Path(sys.argv[2])):
        print(path)


if __name__ == "__main__":
    main()

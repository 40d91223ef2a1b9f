"""What is written down: a JSON file of everything, and a Markdown page of the targets and of all
medians.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from measure import LIMIT, OURS, Samples
from setting import Setting
from targets import shown, targets

PACKAGES = "numpy ml_dtypes jax flax equinox orbax-checkpoint tensorstore safetensors torch".split()


def write(setting: Setting, out: Path, seconds: float) -> str:
    """Writes `results.json` and `results.md` below `out`; gives the Markdown."""
    about = machine(setting, seconds)
    samples = setting.samples
    (out / "results.json").write_text(json.dumps({"machine": about, **samples.json()}, indent=1) + "\n")
    text = "\n".join([*heading(about), *target_table(setting), *median_table(samples), *note_list(samples)]) + "\n"
    (out / "results.md").write_text(text)
    return text


def machine(setting: Setting, seconds: float) -> dict[str, Any]:
    """Where this was measured, and with which programs."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "scale": setting.scale.name,
        "rounds": setting.rounds,
        "seconds": round(seconds),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "file_system": _file_system(setting.folder),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "commit": _output("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"),
        "versions": versions,
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    return _output("stat", "--file-system", "--format=%T", str(folder))


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def heading(about: dict[str, Any]) -> list[str]:
    """Where, how often, with what."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return [
        f"{about['cpu']}, {about['cpus']} CPUs, {about['memory_gib']} GiB; {about['system']}, {about['file_system']}; "
        f"scale {about['scale']}, {about['rounds']} rounds, {about['seconds']} s, commit {about['commit']}.",
        "",
        f"Python {about['python']}; {versions}.",
        "",
    ]


def target_table(setting: Setting) -> list[str]:
    """Every row that was measured, and how many are there."""
    lines, hits, count = [], 0, 0
    for target in targets(setting.scale):
        found = target.value(setting.samples)
        verdict = "not measured" if found is None else target.verdict(found)
        hits, count = hits + (verdict == "hit"), count + (found is not None)
        value = "" if found is None else shown(found, target.unit)
        lines.append(f"| {target.row} | {target.what} | {target.bound_text()} | {value} | {verdict} |")
    return [
        f"## Targets: {hits} of {count} that were measured",
        "",
        "| row | measured | target | found | |",
        "|---|---|---|---|---|",
        *lines,
        "",
    ]


def median_table(samples: Samples) -> list[str]:
    """Medians with their least and most, and how many times as long as ours each tool takes."""
    lines = ["## Everything", "", "| operation | workload | who | median | least - most | to regrow |"]
    lines.append("|---|---|---|---|---|---|")
    units = {(row.operation, row.workload): row.unit for row in samples.rows}
    for operation, workload in samples.pairs():
        unit = units[operation, workload]
        names = samples.contestants(operation, workload)
        for who in sorted(names, key=lambda name: (name != OURS, name != LIMIT)):
            median, spread = samples.median(operation, workload, who), samples.spread(operation, workload, who)
            assert median is not None and spread is not None
            ratio = None if who == OURS or unit == "bytes" else samples.ratio(operation, workload, who)
            lines.append(
                f"| {operation} | {workload} | {who} | {figure(median, unit)} "
                f"| {figure(spread[0], unit)} - {figure(spread[1], unit)} | {'' if ratio is None else f'{ratio:.2f}'} |"
            )
    return [*lines, ""]


def figure(value: float, unit: str) -> str:
    """A number that is short."""
    if unit == "bytes":
        return f"{value / 2**20:.1f} MiB"
    return f"{value:.4g} {unit}"


def note_list(samples: Samples) -> list[str]:
    """What is missing, and why."""
    return ["## Notes", "", *(f"- {note}" for note in samples.notes)] if samples.notes else []

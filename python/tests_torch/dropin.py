"""Runs a program of other packages with `regrow.safetensors` in the place of safetensors.

Its own process, so that safetensors was not imported before.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PREFACE = """
import sys
import regrow.safetensors.numpy
import regrow.safetensors.torch
for part in ("", ".numpy", ".torch"):
    sys.modules["safetensors" + part] = sys.modules["regrow.safetensors" + part]
"""

EPILOGUE = """
for name in list(sys.modules):
    if name.split(".")[0] == "safetensors":
        file = sys.modules[name].__file__
        assert sys.modules[name].__name__.startswith("regrow."), f"{name} is {file}"
print("done with", len(sys.modules), "modules")
"""


def run(program: str, folder: Path) -> None:
    """Runs `program` in `folder`, without a network and without a GPU; what it says is shown if
    it fails.
    """
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hub"),
        "ACCELERATE_USE_CPU": "true",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(
        [sys.executable, "-c", PREFACE + program + EPILOGUE],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "done with" in done.stdout

"""What regrow writes opens in transformers 5, and in transformers 4 where `make test-torch` has
put it beside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("transformers_models.py")
OLDER = os.environ.get("REGROW_TRANSFORMERS_4", "")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("python", "major"), [(sys.executable, "5"), (OLDER, "4")])
def test_models_open_bit_for_bit(tmp_path: Path, python: str, major: str) -> None:
    assert python, "REGROW_TRANSFORMERS_4 names the Python that has transformers 4: make test-torch sets it"
    done = subprocess.run([python, PROGRAM, tmp_path], capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *opened, said = done.stdout.strip().splitlines()
    assert json.loads(said)["transformers"].startswith(major + ".")
    # Two models by four forms in four ways, one by four forms, and the rules.
    assert len(opened) == 37, opened

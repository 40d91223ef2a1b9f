"""What an installed regrow owes: run with the interpreter that it is installed for, outside the
repository's packages.

python -I installed.py [--packaged]     # --packaged: with manual pages and completions
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np

import regrow

SHARE = (
    "man/man1/regrow.1",
    "man/man1/regrow-ls.1",
    "bash-completion/completions/regrow",
    "zsh/site-functions/_regrow",
)


def main() -> None:
    """Saves, loads and verifies; runs the command; looks for its files."""
    assert Path(regrow.__file__).is_relative_to(sys.prefix), regrow.__file__
    command = Path(sysconfig.get_path("scripts")) / "regrow"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step_1"
        tree = {"a": np.arange(5, dtype=np.float32), "b": (1, None, "text")}
        regrow.save(path, tree)
        loaded = regrow.load(path)
        assert loaded["b"] == tree["b"] and np.array_equal(loaded["a"], tree["a"])
        assert regrow.verify(path).ok
        for arguments in (["verify", str(path)], ["doctor", str(path)], ["--version"]):
            for program in ([str(command)], [sys.executable, "-I", "-m", "regrow"]):
                subprocess.run([*program, *arguments], check=True)
    if "--packaged" in sys.argv:
        for name in SHARE:
            assert (Path(sys.prefix) / "share" / name).is_file(), name
    print("installed: it works")


main()

"""No threads, no memory, no file handles, no room: an error of regrow's or success, never a
panic or an abort.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHIM = Path(__file__).parents[2] / "crates" / "testkit" / "src" / "starve.c"

PROGRAM = '''
import ctypes, os, pathlib, resource, shutil, sys, warnings
import numpy as np
import regrow

what, layout, root = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
system = ctypes.CDLL(None)
warnings.simplefilter("error")
SUFFIX = {"flax": ".msgpack", "equinox": ".eqx", "npz": ".npz"}.get(layout, "")
kind = {"npz": "npy", "zstd": "regrow"}.get(layout, layout)
extra = {"compression": "zstd"} if layout == "zstd" else {}
# Of more than one direct write and one chunk; of several dtypes, so that there are casts and
# copies.
big = np.arange(1_300_000, dtype=np.float32).reshape(1300, 1000)
tree = {"big": big, "turned": big[:500].T, "small": np.arange(10, dtype=np.int16)}
source = root / f"source{SUFFIX}"
regrow.save(source, tree, layout=kind, **extra)


def exact(found):
    assert all(np.array_equal(found[name], tree[name]) for name in tree), "other values"


def fresh(name):
    path = root / f"{name}{SUFFIX}"
    for left in root.glob(name + "*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    return path


def save():
    regrow.save(fresh("saved"), tree, layout=kind, **extra)
    return lambda: exact(regrow.load(root / f"saved{SUFFIX}"))


def save_with_progress():
    calls = []
    regrow.save(fresh("watched"), tree, layout=kind, progress=lambda *state: calls.append(state), **extra)

    def check():
        assert calls
        exact(regrow.load(root / f"watched{SUFFIX}"))

    return check


def save_async():
    regrow.save_async(fresh("later"), tree, layout=kind, **extra).result()
    return lambda: exact(regrow.load(root / f"later{SUFFIX}"))


def load():
    found = regrow.load(source)
    return lambda: exact(found)


def load_cast():
    found = regrow.load(source, cast="float64")
    return lambda: exact(found)


def load_out():
    out = {name: np.empty_like(value) for name, value in tree.items()}
    regrow.load_into(source, out)
    return lambda: exact(out)


def read_slices():
    checkpoint = regrow.open(source)
    part = checkpoint["big"][100:1200, 3:900]
    whole = checkpoint["turned"][...]
    checkpoint.overview()

    def check():
        assert np.array_equal(part, big[100:1200, 3:900])
        assert np.array_equal(whole, tree["turned"])

    return check


def verify():
    report = regrow.verify(source)
    # What is found then is that there is no memory, and not that there is damage.
    return lambda: [print("finding", finding) for finding in report.findings if finding.kind == "corrupt"] and 1 / 0


def convert():
    regrow.convert(source, fresh("converted"), layout=kind, cast={"turned": "float64"}, **extra)
    return lambda: exact(regrow.load(root / f"converted{SUFFIX}"))


def to_regrow():
    path = root / "regrow"
    shutil.rmtree(path, ignore_errors=True)
    regrow.convert(source, path, compression="zstd")
    return lambda: exact(regrow.load(path))


operations = [save, save_with_progress, save_async, load, load_cast, load_out, read_slices, verify, convert, to_regrow]
ALLOWED = (regrow.RegrowError, MemoryError, OSError)
refusals = 0


def attempt(operation, begin, end, where):
    """Whether it succeeded."""
    global refusals
    check = None
    begin()
    try:
        check = operation()
    except ALLOWED as error:
        refusals += 1
        assert not isinstance(error, regrow.errors.InternalError), (where, error)
    except BaseException as error:
        end()
        raise SystemExit(f"{where}: {type(error).__mro__}: {error}")
    finally:
        end()
    if check is None:
        return False
    check()
    return True


def set_limit(kind, soft):
    resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))


if what == "threads":
    # Each needs no thread but the caller's.
    for operation in operations:
        for first in (1, 2, 3):
            begin, end = (lambda: system.starve_threads(first)), (lambda: system.starve_threads(0))
            assert attempt(operation, begin, end, (operation.__name__, first)), (operation.__name__, first)
elif what == "memory":
    for operation in operations:
        operation()()
        sure = 0
        # Each of the first calls, where most differ; then some of the others.
        for first in (*range(1, 32), *range(32, 64, 2), *range(64, 1000, 8)):
            begin, end = (lambda: system.starve_memory(first)), (lambda: system.starve_memory(0))
            sure = sure + 1 if attempt(operation, begin, end, (operation.__name__, first)) else 0
            if sure == 4:
                break
        else:
            raise SystemExit(f"{operation.__name__} never succeeds")
    assert refusals > 10, refusals
elif what == "handles":
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for operation in operations:
        operation()()
        for more in (*range(8), *range(8, 24, 4)):
            free = os.open(os.devnull, os.O_RDONLY)
            os.close(free)
            begin = lambda: set_limit(resource.RLIMIT_NOFILE, free + more)
            attempt(operation, begin, lambda: set_limit(resource.RLIMIT_NOFILE, soft), (operation.__name__, more))
    assert refusals > 10, refusals
else:
    # Files cannot grow beyond that; Python ignores the signal, and the write fails.
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    for operation in operations:
        for most in (0, 1, 100, 5000, 70_000, 1 << 20, 5 << 20):
            begin = lambda: set_limit(resource.RLIMIT_FSIZE, most)
            attempt(operation, begin, lambda: set_limit(resource.RLIMIT_FSIZE, soft), (operation.__name__, most))
    assert refusals > 10, refusals
print("well")
'''


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("shim") / "starve.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"], check=True)
    return library


LAYOUTS = ["regrow", "zstd", "orbax", "safetensors", "pytree_data", "npy", "npz", "flax", "equinox"]
# Between them they go all ways that bytes go: raw and compressed chunks, an archive, a stream.
OF_EACH_WAY = ["regrow", "zstd", "npz", "equinox"]
CASES = [
    *(("threads", layout) for layout in LAYOUTS),
    *((what, layout) for what in ("memory", "handles", "room") for layout in OF_EACH_WAY),
]


@pytest.mark.timeout(600)  # all together a minute where nothing else runs
@pytest.mark.parametrize(("what", "layout"), CASES, ids=lambda value: value)
def test_what_the_system_refuses_is_an_error(what: str, layout: str, shim: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "LD_PRELOAD": str(shim)}
    run = subprocess.run(
        [sys.executable, str(program), what, layout, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert run.returncode == 0 and run.stdout.endswith("well\n"), (
        run.returncode,
        run.stdout[-2000:],
        run.stderr[-4000:],
    )
    assert "panicked at" not in run.stderr

"""Damages files and asks regrow and the library that wrote them: the same arrays, or two refusals. `make differential`.

Each round damages a file of a format, with the checksums of an OCDBT database put right, so that the damage reaches what
lies behind them. What regrow reads and the original refuses, or the other way around, has to stand in `ALLOWED`; other
numbers never may. `DIFFERENTIAL_SECONDS` says for how long, `REGROW_SEED` repeats a run.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import regrow

SECONDS = float(os.environ.get("DIFFERENTIAL_SECONDS", "60"))
SEED = int(os.environ.get("REGROW_SEED", random.SystemRandom().randrange(1 << 32)))

# Beyond it an allocation fails, here and there, and is a refusal.
MEMORY_MAX_BYTES = 16 << 30

# Larger than any array that is written here: what a damaged shape claims is not read.
LEN_MAX_BYTES = 64 << 20

Arrays = dict[str, tuple[str, tuple[int, ...], bytes]]

# What may differ, by format: a part of the message of who refuses, and the reason.
ALLOWED: dict[str, list[tuple[str, str, str]]] = {}


def text_of(key: object) -> str:
    return str(key)


def arrays_of(tree: object, at: str = "") -> Arrays:
    """Leaves by their paths: only what both sides hold as arrays or numbers."""
    if isinstance(tree, dict):
        items: Any = tree.items()
    elif isinstance(tree, (list, tuple)):
        items = enumerate(tree)
    else:
        array = np.asarray(tree)
        if array.nbytes > LEN_MAX_BYTES:
            raise MemoryError
        return {at: (array.dtype.str if array.dtype.kind != "V" else array.dtype.name, array.shape, array.tobytes())}
    out: Arrays = {}
    for key, value in items:
        out.update(arrays_of(value, f"{at}/{text_of(key)}" if at else text_of(key)))
    return out


class Format:
    """Files that a library writes, and reads."""

    name = ""

    def write(self, folder: Path) -> Path:
        """Writes the files; gives what is opened."""
        raise NotImplementedError

    def read(self, path: Path) -> Arrays:
        raise NotImplementedError

    def read_regrow(self, path: Path) -> Arrays:
        return arrays_of(regrow.load(path))

    def put_right(self, folder: Path) -> None:
        """Checksums."""


def state() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        "w": rng.standard_normal((3, 5)).astype(np.float32),
        "b": np.arange(6, dtype=np.int64),
        "h": rng.standard_normal(4).astype(np.float16),
        "u": np.arange(5, dtype=np.uint8),
        "s": np.float64(2.5).reshape(()),
    }


class Safetensors(Format):
    name = "safetensors"

    def write(self, folder: Path) -> Path:
        from safetensors.numpy import save_file

        save_file(state(), folder / "x.safetensors", metadata={"format": "pt"})
        return folder / "x.safetensors"

    def read(self, path: Path) -> Arrays:
        from safetensors.numpy import load_file

        return arrays_of(load_file(path))

    def read_regrow(self, path: Path) -> Arrays:
        checkpoint = regrow.open(path)
        return arrays_of({leaf.name: leaf[...] for leaf in checkpoint.values()})


class Npy(Format):
    name = "npy"

    def write(self, folder: Path) -> Path:
        np.save(folder / "x.npy", state()["w"])
        return folder / "x.npy"

    def read(self, path: Path) -> Arrays:
        return arrays_of(np.load(path, allow_pickle=False))


class Npz(Format):
    name = "npz"
    save = staticmethod(np.savez)

    def write(self, folder: Path) -> Path:
        type(self).save(folder / "x.npz", **state())
        return folder / "x.npz"

    def read(self, path: Path) -> Arrays:
        with np.load(path, allow_pickle=False) as archive:
            return arrays_of(dict(archive))


class NpzDeflated(Npz):
    name = "npz, deflated"
    save = staticmethod(np.savez_compressed)


class Msgpack(Format):
    name = "msgpack"

    def write(self, folder: Path) -> Path:
        from flax import serialization

        path = folder / "x.msgpack"
        path.write_bytes(serialization.msgpack_serialize({"params": state(), "step": 7}))
        return path

    def read(self, path: Path) -> Arrays:
        from flax import serialization

        return arrays_of(serialization.msgpack_restore(path.read_bytes()))


def tensorstore_spec(driver: str, path: Path, database: bool) -> dict[str, Any]:
    below = {"driver": "file", "path": f"{path}/"}
    store = {"driver": "ocdbt", "base": below, "path": "w/"} if database else {"driver": "file", "path": f"{path}/w/"}
    return {"driver": driver, "kvstore": store}


class Zarr(Format):
    """One array. regrow opens the folder as arrays without Orbax' metadata."""

    driver, database = "zarr", False

    def __init__(self, driver: str, database: bool) -> None:
        self.driver, self.database = driver, database
        self.name = driver + (", OCDBT" if database else "")

    def write(self, folder: Path) -> Path:
        import tensorstore as ts

        array = state()["w"]
        path = folder / "x"
        chunks = {"chunks": [2, 3]} if self.driver == "zarr" else {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}}
        spec = tensorstore_spec(self.driver, path, self.database) | {"metadata": chunks}
        store = ts.open(spec, create=True, dtype=ts.float32, shape=array.shape).result()
        store.write(array).result()
        return path

    def read(self, path: Path) -> Arrays:
        import tensorstore as ts

        store = ts.open(tensorstore_spec(self.driver, path, self.database), open=True, context=ts.Context()).result()
        if store.size * store.dtype.numpy_dtype.itemsize > LEN_MAX_BYTES:
            raise MemoryError
        return arrays_of({"w": store.read().result()})

    def put_right(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*")) if self.database else []:
            if path.is_file():
                path.write_bytes(frames_put_right(path.read_bytes()))


MAGICS = [struct.pack(">I", magic) for magic in (0x0CDB3A2A, 0x0CDB1234, 0x0CDB20DE)]
TABLE = []
for number in range(256):
    for _ in range(8):
        number = number >> 1 ^ 0x82F63B78 if number & 1 else number >> 1
    TABLE.append(number)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def frames_put_right(data: bytes) -> bytes:
    """Manifests and nodes of an OCDBT database with their checksums, a manifest with its length."""
    out = bytearray(data)
    if data[:4] == MAGICS[0] and len(data) >= 16:
        out[4:12] = struct.pack("<Q", len(data))
    for at in range(len(out) - 15):
        if bytes(out[at : at + 4]) in MAGICS:
            (length,) = struct.unpack_from("<Q", out, at + 4)
            if 16 <= length <= len(out) - at:
                end = at + length - 4
                out[end : end + 4] = struct.pack("<I", crc32c(bytes(out[at:end])))
    return bytes(out)


FORMATS = [Safetensors(), Npy(), Npz(), NpzDeflated(), Msgpack(), Zarr("zarr", False), Zarr("zarr3", False), Zarr("zarr", True), Zarr("zarr3", True)]  # fmt: skip

NUMBERS = [b"0", b"1", b"-1", b"2", b"255", b"4294967296", b"18446744073709551615", b"1e3", b"0.5"]
TEXTS = [b"", b"null", b"true", b"[]", b"{}", b'"x"', b"F16", b"<f8", b">f4", b"|u1", b"int32", b"float64"]


def damaged(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if not out:
            break
        near = rng.random() < 0.6
        at = rng.randrange(min(len(out), 256) if near else len(out))
        kind = rng.randrange(9)
        if kind <= 2:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            out[at] = rng.randrange(256)
        elif kind == 4:
            del out[at : at + rng.choice([1, 1, 2, 8])]
        elif kind == 5:
            out[at:at] = bytes(out[at : at + rng.choice([1, 2, 8, 40])])
        elif kind == 6:
            del out[at:]
        else:
            digits = kind == 7
            first = next((i for i in range(at, len(out)) if (chr(out[i]).isdigit() if digits else chr(out[i]).isalnum())), None)
            if first is not None:
                last = first
                while last < len(out) and (chr(out[last]).isdigit() if digits else chr(out[last]).isalnum()):
                    last += 1
                out[first:last] = rng.choice(NUMBERS if digits else TEXTS)
    return bytes(out)


def outcome(read: Callable[[Path], Arrays], path: Path) -> tuple[Arrays | None, str]:
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            return read(path), ""
    except MemoryError:
        return None, "too large"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of another library's would be one
        if type(error).__name__ in ("InternalError", "PanicException") and type(error).__module__.startswith(("regrow", "pyo3")):
            raise
        return None, f"{type(error).__name__}: {error}".splitlines()[0][:300]


def allowed(name: str, side: str, message: str) -> str | None:
    for who, part, reason in ALLOWED.get(name, []):
        if who == side and part in message:
            return reason
    return None


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    rng = random.Random(SEED)
    print(f"REGROW_SEED={SEED}", flush=True)
    root = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    counts: dict[str, Counter[str]] = {}
    wrong: list[str] = []
    try:
        for format in FORMATS:
            good, folder = root / "good", root / "bad"
            shutil.rmtree(good, ignore_errors=True)
            good.mkdir()
            path = format.write(good)
            ours, theirs = outcome(format.read_regrow, path), outcome(format.read, path)
            if ours[0] is None or ours[0] != theirs[0]:
                wrong.append(f"{format.name}: undamaged: {ours} and {theirs}")
                continue
            files = sorted(file for file in good.rglob("*") if file.is_file())
            count = counts.setdefault(format.name, Counter())
            end = time.monotonic() + SECONDS / len(FORMATS)
            while time.monotonic() < end:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(good, folder)
                victim = folder / rng.choice(files).relative_to(good)
                victim.write_bytes(damaged(victim.read_bytes(), rng))
                format.put_right(folder)
                path_now = folder / path.relative_to(good)
                (ours, said), (theirs, they_said) = outcome(format.read_regrow, path_now), outcome(format.read, path_now)
                count["rounds"] += 1
                if ours is None and theirs is None:
                    count["both refuse"] += 1
                elif ours == theirs:
                    count["the same"] += 1
                elif ours is None:
                    reason = allowed(format.name, "regrow", said)
                    count[f"regrow alone refuses: {reason}"] += 1
                    if reason is None:
                        wrong.append(f"{format.name}: regrow alone refuses: {said}; damage {victim.read_bytes()[:200]!r}")
                elif theirs is None:
                    reason = allowed(format.name, "original", they_said)
                    count[f"the original alone refuses: {reason}"] += 1
                    if reason is None:
                        wrong.append(f"{format.name}: the original alone refuses: {they_said}; regrow: {str(ours)[:200]}; damage {victim.read_bytes()[:200]!r}")
                else:
                    wrong.append(f"{format.name}: other arrays: {str(ours)[:300]} and {str(theirs)[:300]}; damage {victim.read_bytes()[:200]!r}")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name, count in counts.items():
        print(f"{name}: " + "; ".join(f"{what} {number}" for what, number in sorted(count.items())))
    for line in wrong[:40]:
        print(line)
    print(f"{len(wrong)} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Damages files and asks regrow and the library that wrote them: the same arrays, or two refusals.
`make differential`.

Each round damages a file of a format. What regrow reads and the original refuses, or the other way
around, has to stand in `ALLOWED`; other numbers never may. `DIFFERENTIAL_SECONDS` says for how
long, `REGROW_SEED` repeats a run.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import re
import resource
import shutil
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
# Of these alone, if any are named: `DIFFERENTIAL_FORMATS='ocdbt,zarr3'`.
ONLY = [name for name in os.environ.get("DIFFERENTIAL_FORMATS", "").split(",") if name]
SEED = int(os.environ.get("REGROW_SEED", random.SystemRandom().randrange(1 << 32)))

# Beyond it an allocation fails, here and there, and is a refusal.
MEMORY_MAX_BYTES = 16 << 30

# Larger than any array that is written here: what a damaged shape claims is not read.
LEN_MAX_BYTES = 64 << 20

Arrays = dict[str, tuple[str, tuple[int, ...], bytes]]

# What may differ, by format: a part of the message of who refuses, and the reason.
ZIP = [
    ("regrow", "zip archive", "regrow wants directory, members and end to agree; zipfile goes by parts of them"),
    ("regrow", "the bytes end inside", "the same"),
    (
        "original",
        "BadZipFile",
        "zipfile looks at bytes before the directory and in local headers, which say nothing of the data",
    ),
]
OCDBT = [
    ("regrow", "is missing", "as in zarr"),
    ("regrow", "is given twice", "TensorStore takes the last"),
    ("regrow", "in its shortest form", "TensorStore reads numbers that are written in more bytes than they need"),
]
ALLOWED: dict[str, list[tuple[str, str, str]]] = {
    "npy": [
        (
            "regrow",
            "has bytes after its array",
            "a file is one array, and what follows it is damage; NumPy does not look",
        ),
        ("regrow", "not a dict of descr", "a key that comes twice; NumPy takes the last"),
        ("regrow", "of an npy header is not known", "NumPy reads escapes of no meaning in the name of a dtype"),
        ("original", "allow_pickle", "what does not begin like npy is looked at for other layouts: it may be msgpack"),
    ],
    "npz": ZIP,
    "npz, deflated": ZIP,
    "msgpack": [
        ("regrow", "occurs twice", "Flax takes the last"),
        ("regrow", "has axes", "Flax takes an array for a NumPy scalar"),
        ("regrow", "is not a list of at most 64 numbers", "a shape that is a number; NumPy takes it for a list of one"),
    ],
    "zarr": [
        ("regrow", "is missing", "Orbax writes every chunk: one that is missing is damage; TensorStore fills it"),
        ("regrow", "is given twice", "TensorStore takes the last"),
        ("original", "shuffle", "how blosc was asked to shuffle says nothing that reading needs"),
        ("original", "extra members", "what is unknown of a compressor is ignored, as zarr-python does"),
        ("original", "Blosc error", "its header contradicts itself where regrow needs nothing of it"),
        ("original", "cname", "nor its codec's name, which each chunk has"),
        ("original", "clevel", "nor does its level"),
        ("original", "blocksize", "nor the length of its blocks"),
    ],
    "zarr3": [
        ("regrow", "is missing", "as in zarr"),
        ("regrow", "is given twice", "TensorStore takes the last"),
    ],
    "ocdbt": OCDBT,
    "ocdbt, inline": OCDBT,
    "ocdbt, zstd": OCDBT,
}


def text_of(key: object) -> str:
    return str(key)


def arrays_of(tree: object, at: str = "") -> Arrays:
    """Leaves by their paths: only what both sides hold as arrays or numbers."""
    if type(tree).__name__ == "ExtType":
        tree = "an extension of others, which regrow hands out as it is"
    if isinstance(tree, dict):
        items: Any = tree.items()
    elif isinstance(tree, (list, tuple)):
        items = enumerate(tree)
    else:
        array = np.asarray(tree)
        array = array.astype(array.dtype.newbyteorder("="))
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

    def is_others(self, file: Path) -> bool:
        """Whether the library that wrote the rest has not written this one."""
        return False

    def damage(self, data: bytes, rng: random.Random) -> bytes:
        return damaged(data, rng)


def state() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        "w": rng.standard_normal((3, 5)).astype(np.float32),
        "b": np.arange(6, dtype=np.int64),
        "h": rng.standard_normal(4).astype(np.float16),
        "u": np.arange(5, dtype=np.uint8),
        "s": np.array(2.5),
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


def tensorstore_spec(driver: str, path: Path) -> dict[str, Any]:
    return {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/w/"}}


class Zarr(Format):
    """One array. regrow opens the folder as arrays without Orbax' metadata."""

    def __init__(self, driver: str) -> None:
        self.driver = self.name = driver

    def write(self, folder: Path) -> Path:
        import tensorstore as ts

        array = state()["w"]
        path = folder / "x"
        chunks = (
            {"chunks": [2, 3]}
            if self.driver == "zarr"
            else {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}}
        )
        spec = tensorstore_spec(self.driver, path) | {"metadata": chunks}
        store = ts.open(spec, create=True, dtype=ts.float32, shape=array.shape).result()
        store.write(array).result()
        return path

    def read(self, path: Path) -> Arrays:
        import tensorstore as ts

        return arrays_of({"w": read_tensorstore(tensorstore_spec(self.driver, path), ts.Context())})


def read_tensorstore(spec: dict[str, Any], context: Any) -> np.ndarray:
    import tensorstore as ts

    store = ts.open(spec, open=True, context=context).result()
    # TensorStore ends the program where it finds no memory for a chunk.
    elements = max(store.size, math.prod(store.chunk_layout.read_chunk.shape or ()))
    if elements * store.dtype.numpy_dtype.itemsize > LEN_MAX_BYTES:
        raise MemoryError
    return store.read().result()


def crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC32C = crc32c_table()


def crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state = state >> 8 ^ CRC32C[(state ^ byte) & 0xFF]
    return state ^ 0xFFFFFFFF


class Ocdbt(Format):
    """A database of two zarr arrays, with the metadata that Orbax puts beside it.

    Of three damages to them two are made before the length and the checksum of the manifest or
    node, so that they reach what lies behind these.
    """

    MANIFEST, NODE = bytes.fromhex("0cdb3a2a"), bytes.fromhex("0cdb20de")

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self.name, self.config = name, config

    def spec(self, path: Path, name: str) -> dict[str, Any]:
        return {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": f"file://{path}/", "path": f"{name}/"}}

    def write(self, folder: Path) -> Path:
        import tensorstore as ts

        path = folder / "x"
        keys = {}
        for name in ("w", "b"):
            array = state()[name]
            spec = self.spec(path, name) | {"metadata": {"chunks": [2, 3][: array.ndim], "compressor": None}}
            spec["kvstore"]["config"] = self.config
            ts.open(spec, create=True, dtype=array.dtype, shape=array.shape).result().write(array).result()
            keys[f"('{name}',)"] = {
                "key_metadata": [{"key": name, "key_type": 2}],
                "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
            }
        document = {
            "tree_metadata": keys,
            "use_ocdbt": True,
            "use_zarr3": False,
            "store_array_data_equal_to_fill_value": True,
        }
        (path / "_METADATA").write_text(json.dumps(document))
        return path

    def read(self, path: Path) -> Arrays:
        import tensorstore as ts

        context = ts.Context()
        return arrays_of({name: read_tensorstore(self.spec(path, name), context) for name in ("w", "b")})

    def is_others(self, file: Path) -> bool:
        return file.name == "_METADATA"

    def damage(self, data: bytes, rng: random.Random) -> bytes:
        starts = [at for magic in (self.MANIFEST, self.NODE) if (at := data.find(magic)) >= 0]
        if not starts or rng.random() < 0.3:
            return damaged(data, rng)
        start = starts[0]
        end = start + int.from_bytes(data[start + 4 : start + 12], "little")
        inner = damaged(data[start + 12 : end - 4], rng)
        # What refers to a node says how long it is.
        if rng.random() < 0.7 and data[start : start + 4] == self.NODE:
            inner = (inner + bytes(end))[: end - start - 16]
        sealed = data[start : start + 4] + (len(inner) + 16).to_bytes(8, "little") + inner
        return data[:start] + sealed + crc32c(sealed).to_bytes(4, "little") + data[end:]


# Values in files of their own, and nodes below nodes.
SHORT = {"compression": None, "max_inline_value_bytes": 40, "max_decoded_node_bytes": 400}

FORMATS = [
    Safetensors(), Npy(), Npz(), NpzDeflated(), Msgpack(), Zarr("zarr"), Zarr("zarr3"),
    Ocdbt("ocdbt", SHORT), Ocdbt("ocdbt, inline", {"compression": None}), Ocdbt("ocdbt, zstd", {}),
]  # fmt: skip

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
            first = next(
                (i for i in range(at, len(out)) if (chr(out[i]).isdigit() if digits else chr(out[i]).isalnum())), None
            )
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
    except BaseException as error:  # a panic of another library would be one
        if type(error).__name__ in ("InternalError", "PanicException") and type(error).__module__.startswith(
            ("regrow", "pyo3")
        ):
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
        formats = [format for format in FORMATS if not ONLY or format.name.split(",")[0] in ONLY]
        for format in formats:
            good, folder = root / "good", root / "bad"
            shutil.rmtree(good, ignore_errors=True)
            good.mkdir()
            path = format.write(good)
            ours, theirs = outcome(format.read_regrow, path), outcome(format.read, path)
            if ours[0] is None or ours[0] != theirs[0]:
                wrong.append(f"{format.name}: undamaged: {ours} and {theirs}")
                continue
            files = sorted(file for file in good.rglob("*") if file.is_file() and not format.is_others(file))
            count = counts.setdefault(format.name, Counter())
            end = time.monotonic() + SECONDS / len(formats)
            while time.monotonic() < end:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(good, folder)
                victim = folder / rng.choice(files).relative_to(good)
                victim.write_bytes(format.damage(victim.read_bytes(), rng))
                path_now = folder / path.relative_to(good)
                (ours, said), (theirs, they_said) = (
                    outcome(format.read_regrow, path_now),
                    outcome(format.read, path_now),
                )
                count["rounds"] += 1
                if ours is None and theirs is None:
                    count["both refuse"] += 1
                elif ours == theirs:
                    count["the same"] += 1
                elif ours is None:
                    reason = allowed(format.name, "regrow", said)
                    count[f"regrow alone refuses: {reason}"] += 1
                    if reason is None:
                        wrong.append(
                            f"{format.name}: regrow alone refuses: {said}; damage {victim.read_bytes()[:200]!r}"
                        )
                elif theirs is None:
                    reason = allowed(format.name, "original", they_said)
                    count[f"the original alone refuses: {reason}"] += 1
                    if reason is None:
                        wrong.append(
                            f"{format.name}: the original alone refuses: {they_said}; regrow: {str(ours)[:200]}"
                        )
                else:
                    others = [key for key in sorted(ours | theirs) if ours.get(key) != theirs.get(key)]
                    # What is no array of numbers (extensions, texts) has no bytes to compare.
                    count["of other kinds"] += 1
                    texts = [(key, ours.get(key), theirs.get(key)) for key in others]
                    texts = [
                        (key, *both) for key, *both in texts if not any(one and one[0][1] in "OSU" for one in both)
                    ]
                    if texts:
                        wrong.append(
                            f"{format.name}: other arrays: {str(texts)[:300]}; damage {victim.read_bytes()[:200]!r}"
                        )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name, count in counts.items():
        print(f"{name}: " + "; ".join(f"{what} {number}" for what, number in sorted(count.items())))
    # One of each kind.
    kinds = {re.sub(r"[0-9]+", "0", line.split("; damage ")[0])[:160]: line for line in wrong}
    for line in list(kinds.values())[:40]:
        print(line)
    print(f"{len(wrong)} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

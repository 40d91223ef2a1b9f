"""Models of reports, as `regrow report --json` prints them, for the example `page` of
regrow-report to write.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

NO_PARENT = 0xFFFFFFFF

Model = dict[str, Any]


class Words:
    """A column of texts, each text once."""

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.index: list[int] = []

    def push(self, text: str) -> None:
        self.index.append(self.positions.setdefault(text, len(self.positions)))

    def column(self) -> Model:
        return {"values": list(self.positions), "index": self.index}


class Keys:
    """Key paths as nodes."""

    def __init__(self) -> None:
        self.names = {"": 0}
        self.name = [0]
        self.parent = [NO_PARENT]
        self.nodes: dict[tuple[str, ...], int] = {(): 0}

    def add(self, path: tuple[str, ...]) -> int:
        node = self.nodes.get(path)
        if node is None:
            parent = self.add(path[:-1])
            node = self.nodes[path] = len(self.name)
            self.name.append(self.names.setdefault(path[-1], len(self.names)))
            self.parent.append(parent)
        return node

    def column(self) -> Model:
        return {"names": list(self.names), "name": self.name, "parent": self.parent}


WORDS = ("kind", "dtype", "shape", "coding", "chunk_shape", "checksum", "file")
SIZES = {"float32": 4, "bfloat16": 2, "int32": 4, "uint32": 4, "float8_e4m3fn": 1, "str": 1}
STATISTICS = ("min", "max", "mean", "standard_deviation", "l2_norm")
COUNTS = ("count", "nan_count", "infinity_count", "zero_count")


class Leaves:
    """The leaves of a model, one after another."""

    def __init__(self, *, has_statistics: bool = True, has_histograms: bool = True) -> None:
        self.has_histograms = has_histograms
        self.keys = Keys()
        self.words = {name: Words() for name in WORDS}
        self.columns: dict[str, list[Any]] = {
            name: [] for name in ("node", "elements", "bytes", "chunk_count", "state", "sharding")
        }
        self.statistics: dict[str, list[Any]] | None = None
        if has_statistics:
            self.statistics = {name: [] for name in (*COUNTS, *STATISTICS)}
        self.first = [0]
        self.bins: dict[str, list[Any]] = {"lower": [], "upper": [], "count": []}

    def add(
        self,
        path: tuple[str, ...],
        shape: tuple[int, ...],
        dtype: str = "float32",
        *,
        kind: str = "jax_array",
        state: str = "verified",
        checksum: str = "crc32c of each 4 MiB",
        coding: str = "raw",
        file: str = "d/params.safetensors",
        chunks: tuple[int, tuple[int, ...]] | None = None,
        sharding: int | None = None,
        scale: float = 0.02,
        nan: int = 0,
        zeros: int = 0,
    ) -> int:
        elements = math.prod(shape)
        said = {
            "kind": kind,
            "dtype": dtype,
            "shape": str(list(shape)),
            "coding": coding,
            "chunk_shape": str(list(chunks[1])) if chunks else "",
            "checksum": checksum,
            "file": file,
        }
        for name, text in said.items():
            self.words[name].push(text)
        row = {
            "node": self.keys.add(path),
            "elements": elements,
            "bytes": elements * SIZES.get(dtype, 4),
            "chunk_count": chunks[0] if chunks else 1,
            "state": state,
            "sharding": sharding,
        }
        for name, value in row.items():
            self.columns[name].append(value)
        if self.statistics is not None:
            self.add_statistics(elements, scale, nan, zeros, has_numbers=dtype != "str" and state != "damaged")
        return len(self.first) - 2

    def add_statistics(self, elements: int, scale: float, nan: int, zeros: int, *, has_numbers: bool) -> None:
        assert self.statistics is not None
        if not has_numbers or elements == 0:
            for name in COUNTS:
                self.statistics[name].append(0)
            for name in STATISTICS:
                self.statistics[name].append(None)
        else:
            reach = scale * math.sqrt(2 * math.log(max(elements, 2)))
            row = {
                "count": elements,
                "nan_count": nan,
                "infinity_count": 0,
                "zero_count": zeros,
                "min": -reach * 1.02,
                "max": reach * 0.97,
                "mean": scale / math.sqrt(elements),
                "standard_deviation": scale,
                "l2_norm": scale * math.sqrt(elements),
            }
            for name, value in row.items():
                self.statistics[name].append(value)
            if self.has_histograms:
                self.add_histogram(elements, scale, reach)
        self.first.append(len(self.bins["lower"]))

    def add_histogram(self, elements: int, scale: float, reach: float) -> None:
        edges = [reach * (-1 + 2 * at / 24) for at in range(25)]
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        shares = [math.exp(-0.5 * (middle / scale) ** 2) for middle in middles]
        self.bins["lower"] += edges[:-1]
        self.bins["upper"] += edges[1:]
        self.bins["count"] += [round(elements * share / sum(shares)) for share in shares]

    def column(self) -> Model:
        column: Model = {"keys": self.keys.column(), **self.columns}
        column |= {name: words.column() for name, words in self.words.items()}
        column["statistics"] = self.statistics and {**self.statistics, "histograms": {"first": self.first, **self.bins}}
        return column

    @property
    def count(self) -> int:
        return len(self.columns["node"])


def overview(leaves: Leaves | None = None, **more: Any) -> Model:
    """A checkpoint in numbers and words."""
    columns = leaves.columns if leaves else {"bytes": [], "elements": []}
    data_bytes = sum(columns["bytes"])
    return {
        "location": "/runs/gemma/step_400",
        "layout": "regrow",
        "variant": "safetensors files",
        "step": None,
        "items": [],
        "custom_metadata": None,
        "metrics": None,
        "leaf_count": len(columns["bytes"]),
        "array_count": len(columns["bytes"]),
        "element_count": sum(columns["elements"]),
        "data_bytes": data_bytes,
        "stored_bytes": data_bytes + 70_123,
        "protection": {
            "protected_bytes": data_bytes,
            "unprotected_bytes": 0,
            "words": "Every byte of data is under a crc32c checksum, in blocks of 4 MiB.",
        },
        "reading": "whole",
        "findings": [],
        "warnings": [],
        "notes": [],
        **more,
    }


def report(leaves: Leaves, checkpoint: Model | None = None, **more: Any) -> Model:
    """A whole model."""
    return {
        "title": "step_400",
        "version": "0.1.0",
        "written_seconds": 1_795_420_800.0,
        "command": "regrow report /runs/gemma/step_400",
        "checkpoint": checkpoint or overview(leaves),
        "leaves": leaves.column(),
        "shardings": [],
        "comparisons": [],
        "steps": None,
        **more,
    }


def finding(**more: Any) -> Model:
    """One thing that is wrong."""
    nothing = dict.fromkeys(("leaf", "key_path", "file", "offset_bytes", "expected", "found", "help"))
    return {**nothing, "what": "", **more}


def transformer(*, damaged: bool = False, layers: int = 12, width: int = 768) -> Leaves:
    """Parameters and Adam's state of a small language model."""
    leaves = Leaves()
    for root in (("params",), ("opt_state", "0", "mu"), ("opt_state", "0", "nu")):
        scale = 0.02 if root == ("params",) else 1e-4
        more: Model = {"file": f"d/{root[-1]}.safetensors", "scale": scale}
        leaves.add((*root, "embedder", "embedding"), (32_000, width), "bfloat16", sharding=0, **more)
        for layer in range(layers):
            at = (*root, f"layer_{layer}")
            for name in ("q", "k", "v", "o"):
                leaves.add((*at, "attn", name, "kernel"), (width, width), sharding=0, **more)
            is_bad = damaged and root == ("params",) and layer == 7
            state = "damaged" if is_bad else "verified"
            leaves.add((*at, "mlp", "up", "kernel"), (width, 4 * width), sharding=0, state=state, **more)
            nan = 12 if root[-1] == "nu" and layer == 3 else 0
            leaves.add((*at, "mlp", "down", "kernel"), (4 * width, width), sharding=0, nan=nan, **more)
            for name in ("pre", "post"):
                leaves.add(
                    (*at, f"{name}_norm", "scale"), (width,), sharding=1, zeros=width if layer == 0 else 0, **more
                )
    leaves.add(("opt_state", "0", "count"), (), "int32", kind="scalar", file="d/mu.safetensors")
    leaves.add(("step",), (), "int32", kind="scalar", file="d/mu.safetensors")
    leaves.add(("rng",), (2,), "uint32", kind="prng_key", file="d/mu.safetensors")
    leaves.add(("name",), (14,), "str", kind="str", file="regrow.json")
    return leaves


def shardings(leaves: Leaves) -> list[Model]:
    """Two ways to lie on a mesh of 4 by 2 devices."""
    shape, (rows, columns) = (32_000, 768), (4, 2)
    cut = [
        {
            "device": x * columns + y,
            "coordinates": [x, y],
            "start": [x * 8000, y * 384],
            "end": [(x + 1) * 8000, (y + 1) * 384],
            "replica": 0,
        }
        for x in range(rows)
        for y in range(columns)
    ]
    copied = [
        {"device": x * columns + y, "coordinates": [x, y], "start": [y * 384], "end": [(y + 1) * 384], "replica": x}
        for x in range(rows)
        for y in range(columns)
    ]
    example = {"leaf": 0, "shape": list(shape), "part_shape": [8000, 384], "replica_count": 1, "device_count": 8}
    small = {"leaf": 7, "shape": [768], "part_shape": [384], "replica_count": 4, "device_count": 8}
    counts = [leaves.columns["sharding"].count(at) for at in (0, 1)]
    mesh = [["data", rows], ["model", columns]]
    return [
        {
            "words": "P('data', 'model') over data=4,model=2",
            "mesh": mesh,
            "spec": ["data", "model"],
            "leaf_count": counts[0],
            "bytes": 1_000_000_000,
            "example": {**example, "parts": cut},
        },
        {
            "words": "P('model',) over data=4,model=2",
            "mesh": mesh,
            "spec": ["model"],
            "leaf_count": counts[1],
            "bytes": 221_184,
            "example": {**small, "parts": copied},
        },
    ]


def sound() -> Model:
    leaves = transformer()
    checkpoint = overview(
        leaves,
        step=400,
        metrics={"loss": 2.134, "accuracy": 0.41},
        custom_metadata={"model": "gemma-small", "tokens": 104_857_600},
        notes=["the newest of 21 steps in this folder"],
    )
    return report(leaves, checkpoint, shardings=shardings(leaves), steps=series())


def damaged() -> Model:
    leaves = transformer(damaged=True)
    row = leaves.columns["state"].index("damaged")
    findings = [
        finding(
            leaf=row,
            key_path="params/layer_7/mlp/up/kernel",
            file="d/params.safetensors",
            offset_bytes=83_886_080,
            what="a block fails its crc32c",
            expected="1b2e9a40 (stored in regrow.json)",
            found="00000000 (computed)",
            help="the file ends in zeros, as after an interrupted copy; copy it again, or restore the other leaves",
        )
    ]
    return report(leaves, overview(leaves, findings=findings), shardings=shardings(leaves))


def unprotected() -> Model:
    leaves = Leaves()
    for layer in range(6):
        at = ("model", "layers", str(layer))
        leaves.add((*at, "weight"), (512, 512), checksum="", state="unprotected", file="model.safetensors")
    total = sum(leaves.columns["bytes"])
    words = f"safetensors has no checksums: nothing protects any of the {total} bytes of data."
    protection = {"protected_bytes": 0, "unprotected_bytes": total, "words": words}
    return report(leaves, overview(leaves, layout="safetensors", variant="", protection=protection))


def comparison(count: int = 60) -> Model:
    """What differs from the step before."""
    keys, status, form_a, form_b = Keys(), Words(), Words(), Words()
    columns: dict[str, list[Any]] = {
        name: [] for name in ("node", "count", "differing_count", "max_abs", "max_relative", "max_ulp", "cosine")
    }
    chance = random.Random(7)
    kinds = ["only_b", "only_a", "shape"] + ["values"] * (count - 3)
    for row, kind in enumerate(kinds):
        columns["node"].append(keys.add(("params", f"layer_{row % 12}", f"kernel_{row}")))
        status.push(kind)
        form_a.push("" if kind == "only_b" else "float32[768, 768]")
        form_b.push({"only_a": "", "shape": "float32[768, 512]"}.get(kind, "float32[768, 768]"))
        far = 10 ** chance.uniform(-7, -1)
        has_numbers = kind == "values"
        numbers = (589_824, chance.randrange(1, 589_824), far, far * 30, float(chance.randrange(1, 10**6)), 1 - far)
        for name, value in zip(list(columns)[1:], numbers, strict=True):
            is_count = name in ("count", "differing_count")
            columns[name].append(value if has_numbers else 0 if is_count else None)
        if has_numbers:
            columns["max_ulp"][-1] = int(columns["max_ulp"][-1])
    return {
        "other": overview(location="/runs/gemma/step_300", layout="orbax", variant="ocdbt, zarr v3"),
        "is_equal": False,
        "words": f"{count} of 304 leaves differ from /runs/gemma/step_300.",
        "counts": [["values", count - 3], ["shape", 1], ["only_a", 1], ["only_b", 1], ["equal", 304 - count]],
        "read_bytes": 2_000_000_000,
        "containers": [["opt_state", "tuple", "list"]],
        "leaves": {
            "keys": keys.column(),
            "status": status.column(),
            "form_a": form_a.column(),
            "form_b": form_b.column(),
            **columns,
        },
    }


def compared() -> Model:
    leaves = transformer()
    return report(leaves, shardings=shardings(leaves), comparisons=[comparison()])


def series(count: int = 21) -> Model:
    """Steps of a training run."""
    steps = [
        {
            "step": 20 * at,
            "written_seconds": 1_795_420_800.0 + 310 * at,
            "stored_bytes": 1_048_576_000 + 9000 * at,
            "save_seconds": 0.5 + 0.05 * math.sin(at),
            "is_damaged": False,
            "note": "",
            "metrics": {"loss": 2 + 6 * math.exp(-at / 5), "accuracy": 0.45 * (1 - math.exp(-at / 7))},
        }
        for at in range(count)
    ]
    norms = [
        {"name": name, "l2_norm": [base * (1 + slope * at) for at in range(count)]}
        for name, base, slope in (("params", 310.0, 0.01), ("opt_state/0/mu", 12.0, 0.2), ("opt_state/0/nu", 0.4, 0.5))
    ]
    return {"steps": steps, "norms": norms}


def empty() -> Model:
    return report(Leaves())


HOSTILE = [
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "'-window.hacked=1-'",
    "{{ 7*7 }}${window.hacked=1}",
    "a\u202etxt.exe",
    "nul\0nul\nline",
    "long" * 2500,
    "a/b",
    "",
    "__proto__",
    "constructor",
    "<!--",
    "{b}{c}{a|x}",
    "שלום",
    "\u2028\u2029\ufeff",
]


def hostile() -> Model:
    """Every text that could be something else to a browser, wherever a text can be."""
    leaves = Leaves()
    for number, name in enumerate(HOSTILE):
        leaves.add((name, name, "x"), (number + 1, 10), kind=name, coding=name, file=name, checksum=name)
        leaves.add((name, "y"), (number + 1, 20), dtype=name)
    text = "\n".join(HOSTILE)
    bad = finding(leaf=0, key_path=text, file=text, offset_bytes=1, what=text, expected=text, found=text, help=text)
    checkpoint = overview(
        leaves,
        location=text,
        layout=text,
        variant=text,
        custom_metadata={name: name for name in HOSTILE},
        metrics=text,
        findings=[bad],
        warnings=HOSTILE,
        notes=HOSTILE,
        items=[[name, name] for name in HOSTILE],
    )
    checkpoint["protection"]["words"] = text
    other = comparison(len(HOSTILE) + 3)
    other["other"] = checkpoint
    other["words"] = text
    other["containers"] = [[name, name, name] for name in HOSTILE]
    other["leaves"]["keys"]["names"][1:4] = HOSTILE[:3]
    cut = shardings(leaves)
    for use in cut:
        use["words"], use["mesh"], use["spec"] = text, [[text, 4], [HOSTILE[1], 2]], HOSTILE[:2]
    steps = series()
    for step in steps["steps"]:
        step["note"] = text
        step["metrics"] |= dict.fromkeys(HOSTILE, 1.0)
    steps["norms"] += [{"name": name, "l2_norm": [1.0] * len(steps["steps"])} for name in HOSTILE]
    return report(
        leaves, checkpoint, title=text, command=text, version=text, shardings=cut, comparisons=[other], steps=steps
    )


def many(count: int) -> Model:
    """So many small leaves, in a tree of three levels, with statistics."""
    leaves = Leaves(has_histograms=False)
    chance = random.Random(1)
    width = 32
    for row in range(count):
        path = (f"block_{row // 4096}", f"expert_{row // width % 128}", f"kernel_{row % width}")
        leaves.add(path, (chance.randrange(1, 2000),), scale=chance.random(), nan=int(row % 100_003 == 7))
    return report(leaves, title=f"{count} leaves")

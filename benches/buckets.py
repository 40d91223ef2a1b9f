"""Buckets: regrow beside what its users have today for them, and beside a plain transfer of the
same bytes.

    make bench-buckets                                        # 1 GiB in 450 leaves, 20,000 leaves, one slice
    make bench-buckets BUCKETS='--mib 64 --many 2000 --rounds 2'

All of it goes to the test kit's object server on this machine, in a process of its own: in memory,
over loopback, with `--latency-ms` added to each request. Turns and ratios are those of
`measure.py`. The server shares the processors with the measured tool, which is the same for all
of them.

| who | saves | loads | opens, and reads a slice |
|---|---|---|---|
| regrow | `regrow.save`: checksummed, committed by a marker | `regrow.load` | opens, reads |
| tensorstore | its s3 driver: zarr3, uncompressed, an array for each leaf, all at once | all at once | opens, reads |
| tensorstore ocdbt | the same in an OCDBT database, in one transaction | all at once | opens, reads |
| s3fs + safetensors | `safetensors.numpy.save`, and `pipe_file` | `cat_file`, `load` | header, then the range |
| obstore + msgpack | one msgpack object, and `put` | `get`, `unpackb` | cannot |
| plain transfer | the bytes, in parts of 8 MiB, eight at once | ranges of 8 MiB, 16 at once | the range |

The plain transfer is what a save or load cannot beat: the client is `object_store`, as regrow's is.
From Rust, without Python, `crates/regrow/examples/bucket_speed.rs` measures the same.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from limits import ROOT
from measure import OURS, Clock, Samples, Turn, interleave, say
from processes import EXTRA, PEAK, extra_memory
from report import median_table, note_list
from workloads import Tree, leaves, of_leaves, touch

MIB = 1 << 20
PART_BYTES = 8 * MIB
PARTS_AT_ONCE, RANGES_AT_ONCE = 8, 16
SLICE_ELEMENTS = 16 << 10  # 64 KiB of float32, or a whole leaf where that is shorter
BUCKET, KEY_ID, SECRET, REGION = "speed", "test", "testtest", "us-east-1"
SAVE, LOAD = "save to a bucket", "load from a bucket"
OPENED, SLICE = "slice of an open checkpoint", "open and slice"
PACKAGES = "numpy tensorstore s3fs safetensors obstore msgpack".split()


class Contestant:
    """Saves, loads, and reads a part of one leaf; `name` is a folder of the bucket, or an
    object.
    """

    name: str

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def save(self, at: str, tree: Tree) -> None:
        """Until the server has all of it."""
        raise NotImplementedError

    def load(self, at: str) -> Any:
        """All leaves as NumPy arrays, in nested dicts or a flat one."""
        raise NotImplementedError

    def open(self, at: str, leaf: str) -> Any:
        """What is kept open for slices of that leaf; `None` where nothing is."""
        return None

    part: Callable[[Any, str, str, int], Any] | None = None
    """So many elements of a leaf, from its first, of what `open` gave."""


class Regrow(Contestant):
    name = OURS

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        import regrow

        self.regrow = regrow
        options = {"endpoint_url": endpoint, "key": KEY_ID, "secret": SECRET, "region": REGION}
        self.root = regrow.Location(f"s3://{BUCKET}", **options)

    def save(self, at: str, tree: Tree) -> None:
        self.regrow.save(self.root / at, tree)

    def load(self, at: str) -> Any:
        return self.regrow.load(self.root / at)

    def open(self, at: str, leaf: str) -> Any:
        return self.regrow.open(self.root / at)

    def part(self, opened: Any, at: str, leaf: str, count: int) -> Any:
        return opened[leaf.replace(".", "/")][:count]


class TensorStore(Contestant):
    name = "tensorstore"
    is_ocdbt = False

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        import tensorstore

        self.ts = tensorstore
        os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"] = KEY_ID, SECRET
        self.names: list[str] = []

    def save(self, at: str, tree: Tree) -> None:
        context = self.ts.Context()
        # A database that is written leaf by leaf would be written again as often.
        transaction = self.ts.Transaction() if self.is_ocdbt else None
        pending = []
        for name, leaf in leaves(tree):
            metadata = {
                "shape": list(leaf.shape),
                "data_type": leaf.dtype.name,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(leaf.shape)}},
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            }
            spec = {**self._spec(at, name), "metadata": metadata}
            pending.append((self.ts.open(spec, create=True, context=context, transaction=transaction), leaf))
        writes = [store.result().write(leaf) for store, leaf in pending]
        for write in writes:
            write.result()
        if transaction is not None:
            transaction.commit_async().result()
        self.names = [name for name, _ in leaves(tree)]

    def load(self, at: str) -> Any:
        context = self.ts.Context()
        stores = {name: self.ts.open(self._spec(at, name), open=True, context=context) for name in self.names}
        reads = {name: store.result().read() for name, store in stores.items()}
        return {name: np.asarray(read.result()) for name, read in reads.items()}

    def open(self, at: str, leaf: str) -> Any:
        return self.ts.open(self._spec(at, leaf), open=True, context=self.ts.Context()).result()

    def part(self, opened: Any, at: str, leaf: str, count: int) -> Any:
        return np.asarray(opened[:count].read().result())

    def _spec(self, at: str, name: str) -> dict[str, Any]:
        base = {
            "driver": "s3",
            "bucket": BUCKET,
            "endpoint": self.endpoint,
            "aws_region": REGION,
            "aws_credentials": {"type": "environment"},
        }
        if self.is_ocdbt:
            store = {"driver": "ocdbt", "base": {**base, "path": f"{at}/"}, "path": f"{name}/"}
        else:
            store = {**base, "path": f"{at}/{name}/"}
        return {"driver": "zarr3", "kvstore": store}


class TensorStoreOcdbt(TensorStore):
    name = "tensorstore ocdbt"
    is_ocdbt = True


class S3fsSafetensors(Contestant):
    name = "s3fs + safetensors"

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        import s3fs
        from safetensors.numpy import load, save

        self.encode, self.decode = save, load
        self.fs = s3fs.S3FileSystem(
            key=KEY_ID,
            secret=SECRET,
            endpoint_url=endpoint,
            client_kwargs={"region_name": REGION},
            skip_instance_cache=True,
        )

    def save(self, at: str, tree: Tree) -> None:
        self.fs.pipe_file(f"{BUCKET}/{at}", self.encode(dict(leaves(tree))))

    def load(self, at: str) -> Any:
        return self.decode(self.fs.cat_file(f"{BUCKET}/{at}"))

    def open(self, at: str, leaf: str) -> Any:
        path = f"{BUCKET}/{at}"
        header_bytes = int.from_bytes(self.fs.cat_file(path, start=0, end=8), "little")
        header = json.loads(self.fs.cat_file(path, start=8, end=8 + header_bytes))
        return 8 + header_bytes + header[leaf]["data_offsets"][0]

    def part(self, opened: Any, at: str, leaf: str, count: int) -> Any:
        found = self.fs.cat_file(f"{BUCKET}/{at}", start=opened, end=opened + 4 * count)
        return np.frombuffer(found, np.float32)


class Obstore(Contestant):
    """What those with obstore share."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        import obstore
        from obstore.store import S3Store

        self.obstore = obstore
        self.store = S3Store(
            BUCKET,
            endpoint=endpoint,
            access_key_id=KEY_ID,
            secret_access_key=SECRET,
            region=REGION,
            client_options={"allow_http": True},
        )

    def put(self, at: str, data: Any) -> None:
        """In parts, several at once."""
        self.obstore.put(self.store, at, data, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)


class ObstoreMsgpack(Obstore):
    name = "obstore + msgpack"

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        import msgpack

        self.msgpack = msgpack

    def save(self, at: str, tree: Tree) -> None:
        packed = {name: (leaf.dtype.name, leaf.shape, leaf.data.cast("B")) for name, leaf in leaves(tree)}
        self.put(at, self.msgpack.packb(packed))

    def load(self, at: str) -> Any:
        found = self.obstore.get(self.store, at).bytes()
        packed = self.msgpack.unpackb(memoryview(found), max_bin_len=1 << 32)
        return {name: np.frombuffer(data, dtype).reshape(shape) for name, (dtype, shape, data) in packed.items()}


class Plain(Obstore):
    """As many bytes, of no known format."""

    name = "plain transfer"

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.block = b""

    def save(self, at: str, tree: Tree) -> None:
        self.put(at, self._bytes_of(tree))

    def _bytes_of(self, tree: Tree) -> bytes:
        len_bytes = sum(leaf.nbytes for _, leaf in leaves(tree))
        if len(self.block) != len_bytes:
            self.block = os.urandom(MIB) * (len_bytes // MIB) + bytes(len_bytes % MIB)
        return self.block

    def load(self, at: str) -> Any:
        out = np.empty(self.obstore.head(self.store, at)["size"], np.uint8)

        def fetch(begin: int) -> None:
            end = min(begin + PART_BYTES, out.size)
            got = self.obstore.get_range(self.store, at, start=begin, end=end)
            out[begin:end] = np.frombuffer(got, np.uint8)

        with ThreadPoolExecutor(RANGES_AT_ONCE) as pool:
            list(pool.map(fetch, range(0, out.size, PART_BYTES)))
        return {"all": out}

    def part(self, opened: Any, at: str, leaf: str, count: int) -> Any:
        return np.frombuffer(self.obstore.get_range(self.store, at, start=0, end=4 * count), np.float32)


CONTESTANTS: dict[str, type[Contestant]] = {
    each.name: each for each in (Regrow, TensorStore, TensorStoreOcdbt, S3fsSafetensors, ObstoreMsgpack, Plain)
}


# ---- the server -----------------------------------------------------------------------


class Server:
    """The test kit's object server, until the end of the block."""

    def __init__(self, program: Path) -> None:
        if not program.is_file():
            sys.exit(f"buckets: {program} is not there; make bench-buckets builds it")
        command = [str(program), "--bucket", BUCKET, "--until-eof"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().strip()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def empty(self, latency_ms: int) -> None:
        """No objects, no log, and so long a wait before each request."""
        self._post("reset?objects=1", {})
        self._post("settings", {"latency_ms": latency_ms})

    def _post(self, what: str, value: dict[str, int]) -> None:
        request = urllib.request.Request(f"{self.endpoint}/-/{what}", json.dumps(value).encode(), method="POST")
        urllib.request.urlopen(request).close()


# ---- what is measured -----------------------------------------------------------------


def measure_times(samples: Samples, server: Server, arguments: argparse.Namespace) -> None:
    """Saves, loads and slices, interleaved, for both workloads and each latency."""
    for name, leaf_count, mib in workloads(arguments) if arguments.rounds else []:
        tree = tree_of(leaf_count, mib)
        middle = list(leaves(tree))[leaf_count // 2][0]
        for latency_ms in arguments.latencies:
            turns = [
                Turn(tool, life(CONTESTANTS[tool](server.endpoint), server, latency_ms, tree, middle))
                for tool in arguments.tools
            ]
            interleave(samples, labelled(name, latency_ms), turns, arguments.rounds, "buckets")


def workloads(arguments: argparse.Namespace) -> list[tuple[str, int, int]]:
    """Name, leaves, MiB."""
    few = (f"{arguments.mib} MiB in {arguments.leaves} leaves", arguments.leaves, arguments.mib)
    many = (f"{arguments.many_mib} MiB in {arguments.many:,} leaves", arguments.many, arguments.many_mib)
    return [each for key, each in (("few", few), ("many", many)) if key in arguments.workloads]


def tree_of(leaf_count: int, mib: int) -> Tree:
    """So many leaves of the same length, in all so much."""
    return of_leaves(leaf_count, max(4, mib * MIB // leaf_count // 4 * 4))


def labelled(name: str, latency_ms: int) -> str:
    return name if latency_ms == 0 else f"{name}, {latency_ms} ms a request"


def life(tool: Contestant, server: Server, latency_ms: int, tree: Tree, leaf: str) -> Callable[[Clock], None]:
    """A checkpoint in an empty bucket, from its save to its last read."""

    len_bytes = sum(each.nbytes for _, each in leaves(tree))
    count = min(SLICE_ELEMENTS, next(each.size for _, each in leaves(tree)))

    def run(clock: Clock) -> None:
        server.empty(latency_ms)
        clock.time(SAVE, lambda: tool.save("x", tree))
        loaded = clock.time(LOAD, lambda: tool.load("x"))
        assert sum(each.nbytes for _, each in leaves(loaded)) == len_bytes
        del loaded
        if tool.part is not None:
            read = tool.part
            part = clock.time(SLICE, lambda: read(tool.open("x", leaf), "x", leaf, count))
            opened = tool.open("x", leaf)
            again = clock.time(OPENED, lambda: read(opened, "x", leaf, count))
            assert part.shape == again.shape == (count,)
        server.empty(latency_ms)

    return run


def measure_memory(samples: Samples, server: Server, arguments: argparse.Namespace) -> None:
    """Peak memory beyond the tree, once for each, in a process of its own: it does not vary."""
    name, leaf_count, mib = workloads(arguments)[0]
    for tool in arguments.tools:
        server.empty(0)
        for task in ("save", "load"):
            command = [sys.executable, __file__, "--child", server.endpoint, tool, task, str(leaf_count), str(mib)]
            try:
                found = extra_memory(command)
            except RuntimeError as error:
                samples.note(f"memory of {tool}, {task}, is left out: {error}")
                continue
            if found is not None:
                clock = Clock(samples, name, tool, 1)
                clock.keep(f"{EXTRA}, {task}", found[0], "bytes")
                clock.keep(f"{PEAK}, {task}", found[1], "bytes")


def child(endpoint: str, name: str, task: str, leaf_count: int, mib: int) -> None:
    """Prepares, says `ready`, waits for a line, acts, says `done`, and holds what it has until
    the next line.
    """
    tool, tree = CONTESTANTS[name](endpoint), tree_of(leaf_count, mib)
    # What a first call costs beyond a second one is modules and pools, not the data's.
    small = of_leaves(2)
    tool.save(f"small-{task}", small)
    tool.load(f"small-{task}")
    if isinstance(tool, TensorStore):
        tool.names = [name for name, _ in leaves(tree)]
    if isinstance(tool, Plain) and task == "save":
        tool._bytes_of(tree)
    if task == "load":
        del tree
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    print("ready", flush=True)
    sys.stdin.readline()
    result = tool.save("x", tree) if task == "save" else tool.load("x")
    if task == "load":
        touch(result)
    print("done", flush=True)
    sys.stdin.readline()
    del result


# ---- the command ----------------------------------------------------------------------


def main() -> None:
    """Measures, and writes `results.md` and `results.json`."""
    arguments = parse()
    samples = Samples()
    with Server(arguments.server) as server:
        measure_times(samples, server, arguments)
        if not arguments.no_memory:
            measure_memory(samples, server, arguments)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    text = "\n".join(
        [
            f"# Buckets\n\n{os.cpu_count()} CPUs, {arguments.rounds} rounds, the test kit's object server; {versions}.",
            "`to regrow`: how many times as long as regrow, the median of the rounds; above 1 regrow is faster.\n",
            *median_table(samples),
            *note_list(samples),
        ]
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "results.md").write_text(text + "\n")
    (arguments.out / "results.json").write_text(json.dumps(samples.json(), indent=1) + "\n")
    print(text)
    say(f"wrote {arguments.out / 'results.md'} and {arguments.out / 'results.json'}")


def parse() -> argparse.Namespace:
    """The command line."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--mib", type=int, default=1024, help="of the tree of few leaves (1024)")
    parser.add_argument("--leaves", type=int, default=450)
    parser.add_argument("--many", type=int, default=20_000, help="leaves of the tree of many (20000)")
    parser.add_argument("--many-mib", type=int, default=64, help="its size (64)")
    parser.add_argument("--workloads", nargs="+", choices=("few", "many"), default=["few", "many"],
                        help="leaves of the trees: few, many, or both")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5,
                        help="rounds that count, after one that does not (5); 0: memory alone")  # fmt: skip
    parser.add_argument("--no-memory", action="store_true", help="times alone")
    parser.add_argument("--latencies", type=int, nargs="+", default=[0, 20], metavar="MS",
                        help="added to each request (0 20)")  # fmt: skip
    parser.add_argument("--tools", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), metavar="TOOL",
                        help=f"some of: {', '.join(CONTESTANTS)}")  # fmt: skip
    parser.add_argument("--server", type=Path, default=target / "release" / "object_server")
    parser.add_argument("--out", type=Path, default=Path("bench-output/buckets"))
    arguments = parser.parse_args()
    if OURS not in arguments.tools:
        parser.error("regrow is what the others are compared with: name it among --tools")
    return arguments


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        endpoint, name, task, count, mib = sys.argv[2:]
        child(endpoint, name, task, int(count), int(mib))
    else:
        main()

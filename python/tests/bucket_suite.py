"""What regrow promises of a checkpoint in a bucket, to be kept by every server of `bucket_servers`.

    class TestMoto(StoreConformance):         # and a fixture `bucket`
        pass

`StoreConformance` is for every store; `bucket_exchange` is for those that TensorStore has a driver
for.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bucket_servers import NAME, Bucket
from conftest import assert_same, same_bits

import regrow

MIB = 1 << 20

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "regrow": ("x", {"layout": "regrow"}),
    "regrow zstd": ("x", {"layout": "regrow", "compression": "zstd"}),
    "orbax": ("x", {"layout": "orbax"}),
    "orbax zarr3": ("x", {"layout": regrow.layouts.Orbax(zarr3=True)}),
    "orbax without ocdbt": ("x", {"layout": regrow.layouts.Orbax(ocdbt=False)}),
    "flax": ("x.msgpack", {"layout": "flax"}),
    "equinox": ("x.eqx", {"layout": "equinox"}),
    "pytree_data": ("x", {"layout": regrow.layouts.PytreeData(native_dtypes=True)}),
    "safetensors file": ("x.safetensors", {"layout": "safetensors"}),
    "safetensors folder": ("x", {"layout": regrow.layouts.Safetensors(max_shard_bytes=100_000)}),
    "npz": ("x.npz", {"layout": "npy"}),
    "npy folder": ("x", {"layout": "npy"}),
}
"""Every layout that regrow writes, in each form that means other objects: the name, and how it
is asked for.
"""
FOLDERS = [form for form, (name, _) in FORMS.items() if name == "x" and form != "pytree_data"]
"""Those that are one folder, which a marker commits."""
OF_EACH_KIND = ["regrow", "orbax", "safetensors file", "npz"]
"""A folder with and without a database, a file that is read in part, and an archive."""
ODD_NAMES = ["ü ñ 学", "a b", "100%", "%20", "a+b", "a&b=c", "#1", "x=[1]", "it's", "~", "(1),@:;!*$"]

_folders = itertools.count()


def tree(fill: float = 1.0) -> dict[str, Any]:
    """Leaves of a few dtypes, one of them long enough to be read in part."""
    rng = np.random.default_rng(7)
    return {
        "params": {
            "kernel": (rng.normal(size=(300, 150)) * fill).astype(np.float32),
            "scale": np.full(33, fill).astype(ml_dtypes.bfloat16),
        },
        "ids": np.arange(1000, dtype=np.int64) + int(fill),
        "half": np.full((3, 5, 7), fill, np.float16),
        "step": np.asarray(3),
    }


def text_of(error: BaseException) -> str:
    """All visible parts of an error."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))


def assert_tree(found: Any, fill: float = 1.0) -> None:
    """What was loaded is `tree(fill)`, bit for bit; of layouts that know no names, in its order."""
    expected = list(leaves_of(tree(fill)))
    leaves = list(leaves_of(found))
    assert len(leaves) == len(expected)
    names = sorted(range(len(leaves)), key=lambda at: leaves[at][0])
    order = sorted(range(len(leaves)), key=lambda at: expected[at][0])
    for at, other in zip(names, order, strict=True):
        assert same_bits(leaves[at][1], expected[other][1]), f"{leaves[at][0]} is not {expected[other][0]}"


def leaves_of(node: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    """Every leaf under its path."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield from leaves_of(child, f"{path}/{key}" if path else str(key))
    else:
        yield path, node


@pytest.mark.timeout(300)
class InBucket:
    """Needs a fixture `bucket`."""

    @pytest.fixture
    def root(self, bucket: Bucket) -> Iterator[regrow.Location]:
        """A folder of the bucket that no other test has."""
        root = regrow.Location(f"{bucket.url}/tests/{next(_folders)}", **bucket.options)
        yield root
        bucket.clear(f"{key_of(bucket, root)}/")


class StoreConformance(InBucket):
    """What every server must pass."""

    # ---- saves and loads --------------------------------------------------------------

    @pytest.mark.parametrize(
        ("how", "form"), [*(("save", form) for form in FORMS), *(("save_async", form) for form in OF_EACH_KIND)]
    )
    def test_every_layout_comes_back(
        self, bucket: Bucket, root: regrow.Location, form: str, how: str, tmp_path: Path
    ) -> None:
        name, options = FORMS[form]
        at = root / name
        if how == "save":
            report = regrow.save(at, tree(), **options)
        else:
            waited = regrow.save_async(at, tree(), **options).result()
            assert waited is not None
            report = waited
        assert str(report.path) == at.url
        loaded = regrow.load(at)
        assert_tree(loaded)
        # The same as of a disk; also by URL and options instead of a location.
        regrow.save(tmp_path / name, tree(), **options)
        assert_same(loaded, regrow.load(tmp_path / name))
        assert_same(regrow.load(at.url, storage_options=bucket.options), loaded)
        assert_same(regrow.load(at, like=tree()), tree())

        opened = regrow.open(at)
        assert (opened.path, opened.layout) == (at.url, regrow.layouts.chosen(options["layout"]).name)
        kernel = next(leaf for leaf in opened.values() if leaf.shape == (300, 150))
        assert same_bits(kernel[17:21, 5:140:3], tree()["params"]["kernel"][17:21, 5:140:3])
        report_of_damage = regrow.verify(at)
        assert report_of_damage.ok, report_of_damage
        assert at.url in regrow.overview(at)

        before = bucket.keys(key_of(bucket, root))
        with pytest.raises(regrow.errors.AlreadyExistsError) as refused:
            regrow.save(at, tree(2.0), **options)
        assert at.url in str(refused.value)
        assert bucket.keys(key_of(bucket, root)) == before
        assert_tree(regrow.load(at))

    @pytest.mark.parametrize("form", FORMS)
    def test_an_overwrite_leaves_only_the_new_one(self, bucket: Bucket, root: regrow.Location, form: str) -> None:
        name, options = FORMS[form]
        at = root / name
        regrow.save(at, tree(), **options)
        if form == "pytree_data":
            with pytest.raises(regrow.errors.UnsupportedError, match="save under another name"):
                regrow.save(at, tree(2.0), overwrite=True, **options)
            assert_tree(regrow.load(at))
            return
        for fill in (2.0, 3.0):
            regrow.save(at, tree(fill), overwrite=True, **options)
            assert_tree(regrow.load(at), fill)
            assert regrow.verify(at).ok
        fresh = root / f"fresh/{name}"
        regrow.save(fresh, tree(3.0), **options)
        assert_same_objects(bucket, at, fresh)

    @pytest.mark.parametrize("form", FORMS)
    def test_convert_to_a_disk_and_back(self, root: regrow.Location, form: str, tmp_path: Path) -> None:
        name, options = FORMS[form]
        regrow.save(root / name, tree(), **options)
        regrow.convert(root / name, tmp_path / "disk")
        assert_tree(regrow.load(tmp_path / "disk"))
        regrow.convert(tmp_path / "disk", root / f"back/{name}", lossy=True, **options)
        assert_tree(regrow.load(root / f"back/{name}"))
        regrow.convert(root / f"back/{name}", root / "again", lossy=True)
        assert_tree(regrow.load(root / "again"))

    def test_a_base_is_copied_and_not_needed_any_more(self, bucket: Bucket, root: regrow.Location) -> None:
        regrow.save(root / "1", tree())
        report = regrow.save(root / "2", tree(), base=root / "1")
        assert report.reused_bytes > 0
        assert regrow.save(root / "3", tree(2.0), base=root / "2").reused_bytes == 0
        for key in bucket.keys(key_of(bucket, root / "1/")):
            bucket.delete(key)
        assert_tree(regrow.load(root / "2"))
        assert regrow.verify(root / "2").ok

    def test_what_is_long_goes_in_parts(self, bucket: Bucket, root: regrow.Location) -> None:
        long = np.arange(6 * MIB, dtype=np.uint32).reshape(6, -1)  # 24 MiB: three parts of 8 MiB
        for form in ("regrow", "safetensors file", "orbax"):
            name, options = FORMS[form]
            at = root / f"{form}/{name}"
            regrow.save(at, {"long": long}, **options)
            opened = regrow.open(at)
            assert same_bits(opened["long"][4, -70_000:], long[4, -70_000:])
            assert same_bits(opened.load()["long"], long)
            assert regrow.verify(at).ok
        assert bucket.unfinished(key_of(bucket, root)) == []

    def test_a_folder_of_more_objects_than_a_page_of_a_list_holds(self, bucket: Bucket, root: regrow.Location) -> None:
        many = {f"leaf_{at}": np.full(2, at) for at in range(1020)}
        options = FORMS["npy folder"][1]
        regrow.save(root / "x", many, **options)
        assert len(bucket.keys(key_of(bucket, root / "x/"))) > 1020
        assert_same(regrow.load(root / "x"), many)
        regrow.save(root / "x", tree(), overwrite=True, **options)
        assert_tree(regrow.load(root / "x"))
        assert len(bucket.keys(key_of(bucket, root / "x/"))) < 20

    def test_names_of_all_kinds(self, bucket: Bucket, root: regrow.Location) -> None:
        odd = {name: np.full(3, at) for at, name in enumerate(ODD_NAMES)}
        for form in ("regrow", "orbax without ocdbt", "npy folder"):
            at = root / f"of leaves/{form}"
            regrow.save(at, odd, **FORMS[form][1])
            assert_same(dict(sorted(regrow.load(at).items())), dict(sorted(odd.items())))
        for number, name in enumerate(ODD_NAMES):
            at = root / f"of checkpoints/{name}/{name}"
            regrow.save(at, {"w": np.full(3, number)})
            assert regrow.load(at)["w"][0] == number
            assert bucket.keys(key_of(bucket, at) + "/"), f"{name} is not the name that a client of others sees"
            regrow.save(at, {"w": np.full(3, -number)}, overwrite=True)
            assert regrow.load(at)["w"][0] == -number

    # ---- what is a checkpoint, and what is not ----------------------------------------

    def test_a_folder_of_steps(self, bucket: Bucket, root: regrow.Location) -> None:
        for step, fill in ((1, 1.0), (2, 2.0), (10, 10.0)):
            regrow.save(root / f"step_{step}", tree(fill))
        opened = regrow.open(root)
        assert (opened.step, opened.steps) == (10, [1, 2, 10])
        assert_tree(regrow.load(root), 10.0)
        assert_tree(regrow.load(root, step=2), 2.0)
        assert "params/kernel" in regrow.overview(root, step=1)
        bucket.delete(key_of(bucket, root / "step_10/commit_success.txt"))
        assert regrow.open(root).steps == [1, 2]
        assert_tree(regrow.load(root), 2.0)

    @pytest.mark.parametrize("form", FOLDERS)
    def test_what_was_not_committed_is_no_checkpoint(self, bucket: Bucket, root: regrow.Location, form: str) -> None:
        name, options = FORMS[form]
        at = root / name
        regrow.save(at, tree(), **options)
        marker = next(key for key in bucket.keys(key_of(bucket, at)) if key.endswith(MARKERS))
        bucket.delete(marker)
        bucket.put(key_of(bucket, at / "regrow-writing.json"), claim(age_seconds=2 * 60 * 60))
        for read in (regrow.load, regrow.open, regrow.verify, regrow.overview):
            with pytest.raises(regrow.errors.UncommittedError) as raised:
                read(at)
            assert at.url in str(raised.value)
        # Its writer is dead: a save takes the place, and its files are removed.
        bucket.put(key_of(bucket, at / "half/written"), b"half")
        regrow.save(at, tree(2.0), **options)
        assert_tree(regrow.load(at), 2.0)
        regrow.save(root / "fresh", tree(2.0), **options)
        assert_same_objects(bucket, at, root / "fresh")

    def test_a_writer_that_lives_is_left_alone(self, bucket: Bucket, root: regrow.Location) -> None:
        bucket.put(key_of(bucket, root / "x/model.safetensors"), b"half")
        bucket.put(key_of(bucket, root / "x/regrow-writing.json"), claim(age_seconds=0))
        before = bucket.keys(key_of(bucket, root))
        for overwrite in (False, True):
            with pytest.raises(regrow.errors.BusyError, match="process 1 on another"):
                regrow.save(root / "x", tree(), overwrite=overwrite, options=regrow.Options(wait=0))
        assert bucket.keys(key_of(bucket, root)) == before

    @pytest.mark.parametrize("form", ["regrow", "orbax", "npy folder"])
    def test_a_save_that_is_killed_leaves_no_checkpoint(self, bucket: Bucket, root: regrow.Location, form: str) -> None:
        at = root / "x"
        arguments = json.dumps([at.url, bucket.options, FORMS[form][1]])
        killed = subprocess.run([sys.executable, "-c", KILLED, arguments], capture_output=True, text=True, timeout=60)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert bucket.keys(key_of(bucket, at)), "it was killed before it wrote anything"
        with pytest.raises(regrow.errors.UncommittedError):
            regrow.load(at)
        regrow.save(at, tree(), **FORMS[form][1])
        assert_tree(regrow.load(at))
        regrow.save(root / "fresh", tree(), **FORMS[form][1])
        assert_same_objects(bucket, at, root / "fresh")

    @pytest.mark.parametrize("form", ["regrow", "safetensors file", "pytree_data", "npy folder"])
    def test_a_save_that_fails_leaves_nothing(self, bucket: Bucket, root: regrow.Location, form: str) -> None:
        class Enough(Exception):
            pass

        def stop(done: int, total: int) -> None:
            if done > total // 2:
                raise Enough

        name, options = FORMS[form]
        with pytest.raises(Enough):
            regrow.save(
                root / name, {f"w{at}": np.ones(3 * MIB, np.uint32) for at in range(4)}, progress=stop, **options
            )
        assert bucket.keys(key_of(bucket, root)) == []
        if bucket.can_abort_uploads:
            assert bucket.unfinished(key_of(bucket, root)) == []

    def test_damage_to_any_object_is_found(self, bucket: Bucket, root: regrow.Location) -> None:
        at = root / "x"
        regrow.save(at, tree())
        for key in bucket.keys(key_of(bucket, at)):
            if key.endswith(MARKERS):
                continue  # its being there is all that it says
            whole = bucket.get(key)
            damages = [whole[:-1], whole + b"x"]
            damages += [flipped(whole, place) for place in (0, len(whole) // 2, len(whole) - 1)]
            for damaged in damages:
                bucket.put(key, damaged)
                assert is_found_damaged(at), f"{key}: {len(damaged)} bytes instead of {len(whole)}"
            bucket.delete(key)
            assert is_found_damaged(at), f"{key} is gone"
            bucket.put(key, whole)
        assert regrow.verify(at).ok
        assert_tree(regrow.load(at))

    @pytest.mark.parametrize("form", OF_EACH_KIND)
    def test_what_was_replaced_after_it_was_opened_is_never_mixed(self, root: regrow.Location, form: str) -> None:
        name, options = FORMS[form]
        at = root / name
        regrow.save(at, stamped(0), **options)
        opened = regrow.open(at)
        regrow.save(at, stamped(1), overwrite=True, **options)
        # A reader that had it open sees the old one, or that it was replaced.
        for read in (lambda: [leaf[...] for leaf in opened.values()], lambda: list(opened.load().values())):
            try:
                assert {int(value) for leaf in read() for value in np.unique(leaf)} == {0}
            except regrow.errors.ReplacedError as error:
                assert "open" in str(error) and "again" in str(error)

    def test_an_object_that_another_client_replaces_is_noticed(self, bucket: Bucket, root: regrow.Location) -> None:
        at = root / "x.safetensors"
        regrow.save(at, stamped(0), layout="safetensors")
        opened = regrow.open(at)
        regrow.save(root / "other.safetensors", stamped(1), layout="safetensors")
        other = bucket.get(key_of(bucket, root / "other.safetensors"))
        assert len(other) == len(bucket.get(key_of(bucket, at)))
        bucket.put(key_of(bucket, at), other)
        for read in (opened.load, lambda: opened["a"][...], lambda: opened["b"][2:3]):
            with pytest.raises(regrow.errors.ReplacedError) as raised:
                read()
            assert at.url in str(raised.value)
        bucket.delete(key_of(bucket, at))
        with pytest.raises(regrow.errors.ReplacedError):
            opened.load()

    # ---- errors -----------------------------------------------------------------------

    def test_nothing_is_there(self, root: regrow.Location) -> None:
        at = root / "nothing"
        for call in (regrow.load, regrow.open, regrow.verify, regrow.overview):
            with pytest.raises(regrow.errors.NotFoundError) as raised:
                call(at)
            assert at.url in str(raised.value)

    def test_a_bucket_that_is_not_there(self, bucket: Bucket) -> None:
        url = bucket.url.replace(NAME, "no-such-bucket")
        for act in (lambda at: regrow.load(at), lambda at: regrow.save(at, tree())):
            with pytest.raises(regrow.errors.NotFoundError) as raised:
                act(regrow.Location(f"{url}/x", **bucket.options))
            assert "no-such-bucket does not exist" in str(raised.value), raised.value
            self.assert_no_secret(bucket, raised.value)

    def test_credentials_that_are_wrong(self, bucket: Bucket) -> None:
        if not bucket.refuses_wrong_secrets:
            assert regrow.save(
                f"{bucket.url}/refused", tree(), overwrite=True, storage_options=bucket.wrong_secret.options
            )
            return
        at = regrow.Location(f"{bucket.url}/x", **bucket.wrong_secret.options)
        for act in (regrow.load, regrow.open, lambda at: regrow.save(at, tree())):
            with pytest.raises(regrow.errors.PermissionDeniedError) as raised:
                act(at)
            assert re.search("secret|credentials|access denied", str(raised.value)), raised.value
            self.assert_no_secret(bucket, raised.value)
            assert bucket.wrong_secret.secret not in text_of(raised.value)

    def test_a_server_that_is_not_there(self, bucket: Bucket) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{unused.getsockname()[1]}"
        options = {name: re.sub(r"127\.0\.0\.1:\d+", place, value) for name, value in bucket.options.items()}
        options |= {"max_retries": "1", "retry_timeout": "2"}
        with pytest.raises(regrow.errors.IoError) as raised:
            regrow.load(f"{bucket.url}/x", storage_options=options)
        assert place in str(raised.value) and "the server does not listen" in str(raised.value), raised.value
        self.assert_no_secret(bucket, raised.value)

    @staticmethod
    def assert_no_secret(bucket: Bucket, error: BaseException) -> None:
        for secret in bucket.secrets:
            assert secret not in text_of(error)
        assert all(secret not in repr(regrow.Location(bucket.url, **bucket.options)) for secret in bucket.secrets)


class AtomicConformance(InBucket):
    """What a server must pass that lets one of several conditional writes through and replaces
    objects at once.
    """

    @pytest.mark.parametrize("form", ["regrow", "orbax", "npy folder"])
    def test_of_several_writers_exactly_one_wins(self, root: regrow.Location, form: str) -> None:
        at, options = root / "x", FORMS[form][1]
        outcomes: dict[int, BaseException | None] = {}
        begin = threading.Barrier(4)

        def write(fill: int) -> None:
            begin.wait()
            try:
                regrow.save(at, tree(fill), **options)
                outcomes[fill] = None
            except regrow.RegrowError as error:
                outcomes[fill] = error

        together([threading.Thread(target=write, args=(fill,)) for fill in range(1, 5)])
        won = [fill for fill, error in outcomes.items() if error is None]
        assert len(won) == 1, outcomes
        assert all(isinstance(error, regrow.errors.AlreadyExistsError) for error in outcomes.values() if error), (
            outcomes
        )
        assert_tree(regrow.load(at), won[0])
        assert regrow.verify(at).ok

    def test_of_several_processes_exactly_one_wins(self, bucket: Bucket, root: regrow.Location) -> None:
        at = root / "x"
        begins_at = time.time() + 1.5
        arguments = [json.dumps([at.url, bucket.options, fill, begins_at]) for fill in (1, 2, 3)]
        writers = [
            subprocess.Popen([sys.executable, "-c", RACING, text], stdout=subprocess.PIPE, text=True)
            for text in arguments
        ]
        told = [writer.communicate(timeout=100)[0].strip() for writer in writers]
        assert sorted(told) == ["AlreadyExistsError", "AlreadyExistsError", "saved"], told
        assert set(np.unique(regrow.load(at)["w"])) == {told.index("saved") + 1}

    @pytest.mark.parametrize("form", OF_EACH_KIND)
    def test_what_is_replaced_while_it_is_read_is_never_mixed(self, root: regrow.Location, form: str) -> None:
        name, options = FORMS[form]
        at = root / name
        regrow.save(at, stamped(1), **options)
        over = threading.Event()

        def write() -> None:
            try:
                for stamp in range(2, 8):
                    regrow.save(at, stamped(stamp), overwrite=True, **options)
            finally:
                over.set()

        seen = set()

        def read_on() -> None:
            while not over.is_set():
                found = regrow.load(at)
                stamps = {int(value) for leaf in found.values() for value in np.unique(leaf)}
                assert len(stamps) == 1, stamps
                seen.update(stamps)

        together([threading.Thread(target=write), threading.Thread(target=read_on)])
        assert seen
        assert {int(value) for leaf in regrow.load(at).values() for value in np.unique(leaf)} == {7}


# ---- helpers --------------------------------------------------------------------------

MARKERS = ("/commit_success.txt", "/regrow-committed.txt")

KILLED = """
import json, os, signal, sys
import numpy as np
import regrow
url, options, form = json.loads(sys.argv[1])
def kill(done, total):
    if done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)
tree = {f"w{at}": np.ones(3 << 20, np.uint32) for at in range(4)}
regrow.save(url, tree, storage_options=options, progress=kill, **form)
"""

RACING = """
import json, sys, time
import numpy as np
import regrow
url, options, fill, begins_at = json.loads(sys.argv[1])
time.sleep(max(0, begins_at - time.time()))
try:
    regrow.save(url, {"w": np.full(1 << 20, fill)}, storage_options=options)
    print("saved")
except regrow.RegrowError as error:
    print(type(error).__name__)
"""


def key_of(bucket: Bucket, at: regrow.Location) -> str:
    """The key in the bucket."""
    return at.url.removeprefix(f"{bucket.url}/")


def names_below(bucket: Bucket, at: regrow.Location) -> list[str]:
    """The objects of a checkpoint, and those that begin with its name; random parts of names are
    left out.
    """
    key = key_of(bucket, at)
    names = (found.removeprefix(key) for found in bucket.keys(key))
    return sorted(re.sub(r"[0-9a-f]{32}", "RANDOM", name) for name in names)


def assert_same_objects(bucket: Bucket, one: regrow.Location, other: regrow.Location) -> None:
    """Two checkpoints of the same tree consist of objects of the same names: nothing of earlier
    saves is left.
    """
    assert names_below(bucket, one) == names_below(bucket, other)


def claim(age_seconds: float) -> bytes:
    """What a writer on another machine shows while it is at work; of one that is gone it is old."""
    return json.dumps(
        {"nonce": "0" * 16, "host": "another", "pid": 1, "since": int(time.time() - age_seconds)}
    ).encode()


def flipped(data: bytes, at: int) -> bytes:
    """With another byte there."""
    out = bytearray(data)
    out[at] ^= 0x10
    return bytes(out)


def is_found_damaged(at: regrow.Location) -> bool:
    """Whether a check says so, one way or the other."""
    try:
        return not regrow.verify(at).ok
    except regrow.RegrowError:
        return True


def stamped(stamp: int) -> dict[str, Any]:
    """Each value says which save it is of."""
    return {"a": np.full(400_000, stamp, np.int32), "b": np.full(64, stamp, np.int32)}


def together(threads: list[threading.Thread]) -> None:
    """Runs them at once; what one of them raises is raised here."""
    raised: list[BaseException] = []
    before, threading.excepthook = threading.excepthook, lambda told: raised.append(told.exc_value or RuntimeError())
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = before
    if raised:
        raise raised[0]

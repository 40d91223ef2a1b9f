"""URLs and locations: every function that takes a path takes them, and no output shows their
options.
"""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from conftest import assert_same

import regrow
import regrow.equinox
import regrow.flax.checkpoints
import regrow.pytree
import regrow.safetensors
import regrow.safetensors.numpy
import regrow.trak
from regrow._core import _location

SECRET = "hunter2-s3cr3t"
OPTIONS = {"key": "AKIA" + SECRET, "client_kwargs": {"endpoint_url": f"http://user:{SECRET}@localhost:1"}, "anon": True}

_buckets = itertools.count()


@pytest.fixture
def bucket() -> str:
    """The URL of an empty bucket in memory."""
    return f"memory://{__name__}-{next(_buckets)}"


def a_tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"params": {"w": rng.normal(size=(32, 8)).astype(np.float32), "b": np.arange(8.0)}, "step": np.int64(3)}


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))


# ---- every function -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["save", "save_async", "convert"])
def test_a_url_is_saved_and_read_as_a_path(bucket: str, how: str, tmp_path: Path) -> None:
    url, tree = f"{bucket}/runs/x.npz", a_tree()
    if how == "save":
        assert regrow.save(url, tree).path == url
    elif how == "save_async":
        handle = regrow.save_async(url, tree)
        assert handle.path == url
        report = handle.result()
        assert report is not None and report.path == url
    else:
        regrow.save(f"{bucket}/first", tree)
        report = regrow.convert(f"{bucket}/first", url)
        assert report.path == url
    opened = regrow.open(url)
    assert (opened.path, opened.layout) == (url, "npy")
    assert url in repr(opened)
    local = tmp_path / "x.npz"
    regrow.save(local, tree)
    # The same as of a disk, with a template and without, as views and not.
    assert_same(regrow.load(url), regrow.load(local))
    assert_same(regrow.load(url, options=regrow.Options(mmap=True)), regrow.load(local))
    assert_same(regrow.load(url, tree), regrow.load(local, tree))
    assert_same(regrow.load(url, only="params/**"), regrow.load(local, only="params/**"))
    leaf = next(leaf for leaf in opened.values() if leaf.shape == (32, 8))
    assert np.array_equal(leaf[3:5, 1:], tree["params"]["w"][3:5, 1:])
    assert regrow.verify(url).ok
    table, expected = (regrow.overview(place).splitlines() for place in (url, local))
    assert table[0].replace(url, str(local)) == expected[0]
    assert table[1:] == expected[1:]
    out = {"params": {"w": np.zeros((32, 8), np.float32)}}
    assert regrow.load_into(url, out, extra="drop")["params"]["w"] is out["params"]["w"]
    assert np.array_equal(out["params"]["w"], tree["params"]["w"])


def test_from_memory_to_disk_and_back(bucket: str, path: Path) -> None:
    tree = a_tree()["params"]
    regrow.save(path, tree)
    regrow.convert(path, f"{bucket}/x", layout="safetensors")
    regrow.convert(f"{bucket}/x", path, layout="orbax", overwrite=True)
    assert regrow.open(path).layout == "orbax"
    assert_same(regrow.load(path, tree), tree)
    plan = regrow.convert(f"{bucket}/x", f"{bucket}/y", dry_run=True)
    assert plan.lossless
    with pytest.raises(regrow.errors.NotFoundError):
        regrow.open(f"{bucket}/y")


def test_steps(bucket: str) -> None:
    for step in (1, 2, 10):
        regrow.save(f"{bucket}/runs/step_{step}", {"w": np.full(3, step)})
    opened = regrow.open(f"{bucket}/runs")
    assert (opened.step, opened.steps) == (10, [1, 2, 10])
    assert regrow.load(f"{bucket}/runs", step=2)["w"][0] == 2
    assert regrow.load(regrow.Location(f"{bucket}/runs"))["w"][0] == 10


def test_a_base_in_a_bucket(bucket: str) -> None:
    regrow.save(f"{bucket}/0", a_tree())
    regrow.save(f"{bucket}/1", a_tree(), base=f"{bucket}/0")
    regrow.save_async(f"{bucket}/2", a_tree(), base=regrow.Location(f"{bucket}/1")).result()
    for step in range(3):
        assert_same(regrow.load(f"{bucket}/{step}", a_tree()), a_tree())
    with pytest.raises(regrow.errors.NotFoundError):
        regrow.save(f"{bucket}/3", a_tree(), base=f"{bucket}/nothing")


def test_nothing_is_there(bucket: str) -> None:
    for call in (regrow.load, regrow.open, regrow.verify, regrow.overview):
        with pytest.raises(regrow.errors.NotFoundError) as raised:
            call(f"{bucket}/nothing")
        assert f"{bucket}/nothing" in str(raised.value)
        assert raised.value.file == f"{bucket}/nothing"


def test_a_saver_of_ones_own(bucket: str) -> None:
    with regrow.jobs.AsyncSaver() as saver:
        handles = [saver.save(f"{bucket}/{step}", {"w": np.full(3, step)}, when_busy="queue") for step in range(4)]
    assert [handle.path for handle in handles] == [f"{bucket}/{step}" for step in range(4)]
    assert all(handle.done() for handle in handles)
    assert regrow.load(f"{bucket}/3")["w"][0] == 3
    assert bucket in repr(handles[0])


def test_a_load_that_meets_a_replacement_starts_again(bucket: str) -> None:
    """The engine alone knows that objects were replaced: there is no inode to look at."""
    url = f"{bucket}/x"
    regrow.save(url, {"w": np.zeros(1 << 16)})
    opened = regrow.open(url)
    regrow.save(url, {"w": np.ones(1 << 16)}, overwrite=True)
    with pytest.raises(regrow.errors.ReplacedError):
        opened.load()
    assert regrow.load(url)["w"][0] == 1


# ---- modules that stand in for others -------------------------------------------------


def test_safetensors_files_in_a_bucket(bucket: str) -> None:
    url = f"{bucket}/x.safetensors"
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.int64)}
    for place in (url, regrow.Location(url)):
        regrow.safetensors.numpy.save_file(tensors, place)
        found = regrow.safetensors.numpy.load_file(place)
        assert all(np.array_equal(found[name], tensors[name]) for name in tensors)
        with regrow.safetensors.safe_open(place, framework="numpy") as file:
            assert sorted(file.keys()) == ["a", "b"]
            assert np.array_equal(file.get_slice("a")[:, 1], tensors["a"][:, 1])
    with pytest.raises(FileNotFoundError, match=f"No such file or directory: {bucket}/nothing"):
        regrow.safetensors.numpy.load_file(f"{bucket}/nothing.safetensors")


def test_a_model_is_saved_to_a_bucket_and_loaded_by_regrow(bucket: str) -> None:
    regrow.pytree.model_save({"w": np.arange(3.0)}, f"{bucket}/model")
    assert np.array_equal(regrow.load(f"{bucket}/model")["w"], np.arange(3.0))


TRAK = {"JL dimension": 4, "JL matrix type": "normal", "train set size": 3}
LOCAL_ONLY: dict[str, Callable[[Any], Any]] = {
    "model_load": regrow.pytree.model_load,
    "tree_serialise_leaves": lambda place: regrow.equinox.tree_serialise_leaves(place, {"w": np.ones(3)}),
    "tree_deserialise_leaves": lambda place: regrow.equinox.tree_deserialise_leaves(place, {"w": np.ones(3)}),
    "save_checkpoint": lambda place: regrow.flax.checkpoints.save_checkpoint(place, {"w": np.ones(3)}, 1),
    "restore_checkpoint": lambda place: regrow.flax.checkpoints.restore_checkpoint(place, None),
    "latest_checkpoint": regrow.flax.checkpoints.latest_checkpoint,
    "available_steps": regrow.flax.checkpoints.available_steps,
    "MmapSaver": lambda place: regrow.trak.MmapSaver(place, TRAK, 3, 4),
    "repair": regrow.trak.repair,
}


@pytest.mark.parametrize("call", LOCAL_ONLY.values(), ids=LOCAL_ONLY)
def test_what_opens_files_itself_says_so(
    bucket: str, call: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (f"{bucket}/x", regrow.Location(f"{bucket}/x"), FilesOfACloud(f"{bucket}/x")):
        with pytest.raises(regrow.errors.UnsupportedError, match="needs a path on a local disk") as raised:
            call(place)
        # The URL with both its slashes.
        assert f"{bucket}/x" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_what_opens_files_itself_takes_file_urls(tmp_path: Path) -> None:
    folder = f"file://{tmp_path}"
    regrow.pytree.model_save({"w": np.arange(3.0)}, f"{folder}/model")
    assert np.array_equal(regrow.pytree.model_load(f"{folder}/model")["w"], np.arange(3.0))
    regrow.equinox.tree_serialise_leaves(f"{folder}/x.eqx", {"w": np.ones(3)})
    regrow.equinox.tree_deserialise_leaves(f"{folder}/x.eqx", {"w": np.zeros(3)})
    regrow.trak.MmapSaver(f"{folder}/store", TRAK, 3, 4).close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.data", "model.manifest", "store", "x.eqx"]
    regrow.save(f"{folder}/step", a_tree())
    assert_same(regrow.load(regrow.Location(f"{folder}/step"), a_tree()), a_tree())
    assert regrow.open(f"{folder}/step").path == f"{tmp_path}/step"


# ---- paths of other libraries ---------------------------------------------------------


class FilesOfACloud(os.PathLike[str]):
    """As cloudpathlib's: `__fspath__` downloads the file and gives the copy."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __str__(self) -> str:
        return self.url

    def __fspath__(self) -> str:
        raise AssertionError("this would download the file")


class Universal:
    """As universal_pathlib's: of a bucket it is no `os.PathLike`, and knows its storage options."""

    def __init__(self, url: str, **storage_options: Any) -> None:
        self.url, self.storage_options = url, storage_options

    def joinpath(self, *names: str) -> Universal:
        return Universal("/".join((self.url, *names)), **self.storage_options)

    def __str__(self) -> str:
        return self.url


class OnlyFspath(os.PathLike[str]):
    """Its `str` says nothing."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __fspath__(self) -> str:
        return self.url


@pytest.mark.parametrize("kind", [FilesOfACloud, Universal, OnlyFspath, regrow.Location, str, str.encode])
def test_path_objects_of_buckets(bucket: str, kind: Callable[[str], Any]) -> None:
    place = kind(f"{bucket}/x")
    regrow.save(place, a_tree())
    assert_same(regrow.load(place, a_tree()), a_tree())
    assert regrow.open(place).path == f"{bucket}/x"
    assert regrow.verify(place).ok
    regrow.save_async(kind(f"{bucket}/y"), a_tree(), base=place).result()
    regrow.convert(place, kind(f"{bucket}/z"))
    assert_same(regrow.load(f"{bucket}/z", a_tree()), a_tree())


def test_path_objects_of_a_disk(tmp_path: Path) -> None:
    for at, place in enumerate((tmp_path / "a", OnlyFspath(f"{tmp_path}/b"), os.fsencode(tmp_path / "c"))):
        regrow.save(place, {"at": at})
        assert regrow.load(place) == {"at": at}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_universal_path_brings_its_options() -> None:
    path = Universal("memory://b/x", key="K", client_kwargs={"endpoint_url": "E"}, use_listings_cache=False)
    taken = _location._taken("path", path)
    assert taken.options == {"key": "K", "client_kwargs.endpoint_url": "E"}
    assert regrow.Location(path) == regrow.Location("memory://b/x", key="K", client_kwargs={"endpoint_url": "E"})


def test_epath() -> None:
    from etils import epath

    for url in ("gs://bucket/x/y", "s3://bucket/x/y"):
        assert _location.place("path", epath.Path(url) / "z") == f"{url}/z"
    assert _location.place("path", epath.Path("/data/x")) == "/data/x"


@pytest.mark.parametrize("scheme", ["s3", "gs", "memory", "file"])
def test_urls_that_pathlib_took_a_slash_of_are_refused(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for mangled in (Path(f"{scheme}://b/x"), PurePosixPath(f"{scheme}://b/x"), os.path.normpath(f"{scheme}://b/x")):
        for call in (regrow.load, lambda place: regrow.save(place, a_tree()), regrow.Location):
            with pytest.raises(regrow.errors.UnsupportedError, match=f"scheme {scheme}:// has two slashes") as raised:
                call(mangled)
            assert f"{scheme}://b/x" in (raised.value.help or "")
    assert list(tmp_path.iterdir()) == []


# ---- locations ------------------------------------------------------------------------


def test_a_location_is_a_path(bucket: str) -> None:
    location = regrow.Location(f"{bucket}/runs", key="K")
    assert os.fspath(location) == str(location) == location.url == f"{bucket}/runs"
    assert isinstance(location, os.PathLike)
    below = location / "a/step_1"
    assert below == regrow.Location(f"{bucket}/runs/a/step_1", key="K")
    assert below != regrow.Location(f"{bucket}/runs/a/step_1", key="L")
    assert below != below.url
    assert len({below, location / "a/step_1", location}) == 2
    assert regrow.Location(location) == location
    assert regrow.Location(location, key="L") == regrow.Location(location.url, key="L")
    for name in ("", "/etc", 3):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="name"):
            location / name  # type: ignore[operator]


def test_a_location_of_a_disk(tmp_path: Path) -> None:
    location = regrow.Location(tmp_path) / "x"
    regrow.save(location, a_tree())
    assert_same(regrow.load(location, a_tree()), a_tree())
    assert (tmp_path / "x" / "regrow.json").is_file()
    with pytest.raises(regrow.errors.InvalidArgumentError, match="paths of the local disk have no storage options"):
        regrow.Location(tmp_path, key=SECRET)


def test_options_become_text() -> None:
    given = {
        "anon": True, "requester_pays": np.bool_(False), "max_retries": np.int32(3), "connect_timeout": 2.5,
        "read_timeout": timedelta(seconds=90), "ca_bundle": Path("/etc/ca.pem"), "region": None,
        "client_kwargs": {"endpoint_url": "http://x", "deep": {"er": 1}}, "token": {"type": "service_account"},
    }  # fmt: skip
    assert _location.option_texts(given) == {
        "anon": "true", "requester_pays": "false", "max_retries": "3", "connect_timeout": "2.5",
        "read_timeout": "90.0", "ca_bundle": "/etc/ca.pem", "client_kwargs.endpoint_url": "http://x",
        "client_kwargs.deep.er": "1", "token": '{"type": "service_account"}',
    }  # fmt: skip
    assert _location.option_texts(None) == {}


def nested_in_itself() -> dict[str, Any]:
    options: dict[str, Any] = {}
    options["more"] = options
    return options


@pytest.mark.parametrize(
    "wrong",
    [SECRET, [SECRET], 3, {3: SECRET}, {"key": [SECRET]}, {"key": SECRET.encode()}, {"key": {"a": object()}},
     {"token": {"key": {SECRET}}}, nested_in_itself()],
)  # fmt: skip
def test_wrong_options_are_refused_and_not_shown(bucket: str, wrong: Any, path: Path) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: regrow.save(f"{bucket}/x", a_tree(), storage_options=wrong),
        lambda: regrow.save_async(f"{bucket}/x", a_tree(), storage_options=wrong),
        lambda: regrow.convert(path, f"{bucket}/x", storage_options=wrong),
        *(
            lambda call=call: call(f"{bucket}/x", storage_options=wrong)
            for call in (regrow.load, regrow.open, regrow.verify, regrow.overview)
        ),
    ]
    for call in calls:
        with pytest.raises(regrow.errors.InvalidArgumentError, match="storage_options") as raised:
            call()
        assert SECRET not in text_of(raised.value)
    if isinstance(wrong, dict) and all(isinstance(name, str) for name in wrong):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="option") as raised:
            regrow.Location(f"{bucket}/x", **wrong)
        assert SECRET not in text_of(raised.value)


def test_options_are_for_urls(bucket: str, path: Path) -> None:
    options = {"key": SECRET}
    regrow.save(path, a_tree())
    for call in (regrow.load, regrow.open, regrow.verify, regrow.overview):
        for place in (path, f"file://{path}", regrow.Location(f"{bucket}/x")):
            with pytest.raises(
                regrow.errors.InvalidArgumentError, match="`storage_options` is for URLs, and path is a"
            ) as raised:
                call(place, storage_options=options)
            assert SECRET not in text_of(raised.value)
    with pytest.raises(regrow.errors.InvalidArgumentError, match=r"source is a path .*, target is a Location"):
        regrow.convert(path, regrow.Location(f"{bucket}/x"), storage_options=options)
    # None are as good as no keyword.
    assert regrow.load(path, storage_options={})["step"] == regrow.load(path, storage_options=None)["step"] == 3


def taken_by(calls: list[Any]) -> Callable[..., Any]:
    """A class in place of the native location that notes with what it is made."""

    class Noted:
        def __init__(self, text: str, options: list[tuple[str, str]]) -> None:
            calls.append((text, dict(options)))

    return Noted


def test_options_go_to_each_url_that_has_none(bucket: str, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    own = regrow.Location(f"{bucket}/own", key="own")
    calls: list[Any] = []
    monkeypatch.setattr(_location._native, "Location", taken_by(calls))
    at = _location.places({"key": "K"}, source=f"{bucket}/x", target=path, base=own)
    assert calls == [(f"{bucket}/x", {"key": "K"})]
    assert at["target"] == str(path)
    assert at["base"] is own._native
    assert set(_location.places(None, path=f"{bucket}/x", base=None)) == {"path"}


def test_every_function_takes_options(bucket: str) -> None:
    options = {"anon": True}
    url = f"{bucket}/x"
    regrow.save(url, a_tree(), storage_options=options)
    regrow.save_async(f"{bucket}/y", a_tree(), base=url, storage_options=options).result()
    regrow.jobs.AsyncSaver().save(f"{bucket}/z", a_tree(), storage_options=options).result()
    regrow.convert(url, f"{bucket}/c", storage_options=options)
    assert_same(regrow.load(f"{bucket}/c", a_tree(), storage_options=options), a_tree())
    assert regrow.open(url, storage_options=options).path == url
    assert regrow.verify(url, storage_options=options).ok
    assert regrow.overview(url, storage_options=options)


# ---- secrets --------------------------------------------------------------------------


def test_options_are_never_shown(bucket: str) -> None:
    location = regrow.Location(f"{bucket}/x", **OPTIONS)
    shown = [
        repr(location),
        str(location),
        f"{location}",
        os.fspath(location),
        repr(location._native),
        repr([location]),
    ]
    shown += [text_of(_raised(lambda: regrow.load(location))), text_of(_raised(lambda: regrow.open(location)))]
    regrow.save(location, a_tree())
    opened = regrow.open(location)
    handle = regrow.save_async(regrow.Location(f"{bucket}/y", **OPTIONS), a_tree())
    shown += [repr(opened), opened.path, repr(handle), repr(handle.result()), repr(handle)]
    shown += [text_of(_raised(lambda: regrow.save(location, a_tree()))), repr(regrow.verify(location))]
    assert not [text for text in shown if SECRET in text]
    assert repr(location) == f"regrow.Location('{bucket}/x', key=..., client_kwargs.endpoint_url=..., anon=...)"


def _raised(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(regrow.RegrowError) as raised:
        call()
    return raised.value


def test_options_are_never_pickled(bucket: str) -> None:
    location = regrow.Location(f"{bucket}/x", **OPTIONS)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="cannot pickle") as raised:
            pickle.dumps(location, protocol)
        assert SECRET not in text_of(raised.value)
        assert "help: pickle its url" in str(raised.value)
    plain = regrow.Location(f"{bucket}/x")
    assert pickle.loads(pickle.dumps(plain)) == plain
    # In the same process nothing is written down.
    assert copy.copy(location) == copy.deepcopy(location) == location


# ---- stores of other libraries --------------------------------------------------------


def store_of(kind: str, **attributes: Any) -> Any:
    """What has the attributes of a store of obstore, under the name of its class."""
    return type(kind, (), {"__module__": "obstore.store", **attributes})()


def test_stores_of_obstore() -> None:
    config = {"bucket": "b", "region": "eu-west-1", "access_key_id": "K", "skip_signature": "false"}
    store = store_of("S3Store", config=config, prefix="runs/a", client_options={"allow_http": "true"})
    taken = _location._of_obstore(store, "/step_1")
    assert taken.text == "s3://b/runs/a/step_1"
    assert taken.options == {"region": "eu-west-1", "access_key_id": "K", "skip_signature": "false"}
    gcs = store_of("GCSStore", config={"bucket": "b"}, prefix=None, client_options={"proxy_url": "http://p"})
    assert _location._of_obstore(gcs, "x") == ("gs://b/x", {"proxy_url": "http://p"}, None)
    azure = store_of("AzureStore", config={"container_name": "c", "account_name": "a"}, prefix="p/")
    assert _location._of_obstore(azure, "") == ("az://c/p", {"account_name": "a"}, None)


def test_a_local_store_of_obstore(tmp_path: Path) -> None:
    location = regrow.Location.from_obstore(store_of("LocalStore", prefix=tmp_path), "x")
    regrow.save(location, a_tree())
    assert (tmp_path / "x" / "regrow.json").is_file()


@pytest.mark.parametrize(
    ("store", "what"),
    [
        (store_of("MemoryStore"), "MemoryStore of obstore: regrow cannot use this store"),
        (store_of("HTTPStore", url="https://h/x"), "HTTPStore of obstore: regrow cannot use this store"),
        (object(), "object of builtins: regrow cannot use this store"),
        (store_of("S3Store", config={}, prefix=None, credential_provider=lambda: None), "credentials from Python code"),
        (
            store_of("S3Store", config={}, prefix=None, client_options={"default_headers": {"x": SECRET}}),
            "client option default_headers",
        ),
    ],
)
def test_stores_that_cannot_be_read(store: Any, what: str) -> None:
    with pytest.raises(regrow.errors.UnsupportedError, match=what) as raised:
        regrow.Location.from_obstore(store, "x")
    assert raised.value.help
    assert SECRET not in text_of(raised.value)


def fs_of(kind: str, protocol: Any, **options: Any) -> Any:
    first = protocol if isinstance(protocol, str) else protocol[0]
    return type(kind, (), {
        "__module__": "fsspec.spec", "protocol": protocol, "storage_options": options,
        "unstrip_protocol": lambda self, path: f"{first}://{path}",
    })()  # fmt: skip


def test_file_systems_of_fsspec() -> None:
    fs = fs_of("S3FileSystem", ("s3", "s3a"), key="K", client_kwargs={"endpoint_url": "E"}, use_listings_cache=False)
    assert _location._of_fsspec(fs, "b/x") == ("s3://b/x", {"key": "K", "client_kwargs.endpoint_url": "E"}, None)
    folder = type("DirFileSystem", (), {"fs": fs, "path": "b/runs/"})()
    assert _location._of_fsspec(folder, "/step_1").text == "s3://b/runs/step_1"
    with pytest.raises(regrow.errors.InvalidArgumentError, match="session is of type object"):
        regrow.Location.from_fsspec(fs_of("S3FileSystem", "s3", session=object()), "b/x")


@pytest.mark.parametrize("kind", ["memory", "simplecache", "zip"])
def test_file_systems_that_only_fsspec_can_reach(kind: str) -> None:
    with pytest.raises(regrow.errors.UnsupportedError, match="SomeFileSystem of fsspec: only fsspec can read it"):
        regrow.Location.from_fsspec(fs_of("SomeFileSystem", kind), "x")


def test_fsspec_itself(tmp_path: Path) -> None:
    import fsspec
    from fsspec.implementations.dirfs import DirFileSystem

    local = fsspec.filesystem("file", auto_mkdir=True)
    regrow.save(regrow.Location.from_fsspec(local, f"{tmp_path}/x"), a_tree())
    assert_same(regrow.load(regrow.Location.from_fsspec(DirFileSystem(str(tmp_path), local), "x"), a_tree()), a_tree())
    with pytest.raises(regrow.errors.UnsupportedError, match="MemoryFileSystem of fsspec"):
        regrow.Location.from_fsspec(fsspec.filesystem("memory"), "/x")

"""Several things in one checkpoint, published at once: trees, JSON, files, metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack, get_args

from . import _arguments, _job, _json, _native, _options, _progress
from ._async import AsyncSave, CopyLeaves, WhenBusy, saver_of_calls
from ._cache import Cache, through
from ._errors import InvalidArgumentError, NotFoundError, RegrowError
from ._item_kinds import Files, Json, as_bytes, json_object
from ._keywords import LOAD, SAVE, LoadOptions, SaveOptions
from ._leaves import to_native
from ._location import StrPath, place, places, shown
from ._open import load
from ._opening import Opening, TrustedKeys, keys_of
from ._progress import Progress, Watch
from ._report import SaveReport
from ._tree import flatten

WHOLE = ""
"""The name of an item that is the checkpoint itself: then there is no other one."""

_OF_THE_WHOLE = frozenset({"overwrite", "durable", "storage_options", "job"})
"""Keywords that no item has for itself."""


class ItemsSave:
    """A checkpoint of several items that is being written: the long form of `regrow.save_items`.

        with ItemsSave("run/100") as save:
            save.tree("state", state)
            save.json("config", {"width": 1024})
            shutil.copy("tokenizer.model", save.folder("tokenizer"))
            save.commit()

    Until the commit nothing is to be seen; without it nothing stays. Any thread may add items.
    """

    @SAVE.documented
    def __init__(
        self,
        path: StrPath,
        *,
        progress: Callable[[int, int], object] | None = None,
        mode: int | None = None,
        keeps_others: bool = False,
        of_step: bool = False,
        **options: Unpack[SaveOptions],
    ) -> None:
        """Begins a checkpoint.

        Args:
            path: As for `regrow.save_items`.
            progress: Is called with the bytes done and the bytes in all, on whichever thread is at work.
            mode: Of the folders of the checkpoint and of its items, as `os.chmod` takes it; on a disk.
            of_step: With `v1`: mark it as Orbax marks a step of a folder of steps.
            keeps_others: With `overwrite`, keep a user's own files in the folder that is replaced; on a disk.
            **options: The keywords of `SaveOptions`.
        """
        self._raised: BaseException | None = None
        self._progress = progress
        with _job.posts_errors(options.get("job"), path):
            self._given = SAVE.chosen("ItemsSave", options, ["progress", "mode", "keeps_others", "of_step"])
            self._given["layout"] = self._given["layout"] or "regrow"
            at = places(self._given["storage_options"], path=path, base=self._given["base"])
            own = _options.of_write(_of_item(self._given, {}), None)
            metadata = self._given["metadata"]
            told = (
                _arguments.flag("overwrite", self._given["overwrite"]),
                keeps_others,
                _arguments.flag("durable", self._given["durable"]),
                _is_v1(self._given),
                of_step,
                None if metadata is None else json_object("metadata", metadata),
                at.get("base"),
                _options.job_of(own),
                _arguments.count("mode", mode),
            )
        self._native = _native.ItemsSave(
            at["path"], told, _progress.unwatched()[0], None if progress is None else self._tell
        )

    @property
    def path(self) -> str:
        """Where the checkpoint will be."""
        return self._native.path

    def tree(self, name: str, tree: Any, **options: Any) -> None:
        """Adds a pytree: `options` are keywords of `SaveOptions` in which it differs from the others.

        `name` may lead below an item whose `handler` was said before: ``"rng/jax_random_key"``. It may be `WHOLE`, as
        in all of these calls: then what is to be known of the checkpoint (`handler`, `metadata`) is said before.
        """
        flat, leaves, native_options = self._tree(name, tree, options)
        self._run(lambda signals: self._native.tree(name, flat.structure, leaves, native_options, signals))

    def later(self, name: str, tree: Any, **options: Any) -> None:
        """Keeps a pytree for the saver in the background, which takes its snapshot when it takes the whole."""
        flat, leaves, native_options = self._tree(name, tree, options)
        self._native.later(name, flat.structure, leaves, native_options)

    def json(self, name: str, value: Any, *, file: str | None = None) -> None:
        """Adds a JSON document."""
        self._native.json(name, _json.text(name, value), file)

    def metrics(self, metrics: Mapping[str, Any]) -> None:
        """Adds metrics, where Orbax' manager looks for them."""
        self._native.metrics(json_object("metrics", metrics))

    def file(self, name: str, file: str, data: bytes | str) -> None:
        """Adds one file of an item; several calls make an item of several."""
        self._native.file(name, file, as_bytes(data))

    def copy_of(self, name: str, source: StrPath) -> None:
        """Adds a copy of a local file or folder."""
        self._native.copy_of(name, os.fspath(source))

    def folder(self, name: str) -> Path:
        """An empty local folder into which the caller writes an item's files, until the commit."""
        return Path(self._native.folder(name))

    def handler(self, item: str, handler: str) -> None:
        """By which class Orbax is to read an item: its full name. Items have that of their kind otherwise."""
        self._native.handler(item, handler)

    def metadata(self, members: Mapping[str, Any]) -> None:
        """Adds members to the checkpoint's own metadata."""
        self._native.metadata(json_object("metadata", members))

    def add(self, name: str, item: Any, **options: Any) -> None:
        """Adds an item: `Json`, `Files`, or else a pytree."""
        if not self._add_file(name, item):
            self.tree(name, item, **options)

    def commit(self) -> SaveReport:
        """Gives the checkpoint its name: all of it is there from now on."""
        return SaveReport.from_native(self._run(self._native.commit))

    def drop(self, error: BaseException | None = None) -> None:
        """Gives it up: nothing is left. Does nothing after a commit. Other processes of a job are told of the error."""
        if isinstance(error, RegrowError):
            self._native.fail(error.kind, str(error))
        elif error is not None:
            self._native.fail("io", f"{type(error).__name__}: {error}")
        self._native.drop()

    def cancel(self) -> None:
        """Asks whoever is at work to stop, soon."""
        self._native.cancel()

    def __enter__(self) -> ItemsSave:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop(error)

    def _add_file(self, name: str, item: Any) -> bool:
        """Adds what is no tree; whether it was none."""
        if isinstance(item, Json):
            self._native.json(name, item.text, item.file)
            return True
        if not isinstance(item, Files):
            return False
        source = item.source
        if isinstance(source, Mapping):
            for file, data in source.items():
                self.file(name, file, data)
            if not source:
                self.folder(name)
        elif callable(source):
            source(self.folder(name))
            self._native.files(name)
        else:
            self.copy_of(name, source)
        if item.handler is not None:
            self.handler(name, item.handler)
        return True

    def _tree(self, name: str, tree: Any, options: Mapping[str, Any]) -> Any:
        given = _of_item(self._given, options)
        base = None if given["base"] is None else place("base", given["base"], self._given["storage_options"])
        native_options = _options.with_base(_options.of_write(given, base), base)
        try:
            flat = flatten(tree, _arguments.handlers(given["handlers"]), layout=given["layout"])
            leaves = to_native(flat, _arguments.flag("replica_parallel", given["replica_parallel"]))
        except RegrowError as error:
            error.message = f"{error.message}\n  in the item {name!r} of `items`"
            raise
        return flat, leaves, native_options

    def _run(self, work: Callable[[bool], Any]) -> Any:
        try:
            return work(_progress.unwatched()[0])
        except RegrowError:
            if self._raised is not None:
                raise self._raised from None
            raise

    def _tell(self, done: int, total: int) -> None:
        assert self._progress is not None
        try:
            self._progress(done, total)
        except BaseException as error:
            self._raised = error
            raise


@SAVE.documented
def save_items(
    path: StrPath,
    items: Mapping[str, Any],
    *,
    metrics: Mapping[str, Any] | None = None,
    item_options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Progress = None,
    **options: Unpack[SaveOptions],
) -> SaveReport:
    """Saves several items as one checkpoint: all of them or nothing, synced to disk.

        regrow.save_items("run/100", {
            "state": state,                                      # any pytree
            "config": regrow.Json({"width": 1024}),
            "iterator": regrow.Files({"process_0.json": iterator.get_state()}),
        }, metrics={"loss": 0.25})
        regrow.load("run/100", item="state")

    Each item is a folder below `path`, with the files that a save of its own would have there. Orbax' `Composite`
    handler and its `CheckpointManager` restore trees of the layouts regrow and orbax, JSON and metrics.

    Args:
        path: The folder to make, or its URL: that of a step.
        items: By name: pytrees, `Json` and `Files`.
        metrics: Numbers by name, kept in the item ``metrics`` where Orbax' manager looks for them.
        item_options: Keywords of `SaveOptions` for some of the trees: ``{"ema": {"cast": "bfloat16"}}``.
        progress: As for `save`.
        **options: The keywords of `SaveOptions`. `metadata` is a dict here; `base` is an earlier checkpoint of items.

    Raises:
        RegrowError: as `save`, with nothing saved.
    """
    with _job.posts_errors(options.get("job"), path):
        given = SAVE.chosen("save_items", options, ["metrics", "item_options", "progress"])
        _native.refuse_folder_named_like_a_file(place("path", path, given["storage_options"]), "of items")
        trees = _checked(items, item_options)
    with Watch(progress, "saving") as (_, callback), ItemsSave(path, progress=callback, **options) as save:
        _begin(save, items, metrics)
        for name, own in trees.items():
            save.tree(name, items[name], **own)
        return save.commit()


@SAVE.documented
def save_items_async(
    path: StrPath,
    items: Mapping[str, Any],
    *,
    metrics: Mapping[str, Any] | None = None,
    item_options: Mapping[str, Mapping[str, Any]] | None = None,
    when_busy: WhenBusy = "wait",
    copy: CopyLeaves = "mutable",
    check_source: bool = False,
    **options: Unpack[SaveOptions],
) -> AsyncSave:
    """As `save_items`, in the background: returns as soon as the snapshot is taken, as `save_async` does.

    JSON and files are written before it returns; trees, and the commit, are the background's.

    Args:
        path: As in `save_items`.
        items: As in `save_items`; trees may change as soon as this has returned.
        metrics: As in `save_items`.
        item_options: As in `save_items`.
        when_busy: As in `save_async`.
        copy: As in `save_async`.
        check_source: As in `save_async`.
        **options: The keywords of `SaveOptions`.

    Raises:
        RegrowError: as `save_async`.
    """
    began = time.perf_counter()
    own = ["metrics", "item_options", "when_busy", "copy", "check_source"]
    with _job.posts_errors(options.get("job"), path):
        given = SAVE.chosen("save_items_async", options, own)
        _native.refuse_folder_named_like_a_file(place("path", path, given["storage_options"]), "of items")
        trees = _checked(items, item_options)
        _arguments.choice("when_busy", when_busy, get_args(WhenBusy))
        _arguments.choice("copy", copy, get_args(CopyLeaves))
        check_source = _arguments.flag("check_source", check_source)
        if when_busy == "skip" and _job.chosen(given["job"]) is not None:
            raise InvalidArgumentError('when_busy="skip" cannot be used by several processes: some would save')
    saver = saver_of_calls()._native
    if when_busy == "skip" and saver.is_busy():
        return AsyncSave(shown(place("path", path, given["storage_options"])), None)
    waited = saver.wait_for_room(when_busy)
    with ItemsSave(path, **options) as save:
        _begin(save, items, metrics)
        for name, of_tree in trees.items():
            save.later(name, items[name], **of_tree)
        handle = saver.save_items(save._native, copy, check_source, time.perf_counter() - began, waited)
    return AsyncSave(save.path, handle)


@LOAD.documented
def load_items(
    path: StrPath,
    items: Mapping[str, Any] | Iterable[str] | None = None,
    *,
    step: int | None = None,
    strict: bool = False,
    trusted_keys: TrustedKeys = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: StrPath | Cache | None = None,
    **options: Unpack[LoadOptions],
) -> dict[str, Any]:
    """Loads items of a checkpoint, each as `load` with ``item=`` does: trees and JSON; of files their contents.

    What is wrong with an item is an error if that item is asked for.

        loaded = regrow.load_items("run", {"state": state, "config": None})     # the newest step
        loaded["state"], loaded["config"]

    Args:
        path: A checkpoint of items, or a folder of steps.
        items: Names, with a template for each or `None`; or names alone; all items if `None`.
        step: The step of a folder of steps; the newest if `None`.
        strict: As for `open`.
        trusted_keys: As for `load`.
        storage_options: How to reach the storage of a URL, as for `save`.
        cache: As for `load`.
        **options: The keywords of `LoadOptions`, for every tree.

    Raises:
        NotFoundError: for an item that is not there, with the names of those that are.
        RegrowError: as `load`.
    """
    LOAD.chosen("load_items", options, ["items", "step", "strict", "trusted_keys", "storage_options", "cache"])
    at = through(cache, place("path", path, storage_options))
    strict = _arguments.flag("strict", strict)
    number = _arguments.count("step", step)
    opened = _native.open(at, Opening(number, strict=strict, trusted_keys=keys_of(trusted_keys)))
    kinds = dict(opened.items)
    likes = _likes(items, kinds)
    missing = [name for name in likes if name not in kinds]
    if not kinds:
        raise NotFoundError(f"the checkpoint in {shown(at)} has no items\n  help: load it as one tree: regrow.load")
    if missing:
        there = ", ".join(kinds)
        raise NotFoundError(f"there is no item {missing[0]!r} in {shown(at)}\n  help: the items are: {there}")
    loaded: dict[str, Any] = {}
    for name, like in likes.items():
        if kinds[name].startswith("files: "):
            loaded[name] = Files(dict(opened.item_files(name)))
        else:
            # Another step may have become the newest since.
            where: Any = {"step": opened.step, "item": name, "strict": strict, "trusted_keys": trusted_keys}
            loaded[name] = load(path, like, **where, storage_options=storage_options, cache=cache, **options)
    return loaded


# ---- arguments ----------------------------------------------------------------------------------------------


def _begin(save: ItemsSave, items: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> None:
    """Adds all that is no tree."""
    for name, item in items.items():
        save._add_file(name, item)
    if metrics is not None:
        save.metrics(metrics)


def _checked(items: Any, item_options: Any) -> dict[str, Mapping[str, Any]]:
    """The names of the trees, with the options of each."""
    if not isinstance(items, Mapping) or not items or not all(isinstance(name, str) for name in items):
        raise _arguments.wrong("items", items, "a dict of items by their names, at least one")
    own = {} if item_options is None else item_options
    if not isinstance(own, Mapping) or not all(isinstance(each, Mapping) for each in own.values()):
        raise _arguments.wrong("item_options", item_options, "a dict of keywords for each item, or None")
    trees = [name for name, item in items.items() if not isinstance(item, (Json, Files))]
    idle = [name for name in own if name not in trees]
    if idle:
        raise InvalidArgumentError(f"item_options[{idle[0]!r}] is for no tree among the items: {', '.join(trees)}")
    return {name: own.get(name, {}) for name in trees}


def _of_item(given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of one tree."""
    own = {name: value for name, value in own.items() if name != "layout" or value is not None}
    SAVE.chosen("item_options", own, [])
    if not _OF_THE_WHOLE.isdisjoint(own):
        name = sorted(_OF_THE_WHOLE & set(own))[0]
        raise InvalidArgumentError(f"the option {name} is for all items of a checkpoint, not for one of them")
    names = frozenset().union(*_options.LAYOUT_OPTIONS.values())
    shared = dict(given)
    if "layout" in own and own["layout"] != given["layout"]:
        # Of another layout: what was said for that of the others is not meant.
        shared = {name: value for name, value in given.items() if name not in names} | {"orbax": None}
    return {**shared, "metadata": None, "base": None, "overwrite": False, **own}


def _is_v1(given: Mapping[str, Any]) -> bool:
    orbax = given["orbax"]
    is_v1 = given.get("v1", isinstance(orbax, _options.OrbaxOptions) and orbax.v1)
    return given["layout"] == "orbax" and _arguments.flag("v1", is_v1)


def _likes(items: Any, kinds: Mapping[str, str]) -> dict[str, Any]:
    if items is None:
        return dict.fromkeys(kinds)
    if isinstance(items, Mapping):
        likes = dict(items)
    elif isinstance(items, str) or not isinstance(items, Iterable):
        raise _arguments.wrong("items", items, "names of items, or templates by name")
    else:
        likes = dict.fromkeys(items)
    if not all(isinstance(name, str) for name in likes):
        raise _arguments.wrong("items", items, "names of items, or templates by name")
    return likes

"""Saves and loads several items in one checkpoint: trees, JSON, files, metrics. One commit makes
all items visible.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

from .. import _native, layouts
from .._core import _arguments, _json, _options, _progress
from .._core._cache import through
from .._core._keywords import keywords
from .._core._location import StrPath, place, places, shown
from .._core._options import Options
from .._core._progress import Progress, Watch
from .._core._report import SaveReport
from .._core._requests import BackgroundRequest, ItemsRequest
from .._errors import InvalidArgumentError, NotFoundError, RegrowError, failure
from .._jobs import _job
from .._jobs._job import Job
from .._leaves._columns import to_native
from .._load._load import Extra, Loading, Missing, holds_files
from .._load._open import load_as
from .._load._opening import opening_of
from .._tree._flatten import flatten
from ..layouts import Orbax
from ._async import CopyLeaves, SaveHandle, WhenBusy, refuse_skip_in_a_job, saver_of_calls
from ._item_kinds import Files, Json, as_bytes, json_object
from ._layout import Layout
from ._writing import Writing

WHOLE = ""
"""The name of an item that is the checkpoint itself. There are then no other items."""

_OF_THE_WHOLE = frozenset({"overwrite", "durable", "storage_options", "job"})
"""Keywords that apply to the whole checkpoint, not to one item."""

_OF_AN_ITEM = frozenset(Writing.__annotations__) - _OF_THE_WHOLE
"""Keywords that `item_options` accepts."""


class ItemsSave:
    """A checkpoint of several items that is being written: the long form of `regrow.save_items`.

        with ItemsSave("run/100") as save:
            save.tree("state", state)
            save.json("config", {"width": 1024})
            shutil.copy("tokenizer.model", save.folder("tokenizer"))
            save.commit()

    The checkpoint does not exist before the commit. Without a commit nothing remains. Any thread
    may add items.
    """

    def __init__(
        self,
        path: StrPath,
        writing: Writing | None = None,
        *,
        progress: Callable[[int, int], object] | None = None,
        mode: int | None = None,
        keeps_others: bool = False,
        of_step: bool = False,
    ) -> None:
        """Begins a checkpoint.

        Args:
            path: As for `regrow.save_items`.
            writing: How the trees are saved, and the checkpoint replaced.
            progress: Is called with the bytes done and the bytes in all, on whichever thread is at
                work.
            mode: Of the folders of the checkpoint and of its items, as `os.chmod` takes it; on a
                disk.
            of_step: With `v1`: mark it as Orbax marks a step of a folder of steps.
            keeps_others: With `overwrite`, keep a user's own files in the folder that is replaced;
                on a disk.
        """
        self._raised: BaseException | None = None
        self._progress = progress
        writing = Writing() if writing is None else writing
        with _job.posts_errors(writing.asked_job(), path):
            self._writing = writing.replaced(layout=layouts.chosen(writing.layout or "regrow"))
            at = places(writing.storage_options, path=path, base=writing.base)
            self._of_item({}).request(None)
            metadata, rare = writing.metadata, writing.rare()
            request = ItemsRequest(
                overwrite=_arguments.flag("overwrite", writing.overwrite),
                keeps_others=keeps_others,
                durable=_arguments.flag("durable", writing.durable),
                keep_cached=_arguments.flag("keep_cached", rare.keep_cached),
                v1=_is_v1(self._writing),
                of_step=of_step,
                metadata=None if metadata is None else json_object("metadata", metadata),
                base=at.get("base"),
                job=writing.native_job(),
                mode=_arguments.count("mode", mode),
                wait=_arguments.seconds("wait", rare.wait),
            )
        self._native = _native.ItemsSave(
            at["path"], request, _progress.unwatched()[0], None if progress is None else self._tell
        )

    @property
    def path(self) -> str:
        """The path of the new checkpoint."""
        return self._native.path

    def tree(self, name: str, tree: Any, **options: Any) -> None:
        """Adds a pytree. `options` are keywords of `save` for this pytree.

        `name` may lead below an item whose `handler` was said before: ``"rng/jax_random_key"``. It
        may be `WHOLE`, as in all of these calls; call `handler` and `metadata` before.
        """
        flat, leaves, request = self._tree(name, tree, options)
        self._run(lambda signals: self._native.tree(name, flat.structure, leaves, request, signals))

    def later(self, name: str, tree: Any, **options: Any) -> None:
        """Keeps a pytree for the saver in the background. The saver takes its snapshot together
        with the other items.
        """
        flat, leaves, request = self._tree(name, tree, options)
        self._native.later(name, flat.structure, leaves, request)

    def json(self, name: str, value: Any, *, file: str | None = None) -> None:
        """Adds a JSON document."""
        self._native.json(name, _json.text(name, value), file)

    def metrics(self, metrics: Mapping[str, Any]) -> None:
        """Adds metrics in the place from which Orbax' manager reads metrics."""
        self._native.metrics(json_object("metrics", metrics))

    def file(self, name: str, file: str, data: bytes | str) -> None:
        """Adds one file of an item. Several calls make an item of several files."""
        self._native.file(name, file, as_bytes(data))

    def copy_of(self, name: str, source: StrPath) -> None:
        """Adds a copy of a local file or folder."""
        self._native.copy_of(name, os.fspath(source))

    def folder(self, name: str) -> Path:
        """An empty local folder into which the caller writes an item's files, until the commit."""
        return Path(self._native.folder(name))

    def handler(self, item: str, handler: str) -> None:
        """Sets the full name of the class with which Orbax reads an item. By default an item has
        the handler of its kind.
        """
        self._native.handler(item, handler)

    def metadata(self, members: Mapping[str, Any]) -> None:
        """Adds entries to the checkpoint's own metadata."""
        self._native.metadata(json_object("metadata", members))

    def add(self, name: str, item: Any, **options: Any) -> None:
        """Adds an item: `Json`, `Files`, or any other value as a pytree."""
        if not self._add_file(name, item):
            self.tree(name, item, **options)

    def commit(self) -> SaveReport:
        """Gives the checkpoint its name. From then on readers can see the whole checkpoint."""
        return SaveReport.from_native(self._run(self._native.commit))

    def drop(self, error: BaseException | None = None) -> None:
        """Abandons the save, and removes its files. Does nothing after a commit. The other
        processes of a job receive the error.
        """
        if isinstance(error, RegrowError):
            self._native.fail(error.kind, str(error))
        elif error is not None:
            self._native.fail("io", f"{type(error).__name__}: {error}")
        self._native.drop()

    def cancel(self) -> None:
        """Asks the save to stop soon."""
        self._native.cancel()

    def __enter__(self) -> ItemsSave:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop(error)

    def _add_file(self, name: str, item: Any) -> bool:
        """Adds `Json` or `Files`. Returns whether the item was one of them."""
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
        writing = self._of_item(options)
        base = None if writing.base is None else place("base", writing.base, self._writing.storage_options)
        request, rare = writing.request(base), writing.rare()
        try:
            flat = flatten(tree, _arguments.handlers(rare.handlers), layout=writing.layout_name)
            leaves = to_native(flat, _arguments.flag("replica_parallel", rare.replica_parallel))
        except RegrowError as error:
            error.message = f"{error.message}\n  in the item {name!r} of `items`"
            raise
        return flat, leaves, request

    def _of_item(self, own: Mapping[str, Any]) -> Writing:
        """The options for the save of one tree."""
        if own.get("layout", self) is None:
            own = {name: value for name, value in own.items() if name != "layout"}
        for name in own:
            if name in _OF_THE_WHOLE:
                raise InvalidArgumentError(
                    f"the option {name} applies to all items: pass it to the call, not in item_options"
                )
            if name not in _OF_AN_ITEM:
                takes = ", ".join(sorted(_OF_AN_ITEM))
                raise failure(
                    InvalidArgumentError, f"item_options has no option {name!r}", help=f"its options are: {takes}"
                )
        none_of_its_own: dict[str, Any] = {"metadata": None, "base": None, "overwrite": False}
        return self._writing.replaced(**{**none_of_its_own, **own})

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


@keywords
def save_items(
    path: StrPath,
    items: Mapping[str, Any],
    *,
    metrics: Mapping[str, Any] | None = None,
    item_options: Mapping[str, Mapping[str, Any]] | None = None,
    layout: str | Layout | None = None,
    overwrite: bool = False,
    cast: Any = None,
    lossy: bool = False,
    compression: Any = None,
    metadata: Any = None,
    base: StrPath | None = None,
    durable: bool = True,
    parity: str | None = None,
    seal: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    job: Job | None = None,
    options: Options | None = None,
) -> SaveReport:
    """Saves several items as one checkpoint: all items or nothing, synced to disk.

        regrow.save_items("run/100", {
            "state": state,                                      # any pytree
            "config": regrow.Json({"width": 1024}),
            "iterator": regrow.Files({"process_0.json": iterator.get_state()}),
        }, metrics={"loss": 0.25})
        regrow.load("run/100", at="state")

    Each item is a folder below `path`, with the files of a checkpoint of its own. Orbax'
    `Composite` handler and its `CheckpointManager` restore trees of the layouts regrow and orbax,
    JSON and metrics.

    Args:
        path: The folder of the step to create, or its URL.
        items: By name: pytrees, `Json` and `Files`.
        metrics: Numbers by name, stored in the item ``metrics``, where Orbax' manager reads them.
        item_options: Keywords of `save` for some of the trees: ``{"ema": {"cast": "bfloat16"}}``.
        layout: The layout of the trees, as for `save`. The suffix of `path` has no effect.
        overwrite: As for `save`.
        cast: As for `save`.
        lossy: As for `save`.
        compression: As for `save`.
        metadata: Your own metadata, a dict.
        base: An earlier checkpoint of items; as for `save`.
        durable: As for `save`.
        parity: As for `save`.
        seal: As for `save`, for all files.
        storage_options: As for `save`.
        progress: As for `save`.
        job: As for `save`.
        options: Rare settings.

    Raises:
        RegrowError: as `save`, with nothing saved.
    """
    writing = Writing(
        layout=layout, overwrite=overwrite, cast=cast, lossy=lossy, compression=compression, metadata=metadata,
        base=base, durable=durable, parity=parity, seal=seal, storage_options=storage_options, job=job, options=options,
    )  # fmt: skip
    with _job.posts_errors(writing.asked_job(), path):
        _native.refuse_folder_named_like_a_file(place("path", path, storage_options), "of items")
        trees = _checked(items, item_options)
    with Watch(progress, "saving") as (_, callback), ItemsSave(path, writing, progress=callback) as save:
        _begin(save, items, metrics)
        for name, own in trees.items():
            save.tree(name, items[name], **own)
        return save.commit()


@keywords
def save_items_async(
    path: StrPath,
    items: Mapping[str, Any],
    *,
    metrics: Mapping[str, Any] | None = None,
    item_options: Mapping[str, Mapping[str, Any]] | None = None,
    when_busy: WhenBusy = "wait",
    layout: str | Layout | None = None,
    overwrite: bool = False,
    cast: Any = None,
    lossy: bool = False,
    compression: Any = None,
    metadata: Any = None,
    base: StrPath | None = None,
    durable: bool = True,
    parity: str | None = None,
    seal: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = False,
    job: Job | None = None,
    options: Options | None = None,
) -> SaveHandle:
    """As `save_items`, in the background: returns as soon as the snapshot is taken, as `save_async`
    does.

    JSON and files are written before it returns. Trees are written in the background, and the
    checkpoint is committed there.

    Args:
        path: As for `save_items`.
        items: As for `save_items`; trees may change as soon as this function has returned.
        metrics: As for `save_items`.
        item_options: As for `save_items`.
        when_busy: As for `save_async`.
        layout: As for `save_items`.
        overwrite: As for `save`.
        cast: As for `save`.
        lossy: As for `save`.
        compression: As for `save`.
        metadata: Your own metadata, a dict.
        base: An earlier checkpoint of items; as for `save`.
        durable: As for `save`.
        parity: As for `save`.
        seal: As for `save`, for all files.
        storage_options: As for `save`.
        progress: As for `save_async`.
        job: As for `save`.
        options: Rare settings.

    Raises:
        RegrowError: as `save_async`.
    """
    writing = Writing(
        layout=layout, overwrite=overwrite, cast=cast, lossy=lossy, compression=compression, metadata=metadata,
        base=base, durable=durable, parity=parity, seal=seal, storage_options=storage_options, job=job, options=options,
    )  # fmt: skip
    watch = Watch(progress, "saving")
    handle = save_items_later(path, items, writing, metrics=metrics, item_options=item_options, when_busy=when_busy)
    handle.follow(watch)
    return handle


def save_items_later(
    path: StrPath,
    items: Mapping[str, Any],
    writing: Writing,
    *,
    metrics: Mapping[str, Any] | None,
    item_options: Mapping[str, Mapping[str, Any]] | None,
    when_busy: WhenBusy = "wait",
) -> SaveHandle:
    """Saves items in the background, with the keywords in `writing`."""
    began = time.perf_counter()
    with _job.posts_errors(writing.asked_job(), path):
        rare = writing.rare()
        at = place("path", path, writing.storage_options)
        _native.refuse_folder_named_like_a_file(at, "of items")
        trees = _checked(items, item_options)
        _arguments.choice("when_busy", when_busy, get_args(WhenBusy))
        _arguments.choice("copy", rare.copy, get_args(CopyLeaves))
        check_source = _arguments.flag("check_source", rare.check_source)
        if when_busy == "skip":
            refuse_skip_in_a_job(writing)
    saver = saver_of_calls()._native
    if when_busy == "skip" and saver.is_busy():
        return SaveHandle(shown(at), None)
    waited = saver.wait_for_room(when_busy)
    with ItemsSave(path, writing) as save:
        _begin(save, items, metrics)
        for name, of_tree in trees.items():
            save.later(name, items[name], **of_tree)
        how = BackgroundRequest(
            copy=rare.copy,
            check_source=check_source,
            seconds=time.perf_counter() - began,
            waited_seconds=waited,
        )
        handle = saver.save_items(save._native, how)
    return SaveHandle(save.path, handle)


@keywords
def load_items(
    path: StrPath,
    items: Mapping[str, Any] | Iterable[str] | None = None,
    *,
    only: str | Iterable[str] | None = None,
    missing: Missing = "error",
    extra: Extra = "error",
    cast: Any = None,
    lossy: bool = False,
    classes: Literal["dict"] | None = None,
    shardings: Any = None,
    step: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    options: Options | None = None,
) -> dict[str, Any]:
    """Loads items of a checkpoint: trees and JSON as `load` does with ``at=``, and the contents of
    files.

    An item that cannot be read is an error only if it is requested.

        loaded = regrow.load_items("run", {"state": state, "config": None})
        loaded["state"], loaded["config"]

    Args:
        path: A checkpoint of items, or a folder of steps.
        items: Names, with a template for each or `None`; or names alone; all items if `None`.
        only: As for `load`, for every tree, like the next six keywords.
        missing: As for `load`.
        extra: As for `load`.
        cast: As for `load`.
        lossy: As for `load`.
        classes: As for `load`.
        shardings: As for `load`.
        step: The step of a folder of steps; the newest if `None`.
        storage_options: As for `save`.
        progress: As for `save`.
        options: Rare settings.

    Raises:
        NotFoundError: for an item that the checkpoint does not have, with the names of its items.
        RegrowError: as `load`.
    """
    asked = Loading(
        only=only, cast=cast, lossy=lossy, missing=missing, extra=extra, classes=classes, shardings=shardings,
        progress=progress,
    )  # fmt: skip
    return load_items_as(path, items, asked, options, step=step, storage_options=storage_options)


def load_items_as(
    path: StrPath,
    items: Mapping[str, Any] | Iterable[str] | None,
    asked: Loading,
    options: Options | None,
    *,
    step: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Loads items with the keywords in `asked`."""
    asked.check()
    rare = _options.chosen(options, "load")
    at = through(rare.cache, place("path", path, storage_options))
    opened = _native.open(at, opening_of(rare, step))
    kinds = dict(opened.items)
    likes = _likes(items, kinds)
    if not kinds:
        raise failure(
            NotFoundError, f"the checkpoint in {shown(at)} has no items", help="call regrow.load to load it as one tree"
        )
    lacking = [name for name in likes if name not in kinds]
    if lacking:
        there = ", ".join(kinds)
        raise failure(NotFoundError, f"{shown(at)} has no item {lacking[0]!r}", help=f"the items are: {there}")
    loaded: dict[str, Any] = {}
    for name, like in likes.items():
        if holds_files(opened, name):
            loaded[name] = Files(dict(opened.item_files(name)))
        else:
            # Pass the opened step: the newest step may have changed since the opening.
            of_item = asked if like is not None else asked.replaced(missing="error", extra="error")
            loaded[name] = load_as(
                path, like, of_item.replaced(at=name), step=opened.step, storage_options=storage_options,
                options=options,
            )  # fmt: skip
    return loaded


# ---- arguments ------------------------------------------------------------------------


def _begin(save: ItemsSave, items: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> None:
    """Adds all items that are not trees."""
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
        raise InvalidArgumentError(f"item_options[{idle[0]!r}] does not name a tree of the items: {', '.join(trees)}")
    return {name: own.get(name, {}) for name in trees}


def _is_v1(writing: Writing) -> bool:
    layout = writing.layout
    return isinstance(layout, Orbax) and _arguments.flag("v1", layout.v1)


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

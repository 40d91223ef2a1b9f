"""One checkpoint of a pytree that several calls save in parts, and one call publishes.

    ocp.partial.save(path, {"encoder": encoder})
    ocp.partial.save(path, {"decoder": decoder})
    ocp.partial.finalize(path)

Until `finalize` the path does not exist. A part is a checkpoint of regrow's own layout in
``<path>.partial_save``. `finalize` maps the files of the parts, and holds no array in memory.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ... import _native
from ..._core._location import place
from ..._core._options import Options
from ..._errors import NotFoundError, failure
from ..._jobs import _job
from ..._leaves._columns import JAX_ARRAY, NUMPY_ARRAY
from ..._load._checkpoint import Leaf
from ..._load._open import open as open_checkpoint
from ..._operations._remove import remove
from ..._save._items import ItemsSave
from ..._save._writing import Writing
from ..._tree._nodes import PrngKey
from ...layouts import of_options
from .._errors import as_orbax
from .._interfaces import Task as Response
from .._jax import jax
from .._paths import BucketPath, absolute, is_finalized
from ..tree import from_flattened_with_keypath, is_empty_node, tuple_path_from_keypath
from . import _pytrees
from ._context import current
from ._handlers import PartialSaveReplacementError
from ._layout import STATE_CHECKPOINTABLE_KEY as STATE

PARTIAL_SAVE_SUFFIX = ".partial_save"


_ERRORS = {kind.__name__: kind for kind in (FileExistsError, FileNotFoundError, PartialSaveReplacementError)}

_TIMEOUT_SECONDS = 1200
"""Seconds that processes wait for each other."""


def save(path: Any, state: Any, *, custom_metadata: Any = None) -> None:
    """Saves some leaves of a checkpoint. A later part cannot save the same leaves again."""
    save_async(path, state, custom_metadata=custom_metadata).result()


def save_async(path: Any, state: Any, *, custom_metadata: Any = None) -> Response[None]:
    """Saves as `save`, in the background. Returns when the snapshot is taken."""
    from ..._save._async import saver_of_calls

    final, session = _places(path)
    wanted = _paths(state)
    # `None` is an empty part, as in Orbax.
    given = {} if state is None else state
    part = _by_process_0(final, lambda: _next_part(final, session, wanted), lambda: _pytrees.check_leaves(given))
    tree, keywords = _pytrees.save_plan(state, current())
    told = {"custom_metadata": custom_metadata or {}, "whole": _form(keywords)}
    with as_orbax():
        writing = Writing(layout="regrow", metadata=told, options=keywords.get("options"))
        saving = saver_of_calls().begin(session / part, tree, writing, "queue")

    def finish() -> None:
        with as_orbax():
            saving.result()

    return Response(finish)


def finalize(path: Any) -> None:
    """Publishes all parts, atomically. In a job, all processes call it, and process 0 publishes."""
    final, session = _places(path)

    def publish() -> None:
        _refuse_finished(final)
        if not session.exists():
            help = "call partial.save() first"
            raise failure(FileNotFoundError, f"Partial save path {session} does not exist.", help=help)
        _publish(final, session)
        _remove(session)

    with as_orbax():
        _by_process_0(final, publish)


def _by_process_0(final: Any, work: Callable[[], Any], check: Callable[[], None] | None = None) -> Any:
    """Returns in all processes what `work` returns, or raises, on process 0."""

    def told() -> Any:
        try:
            return [None, work()]
        except tuple(_ERRORS.values()) as error:
            if type(error).__name__ not in _ERRORS:
                raise
            return [type(error).__name__, str(error)]

    job = _job.Job(timeout=_TIMEOUT_SECONDS)
    with _job.posts_errors(job, str(final), "orbax-part"):
        if check is not None:
            check()
    if (chosen := _job.chosen(job)) is None:
        return work()
    together = _native.Together(place("path", final), chosen)
    error, found = json.loads(together.of_rank_0("orbax-part", lambda: json.dumps(told())))
    if error is not None:
        raise _ERRORS[error](found)
    return found


def _refuse_finished(final: Any) -> None:
    if final.exists():
        raise failure(FileExistsError, f"Finalized checkpoint already exists at {final}.", help="delete it first")


def _next_part(final: Any, session: Any, wanted: list[tuple[_Path, str]]) -> str:
    _refuse_finished(final)
    taken = _Taken()
    for part in _parts(session):
        for at, kind in _paths(open_checkpoint(part).tree):
            taken.add(at, kind)
    for at, kind in wanted:
        taken.add(at, kind)
    # Parts sorted by name are in the order of their saves.
    return f"{time.time_ns():020}-{uuid.uuid4().hex}"


def _form(keywords: dict[str, Any]) -> dict[str, Any]:
    """The options of the final save, as JSON values."""
    layout = keywords["layout"]
    form = {"layout": layout.name, "options": json.loads(layout._json())}
    return form | {name: keywords[name] for name in ("compression",) if name in keywords}


def _places(path: Any) -> tuple[Any, Any]:
    final = remove_partial_save_suffix(absolute(path))
    return final, add_partial_save_suffix(final)


def is_partial_save_path(path: Any, allow_tmp_dir: bool = False) -> bool:
    return PARTIAL_SAVE_SUFFIX in path.name if allow_tmp_dir else path.name.endswith(PARTIAL_SAVE_SUFFIX)


def add_partial_save_suffix(path: Any) -> Any:
    return path.parent / f"{path.name}{PARTIAL_SAVE_SUFFIX}"


def remove_partial_save_suffix(path: Any) -> Any:
    return path.parent / path.name.removesuffix(PARTIAL_SAVE_SUFFIX)


def _parts(session: Any) -> list[Any]:
    if not session.exists():
        return []
    return sorted(part for part in session.iterdir() if is_finalized(part) and (part / "regrow.json").exists())


def _remove(session: Any) -> None:
    """Removes the parts, and the temporary files of broken saves of parts."""
    if not isinstance(session, BucketPath):
        shutil.rmtree(session)
        return
    for part in session.iterdir():
        is_unfinished = not is_finalized(part)
        # Leave files of other programs in the folder.
        with contextlib.suppress(NotFoundError):
            remove(part, unfinished=is_unfinished, force=is_unfinished)


_Path = tuple[str, ...]


class _Taken:
    """The content of all parts by key path: a leaf, or the type of an empty node."""

    def __init__(self) -> None:
        self._kinds: dict[_Path, str] = {}
        self._above: set[_Path] = set()

    def add(self, at: _Path, kind: str) -> bool:
        """Adds an entry, or refuses a leaf that exists. Returns false if it adds nothing."""
        if kind != _LEAF and (self._kinds.get(at) == kind or (at in self._above and kind != _NONE)):
            return False
        above = [at[:length] for length in range(len(at))]
        if at in self._kinds or at in self._above or not self._kinds.keys().isdisjoint(above):
            raise failure(
                PartialSaveReplacementError,
                (
                    f"the leaf {'/'.join(at) or '.'} was saved in an earlier part. Partial saving currently does "
                    "not support REPLACEMENT."
                ),
                help="save each leaf once",
            )
        self._kinds[at] = kind
        self._above.update(above)
        return True


_LEAF, _NONE = "leaf", "NoneType"


def _kind(leaf: Any) -> str:
    return type(leaf).__name__ if is_empty_node(leaf) else _LEAF


def _paths(tree: Any) -> list[tuple[_Path, str]]:
    """The leaves and empty nodes of a tree, without placeholders."""
    return [
        (tuple_path_from_keypath(keys), _kind(leaf))
        for keys, leaf in _leaves_of(tree)
        if leaf is not ... and not (isinstance(leaf, Leaf) and leaf.kind == "placeholder")
    ]


def _leaves_of(tree: Any) -> list[tuple[Any, Any]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: isinstance(node, (Leaf, PrngKey)) or is_empty_node(node)
    )
    return list(flat)


def _publish(final: Any, session: Any) -> None:
    """Writes the content of all parts as one checkpoint."""
    leaves: list[tuple[Any, Any]] = []
    taken = _Taken()
    shardings: dict[int, Any] = {}
    custom: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for part in _parts(session):
        checkpoint = open_checkpoint(part)
        about = checkpoint.metadata or {}
        told = told or about
        custom |= about["custom_metadata"]
        loaded = checkpoint.load(progress=False, options=Options(mmap=True, placeholders=True))
        for (keys, leaf), (_, value) in zip(_leaves_of(checkpoint.tree), _leaves_of(loaded), strict=True):
            if value is ... or not taken.add(tuple_path_from_keypath(keys), _kind(value)):
                continue
            leaves.append((keys, value))
            if isinstance(leaf, Leaf) and leaf.kind == "jax_array":
                shardings[id(value)] = leaf.sharding
    form = told["whole"] if told else _form(_pytrees.save_plan(None, current())[1])
    writing = Writing(
        layout=of_options(form["layout"], form["options"]),
        compression=form.get("compression"),
        metadata=custom or None,
        job=_job.Job.alone() if jax.process_count() > 1 else None,
    )
    with ItemsSave(final, writing) as whole:
        if leaves:
            _add(whole, from_flattened_with_keypath(leaves), shardings)
        whole.commit()


def _add(whole: ItemsSave, tree: Any, shardings: Mapping[int, Any]) -> None:
    """Adds the tree; its arrays get back their saved kind, JAX or NumPy."""
    flat, columns, options = whole._tree(STATE, tree, {})
    kinds = bytearray(columns.kinds)
    texts = dict(columns.shardings)
    for at, value in enumerate(flat.leaves):
        if id(value) in shardings and kinds[at] == NUMPY_ARRAY and isinstance(value, np.ndarray):
            kinds[at] = JAX_ARRAY
            if shardings[id(value)] is not None:
                texts[at] = json.dumps(shardings[id(value)])
    columns = columns._replace(kinds=bytes(kinds), shardings=texts)
    whole._native.tree(STATE, flat.structure, columns, options, False)

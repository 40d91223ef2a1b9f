"""Loads of an opened checkpoint. `_into` has all but the plain load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from .. import _native
from .._core import _arguments
from .._core._collector import Paused
from .._core._location import Place as Placed
from .._core._location import StrPath
from .._core._options import Options
from .._core._progress import Progress, Watch
from .._core._record import Record
from .._core._report import Stages
from .._errors import InvalidArgumentError, LeafNotFoundError, NotFoundError, UnsupportedError, failure
from .._jobs._together import Together
from .._leaves._columns import LoadedLeaves, from_native
from .._operations._rules import renames_of, with_kept
from .._save._writing import casts
from .._tree._flatten import path_text, unflatten
from .._tree._nodes import as_dicts
from ._opening import Opening
from ._wishes import Wishes, read_whole, register_nodes

Missing = Literal["error", "keep"]
Extra = Literal["error", "drop"]


class Loading(Record):
    """The keywords of a load, as the caller gave them."""

    at: str | None = None
    only: str | Iterable[str] | None = None
    rename: Mapping[str, str] | None = None
    rules: StrPath | None = None
    transpose: Sequence[tuple[str, Sequence[int]]] = ()
    reshape: Sequence[tuple[str, Sequence[int]]] = ()
    cast: Any = None
    lossy: bool = False
    missing: Missing = "error"
    extra: Extra = "error"
    classes: Literal["dict"] | None = None
    shardings: Any = None
    progress: Progress = None
    out: Any = None

    def check(self) -> None:
        """Refuses wrong keywords."""
        if _arguments.text("at", self.at) == "":
            raise _arguments.wrong("at", self.at, "a key path, or None for the whole checkpoint")
        _arguments.choice("missing", self.missing, get_args(Missing))
        _arguments.choice("extra", self.extra, get_args(Extra))
        if self.classes is not None:
            _arguments.choice("classes", self.classes, ("dict",))

    def with_rules(self) -> Loading:
        """Adds the rules of the file in `rules` after the rules of the call, and checks the result."""
        self.check()
        if self.rules is None:
            return self
        given = {"only": self.only, "rename": self.rename, "cast": self.cast}
        merged = with_kept({name: value for name, value in given.items() if value is not None}, self.rules)
        return self.replaced(
            rules=None,
            only=merged.get("only"),
            rename=merged.get("rename"),
            cast=merged.get("cast") or None,
            lossy=self.lossy or bool(merged.get("lossy")),
            transpose=list(merged.get("transpose", {}).items()),
            reshape=list(merged.get("reshape", {}).items()),
        )

    def view(
        self, opened: _native.Checkpoint, place: Placed, opening: Opening, attempt: _native.Attempt
    ) -> _native.Checkpoint:
        """The part of a checkpoint that is loaded, under the key paths of the result."""
        at = self.at
        if at is not None:
            item, _, rest = at.partition("/")
            if item in dict(opened.items):
                if holds_files(opened, item):
                    raise failure(
                        UnsupportedError,
                        f"the item {item!r} is files, not a pytree",
                        help=f"call regrow.load(path, at={item!r})",
                    )
                opened, at = attempt.watch(_native.open(place, opening._replace(item=item))), rest
            return self.replaced(at=at or None).view_of(opened)
        return self.view_of(opened)

    def view_of(self, opened: _native.Checkpoint) -> _native.Checkpoint:
        """As `view`, for a checkpoint or an item that is already open."""
        if self.at is not None:
            opened = _within(opened, self.at)
        renames = renames_of(self.rename)
        if renames or self.transpose or self.reshape:
            opened = opened.transformed(renames, self.transpose, self.reshape)
        return opened

    def seen_from_view(self, paths: Iterable[str]) -> Iterator[str]:
        """Converts key paths of the whole checkpoint to key paths of its view."""
        if renames_of(self.rename):
            raise failure(
                InvalidArgumentError,
                "`salvage` does not rename",
                help="call regrow.convert(..., options=regrow.Options(salvage=True))",
            )
        above = "" if self.at is None else f"{self.at}/"
        return (path[len(above) :] for path in paths if path.startswith(above))

    def wishes(self, rare: Options, together: Together, stages: Stages) -> Wishes:
        """The checked request to an opened checkpoint."""
        return Wishes(
            _arguments.patterns(self.only),
            casts(self.cast, self.lossy),
            self.missing == "keep",
            self.extra == "drop",
            self.classes == "dict",
            _arguments.flag("placeholders", rare.placeholders),
            self.out,
            _arguments.flag("checksums", rare.checksums),
            _arguments.flag("mmap", rare.mmap),
            self.shardings,
            rare.region,
            _arguments.flag("pad_or_truncate", rare.pad_or_truncate),
            _arguments.budget(rare.budget_bytes),
            _arguments.handlers(rare.handlers),
            self.progress,
            together,
            stages,
        )


def holds_files(opened: _native.Checkpoint, item: str) -> bool:
    """Whether an item of a checkpoint is `Files`."""
    return dict(opened.items).get(item, "").startswith("files: ")


def _within(opened: _native.Checkpoint, at: str) -> _native.Checkpoint:
    """The subtree at a key path."""
    try:
        return opened.at(at)
    except NotFoundError as error:
        raise LeafNotFoundError(error.message, file=error.file, leaf=at, help=error.help) from None


@Paused()
def load(native: _native.Checkpoint, like: Any, wishes: Wishes) -> Any:
    """The result of `regrow.load` for an opened checkpoint."""
    _check_arguments(like, wishes)
    found = _load(native, like, wishes)
    return as_dicts(found) if wishes.as_dicts else found


def _load(native: _native.Checkpoint, like: Any, wishes: Wishes) -> Any:
    asked = (like, wishes.out, wishes.shardings, wishes.region, wishes.together.single_replica)
    is_plain = all(each is None for each in asked)
    if not is_plain:
        from . import _into  # a plain load does without it

        if wishes.out is not None:
            return _into.load_out(native, wishes)
        if like is not None:
            return _into.load_like(native, like, wishes)
    if not (wishes.placeholders or wishes.salvages):
        help = (
            "pass like=TREE to keep what it has there, options=regrow.Options(placeholders=True) to load `...` there, "
            "or only=GLOB to select other leaves"
        )
        refuse_placeholders(native.placeholders(wishes.only), help)
    if not is_plain:
        return _into.load_parts(native, wishes)
    with Watch(wishes.progress, "loading") as watch:
        structure, leaves = read_whole(native, wishes, None, watch, [])
    register_nodes()
    values = from_native(LoadedLeaves(*leaves), lambda at: path_text(structure, at))
    return unflatten(structure, values, wishes.handlers)


def _check_arguments(like: Any, wishes: Wishes) -> None:
    """Refuses keywords that cannot be combined."""
    if like is None and wishes.out is None:
        for name, is_given in (("missing", wishes.keeps_missing), ("extra", wishes.drops_extra)):
            if is_given:
                raise InvalidArgumentError(f"`{name}` needs a template: pass `like`")
    elif wishes.as_dicts:
        raise InvalidArgumentError("`classes` is for loads without `like`, which has its own containers")
    if wishes.out is not None:
        if like is not None or wishes.shardings is not None or wishes.region is not None:
            raise InvalidArgumentError("`load_into` fills all of `out`: leave out `region`")
        if wishes.mmap:
            raise InvalidArgumentError(
                "`load_into` copies into `out`, and cannot map files: leave out `mmap`, or call regrow.load"
            )
        if wishes.pad_or_truncate:
            raise InvalidArgumentError("`pad_or_truncate` is for `like` and `region`, not for `load_into`")
        if wishes.together.single_replica is not None:
            raise InvalidArgumentError("`single_replica` is for arrays of JAX, not for `load_into`")
        return
    if wishes.region is not None and (like is not None or wishes.shardings is not None):
        raise InvalidArgumentError("`region` makes NumPy arrays: leave out `like` and `shardings`")
    if wishes.pad_or_truncate and like is None and wishes.region is None:
        raise InvalidArgumentError("`pad_or_truncate` needs shapes: pass `like`, or Options(region=...)")


def refuse_placeholders(paths: list[str], help: str) -> None:
    """Refuses to load leaves that have no data."""
    if not paths:
        return
    what = "a leaf was saved" if len(paths) == 1 else f"{len(paths)} leaves were saved"
    raise failure(
        UnsupportedError,
        f"{what} as a placeholder, `...`, without data: {', '.join(paths[:10])}",
        first_leaf=paths[0],
        help=help,
    )

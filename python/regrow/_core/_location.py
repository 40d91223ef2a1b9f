"""Where checkpoints are: paths, URLs, and URLs with options for their storage.

Every function that takes a path also takes a `Location`, and path objects of other libraries. The
native half decides what a path or URL names; this module has only the Python objects.

| given | the native half takes |
|---|---|
| `str`, `bytes`, `pathlib.Path` | the text, with `~` expanded |
| `Location` | the native location, with its options |
| `epath.Path`, `UPath`, `CloudPath` | the URL that `str()` returns, and a `UPath`'s options |

Values of options can be secrets: no message and no `repr` shows one.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .._errors import InvalidArgumentError, UnsupportedError, failure
from ._arguments import wrong

StrPath = str | os.PathLike[str]

Place = str | _native.Location
"""The native half's type of a path."""

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_DEPTH_MAX = 4
_AS_JSON = {"token", "service_account_key"}
"""Options whose dicts are documents: a service account, as gcsfs takes it."""


class Location:
    """A path or URL, with options for its storage. Every function that takes a path takes one.

        runs = regrow.Location(
            "s3://bucket/runs",
            endpoint_url="http://localhost:9000", key="...", secret="...",
        )
        regrow.save(runs / "step_100", state)

    Options have the names of fsspec or of the cloud, in the spelling of either. Missing options
    come from the environment and from the files of the cloud's own tools. Options are never shown,
    and never pickled.
    """

    __slots__ = ("_native", "_options")

    def __init__(self, url: StrPath, /, **storage_options: Any) -> None:
        """Makes a location from a path or URL, and options: text, numbers, flags, or dicts of
        these.

        Raises:
            UnsupportedError: if there is no storage for the scheme of the URL.
            InvalidArgumentError: for options that the storage does not know; for options of a local
                path.
        """
        taken = _taken("url", url)
        self._options = {**taken.options, **option_texts(storage_options)}
        self._native = _native.Location(taken.text, list(self._options.items()))

    @property
    def url(self) -> str:
        """The path or URL, without the options."""
        return self._native.__fspath__()

    def __truediv__(self, name: str) -> Location:
        """The location `name` below this one, with the same options."""
        if not isinstance(name, str) or not name or name.startswith("/"):
            raise wrong("name", name, "a name, or several with slashes between them, below the location")
        return Location(f"{self.url.rstrip('/')}/{name}", **self._options)

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        hidden = "".join(f", {name}=..." for name in self._options)
        return f"regrow.Location({self.url!r}{hidden})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Location):
            return NotImplemented
        return self.url == other.url and self._options == other._options

    def __hash__(self) -> int:
        return hash(self.url)

    def __copy__(self) -> Location:
        return self

    def __deepcopy__(self, memo: Any) -> Location:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._options:
            raise failure(
                TypeError,
                f"cannot pickle {self!r}: its options may be secrets",
                help="pickle its url, and pass the options again later, or set them in the environment",
            )
        return type(self), (self.url,)

    @classmethod
    def from_obstore(cls, store: Any, path: str = "") -> Location:
        """The location of `path` in a store of obstore: bucket, prefix and options are read from
        the store.

        Limits and retries of the store are not used.

        Raises:
            UnsupportedError: for settings that cannot be read from the store: credentials that
                Python code provides, the objects of a `MemoryStore`, settings of the connection.
        """
        taken = _of_obstore(store, path)
        return cls(taken.text, **taken.options)

    @classmethod
    def from_fsspec(cls, fs: Any, path: str) -> Location:
        """The location of `path` in a file system of fsspec: protocol and storage options are read
        from it.

        Caches of listings and blocks are not used.

        Raises:
            UnsupportedError: for a file system that regrow cannot reach by itself: fsspec's own
                memory, archives, caches.
        """
        taken = _of_fsspec(fs, path)
        return cls(taken.text, **taken.options)


# ---- arguments ------------------------------------------------------------------------


def place(name: str, value: Any, storage_options: Any = None) -> Place:
    """The place that an argument names."""
    return places(storage_options, **{name: value})[name]


def places(storage_options: Any, **given: Any) -> dict[str, Place]:
    """The places that arguments name, without arguments that are `None`. `storage_options` apply to
    URLs that have no options.

    Raises:
        InvalidArgumentError: if there are options that no place accepts.
    """
    options = option_texts(storage_options, "storage_options")
    taken = {name: _taken(name, value) for name, value in given.items() if value is not None or name != "base"}
    if options and not any(each.takes_options for each in taken.values()):
        what = ", ".join(f"{name} is {each.what}" for name, each in taken.items())
        raise InvalidArgumentError(
            f"`storage_options` is for URLs, and {what}: leave it out, or pass a URL such as s3://bucket/run"
        )
    return {name: each.place(options) for name, each in taken.items()}


Portable = tuple[str, tuple[tuple[str, str], ...]]
"""A place in a form for other processes: a path or URL, and the options of its storage, which may
be secrets.
"""


def portables(storage_options: Any, **given: Any) -> dict[str, Portable]:
    """The places that arguments name, as in `places`, in a form for other processes. Local paths
    are absolute.
    """
    places(storage_options, **given)
    options = option_texts(storage_options, "storage_options")
    found: dict[str, Portable] = {}
    for name, value in given.items():
        if value is not None or name != "base":
            taken = _taken(name, value)
            own = options if taken.takes_options else taken.options
            text = taken.text if is_url(taken.text) else os.path.join(os.getcwd(), taken.text)
            found[name] = text, tuple(own.items())
    return found


def arrived(portable: Portable) -> Place:
    """The place that another process has sent."""
    text, options = portable
    return _native.Location(text, list(options)) if options else text


def shown(place: Any) -> str:
    """The name of a path for people, or of the argument that has named it."""
    return os.fsdecode(place) if isinstance(place, (str, bytes)) else _taken("path", place).text


def local_path(place: Place) -> str | None:
    """The path of a place on the local file system; `None` of another storage."""
    if isinstance(place, _native.Location):
        return place.local_path
    scheme = _URL.match(place)
    if scheme is None:
        return place
    # Ask the native half only about `file://` URLs: for a bucket, it would look for credentials.
    return _native.Location(place, []).local_path if scheme[1].lower() == "file" else None


def is_url(text: str) -> bool:
    """Whether a text is a URL, not a path of the local file system."""
    return _URL.match(text) is not None


class _Taken(NamedTuple):
    """An argument as a path, with options for its storage."""

    text: str
    options: dict[str, str]
    made: _native.Location | None = None

    @property
    def takes_options(self) -> bool:
        scheme = _URL.match(self.text)
        has_own = self.made is not None or bool(self.options)
        return scheme is not None and scheme[1].lower() != "file" and not has_own

    @property
    def what(self) -> str:
        if self.made is not None:
            return "a Location, which has its own options"
        return "a path with its own options" if self.options else "a path of the local file system"

    def place(self, options: dict[str, str]) -> Place:
        if self.made is not None:
            return self.made
        own = options if self.takes_options else self.options
        return _native.Location(self.text, list(own.items())) if own else self.text


def _taken(name: str, value: Any) -> _Taken:
    if isinstance(value, Location):
        return _Taken(value.url, value._options, value._native)
    if isinstance(value, (str, bytes)):
        return _Taken(os.path.expanduser(os.fsdecode(value)), {})
    # A path object of another library. Use `str` first: `__fspath__` of a CloudPath downloads the
    # file, and a UPath of a bucket has no `__fspath__`.
    if isinstance(value, os.PathLike) or hasattr(type(value), "joinpath"):
        text = str(value)
        if _URL.match(text):
            options = getattr(value, "storage_options", None)
            return _Taken(text, _fsspec_texts(options) if isinstance(options, Mapping) else {})
        if isinstance(value, os.PathLike):
            return _Taken(os.path.expanduser(os.fsdecode(value)), {})
    raise wrong(name, value, "a path: str, bytes or os.PathLike")


# ---- options --------------------------------------------------------------------------


def option_texts(options: Any, name: str = "") -> dict[str, str]:
    """Storage options as text, by name. Nested options get names with dots.

    Raises:
        InvalidArgumentError: for a value that is no text, number or flag. It is not shown.
    """
    if options is None:
        return {}
    takes = "a dict of text, numbers or flags by name"
    if not isinstance(options, Mapping):
        raise InvalidArgumentError(f"{name} is of type {type(options).__name__}: expected {takes}")
    found: dict[str, str] = {}
    _add_texts(found, "", options, name)
    return found


def _add_texts(found: dict[str, str], prefix: str, options: Mapping[Any, Any], where: str) -> None:
    for name, value in options.items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"{where or 'options'} has a name of type {type(name).__name__}, not str")
        full = f"{prefix}{name}"
        text = _text(value)
        if text is not None:
            found[full] = text
        elif name in _AS_JSON and isinstance(value, Mapping):
            found[full] = _json(full, value, where)
        elif isinstance(value, Mapping) and full.count(".") < _DEPTH_MAX:
            _add_texts(found, f"{full}.", value, where)
        elif value is not None:
            raise _bad_option(full, value, where)


def _text(value: Any) -> str | None:
    match value:
        case bool() | np.bool_():
            return "true" if value else "false"
        case str():
            return value
        case float():
            return repr(value)
        case timedelta():
            return repr(value.total_seconds())
        case os.PathLike():
            return os.fsdecode(value)
    try:
        return str(operator.index(value))
    except TypeError:
        return None


def _json(name: str, value: Mapping[Any, Any], where: str) -> str:
    import json

    try:
        return json.dumps(dict(value))
    except (TypeError, ValueError, RecursionError):
        # Raise without the cause: the cause might show a part of the value.
        raise _bad_option(name, value, where) from None


def _bad_option(name: str, value: Any, where: str) -> InvalidArgumentError:
    what = f"{where}[{name!r}]" if where else f"the option {name}"
    return InvalidArgumentError(
        f"{what} is of type {type(value).__name__}: expected text, a number, a flag, or a dict of them"
    )


# ---- stores of other libraries --------------------------------------------------------

_OBSTORE: dict[str, tuple[str, str]] = {
    "S3Store": ("s3", "bucket"),
    "GCSStore": ("gs", "bucket"),
    "AzureStore": ("az", "container_name"),
}
"""For each class name: the scheme of URLs, and the option that names the bucket."""

_OBSTORE_IDLE = {
    "allow_http", "connect_timeout", "pool_idle_timeout", "pool_max_idle_per_host", "timeout", "user_agent",
}  # fmt: skip
"""Settings of a connection that do not change the bytes that are read or written. The endpoint says
whether the connection uses http.
"""


def _of_obstore(store: Any, path: str) -> _Taken:
    kind = type(store).__name__
    if kind == "LocalStore":
        return _Taken(os.path.join(os.fsdecode(store.prefix or "/"), _below(path)), {})
    if kind not in _OBSTORE:
        raise _not_readable(
            f"{kind} of {_package(store)}: regrow cannot use this store",
            "pass an S3Store, GCSStore, AzureStore or LocalStore; for checkpoints in memory pass memory://name/x",
        )
    scheme, bucket_option = _OBSTORE[kind]
    if getattr(store, "credential_provider", None) is not None:
        raise _not_readable(
            f"the {kind} gets its credentials from Python code",
            "make a regrow.Location with the credentials, or set them in the environment",
        )
    options = option_texts(store.config)
    bucket = options.pop(bucket_option, "")
    for name, text in option_texts(getattr(store, "client_options", None)).items():
        if name == "proxy_url":
            options[name] = text
        elif name not in _OBSTORE_IDLE:
            raise _not_readable(
                f"the {kind} has the client option {name}", "make a regrow.Location with its own options"
            )
    names = [bucket, *(part.strip("/") for part in (os.fsdecode(store.prefix or ""), path))]
    return _Taken(f"{scheme}://{'/'.join(name for name in names if name)}", options)


_FSSPEC_IDLE = {
    "asynchronous", "auto_mkdir", "batch_size", "cache_regions", "default_block_size", "default_cache_type",
    "default_fill_cache", "listings_expiry_time", "loop", "max_paths", "skip_instance_cache", "use_listings_cache",
    "version_aware",
}  # fmt: skip
"""Settings of fsspec's own work. regrow ignores them."""

_FSSPEC_ELSEWHERE = {"memory", "dir", "zip", "tar", "simplecache", "filecache", "blockcache", "reference", "libarchive"}


def _of_fsspec(fs: Any, path: str) -> _Taken:
    if type(fs).__name__ == "DirFileSystem":
        return _of_fsspec(fs.fs, f"{fs.path.rstrip('/')}/{_below(path)}")
    protocols = fs.protocol if isinstance(fs.protocol, (tuple, list)) else (fs.protocol,)
    if _FSSPEC_ELSEWHERE.intersection(protocols):
        raise _not_readable(
            f"{type(fs).__name__} of {_package(fs)}: only fsspec can read it",
            "give the path or URL of a disk or bucket; for checkpoints in memory give memory://name/x",
        )
    text = fs.unstrip_protocol(path)
    return _Taken(text, {} if text.startswith("file:") else _fsspec_texts(fs.storage_options))


def _fsspec_texts(options: Mapping[Any, Any]) -> dict[str, str]:
    return option_texts({name: value for name, value in options.items() if name not in _FSSPEC_IDLE})


def _below(path: str) -> str:
    return path.lstrip("/")


def _package(store: Any) -> str:
    return type(store).__module__.partition(".")[0]


def _not_readable(what: str, help: str) -> UnsupportedError:
    return failure(UnsupportedError, what, help=help)

"""What a caller may ask for, brought into the few forms that the native half takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from . import _arguments, _job, _json, _native
from ._errors import InvalidArgumentError
from ._location import Place

CHUNKING = ("chunk_byte_size", "shard_axes", "write_chunk_shape", "read_chunk_shape")


@dataclass(frozen=True)
class OrbaxOptions:
    """Orbax' own storage options, under Orbax' names, for ``layout="orbax"``."""

    use_ocdbt: bool = True
    """One database instead of a folder for each array."""
    use_zarr3: bool = False
    """zarr v3 instead of v2."""
    chunk_byte_size: int | None = None
    """Cut chunks down to at most this many bytes."""
    shard_axes: Sequence[int] = ()
    """Cut these axes first, with ``chunk_byte_size``."""
    write_chunk_shape: Sequence[int] | None = None
    """The outer chunk (zarr v3: the shard); must divide each array's shape."""
    read_chunk_shape: Sequence[int] | None = None
    """The inner chunk (zarr v3 only); must divide the outer."""
    ocdbt_target_data_file_size: int | None = None
    """A new data file once one has reached this size; 2 GiB if `None`."""
    rich_types: bool = False
    """Keep tuples and named tuples in ``_METADATA``."""
    write_sharding: bool = True
    """Write ``_sharding``."""
    write_array_metadatas: bool = True
    """Write ``array_metadatas``."""
    v1: bool = False
    """The folder of Orbax' v1 API."""
    per_leaf: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Chunking of some leaves: ``{"embed/**": {"chunk_byte_size": 2**20}}``; the first pattern that matches
    decides."""
    value_types: Mapping[str, str] = field(default_factory=dict)
    """What ``_METADATA`` calls the types of some leaves, by the names they are stored under: ``{"a.b": "acme.Cfg"}``.
    For those of type handlers of your own, which write the data of a leaf ``...`` into files beside the tree."""

    def fields(self) -> dict[str, Any]:
        """As the engine takes them: its own options, field by field."""
        out = {field.name: getattr(self, field.name) for field in fields(self)}
        return out | _chunking(out)


def _chunking(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the options of chunks those that are given, as the engine takes them."""
    out = {name: given[name] or () for name in given if name == "shard_axes"}
    if "per_leaf" in given:
        rules = given["per_leaf"]
        if not isinstance(rules, Mapping) or not all(isinstance(own, Mapping) for own in rules.values()):
            raise _arguments.wrong("per_leaf", rules, "a dict of globs, with a dict of options for each")
        for pattern, options in rules.items():
            unknown = set(options) - set(CHUNKING)
            if unknown:
                raise InvalidArgumentError(
                    f"per_leaf[{pattern!r}] has no option {', '.join(sorted(unknown))}; it takes {', '.join(CHUNKING)}"
                )
        out["per_leaf"] = [
            (pattern, {name: value for name, value in options.items() if value is not None})
            for pattern, options in rules.items()
        ]
    return out


LAYOUT_OPTIONS = {
    "regrow": frozenset({"chunk_byte_size", "shard_axes", "write_chunk_shape", "per_leaf", "data_format"}),
    "orbax": frozenset(field.name for field in fields(OrbaxOptions)),
    "flax": frozenset({"sort_keys", "integer_keys", "max_chunk_size"}),
    "equinox": frozenset({"hyperparameters", "trailer", "strict_upstream", "prng_keys"}),
    "pytree_data": frozenset(
        {"byte_align", "native_dtypes", "extra_keys", "manifest", "data_suffix", "manifest_suffix", "paths", "empty"}
    ),
    "trak": frozenset[str](),
    "safetensors": frozenset({"separator", "structure", "align", "max_shard_size", "one_file"}),
    "npy": frozenset({"form", "compress", "separator", "named_dtypes", "structure"}),
}
"""The options of each layout that are keywords of a save."""


def with_layout(given: dict[str, Any], at: Place) -> dict[str, Any]:
    """The keywords of a save or a conversion to a place, with the layout of its suffix where none is named."""
    return given if given["layout"] is not None else {**given, "layout": _native.layout_for(at)}


def of_write(given: Mapping[str, Any], base: Place | None) -> tuple[Any, ...]:
    """What the engine wants to know of a save or a conversion, from its keywords."""
    names = frozenset().union(*LAYOUT_OPTIONS.values())
    return save_options(
        layout=given["layout"],
        overwrite=given["overwrite"],
        durable=given["durable"],
        cast=given["cast"],
        lossy=given.get("lossy", False),
        compression=given["compression"],
        metadata=given["metadata"],
        seal=given["seal"],
        parity=given["parity"],
        strict_orbax=given.get("strict_orbax", False),
        trust_base=given["trust_base"],
        base=base,
        budget=given.get("budget"),
        orbax=given["orbax"],
        options={name: value for name, value in given.items() if name in names},
        job=_job.chosen(given["job"]) if "job" in given else None,
    )


def with_base(native_options: tuple[Any, ...], base: Place | None) -> tuple[Any, ...]:
    """What was told to the engine, with another base."""
    return (*native_options[:-2], base, native_options[-1])


def job_of(native_options: tuple[Any, ...]) -> _job.NativeJob | None:
    """The job that was told to the engine."""
    job: _job.NativeJob | None = native_options[-1]
    return job


def save_options(
    *,
    layout: str,
    overwrite: bool | Literal["any file"],
    durable: bool,
    options: dict[str, Any],
    cast: Any = None,
    lossy: bool = False,
    compression: Any = None,
    metadata: Any = None,
    seal: bool = False,
    parity: str | None = None,
    strict_orbax: bool = False,
    trust_base: bool = False,
    base: Place | None = None,
    budget: int | None = None,
    orbax: OrbaxOptions | None = None,
    job: _job.NativeJob | None = None,
) -> tuple[Any, ...]:
    """What the engine wants to know of a save, from what the caller said: the one place that knows its columns.

    With ``overwrite="any file"`` also a file that is no checkpoint is replaced.
    """
    chosen = layout_options(layout, orbax, options)
    return (
        overwrite
        if isinstance(overwrite, str) and overwrite == "any file"
        else _arguments.flag("overwrite", overwrite),
        _arguments.flag("durable", durable),
        casts(cast, lossy),
        compression_level(compression),
        json_text(metadata),
        (_arguments.flag("seal", seal), _arguments.text("parity", parity)),
        _arguments.flag("strict_orbax", strict_orbax),
        _arguments.flag("trust_base", trust_base),
        _arguments.count("budget", budget),
        chosen,
        base,
        job,
    )


def layout_options(layout: str, orbax: OrbaxOptions | None, keywords: dict[str, Any]) -> tuple[str, str]:
    """The layout's name and its options as JSON, from `orbax=` and from keywords."""
    if layout not in _native.LAYOUTS:
        names = ", ".join(_native.LAYOUTS)
        raise InvalidArgumentError(f"the layout {layout!r} is not known; it is one of {names}")
    if orbax is not None and not isinstance(orbax, OrbaxOptions):
        raise _arguments.wrong("orbax", orbax, "regrow.OrbaxOptions, or None")
    if orbax is not None and layout != "orbax":
        raise InvalidArgumentError('the option orbax belongs to layout="orbax"')
    for name in sorted(keywords):
        homes = [home for home, names in LAYOUT_OPTIONS.items() if name in names]
        # What no layout has is for the engine to refuse: other modules give it options that are no keywords here.
        if homes and layout not in homes:
            where = " or ".join(f'layout="{home}"' for home in homes)
            raise InvalidArgumentError(f"the option {name} belongs to {where}")
    if layout == "orbax":
        options = replace(orbax or OrbaxOptions(), **keywords).fields()
    else:
        options = keywords | _chunking(keywords)
    texts = []
    for name, value in options.items():
        try:
            texts.append(f"{json.dumps(name)}: {json.dumps(value, allow_nan=False, default=_plain)}")
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the option {name} of layout {layout!r} cannot be used: {error}") from None
    return layout, f"{{{', '.join(texts)}}}"


def _plain(value: Any) -> Any:
    """What stands for a value in JSON: a list for other sequences, NumPy's integers as Python's."""
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (Sequence, np.ndarray)):
        return list(value)
    raise TypeError(f"{value!r} is of no type that an option has")


class AsNumpy(NamedTuple):
    """A cast of every array, that changes values as NumPy does: for functions that stand in for others."""

    dtype: Any


Casts = tuple[list[tuple[str, str]], str]
"""Patterns and dtype names, and what the casts may do to values: ``"checked"``, ``"lossy"``, ``"as_numpy"``."""


def casts(cast: Any, lossy: Any = False) -> Casts:
    """What is cast, from one dtype for all or a dict of them, and whether values may change beyond rounding."""
    if isinstance(cast, AsNumpy):
        return [("**", dtype_name(cast.dtype))], "as_numpy"
    casting = "lossy" if _arguments.flag("lossy", lossy) else "checked"
    if cast is None:
        return [], casting
    if not isinstance(cast, Mapping):
        cast = {"**": cast}
    if not all(isinstance(pattern, str) for pattern in cast):
        raise _arguments.wrong("cast", cast, "a dtype, or a dict of globs over key paths with a dtype for each")
    return [(pattern, dtype_name(dtype)) for pattern, dtype in cast.items()], casting


def dtype_name(dtype: Any) -> str:
    """NumPy's name of a dtype that arrays are to be cast to, ml_dtypes' included."""
    name = dtype if isinstance(dtype, str) and hasattr(ml_dtypes, dtype) else None
    try:
        # NumPy takes nothing for float64.
        name = name or (None if dtype is None else str(np.dtype(dtype).name))
    except (TypeError, ValueError, SyntaxError):
        name = None
    if name not in _native.DTYPES:
        raise _arguments.wrong("cast", dtype, f"a dtype, one of {', '.join(_native.DTYPES)}; or a dict of globs")
    return name


ZSTD_LEVELS = range(-131072, 23)


def compression_level(compression: Any) -> int | str | None:
    """`None` for the layout's default, "none", or the level of zstd."""
    match compression:
        case None | "none":
            return None if compression is None else "none"
        case "zstd":
            return 1
        case bool():
            pass
        case int() as level if level in ZSTD_LEVELS:
            return level
        case ("zstd", int() as level) if level in ZSTD_LEVELS:
            return level
    raise InvalidArgumentError(
        f'the compression {compression!r} is not known; it is None, "none", "zstd", ("zstd", level) or a level'
        f" from {ZSTD_LEVELS.start} to {ZSTD_LEVELS.stop - 1}"
    )


def json_text(metadata: Any) -> str | None:
    """The user's metadata as JSON."""
    return None if metadata is None else _json.text("metadata", metadata)

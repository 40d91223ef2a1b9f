"""Refuses unknown keywords. The error names the keyword that the caller probably meant.

Tables have the keywords of other libraries and earlier keywords of regrow. A name that the tables
lack is compared with the function's keywords by spelling.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .._errors import UnknownKeywordError, failure

Function = TypeVar("Function", bound=Callable[..., Any])


_LAYOUTS = {
    "chunk_byte_size": "Regrow(chunk_byte_size=...) or Orbax(chunk_byte_size=...)",
    "shard_axes": "Regrow(shard_axes=...) or Orbax(shard_axes=...)",
    "write_chunk_shape": "Regrow(write_chunk_shape=...) or Orbax(write_chunk_shape=...)",
    "per_leaf": "Regrow(per_leaf=...) or Orbax(per_leaf=...)",
    "data_format": "Regrow(format=...)",
    "strict_orbax": "Regrow(strict=True)",
    "use_ocdbt": "Orbax(ocdbt=...)",
    "use_zarr3": "Orbax(zarr3=...)",
    "read_chunk_shape": "Orbax(read_chunk_shape=...)",
    "ocdbt_target_data_file_size": "Orbax(ocdbt_target_data_file_size=...)",
    "rich_types": "Orbax(rich_types=...)",
    "write_sharding": "Orbax(write_sharding=...)",
    "write_array_metadatas": "Orbax(write_array_metadatas=...)",
    "v1": "Orbax(v1=...)",
    "value_types": "Orbax(value_types=...)",
    "orbax": "Orbax(...)",
    "sort_keys": "Flax(sort_keys=...)",
    "integer_keys": "Flax(integer_keys=...)",
    "max_chunk_size": "Flax(max_chunk_bytes=...)",
    "hyperparameters": "Equinox(hyperparameters=...)",
    "trailer": "Equinox(trailer=...)",
    "strict_upstream": "Equinox(strict=True)",
    "prng_keys": "Equinox(prng_keys=...)",
    "byte_align": "PytreeData(byte_align=...)",
    "native_dtypes": "PytreeData(native_dtypes=...)",
    "extra_keys": "PytreeData(extra_keys=...)",
    "manifest": "PytreeData(manifest=...)",
    "data_suffix": "PytreeData(data_suffix=...)",
    "manifest_suffix": "PytreeData(manifest_suffix=...)",
    "paths": "PytreeData(paths=...)",
    "empty": "PytreeData(empty=...)",
    "separator": "Safetensors(separator=...) or Npy(separator=...)",
    "structure": "Safetensors(structure=...) or Npy(structure=...)",
    "align": "Safetensors(align=...)",
    "max_shard_size": "Safetensors(max_shard_bytes=...)",
    "one_file": "Safetensors(one_file=...)",
    "form": "Npy(form=...)",
    "compress": "Npy(compress=...)",
    "named_dtypes": "Npy(named_dtypes=...)",
}
"""The option of a layout for each earlier keyword of regrow, and for keywords of other tools."""

_RARE = {
    "budget": "budget_bytes",
    "handlers": "handlers",
    "replica_parallel": "replica_parallel",
    "keep_cached": "keep_cached",
    "trust_base": "trust_base",
    "copy": "copy",
    "check_source": "check_source",
    "mmap": "mmap",
    "verify": "checksums",
    "region": "region",
    "pad_or_truncate": "pad_or_truncate",
    "salvage": "salvage",
    "nest": "nest",
    "report": "on_report",
    "single_replica": "single_replica",
    "turns": "in_turns",
    "bare": "arrays_only",
    "ignore_seal": "ignore_seal",
    "trusted_keys": "trusted_keys",
    "cache": "cache",
    "job": "job",
}
"""The field of `Options` for each earlier keyword of regrow."""

_KEPT = {
    "keep_best": "best",
    "best": "by",
    "keep_every": "every",
    "keep_closest": "closest",
    "keep_seconds": "seconds",
    "keep_steps": "steps",
    "keep_if": "where",
    "adopt": "adopt",
    "todelete": "trash",
    "check": "verify_first",
    "max_to_keep": "last",
    "keep_period": "every",
    "best_fn": "by",
}
"""The field of `Keep` for each earlier keyword of regrow, and for keywords of other tools."""

_SAVED = {
    "every": "save_every=",
    "save_interval_steps": "save_every=",
    "save_steps": "save_every=regrow.SaveWhen(steps=...)",
    "min_seconds": "save_every=regrow.SaveWhen(seconds=...)",
    "save_first": "save_every=regrow.SaveWhen(first=True)",
    "save_if": "save_every=regrow.SaveWhen(where=...)",
    "reuse": "options=regrow.SaveOptions(link_unchanged=True)",
    "sigterm": "preemption_timeout=",
    "grace": "preemption_timeout=",
    "directory": "the path as the first argument",
}

_WORDS = {
    "partial": 'missing="keep" to keep leaves of `like` that the checkpoint lacks, '
    'extra="drop" to leave out leaves that `like` lacks',
    "strict": 'options=regrow.Options(lost_files="error")',
    "item": "at=",
    "target": "like=",
    "template": "like=",
    "abstract_pytree": "like=",
    "dtype": "cast=",
    "out": "the function regrow.load_into",
    "force": "overwrite=True",
    "exist_ok": "overwrite=True",
    "prefix": "at=",
    "dtypes": "cast=",
}


def _meant(function: str, name: str, takes: list[str]) -> str | None:
    """The keyword that the caller probably meant; `None` if there is no similar one."""
    is_manager = function == "Manager"
    if is_manager and name in _KEPT:
        return f"keep=regrow.Keep({_KEPT[name]}=...)"
    if is_manager and name in _SAVED:
        return _SAVED[name]
    if name in _LAYOUTS and "layout" in takes:
        return f"layout=regrow.layouts.{_LAYOUTS[name]}"
    if is_manager and name in ("layout", "cast", "compression", "lossy", "durable", "parity", "seal"):
        return f"options=regrow.SaveOptions({name}=...)"
    if name in _RARE and "options" in takes:
        return f"options=regrow.Options({_RARE[name]}=...)"
    word = _WORDS.get(name)
    if word is None or (word.partition("=")[1] and word.partition("=")[0] not in takes):
        return None
    return word


def keywords(function: Function) -> Function:
    """Refuses keywords that the function does not have. The error names the keyword that was
    probably meant.

    Raises:
        UnknownKeywordError: for a keyword that the function does not take.
    """
    code = function.__code__  # `inspect` takes longer
    count = code.co_argcount + code.co_kwonlyargcount
    takes = [name for name in code.co_varnames[:count] if name != "self"]
    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        for each in given:
            if each not in takes:
                known = {key: value for key, value in given.items() if key in takes}
                with _posting(name, dict(zip(code.co_varnames, args, strict=False)) | known):
                    raise _unknown(name, each, takes)
        return function(*args, **given)

    return checked  # type: ignore[return-value]


_SAVES = ("save", "save_async", "save_items", "save_items_async", "async_save")


def _posting(function: str, given: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Sends an error to the other processes of the job, which would otherwise wait for this one."""
    from .._jobs import _job, _together
    from . import _options

    if "path" in given and function in _SAVES:
        return _job.posts_errors(_options.job_of(given.get("job"), given.get("options")), given["path"])
    if "path" in given and function == "load":
        return _together.posts_errors(given.get("options"), given["path"])
    return contextlib.nullcontext()


def _unknown(function: str, name: str, takes: list[str]) -> UnknownKeywordError:
    message = f"{function}() got an unexpected keyword argument {name!r}"
    meant = _meant(function, name, takes)
    if meant is None:
        import difflib  # only errors need this

        near = difflib.get_close_matches(name, takes, n=1)
        meant = f"{near[0]}=" if near else None
    if meant is None:
        return UnknownKeywordError(message)
    return failure(UnknownKeywordError, message, help=f"pass {meant}")

"""Saves the objects of a training script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._core._keywords import keywords
from .._core._location import StrPath, place
from .._core._options import Options
from .._core._progress import Progress
from .._core._report import SaveReport
from .._errors import InvalidArgumentError
from .._jobs import _job
from .._jobs._job import Job
from .._save._save import save_as
from .._save._writing import Writing
from ..layouts import Layout, Safetensors, chosen
from ._decode import RECORD, record_text
from ._encode import Encoded, encode

FORMAT = "pt"


@keywords
def save(
    path: StrPath,
    obj: Any,
    *,
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
    """Saves an object of a training script at `path`: the whole object or nothing, synced to disk,
    without pickle.

    `load` returns equal types and values, bit for bit: dicts (also ordered dicts and defaultdicts
    of built-in types, with any keys), lists, tuples, sets, numbers, text, bytes, `None`, NumPy
    arrays and scalars, `torch.Size`, dtypes, devices, and tensors with their strides, devices and
    ``requires_grad``. A named tuple becomes a named tuple with the same name and fields. Tensors
    that share memory are written once, and share memory again after a load.

    In an initialised job of `torch.distributed` all processes call it. Each process writes its part
    of a `DTensor`. All other values are taken from process 0.

    Args:
        path: The folder or file to create, or its URL.
        obj: The object, usually a dict of state dicts. With
            ``layout=regrow.layouts.Safetensors(max_shard_bytes="5GB")`` the files have the form of
            the Hugging Face hub.
        layout: As for `regrow.save`.
        overwrite: As for `regrow.save`.
        cast: As for `regrow.save`.
        lossy: As for `regrow.save`.
        compression: As for `regrow.save`.
        metadata: Your own metadata, a dict. For a safetensors file the values are text.
        base: As for `regrow.save`.
        durable: As for `regrow.save`.
        parity: As for `regrow.save`.
        seal: As for `regrow.save`.
        storage_options: As for `regrow.save`.
        progress: As for `regrow.save`.
        job: As for `regrow.save`.
        options: Rare settings.

    Raises:
        LeafTypeError: for a value that cannot be written without pickle, with its key path and an
            alternative.
        RegrowError: as `regrow.save`.
    """
    writing = Writing(
        layout=layout, overwrite=overwrite, cast=cast, lossy=lossy, compression=compression, metadata=metadata,
        base=base, durable=durable, parity=parity, seal=seal, storage_options=storage_options, job=job, options=options,
    )  # fmt: skip
    encoded, writing = prepared(path, obj, writing)
    return save_as(path, encoded.tree, writing, progress)


def prepared(path: StrPath, obj: Any, writing: Writing) -> tuple[Encoded, Writing]:
    """Returns the objects to save and the options. If this process cannot prepare them, the other
    processes of the job get its error.
    """
    with _job.posts_errors(writing.asked_job(), path):
        encoded = encode(obj)
        return encoded, with_record(writing.laid_out(place("path", path, writing.storage_options)), encoded)


def with_record(writing: Writing, encoded: Encoded, **more: str) -> Writing:
    """Returns the save with the record in the metadata."""
    metadata = writing.metadata
    if metadata is not None and not isinstance(metadata, dict):
        raise InvalidArgumentError(f"metadata is {type(metadata).__qualname__}\n  expected a dict, or None")
    told = {**(metadata or {}), **more, RECORD: record_text(encoded.record)}
    layout = chosen(writing.layout or "regrow")
    if isinstance(layout, Safetensors) and not layout.structure:
        # A file without a pytree has no record, so add the format.
        told = {"format": FORMAT, **told}
    return writing.replaced(metadata=told)

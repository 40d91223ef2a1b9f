"""Saving what a training script has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, Unpack

from .. import _job, _native
from .._errors import InvalidArgumentError
from .._keywords import SAVE, SaveOptions
from .._location import StrPath, place
from .._progress import Progress
from .._report import SaveReport
from .._save import save as save_tree
from ._decode import RECORD, record_text
from ._encode import Encoded, encode

T = TypeVar("T")

FORMAT: Literal["pt"] = "pt"


@SAVE.documented
def save(path: StrPath, obj: Any, *, progress: Progress = None, **options: Unpack[SaveOptions]) -> SaveReport:
    """Saves an object of a training script at `path`: all of it or nothing, synced to disk, without pickle.

    What `load` gives is equal in types and values, bit for bit: dicts (also ordered ones and defaultdicts of built-in
    types, with any keys), lists, tuples, sets, numbers, text, bytes, `None`, NumPy arrays and scalars,
    `torch.Size`, dtypes, devices, and tensors with their strides, devices and ``requires_grad``. A named tuple comes
    back as one of the same name and fields. Tensors that lie in each other's memory are written once, and tied again.

    In an initialised job of `torch.distributed` all processes call it: of a `DTensor` each writes its part, all the
    rest is what process 0 has.

    Args:
        path: The folder or file to make, or its URL.
        obj: The object: a dict of state dicts, mostly.
        progress: As for `regrow.save`.
        **options: The keywords of `SaveOptions`. With ``layout="safetensors"`` and ``max_shard_size="5GB"`` the files
            are those of the Hugging Face hub. A `metadata` is a dict; of a safetensors file, of text.

    Raises:
        LeafTypeError: for what cannot be written without pickle, with its key path, and what to save instead.
        RegrowError: as `regrow.save`.
    """
    encoded = checked("save", path, ["progress"], options, lambda: encode(obj))
    return save_tree(path, encoded.tree, progress=progress, **with_record(laid_out(options, path), encoded))


def checked(name: str, path: StrPath, own: list[str], options: SaveOptions, make: Callable[[], T]) -> T:
    """What is to be saved; where this process cannot make it, the others of the job are told."""
    with _job.posts_errors(options.get("job"), path):
        SAVE.chosen(name, options, own)
        return make()


def laid_out(options: SaveOptions, path: StrPath) -> SaveOptions:
    """The keywords of a save, with the layout that the suffix of its path chooses where none is named."""
    at = place("path", path, options.get("storage_options"))
    layout = options.get("layout") or _native.layout_for(at)
    return {**options, "layout": layout}


def with_record(options: SaveOptions, encoded: Encoded, **more: str) -> SaveOptions:
    """The keywords of the save, with the record in the metadata."""
    metadata = options.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise InvalidArgumentError(f"metadata is {type(metadata).__qualname__}\n  expected a dict, or None")
    layout = options.get("layout") or "regrow"
    told = {**(metadata or {}), **more, RECORD: record_text(encoded.record)}
    made: SaveOptions = {**options}
    if layout == "safetensors":
        # A file without a pytree says nothing of itself.
        told = told if options.get("structure", True) else {"format": FORMAT, **told}
    made["metadata"] = told
    return made

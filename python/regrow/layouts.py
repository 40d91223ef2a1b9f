"""The layouts that regrow writes, each with its own options.

    regrow.save(path, tree, layout=regrow.layouts.Orbax(zarr3=True))
    shards = regrow.layouts.Safetensors(max_shard_bytes="5GB")
    regrow.save("model", tree, layout=shards)

A plain name, such as ``layout="orbax"``, means the layout with its defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ._save import _layout
from ._save._layout import Layout as Layout

__all__ = ["Equinox", "Flax", "Layout", "Npy", "Orbax", "PytreeData", "Regrow", "Safetensors", "Trak"]


@dataclass(frozen=True, kw_only=True)
class Regrow(Layout):
    """The default layout: an Orbax checkpoint and safetensors files that share the same bytes."""

    name: ClassVar[str] = "regrow"
    chunk_byte_size: int | None = None
    """Divide arrays, or their shards, into chunks of at most this many bytes."""
    shard_axes: Sequence[int] = ()
    """Divide these axes first, down to one element."""
    write_chunk_shape: Sequence[int] | None = None
    """The shape of a chunk. It must divide the shape of each array, or of its shards."""
    per_leaf: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Chunking of some leaves: ``{"embed/**": {"chunk_byte_size": 2**20}}``; the first glob that
    matches decides.
    """
    format: Literal["np", "pt", "tf", "flax", "mlx"] = "pt"
    """The ``format`` of the safetensors files. transformers before version 5 reads only ``"pt"``.
    """
    strict: bool = False
    """Refuse leaves that Orbax cannot read back as they are, instead of escaping them."""


@dataclass(frozen=True, kw_only=True)
class Orbax(Layout):
    """The forms that Orbax itself writes, with Orbax' options."""

    name: ClassVar[str] = "orbax"
    ocdbt: bool = True
    """One database, instead of a folder for each array."""
    zarr3: bool = False
    """zarr v3, instead of v2."""
    chunk_byte_size: int | None = None
    """Divide arrays into chunks of at most this many bytes."""
    shard_axes: Sequence[int] = ()
    """Divide these axes first, with ``chunk_byte_size``."""
    write_chunk_shape: Sequence[int] | None = None
    """The shape of an outer chunk (in zarr v3 of a shard). It must divide the shape of each array.
    """
    read_chunk_shape: Sequence[int] | None = None
    """The shape of an inner chunk (zarr v3 only). It must divide the shape of the outer chunk."""
    ocdbt_target_data_file_size: int | None = None
    """Begin a new data file when a file has this many bytes; 2 GiB if `None`."""
    rich_types: bool = False
    """Keep tuples and named tuples in ``_METADATA``."""
    write_sharding: bool = True
    """Write ``_sharding``."""
    write_array_metadatas: bool = True
    """Write ``array_metadatas``."""
    v1: bool = False
    """The folder of Orbax' v1 API."""
    per_leaf: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Chunking of some leaves: ``{"embed/**": {"chunk_byte_size": 2**20}}``; the first glob that
    matches decides.
    """
    value_types: Mapping[str, str] = field(default_factory=dict)
    """The types that ``_METADATA`` records for some leaves, by their stored names: ``{"a.b":
    "acme.Cfg"}``. For type handlers of your own, which write the data of a leaf ``...`` into files
    beside the tree."""


@dataclass(frozen=True, kw_only=True)
class Flax(Layout):
    """Flax' msgpack."""

    name: ClassVar[str] = "flax"
    sort_keys: bool | None = None
    """Sort the entries of every dict, as ``msgpack_serialize`` does."""
    integer_keys: bool | None = None
    """Keep integer keys as integers, as ``msgpack_serialize`` does; otherwise they become text."""
    max_chunk_bytes: int | None = None
    """Cut longer arrays into chunks of at most this many bytes; 1 GiB if `None`."""


@dataclass(frozen=True, kw_only=True)
class Equinox(Layout):
    """Equinox' leaf file."""

    name: ClassVar[str] = "equinox"
    hyperparameters: Any = None
    """One line of JSON before the leaves."""
    trailer: bool | None = None
    """Write the exact pytree and checksums after the leaves, where Equinox does not read; on by
    default.
    """
    strict: bool | None = None
    """Write exactly the bytes of Equinox, without the names of ml_dtypes' dtypes."""
    prng_keys: bool | None = None
    """Write typed PRNG keys as their key data; Equinox itself refuses them."""


@dataclass(frozen=True, kw_only=True)
class PytreeData(Layout):
    """A data file and its manifest."""

    name: ClassVar[str] = "pytree_data"
    byte_align: int | None = None
    """Every array begins at a multiple of this many bytes; 8 if `None`."""
    native_dtypes: bool | None = None
    """Keep bfloat16, float8 and similar dtypes, which the original cannot read."""
    extra_keys: bool | None = None
    """Keep checksums and the exact pytree in keys that the original ignores; on by default."""
    manifest: bool | None = None
    """Write the manifest; on by default."""
    data_suffix: str | None = None
    """The end of the name of the data file; ``".data"``."""
    manifest_suffix: str | None = None
    """The end of the name of the manifest; ``".manifest"``."""
    paths: Sequence[str] | None = None
    """The path of each leaf, as the text of a Python tuple, in the order of the leaves."""
    empty: Sequence[str] | None = None
    """With `paths`: the paths of empty dicts."""


@dataclass(frozen=True, kw_only=True)
class Trak(Layout):
    """A TRAK result store."""

    name: ClassVar[str] = "trak"


@dataclass(frozen=True, kw_only=True)
class Safetensors(Layout):
    """Plain safetensors: one file, or a folder of files with an index."""

    name: ClassVar[str] = "safetensors"
    max_shard_bytes: int | str | None = None
    """Begin a new file when a file has this many bytes: ``"5GB"``, or a number. Makes a folder."""
    format: str | None = None
    """The ``format`` in the metadata; ``"pt"`` if `None`. transformers before version 5 reads only
    ``"pt"``.
    """
    separator: str = "."
    """The separator between the keys of a path in a name."""
    structure: bool = True
    """Keep the exact pytree in the metadata. Without it only tensors can be saved."""
    align: int | None = None
    """The data begins at a multiple of this many bytes, a power of two from 8 on; 8 if `None`."""
    one_file: bool = False
    """Write one file, for any suffix of its name."""


@dataclass(frozen=True, kw_only=True)
class Npy(Layout):
    """NumPy's files: ``.npy``, ``.npz``, or a folder of ``.npy``."""

    name: ClassVar[str] = "npy"
    form: Literal["npy", "npz", "folder"] | None = None
    """The kind of file; the path's suffix decides if `None`."""
    compress: bool | int | None = None
    """Deflate the arrays of an archive: `True`, or a level from 1 to 9."""
    separator: str = "/"
    """The separator between the keys of a path in the names of an archive."""
    named_dtypes: bool = True
    """Write the dtypes of ml_dtypes by their names."""
    structure: bool = True
    """Keep the exact pytree beside the arrays."""


_ALL: dict[str, type[Layout]] = {each.name: each for each in Layout.__subclasses__()}


def chosen(layout: Any) -> Layout:
    """A layout with its options, from the caller's argument.

    Raises:
        InvalidArgumentError: for a name that no layout has, with the names of all.
    """
    return layout if isinstance(layout, Layout) else _ALL[_layout.chosen(layout)[0]]()


def of_options(name: str, options: Mapping[str, Any]) -> Layout:
    """A layout by its name and its options as JSON. Files of rules and the command give layouts in
    this form.
    """
    given = dict(options)
    if isinstance(given.get("per_leaf"), list):
        given["per_leaf"] = dict(given["per_leaf"])
    return type(chosen(name))(**given)

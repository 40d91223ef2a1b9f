"""The keywords that several functions share: their types, what they mean and their defaults, each said once.

A function takes them as ``**options: Unpack[SaveOptions]`` (PEP 692). Type checkers look into that; `help` and
`inspect.signature` do not. `Keywords.documented` does it for them: it puts the keywords into the signature and the
annotations, and what their `TypedDict` says of them into the docstring. `Keywords.chosen` adds the defaults, and
refuses keywords that are not known.

    LayoutOptions ── WriteOptions ──┬── SaveOptions       save, save_async, AsyncSaver.save
                                    └── ConvertOptions    convert
                                        LoadOptions       load, Checkpoint.load

What only one function takes stands in that function.
"""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_type_hints

from ._errors import InvalidArgumentError
from ._executors import Executor
from ._handlers import LeafRegistry
from ._job import Job
from ._location import StrPath
from ._options import OrbaxOptions
from ._progress import Progress
from ._report import LoadReport
from ._single_replica import SingleReplica


class LayoutOptions(TypedDict, total=False):
    """The options of the layouts: each belongs to one or two of them.

    Of ``layout="orbax"`` they are the fields of `OrbaxOptions`.

    Keys:
        chunk_byte_size: regrow, orbax. Cut the chunks of arrays, or of their shards, down to at most this many bytes.
        shard_axes: regrow, orbax. Cut these axes first, down to one element.
        write_chunk_shape: regrow, orbax. The chunk; must divide each array's shape, or that of its shards.
        per_leaf: regrow, orbax. Chunking of some leaves: ``{"embed/**": {"chunk_byte_size": 2**20}}``.
        data_format: regrow. Whose tensors the data files say they hold, in the metadata of safetensors: ``"np"``,
            ``"pt"`` (the default: transformers before 5 reads no file without), ``"tf"``, ``"flax"``, ``"mlx"``.
        sort_keys: flax. Sort the entries of every dict, as ``msgpack_serialize`` does.
        integer_keys: flax. Keep integer keys as integers, as ``msgpack_serialize`` does; otherwise they become text.
        max_chunk_size: flax. Longer arrays are cut into chunks of at most this many bytes.
        hyperparameters: equinox. One line of JSON in front of the leaves.
        trailer: equinox. Keep the exact pytree and checksums behind the leaves, where Equinox does not look; `True`.
        strict_upstream: equinox. Exactly the bytes of Equinox, which lose the names of the dtypes of ml_dtypes.
        prng_keys: equinox. Write typed PRNG keys as their key data; Equinox itself refuses them.
        byte_align: pytree_data. Every array begins at a multiple of this many bytes; 8.
        native_dtypes: pytree_data. Keep bfloat16, float8 and their like, which the original cannot read.
        extra_keys: pytree_data. Keep checksums and the exact pytree in keys that the original ignores; `True`.
        manifest: pytree_data. Write the manifest; `True`.
        data_suffix: pytree_data. What the name of the data file ends in; ``".data"``.
        manifest_suffix: pytree_data. What the name of the manifest ends in; ``".manifest"``.
        paths: pytree_data. The path of each leaf, as the text of a Python tuple, in the order of the leaves.
        empty: pytree_data. With `paths`: those of empty dicts.
        separator: safetensors, npy. What joins the keys of a path to a name; ``"."`` and ``"/"``.
        structure: safetensors, npy. Keep the exact pytree beside the arrays; `True`.
        align: safetensors. The data begins at a multiple of this many bytes, a power of two from 8 on; 8.
        max_shard_size: safetensors. Begin another file once one holds this many bytes: ``"5GB"``, or a number.
        one_file: safetensors. Write one file, whatever its name ends in.
        form: npy. ``"npy"``, ``"npz"`` or ``"folder"``; what the path's suffix says if not given.
        compress: npy. Deflate the arrays of an archive: `True`, or a level from 1 to 9.
        named_dtypes: npy. Write the dtypes of ml_dtypes by their names; `True`.
    """

    use_ocdbt: bool
    use_zarr3: bool
    chunk_byte_size: int | None
    shard_axes: Sequence[int]
    write_chunk_shape: Sequence[int] | None
    read_chunk_shape: Sequence[int] | None
    ocdbt_target_data_file_size: int | None
    rich_types: bool
    write_sharding: bool
    write_array_metadatas: bool
    v1: bool
    per_leaf: Mapping[str, Mapping[str, Any]]
    value_types: Mapping[str, str]
    data_format: Literal["np", "pt", "tf", "flax", "mlx"]

    sort_keys: bool
    integer_keys: bool
    max_chunk_size: int

    hyperparameters: Any
    trailer: bool
    strict_upstream: bool
    prng_keys: bool

    byte_align: int
    native_dtypes: bool
    extra_keys: bool
    manifest: bool
    data_suffix: str
    manifest_suffix: str
    paths: Sequence[str] | None
    empty: Sequence[str]

    separator: str
    structure: bool
    align: int
    max_shard_size: int | str | None
    one_file: bool

    form: Literal["npy", "npz", "folder"] | None
    compress: bool | int | None
    named_dtypes: bool


class WriteOptions(LayoutOptions, total=False):
    """What saves and conversions have in common.

    Keys:
        layout: `None`: the suffix of the path chooses one file (``.safetensors``, ``.npz``, ``.npy``, ``.msgpack``,
            ``.eqx``), any other path is a folder in the default layout. ``"regrow"``: that default, an Orbax
            checkpoint and safetensors files in one set of bytes; or the layout of another
            tool: ``"orbax"``, ``"flax"``, ``"equinox"``, ``"pytree_data"``, ``"trak"``, ``"safetensors"``, ``"npy"``.
        overwrite: Replace a checkpoint that is there; a folder or file that is none is refused, and so is a checkpoint
            with files of your own beside it.
        durable: Sync to disk before returning. Without it a power cut may cost the checkpoint.
        cast: A dtype, or a dict of globs over key paths: ``{"params/**": "bfloat16"}``. A floating dtype is for
            floating arrays only, an integer for integers, and so on; the whole key path of one array casts it whatever
            it is: ``{"step": "float32"}``. A value that would change beyond rounding is an error.
        compression: ``"none"``, ``"zstd"``, ``("zstd", level)`` or a zstd level; the layout's default if `None`.
        metadata: Your own metadata: anything that JSON can say.
        base: An earlier checkpoint, mostly the last one: data files in which nothing changed since are hard-linked
            instead of written. What changed is found by comparing bytes or digests. Only for ``layout="regrow"``
            without compression. The base may be removed afterwards.
        trust_base: With ``base=``: link files without reading them. Otherwise their blocks are checked first, while the
            leaves are hashed, and what is damaged is written anew; the report's notes say so.
        seal: Put a seal beside the checkpoint, as `regrow.seal` does. The layout regrow has its checksums without one;
            of a checkpoint of items all files are sealed.
        parity: Put parity beside the checkpoint, as `regrow.add_parity` does: ``"1/16"`` for a sixteenth of its size,
            by which `regrow.repair` heals as much.
        orbax: Options of ``layout="orbax"``; each can be given as a keyword of its own instead.
        storage_options: How to reach the storage of URLs, by the names of fsspec or of the cloud:
            ``{"endpoint_url": ..., "key": ..., "secret": ...}``. A `Location` has its own. What is left out comes from
            the environment.
    """

    layout: str | None
    overwrite: bool
    durable: bool
    cast: Any
    compression: Any
    metadata: Any
    base: StrPath | None
    trust_base: bool
    seal: bool
    parity: str | None
    orbax: OrbaxOptions | None
    storage_options: Mapping[str, Any] | None


class SaveOptions(WriteOptions, total=False):
    """The keywords of `save`, `save_async` and `AsyncSaver.save`; ``help(regrow.save)`` has those of the bases too.

    Keys:
        lossy: Save also leaves that the tool of the layout does not read back as they are; the report lists them. Let
            casts change values beyond rounding, as NumPy's ``astype`` does: overflow to infinity, integers that wrap
            around.
        strict_orbax: Refuse leaves that Orbax could not read back as they are, instead of escaping them.
        budget: Extra memory in bytes; 64 MiB if `None`.
        handlers: Who is in charge of leaves of your own types.
        job: The processes that save together: in an initialised job of JAX, torch or MPI all of its processes if
            `None`. Each calls the save with the same tree, and writes the shards that it holds.
            ``regrow.Job.alone()``: this process alone.
        replica_parallel: Of an array with replicas on several devices, each replica writes a slice, instead of the
            first one all: more processes write, and chunks are smaller.
    """

    lossy: bool
    strict_orbax: bool
    budget: int | None
    handlers: LeafRegistry | None
    job: Job | None
    replica_parallel: bool


class ConvertOptions(WriteOptions, total=False):
    """The keywords of `convert`, without `dry_run`; ``help(regrow.convert)`` has those of the bases too.

    Keys:
        only: A glob or globs over the key paths of the source; others are left out, `None` and empty containers too.
        rename: Regular expressions over whole key paths, and what takes their place (``$1`` is what the first group
            has matched); the first that matches a leaf decides. ``{"params/(.*)/kernel": "$1/weight"}``.
        transpose: Globs, and the new order of axes: ``{"**/kernel": (1, 0)}``.
        reshape: Globs, and the new shape, after the transpose; one extent may be -1.
        lossy: Convert also what the target cannot hold as it is, and values that a cast changes beyond rounding; the
            report lists both.
        salvage: Convert what is intact in a damaged source, all of which is verified first. Lost leaves become
            placeholders, or stay behind where the target cannot hold such; the report's `damage` lists them.
        rules: A TOML file of rules: ``layout``, ``options`` of it, ``only``, ``lossy``, and tables ``[[rename]]``,
            ``[[cast]]``, ``[[transpose]]``, ``[[reshape]]``. Keywords come before what it says.
        metadata: The new checkpoint's own metadata; the source's, if the layout has a place for it, if `None`.
        base: An earlier checkpoint, as for `save`: data files in which nothing changed since are hard-linked instead of
            written. What is compared is read twice, unless its file is linked.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint of several.
        strict: Refuse a source that has lost files, also if it can still be read; otherwise `losses` has a note of it.
        bare: Convert the arrays of `source` alone, as `load` gives them.
        progress: As for `save`.
        executor: Who does the work, in processes of its own: an executor of `concurrent.futures`, a Dask client, or
            `ray_executor()`. Each call that it makes opens the source and writes some of the leaves; all see the same
            paths. Options of storages go with the calls. Only to the layout regrow, without compression.
        workers: How many shares an executor gets, about as many bytes each; as many as it has workers if `None`.
    """

    only: str | Iterable[str] | None
    rename: Mapping[str, str] | None
    transpose: Mapping[str, Sequence[int]] | None
    reshape: Mapping[str, Sequence[int]] | None
    lossy: bool
    salvage: bool
    rules: StrPath | None
    step: int | None
    item: str | None
    strict: bool
    bare: bool
    progress: Progress
    executor: Executor | None
    workers: int | None


class LoadOptions(TypedDict, total=False):
    """The keywords of `load` and `Checkpoint.load`.

    Keys:
        only: Globs over key paths: ``"params/**"``. Others vanish from dicts and become ``...`` in sequences; with
            `like` they stay as they are there. A glob that matches nothing is an error.
        cast: A dtype, or a dict of globs over key paths, as for `save`. A value that would change beyond rounding is an
            error.
        lossy: Let casts change values beyond rounding, as NumPy's ``astype`` does: overflow to infinity, integers that
            wrap around.
        partial: With `like`: leave out what it lacks, instead of an error. Without: ``...`` for leaves that were saved
            as placeholders, without data, instead of an error.
        out: A pytree of writable NumPy arrays, or of tensors of PyTorch, to be filled; it is also what is returned.
            Contiguous ones are read into as they are and checked on the way: after an error their contents are
            unspecified. Beside tensors there may be numbers and text: these are in the tree that is returned, which is
            another one then, with the same tensors.
        verify: Check data against checksums before handing it out.
        mmap: Make views of the file of all that is stored raw, also where the page cache does not have it yet: slower
            to begin with, and memory that the system can take back. Also of files that other programs write in place
            (npy, npz, safetensors, eqx, msgpack, data): when one of them does, views change with the file, and where
            it has become shorter, reading them ends the program with SIGBUS.
        shardings: Make JAX arrays: one sharding for all, a dict of globs over key paths, or a tree of them. The first
            glob that matches a leaf decides, and each has to match one; with `like` it goes before the sharding there.
            Each process of a job reads what its own devices hold. Without `like` the other leaves are NumPy's.
        region: Parts of arrays, as NumPy has them: a dict of globs with a tuple of slices for each, or a function
            ``(key path, shape) -> slices``, `None` for the whole leaf. Only these parts are read.
        pad_or_truncate: Take arrays of `like` that have another shape than the saved ones, and regions that reach
            beyond them: zeros at the ends of the axes, or what lies there left out. Otherwise an error.
        budget: Extra memory beyond the result, in bytes; 64 MiB if `None`.
        handlers: Who restores leaves of your own types; without, they come back as what they are made of.
        progress: As for `save`.
        single_replica: In a job of several processes of JAX: one replica reads what all replicas hold alike, the others
            receive it. All processes call the load with the same arguments.
        turns: The processes of one host read one after the other, so that their extra memory is needed once. All
            processes of the job call the load, and return when all are done.
        job: Who restores together, with `single_replica` or `turns`, as for `save`. Otherwise nobody is waited for.
        report: Is called with a `LoadReport` when all is loaded: ``report=print``.
    """

    only: str | Iterable[str] | None
    cast: Any
    lossy: bool
    partial: bool
    out: Any
    verify: bool
    mmap: bool
    shardings: Any
    region: Any
    pad_or_truncate: bool
    budget: int | None
    handlers: LeafRegistry | None
    progress: Progress
    single_replica: SingleReplica | None
    turns: bool
    job: Job | None
    report: Callable[[LoadReport], object] | None


_WRITE_DEFAULTS: WriteOptions = {
    "layout": None,
    "overwrite": False,
    "durable": True,
    "cast": None,
    "compression": None,
    "metadata": None,
    "base": None,
    "trust_base": False,
    "seal": False,
    "parity": None,
    "orbax": None,
    "storage_options": None,
}
_SAVE_DEFAULTS: SaveOptions = {
    **_WRITE_DEFAULTS,
    "lossy": False,
    "strict_orbax": False,
    "budget": None,
    "handlers": None,
    "job": None,
    "replica_parallel": False,
}
_CONVERT_DEFAULTS: ConvertOptions = {
    **_WRITE_DEFAULTS,
    "only": None,
    "rename": None,
    "transpose": None,
    "reshape": None,
    "lossy": False,
    "salvage": False,
    "rules": None,
    "step": None,
    "item": None,
    "strict": False,
    "bare": False,
    "progress": None,
    "executor": None,
    "workers": None,
}
_LOAD_DEFAULTS: LoadOptions = {
    "only": None,
    "cast": None,
    "lossy": False,
    "partial": False,
    "out": None,
    "verify": True,
    "mmap": False,
    "shardings": None,
    "region": None,
    "pad_or_truncate": False,
    "budget": None,
    "handlers": None,
    "progress": None,
    "single_replica": None,
    "turns": False,
    "job": None,
    "report": None,
}

Function = TypeVar("Function", bound=Callable[..., Any])


class UnknownKeywordError(InvalidArgumentError, TypeError):
    """A function was given a keyword that it does not take. Also a `TypeError`, as Python itself raises."""


class Keywords:
    """The keywords that a few functions share: a `TypedDict`, and the defaults of all but the options of layouts."""

    def __init__(self, kind: Any, defaults: Mapping[str, Any], *documents: Any) -> None:
        """Of a `TypedDict`; `documents` are those that say what its keys mean, the last word last."""
        self.kind = kind
        self.names = tuple(kind.__annotations__)
        self.defaults = dict(defaults)
        self._documents = documents

    def chosen(self, function: str, options: Mapping[str, Any], own: Iterable[str] = ()) -> dict[str, Any]:
        """What a caller of `function` has given, and the defaults. `own` are keywords of that function alone.

        Raises:
            UnknownKeywordError: for a keyword that the function does not take, in Python's own words, with the nearest.
        """
        for name in options:
            if name not in self.names:
                near = difflib.get_close_matches(name, [*own, *self.names], n=1)
                hint = f". Did you mean {near[0]!r}?" if near else ""
                raise UnknownKeywordError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
        return {**self.defaults, **options}

    def documented(self, function: Function) -> Function:
        """Shows the keywords in signature, annotations and docstring of a function that has ``**options``."""
        hints = get_type_hints(function)
        types = get_type_hints(self.kind)
        has_layouts = len(self.names) > len(self.defaults)
        parameters = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                annotation = hints.get(parameter.name, parameter.empty)
                parameters.append(parameter.replace(annotation=annotation))
        for name, default in self.defaults.items():
            keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
            parameters.append(keyword)
        annotations = {each.name: each.annotation for each in parameters if each.annotation is not each.empty}
        if has_layouts:
            # Where people look, its annotation would say less than its name.
            parameters.append(inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD))
            annotations["options"] = Unpack[LayoutOptions]
        function.__annotations__ = annotations | {"return": hints["return"]}
        signature = inspect.Signature(parameters, return_annotation=hints["return"])
        function.__signature__ = signature  # type: ignore[attr-defined]
        if function.__doc__ is not None:
            function.__doc__ = _put_in(inspect.cleandoc(function.__doc__), self._help(has_layouts))
        return function

    def _help(self, has_layouts: bool) -> str:
        """What the keywords mean, as the lines of a docstring."""
        said: dict[str, str] = {}
        for document in self._documents:
            said |= documentation(document)
        text = "\n".join(said[name] for name in self.defaults)
        if has_layouts:
            intro, _, keys = inspect.cleandoc(LayoutOptions.__doc__ or "").partition("\n\nKeys:\n")
            about = " ".join(intro.split())
            text += "\n**options: " + textwrap.fill(about, 100, subsequent_indent="    ")
            text += "\n\n" + keys
        return textwrap.indent(text, "    ")


def documentation(kind: Any) -> dict[str, str]:
    """What the docstring of a `TypedDict` says of each of its keys, as the lines of an argument's documentation."""
    _, _, keys = inspect.cleandoc(kind.__doc__ or "").partition("\nKeys:\n")
    entries = re.split(r"^(?=\w+: )", textwrap.dedent(keys), flags=re.MULTILINE)
    return {entry.partition(":")[0]: entry.rstrip() for entry in entries if entry}


def _put_in(doc: str, help: str) -> str:
    """A docstring with `help` where it says ``**options``."""
    before, line, after = doc.partition("    **options: ")
    return before + help + "\n" + after.partition("\n")[2] if line else doc


SAVE = Keywords(SaveOptions, _SAVE_DEFAULTS, WriteOptions, SaveOptions)
CONVERT = Keywords(ConvertOptions, _CONVERT_DEFAULTS, WriteOptions, ConvertOptions)
LOAD = Keywords(LoadOptions, _LOAD_DEFAULTS, LoadOptions)

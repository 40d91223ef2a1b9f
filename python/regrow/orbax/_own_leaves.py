"""Leaves of types with a handler of the caller, in saves and restores.

    save      tree ── each handler, with all its leaves ──┬── files in a folder that the save lends
                                                          └── arrays for the engine's tree
    restore   value types ── each handler, with all its leaves ──┬── files
                                                                 └── arrays from the engine

In the engine's tree a placeholder stands for a leaf that its handler writes. ``_METADATA`` has the
handler's name for that leaf.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._core._duck import has
from .._errors import failure
from . import _interfaces, _leaf_args
from ._errors import StructureError
from ._jax import jax
from ._paths import as_path, read_json
from .tree import KeyPath, flatten_with_path, is_empty_node, tuple_path_from_keypath
from .type_handlers import GLOBAL_TYPE_HANDLER_REGISTRY, ParamInfo, is_standard, knows_all


class _Group:
    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.leaves: list[Any] = []
        self.infos: list[ParamInfo] = []
        self.args: list[Any] = []


class _Groups(dict[int, _Group]):
    """The leaves of each handler, in the order of their first leaves."""

    def of(self, handler: Any) -> _Group:
        return self.setdefault(id(handler), _Group(handler))

    def run(self, calls: Callable[[_Group], Any]) -> list[Any]:
        """Calls all handlers at once, in one event loop, and returns their results."""

        async def all_of_them() -> list[Any]:
            return list(await asyncio.gather(*map(calls, self.values())))

        found: list[Any] = _interfaces.run(all_of_them())
        return found


class OwnSave:
    """The leaves of one pytree that the engine does not save unchanged."""

    def __init__(self, tree: Any, save_args: Any, registry: Any) -> None:
        flat, self._structure = flatten_with_path(tree)
        self._leaves = [leaf for _, leaf in flat]
        self._names = [".".join(tuple_path_from_keypath(keys)) for keys, _ in flat]
        self._kept: dict[str, Any] = {}
        self._groups = _Groups()
        own_args = _leaf_args.by_path(save_args, _leaf_args.is_save_args)
        handlers: dict[type[Any], Any] = {}
        for at, (keys, leaf) in enumerate(flat):
            if is_empty_node(leaf):
                continue
            kind = type(leaf)
            if kind not in handlers:
                handlers[kind] = _handler_of(registry, kind, keys)
            if handlers[kind] is not None:
                group = self._groups.of(handlers[kind])
                group.leaves.append(at)
                group.infos.append(ParamInfo(name=self._names[at], parent_dir=None, keypath=keys, engine=self))
                group.args.append(own_args.get(tuple_path_from_keypath(keys), _leaf_args.SaveArgs()))

    def __bool__(self) -> bool:
        return bool(self._groups)

    def write(self, folder: Path, **about: Any) -> list[Any]:
        """Lets all handlers save their leaves. Returns futures of the remaining work."""
        parent = as_path(folder)
        for group in self._groups.values():
            kind = group.handler.typestr()
            group.infos = [
                info.replace(parent_dir=parent, path=parent / info.name, value_typestr=kind, **about)
                for info in group.infos
            ]
        found = self._groups.run(
            lambda group: group.handler.serialize([self._leaves[at] for at in group.leaves], group.infos, group.args)
        )
        return [future for futures in found for future in futures or ()]

    def finalize(self, folder: Path) -> None:
        """Tells the handlers that all files are written."""
        if jax.process_index() == 0:
            for group in self._groups.values():
                finalize = getattr(group.handler, "finalize", None)
                if finalize is not None:
                    finalize(as_path(folder))

    def keep(self, info: Any, value: Any, args: Any) -> None:
        """Takes a leaf from a handler, for the engine to save."""
        dtype = getattr(args, "dtype", None)
        self._kept[info.name] = value if dtype is None or isinstance(value, str) else _cast(value, dtype)

    def describe(self, info: Any) -> Any:
        """`None`: a leaf that is being saved has no metadata yet."""
        return None

    @property
    def tree(self) -> Any:
        """The tree that the engine saves, with placeholders for leaves in handlers' files."""
        leaves = list(self._leaves)
        for group in self._groups.values():
            for at in group.leaves:
                leaves[at] = self._kept.get(self._names[at], _leaf_args.PLACEHOLDER)
        return jax.tree_util.tree_unflatten(self._structure, leaves)

    @property
    def value_types(self) -> dict[str, str]:
        """The handlers' names for the types of their leaves, if the engine has other names."""
        types = {}
        for group in self._groups.values():
            own = group.handler.typestr()
            for at in group.leaves:
                name = self._names[at]
                if name not in self._kept or own != _type_name(self._kept[name]):
                    types[name] = own
        return types


def of_save(tree: Any, save_args: Any, registry: Any) -> OwnSave | None:
    """The leaves of a pytree that have handlers; `None` if the engine knows all leaves."""
    registry = GLOBAL_TYPE_HANDLER_REGISTRY if registry is None else registry
    if knows_all(registry):
        return None
    return OwnSave(tree, save_args, registry) or None


def _handler_of(registry: Any, kind: type[Any], keys: Any) -> Any:
    """The handler of a class; `None` if the engine saves that class."""
    if not registry.has(kind):
        if registry is GLOBAL_TYPE_HANDLER_REGISTRY:
            # The engine refuses unknown types with its own error.
            return None
        where = "/".join(tuple_path_from_keypath(keys))
        help = "add a handler of this type to the registry that was given"
        raise failure(ValueError, f"TypeHandler lookup failed for: type={kind}, leaf {where}", help=help)
    handler = registry.get(kind)
    return None if is_standard(handler) else handler


def _type_name(value: Any) -> str:
    if isinstance(value, str):
        return "string"
    if isinstance(value, jax.Array):
        return "jax.Array"
    return "np.ndarray" if isinstance(value, np.ndarray) else "scalar"


def _cast(value: Any, dtype: Any) -> Any:
    return value.astype(dtype) if has(value, "astype") else np.asarray(value).astype(dtype)[()]


Read = Callable[[Sequence[tuple[KeyPath, Any]]], list[Any]]
"""Restores leaves by their stored key paths, as the restore args of each ask."""


class OwnRestore:
    """The leaves of one restore that have handlers."""

    def __init__(self, path: Any, registry: Any, read: Read, describe: Callable[[KeyPath], Any]) -> None:
        self._folder = as_path(path)
        self._registry = registry
        self._read = read
        self._describe = describe
        document = read_json(self._folder / "_METADATA") or {}
        self._types = _value_types(document)
        self._is_ocdbt = bool(document.get("use_ocdbt", (self._folder / "manifest.ocdbt").exists()))
        self._use_zarr3 = bool(document.get("use_zarr3", False))
        self._groups = _Groups()
        self._sources: dict[str, KeyPath] = {}

    def takes(self, path: KeyPath, source: KeyPath, args: Any) -> bool:
        """Takes a leaf of the result, unless the engine restores it."""
        handler = self._handler_of(source, args)
        if handler is None:
            return False
        group = self._groups.of(handler)
        group.leaves.append(path)
        group.infos.append(self._info(source))
        group.args.append(_leaf_args.RestoreArgs() if args is None else args)
        return True

    def results(self) -> dict[KeyPath, Any]:
        found = self._groups.run(lambda group: group.handler.deserialize(group.infos, group.args))
        restored: dict[KeyPath, Any] = {}
        for group, values in zip(self._groups.values(), found, strict=True):
            restored |= zip(group.leaves, values, strict=True)
        return restored

    def metadata(self, source: KeyPath) -> Any:
        """The metadata of a leaf from its handler; `None` if the engine knows the leaf."""
        handler = self._handler_of(source, None)
        if handler is None:
            return None
        (found,) = _interfaces.run(handler.metadata([self._info(source)]))
        return found

    def _handler_of(self, source: KeyPath, args: Any) -> Any:
        wanted = getattr(args, "restore_type", None) or self._types.get(source)
        if wanted is None or not self._registry.has(wanted):
            return None
        handler = self._registry.get(wanted)
        return None if is_standard(handler) else handler

    def _info(self, source: KeyPath) -> ParamInfo:
        name = ".".join(source)
        self._sources[name] = source
        return ParamInfo(
            name=name,
            parent_dir=self._folder,
            value_typestr=self._types.get(source),
            is_ocdbt_checkpoint=self._is_ocdbt,
            use_zarr3=self._use_zarr3,
            engine=self,
        )

    def read(self, infos: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """For a handler: leaves as the engine restores them."""
        return self._read([(self._sources[info.name], arg) for info, arg in zip(infos, args, strict=True)])

    def describe(self, info: Any) -> Any:
        """For a handler: the engine's metadata of a leaf."""
        return self._describe(self._sources[info.name])


def unknown_leaf(path: KeyPath, kind: str) -> StructureError:
    where = "/".join(path)
    help = "register the TypeHandler that saved it, or leave it out: `partial_restore=True`, or `...` in its place"
    return failure(
        StructureError,
        f"TypeHandler lookup failed for: type={kind}: the form of the leaf is not known",
        leaf=where,
        help=help,
    )


def _value_types(document: Mapping[str, Any]) -> dict[KeyPath, str]:
    entries = document.get("tree_metadata")
    types = {}
    for entry in entries.values() if isinstance(entries, dict) else ():
        keys = tuple(str(key["key"]) for key in entry["key_metadata"])
        types[keys] = str(entry["value_metadata"]["value_type"])
    return types

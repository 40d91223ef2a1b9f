"""Makes imports of another library's modules return drop-in modules of regrow.

Other libraries that import the originals then get the drop-ins, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

from .._errors import failure


class _Ours(Loader):
    """Loads a module of this package in the place of another one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        # The import system has set its own spec on the module.
        module.__spec__ = self._spec


class _Places(MetaPathFinder):
    """Finds the replacement of a module."""

    def __init__(self, ours: Mapping[str, str]) -> None:
        self.ours = dict(ours)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = self.ours.get(name)
        if ours is None:
            return None
        is_package = any(other.startswith(f"{name}.") for other in self.ours)
        return ModuleSpec(name, _Ours(ours), is_package=is_package)


def install(ours: Mapping[str, str]) -> None:
    """From now on, imports of the originals by their names return modules of this package.

    Raises:
        RuntimeError: if the program has already imported one of the originals: modules that
            imported it would keep it.
    """
    first = next(iter(ours.values()))
    if any(isinstance(finder, _Places) and finder.ours.items() >= ours.items() for finder in sys.meta_path):
        return
    loaded = sys.modules
    present = [name for name, own in ours.items() if name in loaded and loaded[name] is not loaded.get(own)]
    if present:
        raise failure(
            RuntimeError,
            f"{present[0]} has been imported already",
            help=f"call {first}.install() before anything imports it",
        )
    # Insert the finder first: the search below may import a parent package, which may import an
    # original.
    sys.meta_path.insert(0, _Places(ours))
    for name in ours:
        _make_package(name.rpartition(".")[0])


def _make_package(name: str) -> None:
    """Makes an empty package, unless one can be imported."""
    if not name or name in sys.modules:
        return
    parent, _, last = name.rpartition(".")
    _make_package(parent)
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        made = sys.modules[name] = types.ModuleType(name)
        made.__path__ = []
        if parent:
            setattr(sys.modules[parent], last, made)

"""The folder that users' own models are imported from: a job's copy of its code, in place of what is installed."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from services.files.code_archive import RESERVED_NAMES


class OwnCodeFinder(MetaPathFinder):
    """Finder of the modules in one folder, before all others. It has no part in imports of other names.

    A module of a namespace package that is not in the folder is looked for where the package is installed.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names = {path.name.partition(".")[0] for path in folder.iterdir()} - RESERVED_NAMES

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a top-level module is loaded; None for what is not in the folder."""
        if path is not None or name not in self._names:
            return None
        return PathFinder.find_spec(name, [str(self.folder), *sys.path], target)

    def has(self, module: str) -> bool:
        """Return whether a module is one of the folder's, or a namespace package around one."""
        if module.partition(".")[0] not in self._names:
            return False
        place = self.folder.joinpath(*module.split("."))
        return place.is_dir() or any(place.parent.glob(f"{place.name}.*"))


def import_own_code_from(folder: Path | None) -> None:
    """Import own models from a folder from now on, and forget those of earlier jobs.

    Args:
        folder: copy of a job's code; None for none.
    """
    finders = [each for each in sys.meta_path if isinstance(each, OwnCodeFinder)]
    sys.meta_path[:] = [each for each in sys.meta_path if each not in finders]
    if folder is not None:
        finders.append(OwnCodeFinder(folder))
        sys.meta_path.insert(0, finders[-1])
    for name in list(sys.modules):
        if any(finder.has(name) for finder in finders):
            del sys.modules[name]
    importlib.invalidate_caches()
    linecache.checkcache()

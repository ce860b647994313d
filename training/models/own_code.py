"""The folder that a process imports a user's own model from: a job's copy of its code, before what is installed."""

from __future__ import annotations

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
        self._folder = folder
        self._names = {path.name.partition(".")[0] for path in folder.iterdir()} - RESERVED_NAMES

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a top-level module is loaded; None for what is not in the folder."""
        if path is not None or name not in self._names:
            return None
        return PathFinder.find_spec(name, [str(self._folder), *sys.path], target)


def import_own_code_from(folder: Path) -> None:
    """Import own models from a folder from now on.

    A process calls it once, before it builds: no process with own code gets another job.

    Args:
        folder: copy of the job's code.
    """
    sys.meta_path.insert(0, OwnCodeFinder(folder))

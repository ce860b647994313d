"""Folder of what can be made again: converted files of ids, and sidecars of files in folders that are read-only."""

from __future__ import annotations

import os
from pathlib import Path

from services.errors import Refused
from services.printable import printable_path

VARIABLE = "TIERMESH_CACHE"
"""Environment variable that names the folder."""


def cache_folder(name: str) -> Path:
    """Return a folder of the cache, which may not exist yet: of `TIERMESH_CACHE`, else of `~/.cache/tiermesh`.

    Args:
        name: name of the folder.

    Raises:
        Refused: this user has no home.
    """
    named, of_user = os.environ.get(VARIABLE), os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named) / name
    try:
        return (Path(of_user) if of_user else Path.home() / ".cache") / "tiermesh" / name
    except RuntimeError:
        raise Refused(
            f"{VARIABLE}: not set, and this user has no home; set it to a folder that can be written to"
        ) from None


def make_cache_folder(name: str) -> Path:
    """Create a folder of the cache, if it is missing, and return it.

    Raises:
        Refused: it can't be created.
    """
    folder = cache_folder(name)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Refused(
            f"{VARIABLE}: {printable_path(folder)} can't be created ({error.strerror}); set {VARIABLE} to a folder "
            "that can be written to"
        ) from None
    return folder

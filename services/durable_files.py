"""Files and folders that survive power loss."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Synchronise a folder's list of names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file, completely or not at all; it survives power loss once this returns.

    One process at a time may write a path, so the temporary file of a killed one is overwritten.

    Raises:
        OSError: the file can't be written; an earlier one of this name is unchanged.
    """
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)

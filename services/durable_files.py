"""Files and folders that survive power loss."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PRIVATE_MODE = 0o600
"""Mode of a file that only its owner can read."""
_USUAL_MODE = 0o666
"""Mode of other files, before the umask."""


def sync_folder(folder: Path) -> None:
    """Synchronise a folder's list of names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_file(path: Path, temporary: Path, mode: int = _USUAL_MODE) -> Iterator[BinaryIO]:
    """Give an empty file to write to, which appears under its name only once it is complete and survives power loss.

    If the block fails, the file is removed, and what had the name before is unchanged.

    Args:
        path: name of the complete file. A file of this name is replaced.
        temporary: name until then, in the same folder. What a killed process has left under it is removed, so no two
            processes may use one at the same time.
        mode: permissions of the file, before the umask.

    Raises:
        OSError: the file can't be made, synchronised or renamed.
    """
    try:
        temporary.unlink(missing_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file, completely or not at all; it survives power loss once this returns.

    One process at a time may write a path.

    Raises:
        OSError: the file can't be written; an earlier one of this name is unchanged.
    """
    with new_file(path, path.with_name(f".{path.name}")) as file:
        file.write(content)

"""Files that appear under their name only once they are complete and would survive a power cut."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from services.durable_files import sync_folder
from services.printable import printable_path
from services.system_errors import system_error


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write to; rename it to its name when the block ends, and remove it when the block fails.

    Args:
        path: name of the complete file. A file of this name is replaced.

    Raises:
        NotYet: the disk is full or failed.
        Refused: the folder is missing or not writable.
    """
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")  # as long as it is short, any name fits
    try:
        with explained(path), partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
            sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError about a file that is written into one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise system_error(
            error, f"{printable_path(path)}: not written ({reason}); free space, or give another folder"
        ) from error

"""Files of ids that appear under their name only once they are complete, with errors that people can read."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from services import durable_files
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
    temporary = path.with_name(f".{secrets.token_hex(8)}.partial")  # as long as it is short, any name fits
    with explained(path), durable_files.new_file(path, temporary) as file:
        yield file


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

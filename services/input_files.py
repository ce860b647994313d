"""Opening of files that a person, a job or a checkpoint names: regular files only, and of bounded size.

Reading a FIFO or a terminal waits for its writer, reading a device may have effects, and `/dev/zero` has no end. So
every option and setting that names an input file opens it here.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from services.errors import Refused
from services.printable import printable_path

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NoSuchFile(Refused):
    """Input file that is not there. Callers that know other places look there next."""


def open_input_file(name: str, path: Path, limit_bytes: int | None = None) -> BinaryIO:
    """Open a regular file for reading, without ever waiting for a writer.

    Args:
        name: option or dotted field that names the file, for the error; empty if the path says enough.
        path: path of the file; symbolic links are followed.
        limit_bytes: largest size; None for any size, if the caller reads it in blocks.

    Raises:
        NoSuchFile: nothing is there.
        Refused: it can't be read, is a folder, pipe, socket or device, or is larger than the limit.
    """
    place = f"{name}: {printable_path(path)}" if name else printable_path(path)
    try:
        # Looked at before it is opened: opening a device can have effects. Another file may replace it in between, so
        # it is opened without waiting and looked at again.
        _check_kind(place, path.stat().st_mode)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile(f"{place}: no such file; correct the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)  # ValueError: the path has a NUL byte
        raise Refused(f"{place}: can't be read ({reason}); make it readable, or correct the path") from None
    try:
        status = os.fstat(descriptor)
        _check_kind(place, status.st_mode)
        if limit_bytes is not None and status.st_size > limit_bytes:
            raise _too_large(place, limit_bytes, f"{status.st_size} bytes")
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_input_file(name: str, path: Path, limit_bytes: int) -> bytes:
    """Return the content of a regular file.

    Args:
        name: option or dotted field that names the file, for the error; empty if the path says enough.
        path: path of the file.
        limit_bytes: largest size.

    Raises:
        NoSuchFile: nothing is there.
        Refused: it can't be read, is no regular file, or is larger than the limit.
    """
    with open_input_file(name, path, limit_bytes) as file:
        place = f"{name}: {printable_path(path)}" if name else printable_path(path)
        try:
            # The size of a file in /proc is 0, and others may grow. One that would have to be waited for gives None.
            content: bytes | None = file.read(limit_bytes + 1)
        except OSError as error:
            raise Refused(f"{place}: can't be read ({error.strerror}); make it readable") from None
    if content is None:
        raise Refused(f"{place}: has no content yet, expected a regular file; correct the path")
    if len(content) > limit_bytes:
        raise _too_large(place, limit_bytes, "more")
    return content


def _check_kind(place: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((kind for test, kind in _KINDS if test(mode)), "no regular file")
        raise Refused(f"{place}: is {kind}, expected a regular file; correct the path")


def _too_large(place: str, limit_bytes: int, found: str) -> Refused:
    return Refused(f"{place}: has {found}, expected at most {limit_bytes} bytes; correct the path")

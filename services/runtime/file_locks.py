"""Locks that processes hold on files of a state dir. The kernel frees them when a process ends, however it ends."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from services.errors import NotYet, Refused, is_out_of_space


def try_lock(path: Path, *, exclusive: bool = True) -> IO[str] | None:
    """Lock a file, which is created if it is missing, until the returned file is closed.

    Args:
        path: path of the file.
        exclusive: whether no other process may have a lock, or only no exclusive one.

    Returns:
        The open file, or None if another process has a lock that excludes this one.

    Raises:
        Refused: the file can't be created, or its file system has no locks.
        NotYet: the disk is full.
    """
    try:
        file = path.open("a+")
    except OSError as error:
        if is_out_of_space(error):
            raise NotYet(f"{path}: can't be created, since the disk is full; free space") from None
        raise Refused(
            f"{path}: can't be opened ({error.strerror or error}); make it and its folder writable for this user"
        ) from None
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError as error:
        file.close()
        raise Refused(
            f"{path}: can't be locked ({error.strerror}); put the state dir on a file system that has locks"
        ) from None
    return file

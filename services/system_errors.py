"""Errors of the operating system: those that may pass, and those that a person has to fix."""

from __future__ import annotations

import errno
import socket

from services.errors import NotYet, Refused, TiermeshError
from services.printable import printable_path

_PASSING = frozenset(
    {
        *(errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN),
        *(errno.EHOSTUNREACH, errno.ENODEV, errno.ENOBUFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
        *(errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EIO, errno.ESTALE, errno.ENOTCONN),
        *(errno.ENOSPC, errno.EDQUOT, errno.ENOLCK),
    }
)
"""Errors of the system that a later attempt with the same settings may not meet."""


def system_error(error: OSError | ValueError, text: str) -> TiermeshError:
    """Return an error about a system call that failed: NotYet if the cause may pass, else Refused.

    Every failure to resolve a name counts as passing, because a name server that is not configured yet answers as if
    the name did not exist.

    Args:
        error: the system's error; a ValueError comes from a name that the system can't even be asked for.
        text: text of the error to return.
    """
    passes = isinstance(error, OSError) and (isinstance(error, socket.gaierror) or error.errno in _PASSING)
    return NotYet(text) if passes else Refused(text)


def unexplained_system_error(error: OSError) -> TiermeshError:
    """Return the one line about an error of the system that its caller did not expect, such as a path that is too long.

    Args:
        error: the system's error.
    """
    place = "standard output or a file" if error.filename is None else printable_path(error.filename)
    reason = error.strerror or str(error)
    return system_error(error, f"{place}: {reason}; correct the path, or its permissions, or free space")

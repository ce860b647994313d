"""Tests that errors of the system which may pass have another exit code than wrong settings."""

from __future__ import annotations

import errno
import socket

from services.errors import ExitCode, Failed, exit_code_of
from services.system_errors import system_error

PASSING = (
    socket.gaierror(socket.EAI_AGAIN, "temporary failure in name resolution"),
    socket.gaierror(socket.EAI_NONAME, "name or service not known"),
    OSError(errno.EADDRINUSE, "in use"),
    OSError(errno.EADDRNOTAVAIL, "not available"),
    OSError(errno.ENOSPC, "no space left"),
    OSError(errno.ESTALE, "stale handle"),
)
LASTING = (
    OSError(errno.EACCES, "permission denied"),
    OSError(errno.ENOTDIR, "not a directory"),
    OSError(errno.EROFS, "read-only"),
    UnicodeError("label too long"),
)


def test_what_may_pass_has_another_exit_code_than_what_is_wrong() -> None:
    for cause in PASSING:
        error = system_error(cause, "listen address h:1: no")
        assert isinstance(error, Failed)
        assert exit_code_of(error) == ExitCode.NOT_YET
    for cause in LASTING:
        error = system_error(cause, "listen address h:1: no")
        assert exit_code_of(error) == ExitCode.REFUSED
    assert exit_code_of(Failed("lost")) == ExitCode.FAILED
    assert exit_code_of(KeyError("defect")) == ExitCode.FAILED

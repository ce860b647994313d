"""The token of a web daemon without TLS, in a file that only its user can read; programs of that user find it there."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from services.durable_files import PRIVATE_MODE, new_file
from services.errors import Refused
from services.printable import printable_path
from services.system_errors import system_error
from services.transport.access.tokens import draw_token, is_token

log = logging.getLogger("tiermesh.web")

_LONGEST_BYTES = 4096


def keep_token(path: Path) -> str:
    """Return the token in a file, or a new one, which is kept there, if there is none that was secret.

    Daemons of one user share the file, so a program that has read it can call each of them, also after a restart.

    Raises:
        Refused: the file belongs to somebody else, or is no file, or can't be written.
        NotYet: the disk is full, or does not answer.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        token = _read(path)
        if token is None:
            token = draw_token()
            with new_file(path, path.with_name(f".{path.name}.{os.getpid()}"), PRIVATE_MODE) as file:
                file.write(f"{token}\n".encode())
        return token
    except OSError as error:
        text = f"--token-file {printable_path(path)}: can't be used ({error.strerror}); give another path"
        raise system_error(error, text) from None


def _read(path: Path) -> str | None:
    """Return the token of a file; None if there is none, or others could have read it."""
    try:
        # No link is followed, and a pipe does not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise Refused(
                f"--token-file {printable_path(path)}: not a file of this user, expected one or none; give another path"
            )
        text = file.read(_LONGEST_BYTES).decode("ascii", "replace").strip()
    if stat.S_IMODE(status.st_mode) & 0o077:
        log.warning("--token-file %s: others could read it, so it gets a new token", printable_path(path))
        return None
    return text if is_token(text) else None

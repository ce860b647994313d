"""List of revoked certificates: a text file with the serial number of one certificate a line."""

from __future__ import annotations

import re
from pathlib import Path

from services.errors import Refused
from services.transport.access.watched_files import read_small_file

_SERIAL = re.compile(r"[0-9a-f]{1,40}")


def read_revoked(path: Path) -> frozenset[int]:
    """Return the serial numbers of a list of revoked certificates.

    A line is the number in hexadecimal digits; what follows it after a space, and lines that begin with `#`, are
    comments.

    Raises:
        Refused: the file can't be read, or a line has no serial number.
    """
    serials = set()
    for number, line in enumerate(read_small_file("--revoked", path).splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            text = line.split()[0].lower()
            if not _SERIAL.fullmatch(text):
                raise Refused(
                    f"--revoked {path}: line {number}: {text[:40]!r}, expected a serial number in hexadecimal digits "
                    "as `tiermesh certs show` prints it"
                )
            serials.add(int(text, 16))
    return frozenset(serials)

"""Where the library is, and what it is built from."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "libtiermesh.so"


def hash_sources() -> str:
    """Return a checksum of the C files and of build.py, which has the compiler's flags."""
    content = hashlib.sha256()
    for path in sorted((*FOLDER.glob("*.[ch]"), FOLDER / "build.py")):
        content.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]

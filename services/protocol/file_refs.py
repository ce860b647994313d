"""References to files by SHA-256, which messages carry in place of the files."""

from __future__ import annotations

import hashlib
import re

from protos.files_pb2 import FileRef
from services.errors import Refusal

MAX_PIECE_BYTES = 1 << 20
"""Maximum number of bytes of a file in one message."""
MAX_FILE_BYTES = 1 << 37
"""Maximum size of a file: 128 GiB. It leaves room for a corpus; a larger size must be damaged."""
MAX_TEXT_BYTES = 64 << 20
"""Maximum size of a file that a role reads into memory as a whole: a layout, or a file of a checkpoint."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def make_ref(content: bytes) -> FileRef:
    """Return the reference to a file with this content."""
    return FileRef(sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def check_ref(ref: FileRef, max_bytes: int = MAX_FILE_BYTES) -> Refusal | None:
    """Return why a reference from a peer is refused; None if it can name a file.

    Args:
        ref: the reference.
        max_bytes: largest size that the file may have.
    """
    if not _SHA256.fullmatch(ref.sha256):
        return Refusal(
            f"file {ref.sha256!r:.80}: expected a SHA-256 of 64 lower-case hexadecimal digits; send the file's own"
        )
    if ref.size > max_bytes:
        return Refusal(
            f"file {ref.sha256[:12]}: {ref.size} bytes, expected at most {max_bytes}; send a smaller file"
        )
    return None

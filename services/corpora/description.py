"""The one pass over a file of token ids that makes its sidecar."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from services.corpora.binary_format import BinaryFormat, read_format, refuse_wider_ids
from services.corpora.block_digest import BLOCK_BYTES, BlockDigest
from services.corpora.reading_progress import report_reading
from services.corpora.sidecar import LARGEST_ID, TokenSidecar
from services.errors import Refused


def describe(file: BinaryIO, path: Path, known: TokenSidecar | None, place: str) -> TokenSidecar:
    """Read a whole file of token ids, in constant memory, and return its sidecar.

    Args:
        file: the file.
        path: its path, whose suffixes count.
        known: its older sidecar, which says the type of the ids; None if there is none.
        place: the file, for errors.

    Raises:
        Refused: it is a file of another kind, is cut off, has an id that is none, or changed meanwhile.
    """
    status = os.fstat(file.fileno())
    file.seek(0)
    if known is None:
        found = read_format(file, path, status.st_size, place)
    else:
        found = BinaryFormat(known.dtype, known.offset_bytes)
    dtype = np.dtype(found.dtype).newbyteorder("<")
    count, largest, largest_at = 0, -1, 0
    file.seek(0)
    with BlockDigest() as digest:
        while block := _read_block(file, place):
            ids = np.frombuffer(block, dtype, offset=0 if digest.size_bytes else found.offset_bytes)
            if ids.size and (ids.min() < 0 or ids.max() > LARGEST_ID):
                odd = int(np.argmax((ids < 0) | (ids > LARGEST_ID)))
                raise Refused(
                    f"{place}: id {ids[odd]} at position {count + odd}, expected 0 to {LARGEST_ID}; tokenize again"
                )
            if found.is_guessed and not digest.size_bytes:
                refuse_wider_ids(ids, place)
            if ids.size and ids.max() > largest:
                largest, largest_at = int(ids.max()), count + int(ids.argmax())
            count += ids.size
            digest.update(block)
            report_reading(path, digest.size_bytes, status.st_size)
        sha256, block_sha256 = digest.finish()
    if digest.size_bytes != status.st_size or os.fstat(file.fileno()).st_mtime_ns != status.st_mtime_ns:
        raise Refused(f"{place}: changed while it was read; wait until it is complete")
    return TokenSidecar(
        dtype=found.dtype,
        offset_bytes=found.offset_bytes,
        count=count,
        largest_id=largest,
        largest_id_position=largest_at,
        file_bytes=status.st_size,
        modified_ns=status.st_mtime_ns,
        sha256=sha256,
        block_sha256=block_sha256,
        tokenizer_vocab_size=None if known is None else known.tokenizer_vocab_size,
        tokenizer_sha256=None if known is None else known.tokenizer_sha256,
    )


def _read_block(file: BinaryIO, place: str) -> bytes:
    """Return the next block, which only the end of the file makes shorter (Refused)."""
    try:
        return file.read(BLOCK_BYTES)
    except OSError as error:
        raise Refused(f"{place}: can't be read ({error.strerror}); make it readable") from None

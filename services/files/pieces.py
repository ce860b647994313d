"""Pieces of files: what a message of a transfer carries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import IO

from google.protobuf.message import DecodeError

from native import crc32c
from protos.files_pb2 import FilePiece, FileRef
from services.errors import Refused
from services.files.errors import FileDamaged
from services.files.memory_file import MemoryFile
from services.protocol.file_refs import MAX_PIECE_BYTES


def make_piece(file: IO[bytes] | MemoryFile | bytes, ref: FileRef, offset: int, most_bytes: int) -> FilePiece:
    """Return the piece of a file that begins at an offset. It blocks.

    Args:
        file: the open file, or its content.
        ref: its reference.
        offset: position of the first byte.
        most_bytes: largest size of the piece; 0 for the largest that a message may have.
    """
    size = min(most_bytes or MAX_PIECE_BYTES, MAX_PIECE_BYTES)
    if isinstance(file, bytes):
        data = file[offset : offset + size]
    elif isinstance(file, MemoryFile):
        data = file.read(offset, size)
    else:
        file.seek(min(offset, ref.size))
        data = file.read(size)
    return FilePiece(file=ref, offset=offset, crc32c=crc32c.value(data), data=data)


async def read_pieces(
    file: IO[bytes] | MemoryFile | bytes, ref: FileRef, offset: int
) -> AsyncIterator[FilePiece]:
    """Yield the pieces of a file from an offset on; at least one, which may be empty."""
    while True:
        piece = await asyncio.to_thread(make_piece, file, ref, offset, 0)
        yield piece
        offset += len(piece.data)
        if offset >= ref.size or not piece.data:  # a file that got shorter is noticed by its receiver
            return


def parse_piece(content: bytes) -> FilePiece:
    """Return a piece that was received, checked.

    Raises:
        Refused: it is too long.
        FileDamaged: it is no piece, or its checksum is wrong.
    """
    try:
        piece = FilePiece.FromString(content)
    except DecodeError:
        raise FileDamaged(f"{len(content)} bytes are no FilePiece; send the piece again") from None
    if len(piece.data) > MAX_PIECE_BYTES:
        raise Refused(
            f"a piece of {len(piece.data)} bytes, expected at most {MAX_PIECE_BYTES}; send it in several"
        )
    found = crc32c.value(piece.data)
    if found != piece.crc32c:
        raise FileDamaged(
            f"a piece of {len(piece.data)} bytes at byte {piece.offset}: crc32c {found:#010x}, expected "
            f"{piece.crc32c:#010x}; send it again"
        )
    return piece

"""Uploads and downloads of files by stock gRPC."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import google_crc32c
import grpc

from protos import files_pb2 as pb
from protos.files_pb2_grpc import FilesStub

LIMIT_SECONDS = 60
PIECE_BYTES = 1 << 20


def ref_of(content: bytes) -> pb.FileRef:
    """Return the reference to a file with this content."""
    return pb.FileRef(sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def pieces_of(content: bytes, ref: pb.FileRef | None = None, offset: int = 0) -> Iterator[pb.FilePiece]:
    """Yield the pieces of an upload of a file."""
    for start in range(offset, max(len(content), offset + 1), PIECE_BYTES):
        data = content[start : start + PIECE_BYTES]
        piece = pb.FilePiece(offset=start, crc32c=google_crc32c.value(data), data=data)
        if start == offset:
            piece.file.CopyFrom(ref or ref_of(content))
        yield piece


_make_stub: Any = FilesStub


def write_file(channel: grpc.Channel, pieces: Iterator[pb.FilePiece]) -> None:
    """Send the pieces of a file."""
    stub: Any = _make_stub(channel)
    stub.Write(pieces, timeout=LIMIT_SECONDS)


def upload_file(channel: grpc.Channel, content: bytes) -> pb.FileRef:
    """Upload a file, unless it is there; return its reference."""
    stub: Any = _make_stub(channel)
    ref = ref_of(content)
    missing = stub.Missing(pb.MissingRequest(files=[ref]), timeout=LIMIT_SECONDS).missing
    for each in missing:
        write_file(channel, pieces_of(content, ref, each.offset))
    return ref


def open_read(
    channel: grpc.Channel, request: pb.ReadFileRequest, timeout_seconds: float = LIMIT_SECONDS
) -> Any:
    """Begin a read; return its stream of pieces."""
    stub: Any = _make_stub(channel)
    return stub.Read(request, timeout=timeout_seconds)

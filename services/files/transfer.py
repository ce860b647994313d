"""The client's side of `tiermesh.Files`: uploads and downloads that continue where they were interrupted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import IO, Any, Protocol, TypeAlias

import grpc

from protos import files_pb2 as pb
from services.errors import Failed, Refused
from services.files.errors import FileDamaged, FileMissing
from services.files.memory_file import MemoryFile
from services.files.pieces import parse_piece, read_pieces
from services.protocol.bounds import BOUNDS
from services.protocol.checksums import ChecksumMismatch, decode_with_checksum, encode_with_checksum
from services.transport.backoff import Backoff
from services.transport.links import LinkClosed, write_to_call

log = logging.getLogger("tiermesh.files")

Metadata: TypeAlias = "tuple[tuple[str, str], ...]"

IDLE_SECONDS = 60.0
"""Longest wait for a peer to send the next piece, to take one, or to answer."""
MAX_DAMAGED = 5
"""Number of times that a damaged transfer is repeated before it fails."""
SLOWEST_DISK_BYTES_PER_SECOND = 50e6
"""Speed below which a disk counts as hung."""
_REFUSED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.OUT_OF_RANGE,
    }
)


class FileSource(Protocol):
    """Source of the files to upload: a `FileStore`, or `FilesInMemory`."""

    def open(self, sha256: str) -> tuple[IO[bytes] | MemoryFile | bytes, int]:
        """Return a file, open or as its content, and its size in bytes."""


async def upload(
    channel: grpc.aio.Channel,
    source: FileSource,
    refs: Iterable[pb.FileRef],
    peer: str,
    backoff: Backoff | None = None,
    metadata: Metadata = (),
    on_no_room: Callable[[str], None] | None = None,
    tell: Callable[[pb.FileRef, int], None] | None = None,
) -> None:
    """Send a peer those files that it lacks, and return when it has them all.

    Whatever may pass (a lost connection, a full disk, another upload of the same file) is waited for and tried again
    until the caller cancels. Each reason is logged once.

    Args:
        channel: connection to the peer.
        source: the files.
        refs: references to them.
        peer: name of the peer, for log and errors.
        backoff: pauses between attempts.
        metadata: gRPC metadata of the calls, such as a person's token.
        on_no_room: called with the reason when the upload begins to wait for space on the peer's disk.
        tell: see `upload_missing`.

    Raises:
        Refused: the peer does not accept a file, or a file is not in the source.
        Failed: a file arrives damaged again and again.
    """
    wanted = list({ref.sha256: ref for ref in refs}.values())
    retries = Retries(peer, backoff, on_no_room)
    while True:
        try:
            await upload_missing(channel, source, wanted, metadata, tell)
            return
        except FileDamaged as damaged:
            await retries.wait(grpc.StatusCode.DATA_LOSS, str(damaged))
        except grpc.aio.AioRpcError as error:
            await retries.wait(error.code(), error.details() or error.code().name.lower())
        except asyncio.TimeoutError:
            await retries.wait(grpc.StatusCode.UNAVAILABLE, f"no answer within {IDLE_SECONDS:g} s")


async def upload_missing(
    channel: grpc.aio.Channel,
    source: FileSource,
    refs: Sequence[pb.FileRef],
    metadata: Metadata = (),
    tell: Callable[[pb.FileRef, int], None] | None = None,
) -> None:
    """Send a peer those files that it lacks, in one attempt.

    Args:
        channel: connection to the peer.
        source: the files.
        refs: references to them, each once.
        metadata: gRPC metadata of the calls, such as a person's token.
        tell: called with a file and the number of its bytes that the peer has, at first and as they are sent.

    Raises:
        grpc.aio.AioRpcError: a call failed; the next attempt continues there.
        FileDamaged: an answer was damaged.
        asyncio.TimeoutError: the peer did not answer, or took no piece.
        Refused: a file is not in the source.
    """
    for first in range(0, len(refs), BOUNDS["MissingRequest.files"].count):
        asked = refs[first : first + BOUNDS["MissingRequest.files"].count]
        offsets = await ask_missing(channel, asked, metadata)
        for ref in asked:
            offset = min(offsets.get(ref.sha256, ref.size), ref.size)
            if tell is not None:
                tell(ref, offset)
            if ref.sha256 in offsets:
                await _upload_one(channel, source, ref, offset, metadata, tell)


async def ask_missing(
    channel: grpc.aio.Channel, refs: Sequence[pb.FileRef], metadata: Metadata
) -> dict[str, int]:
    """Return the offsets at which the upload of the files that a peer lacks continues, by SHA-256."""
    ask = channel.unary_unary("/tiermesh.Files/Missing", request_serializer=encode_with_checksum)
    answer = await ask(pb.MissingRequest(files=refs), timeout=IDLE_SECONDS, metadata=metadata)
    try:
        reply, _ = decode_with_checksum(pb.MissingReply, answer)
    except ChecksumMismatch as damaged:
        raise FileDamaged(f"MissingReply: {len(answer)} bytes were damaged: {damaged}") from None
    return {each.sha256: each.offset for each in reply.missing}


async def _upload_one(
    channel: grpc.aio.Channel,
    source: FileSource,
    ref: pb.FileRef,
    offset: int,
    metadata: Metadata,
    tell: Callable[[pb.FileRef, int], None] | None,
) -> None:
    # Before it takes a piece, the peer reads again what it has; before it answers, it writes out what it was sent.
    patience_seconds = IDLE_SECONDS + ref.size / SLOWEST_DISK_BYTES_PER_SECOND
    file, _ = await asyncio.to_thread(source.open, ref.sha256)
    try:
        call = channel.stream_unary(
            "/tiermesh.Files/Write", request_serializer=pb.FilePiece.SerializeToString
        )(metadata=metadata)
        try:
            with suppress(LinkClosed):  # the peer has all of the file from somebody else, as its answer says
                async for piece in read_pieces(file, ref, offset):
                    await asyncio.wait_for(write_to_call(call, piece), patience_seconds)
                    if tell is not None:
                        tell(ref, piece.offset + len(piece.data))
                await call.done_writing()
            answer = await asyncio.wait_for(call, patience_seconds)
            if answer != ref.SerializeToString():
                raise FileDamaged(f"file {ref.sha256[:12]}: the answer to Write is not its reference")
        finally:
            call.cancel()
    finally:
        if not isinstance(file, MemoryFile | bytes):
            file.close()


async def receive_pieces(
    channel: grpc.aio.Channel, request: pb.ReadFileRequest, metadata: Metadata = ()
) -> AsyncGenerator[pb.FilePiece, None]:
    """Yield the pieces of a range of a peer's file, checked, in order and without gaps.

    Raises:
        FileDamaged: a piece was damaged, or is not the next one.
        grpc.aio.AioRpcError: the call failed.
        asyncio.TimeoutError: no piece came in time.
    """
    call = channel.unary_stream("/tiermesh.Files/Read", request_serializer=encode_with_checksum)(
        request, metadata=metadata
    )
    offset = request.offset
    try:
        while True:
            received: Any = await asyncio.wait_for(call.read(), IDLE_SECONDS)
            if not isinstance(received, bytes):
                return
            piece = parse_piece(received)
            if piece.offset != offset or piece.file.sha256 != request.sha256:
                raise FileDamaged(
                    f"Read: byte {piece.offset} of file {piece.file.sha256[:12]!r}, expected byte {offset} of "
                    f"{request.sha256[:12]}"
                )
            offset += len(piece.data)
            yield piece
    finally:
        call.cancel()


class Retries:
    """Attempts of one transfer: which of its failures may pass, and the pauses between them.

    Args:
        peer: name of the peer.
        backoff: pauses between attempts; None for the usual ones.
        on_no_room: optional callback, called with the reason when the peer's disk is full.
    """

    def __init__(
        self, peer: str, backoff: Backoff | None, on_no_room: Callable[[str], None] | None = None
    ) -> None:
        self._peer = peer
        self._backoff = backoff or Backoff()
        self._on_no_room = on_no_room
        self._logged = ""
        self._damaged = 0

    def progressed(self) -> None:
        """Note that an attempt got on, so that later damages are not in a row with earlier ones."""
        self._damaged = 0
        self._backoff.reset()

    async def wait(self, code: grpc.StatusCode, reason: str) -> None:
        """Wait before the next attempt.

        Raises:
            FileMissing: the peer does not have the file.
            Refused: another attempt would be refused too.
            Failed: the transfer was damaged too often.
        """
        text = f"{self._peer}: {reason}"
        if code is grpc.StatusCode.NOT_FOUND:
            raise FileMissing(text)
        if code in _REFUSED:
            raise Refused(text)
        if code is grpc.StatusCode.DATA_LOSS:
            self._damaged += 1
            if self._damaged == MAX_DAMAGED:
                raise Failed(f"{text}; {MAX_DAMAGED} times in a row, check the network and the disk")
        if reason != self._logged:
            log.warning("%s; trying again", text)
            self._logged = reason
            if code is grpc.StatusCode.RESOURCE_EXHAUSTED and self._on_no_room is not None:
                self._on_no_room(f"{text}; trying again")
        await self._backoff.wait()

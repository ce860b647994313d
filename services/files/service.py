"""The service `tiermesh.Files`, around a store. Disk and hashing work in threads, not on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import IO, Any, NoReturn, TypeAlias, TypeVar

import google_crc32c
import grpc
from google.protobuf.message import DecodeError

from protos import files_pb2 as pb
from services.errors import Failed, NotYet, Refused, TiermeshError
from services.files.errors import FileDamaged, FileMissing, NoRoom, UploadUnderWay
from services.files.store import FileStore
from services.files.upload import Upload
from services.protocol.checksums import ChecksumMismatch, decode_with_checksum, encode_with_checksum
from services.protocol.file_refs import MAX_PIECE_BYTES, MAX_TEXT_BYTES
from services.threads import finish_in_thread
from services.transport.access.enforcement import (
    Caller,
    Denied,
    check_permission,
    confirm_caller,
    current_caller,
)

log = logging.getLogger("tiermesh.files")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Request = TypeVar("Request", pb.MissingRequest, pb.ReadFileRequest)

MAX_REFS = 128
"""Maximum number of files in one MissingRequest."""
MAX_TRANSFERS = 16
"""Maximum number of files that are sent and received at once; further calls wait. Each holds a piece in memory."""
MAX_LONG_TRANSFERS = 32
"""Maximum number of files beyond `MAX_TEXT_BYTES`, which may take hours; further calls are told to come again."""
IDLE_SECONDS = 60.0
"""Longest wait for a peer to send the next piece, or to take one."""

_STATUS: tuple[tuple[type[TiermeshError], grpc.StatusCode], ...] = (
    (FileMissing, grpc.StatusCode.NOT_FOUND),
    (UploadUnderWay, grpc.StatusCode.ABORTED),
    (NoRoom, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NotYet, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (FileDamaged, grpc.StatusCode.DATA_LOSS),
    (Refused, grpc.StatusCode.INVALID_ARGUMENT),
    (Failed, grpc.StatusCode.UNAVAILABLE),
)


class FilesServicer:
    """Server of `tiermesh.Files`.

    Args:
        store: the files.
        permission: row of the table of permissions that callers need besides that of the method.
        idle_seconds: longest wait for a peer to send the next piece, or to take one.
        admit: blocking check of files that are not here and that a caller asks for or uploads; raises TiermeshError to
            refuse them. None admits all.
    """

    full_name = "tiermesh.Files"

    def __init__(
        self,
        store: FileStore,
        permission: str,
        idle_seconds: float = IDLE_SECONDS,
        admit: Callable[[Sequence[pb.FileRef], Caller], None] | None = None,
    ) -> None:
        self._store = store
        self._permission = permission
        self._idle_seconds = idle_seconds
        self._admit = admit
        self._transfers = asyncio.Semaphore(MAX_TRANSFERS)
        self._long_transfers = 0
        self._full = False  # the last write found no room

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handlers."""
        return grpc.method_handlers_generic_handler(
            self.full_name,
            {
                # Without deserializers: requests are checked against their checksums, and grpc.aio hides a message
                # of a stream that can't be parsed.
                "Missing": grpc.unary_unary_rpc_method_handler(
                    self._missing, response_serializer=encode_with_checksum
                ),
                "Write": grpc.stream_unary_rpc_method_handler(
                    self._write, response_serializer=pb.FileRef.SerializeToString
                ),
                "Read": grpc.unary_stream_rpc_method_handler(
                    self._read, response_serializer=pb.FilePiece.SerializeToString
                ),
            },
        )

    async def _check_caller(self, context: Context) -> None:
        try:
            check_permission(self._permission, current_caller())
        except Denied as denied:
            await context.abort(denied.code, str(denied))

    async def _missing(self, content: bytes, context: Context) -> pb.MissingReply:
        await self._check_caller(context)
        request = await _parse(pb.MissingRequest, content, context)
        if len(request.files) > MAX_REFS:
            text = f"Missing: {len(request.files)} files, expected at most {MAX_REFS}; ask in several calls"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        try:
            return await asyncio.to_thread(self._list_missing, request, current_caller())
        except TiermeshError as error:
            await _abort(context, error)

    def _list_missing(self, request: pb.MissingRequest, caller: Caller) -> pb.MissingReply:
        reply, missing = pb.MissingReply(), []
        for ref in request.files:
            offset = self._store.offset(ref)
            if offset is not None:
                reply.missing.add(sha256=ref.sha256, offset=offset)
                missing.append(ref)
        if self._admit is not None and missing:
            self._admit(missing, caller)  # now, so that nothing is sent in vain
        return reply

    async def _write(self, _: Any, context: Context) -> pb.FileRef:
        await self._check_caller(context)
        try:
            async with self._transfers:
                first = await self._next_piece(context)
                if first is None:
                    raise Refused("Write: no piece arrived, expected at least one; send the file")
                confirm_caller(context)
                if first.file.size <= MAX_TEXT_BYTES:
                    await self._receive(first, context)
                    return first.file
            async with self._long_transfer("Write"):
                await self._receive(first, context)
                return first.file
        except TiermeshError as error:
            if isinstance(error, NoRoom) and not self._full:  # the peer tries again every few seconds
                log.warning("%s", error)
                self._full = True
            await _abort(context, error)

    async def _receive(self, first: pb.FilePiece, context: Context) -> None:
        """Store a file, of which the first piece has arrived."""
        upload = await asyncio.to_thread(self._begin, first, current_caller())
        try:
            piece: pb.FilePiece | None = first
            while piece is not None:
                if piece.offset != upload.size:
                    raise FileDamaged(  # repeated or lost on the way
                        f"Write: a piece at byte {piece.offset}, expected {upload.size}; continue the upload there"
                    )
                await finish_in_thread(upload.write, piece.data)
                piece = await self._next_piece(context)
            await finish_in_thread(upload.finish)
            self._full = False
        finally:
            upload.close()

    def _begin(self, first: pb.FilePiece, caller: Caller) -> Upload:
        if self._admit is not None and self._store.offset(first.file) is not None:
            self._admit([first.file], caller)
        return self._store.begin(first.file, first.offset)

    @asynccontextmanager
    async def _long_transfer(self, method: str) -> AsyncIterator[None]:
        """Count a transfer that may take long, so that those of small files need not wait for it.

        Raises:
            Failed: there are too many.
        """
        if self._long_transfers >= MAX_LONG_TRANSFERS:
            raise Failed(
                f"{method}: {self._long_transfers} large files are under way, expected at most {MAX_LONG_TRANSFERS}; "
                "try again in some seconds"
            )
        self._long_transfers += 1
        try:
            yield
        finally:
            self._long_transfers -= 1

    async def _next_piece(self, context: Context) -> pb.FilePiece | None:
        """Return the next piece, checked; None at the end.

        Raises:
            Refused: it is too long or no FilePiece.
            FileDamaged: its checksum is wrong.
            Failed: it did not come in time.
        """
        try:
            content: Any = await asyncio.wait_for(context.read(), self._idle_seconds)
        except asyncio.TimeoutError:
            raise Failed(f"Write: no piece for {self._idle_seconds:g} s; continue the upload later") from None
        if not isinstance(content, bytes):
            return None
        try:
            piece = pb.FilePiece.FromString(content)
        except DecodeError:
            raise FileDamaged(f"Write: {len(content)} bytes are no FilePiece; send the piece again") from None
        if len(piece.data) > MAX_PIECE_BYTES:
            raise Refused(
                f"Write: a piece of {len(piece.data)} bytes, expected at most {MAX_PIECE_BYTES}; send it in several"
            )
        check_piece(piece)
        return piece

    async def _read(self, content: bytes, context: Context) -> AsyncIterator[pb.FilePiece]:
        await self._check_caller(context)
        request = await _parse(pb.ReadFileRequest, content, context)
        try:
            with ExitStack() as stack:
                async with self._transfers:
                    file, size = await asyncio.to_thread(self._store.open, request.sha256)
                    if not isinstance(file, bytes):
                        stack.enter_context(file)
                    ref = pb.FileRef(sha256=request.sha256, size=size)
                    if size <= MAX_TEXT_BYTES:
                        await self._send(file, ref, request.offset, context)
                if size > MAX_TEXT_BYTES:
                    async with self._long_transfer("Read"):
                        await self._send(file, ref, request.offset, context)
        except asyncio.TimeoutError:
            await _abort(context, Failed(f"Read: the piece was not taken for {self._idle_seconds:g} s"))
        except TiermeshError as error:
            await _abort(context, error)
        nothing: tuple[pb.FilePiece, ...] = ()
        for piece in nothing:  # all pieces are written above, each with a time limit
            yield piece

    async def _send(self, file: IO[bytes] | bytes, ref: pb.FileRef, offset: int, context: Context) -> None:
        """Send a file from an offset on."""
        if offset > ref.size:
            raise Refused(f"Read: offset {offset}, expected at most the file's {ref.size} bytes")
        async for piece in read_pieces(file, ref, offset):
            await asyncio.wait_for(context.write(piece), self._idle_seconds)


async def read_pieces(file: IO[bytes] | bytes, ref: pb.FileRef, offset: int) -> AsyncIterator[pb.FilePiece]:
    """Yield the pieces of a file from an offset on; at least one, which may be empty.

    Args:
        file: the open file, or its content.
        ref: its reference, which the first piece carries.
        offset: position of the first byte.
    """
    first = True
    if not isinstance(file, bytes):
        file.seek(offset)
    while first or offset < ref.size:
        if isinstance(file, bytes):
            data = file[offset : offset + MAX_PIECE_BYTES]
        else:
            data = await asyncio.to_thread(file.read, MAX_PIECE_BYTES)
        if not data and not first:
            return  # the file got shorter, which the receiver says
        piece = pb.FilePiece(offset=offset, crc32c=google_crc32c.value(data), data=data)
        if first:
            piece.file.CopyFrom(ref)
        yield piece
        first = False
        offset += len(data)


def check_piece(piece: pb.FilePiece) -> None:
    """Check a piece against its checksum.

    Raises:
        FileDamaged: they differ.
    """
    found = google_crc32c.value(piece.data)
    if found != piece.crc32c:
        raise FileDamaged(
            f"a piece of {len(piece.data)} bytes at byte {piece.offset}: crc32c {found:#010x}, expected "
            f"{piece.crc32c:#010x}; send it again"
        )


async def _parse(kind: type[Request], content: bytes, context: Context) -> Request:
    """Return a request; abort the call with DATA_LOSS, so that it is repeated, if the request was damaged."""
    try:
        request, _ = decode_with_checksum(kind, content)
    except ChecksumMismatch as damaged:
        text = f"{kind.DESCRIPTOR.name}: {len(content)} bytes were damaged: {damaged}; send it again"
        await context.abort(grpc.StatusCode.DATA_LOSS, text)
        raise AssertionError("abort raises") from None
    return request


async def _abort(context: Context, error: TiermeshError) -> NoReturn:
    code = next(code for kind, code in _STATUS if isinstance(error, kind))
    await context.abort(code, str(error))
    raise AssertionError("abort raises")

"""The service `tiermesh.Files`, around a store. Disk and hashing work in threads, not on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

import grpc

from protos import files_pb2 as pb
from services.errors import Failed, NotYet, Refused, TiermeshError
from services.files.errors import FileDamaged, FileMissing, NoRoom, UploadUnderWay
from services.files.limits import Transfer, TransferLimits
from services.files.memory import FilesInMemory
from services.files.pieces import parse_piece
from services.files.store import FileStore
from services.files.upload import Upload
from services.protocol.bounds import MessageTooLarge, check_received
from services.protocol.checksums import ChecksumMismatch, decode_with_checksum, encode_with_checksum
from services.protocol.file_refs import MAX_FILE_BYTES, MAX_PIECE_BYTES
from services.protocol.plain_text import make_printable
from services.transport.access.enforcement import (
    REFUSED_MESSAGE_SECONDS,
    Caller,
    Denied,
    caller_address,
    check_permission,
    confirm_caller,
    current_caller,
)
from services.transport.access.permissions import READ_CHECKPOINTS, READ_FILES

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Request = TypeVar("Request", pb.MissingRequest, pb.ReadFileRequest)
ReadPiece: TypeAlias = Callable[[pb.ReadFileRequest], Awaitable[pb.FilePiece]]
"""Returns the piece of a file that begins at a request's offset."""

_STATUS: tuple[tuple[type[TiermeshError], grpc.StatusCode], ...] = (
    (FileMissing, grpc.StatusCode.NOT_FOUND),
    (UploadUnderWay, grpc.StatusCode.ABORTED),
    (NoRoom, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NotYet, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (FileDamaged, grpc.StatusCode.DATA_LOSS),
    (Refused, grpc.StatusCode.INVALID_ARGUMENT),
    (Failed, grpc.StatusCode.UNAVAILABLE),
)


class Admission(Protocol):
    """Decides which files that are not here a caller may upload. Its methods block."""

    def check(self, refs: Sequence[pb.FileRef], caller: Caller) -> None:
        """Check that a caller may upload files (TiermeshError). It changes nothing."""

    def reserve(self, ref: pb.FileRef, caller: Caller) -> AbstractContextManager[Callable[[], None]]:
        """Reserve room for a file (TiermeshError) while the block runs; give what records it once it is verified."""


class FilesServicer:
    """Server of `tiermesh.Files`.

    Args:
        store: the files.
        permission: row of the table of permissions that callers need besides that of the method.
        limits: limits of all transfers; None for the usual ones.
        admission: decides about uploads; None admits all.
        checkpoints: opens a reader of checkpoints for one call (TiermeshError); None where there are none.
        restore: puts a file that a Read misses into the store, if it can (TiermeshError); None if nothing can.
    """

    full_name = "tiermesh.Files"

    def __init__(
        self,
        store: FileStore | FilesInMemory,
        permission: str,
        *,
        limits: TransferLimits | None = None,
        admission: Admission | None = None,
        checkpoints: Callable[[], AbstractContextManager[ReadPiece]] | None = None,
        restore: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._permission = permission
        self._limits = limits or TransferLimits()
        self._admission = admission
        self._checkpoints = checkpoints
        self._restore = restore
        self._writers: dict[tuple[str, str], Transfer] = {}  # uploads by file and caller

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

    async def _missing(self, content: bytes, context: Context) -> pb.MissingReply:
        try:
            check_permission(self._permission, current_caller())
            request = _parse(pb.MissingRequest, content)
            return await self._limits.work(
                self._list_missing, request, current_caller(), _name_caller(context)
            )
        except TiermeshError as error:
            await _abort(context, error)

    def _list_missing(self, request: pb.MissingRequest, caller: Caller, writer: str) -> pb.MissingReply:
        reply, missing = pb.MissingReply(), []
        for ref in request.files:
            offset = self._store.offset(ref, writer)
            if offset is not None:
                reply.missing.add(sha256=ref.sha256, offset=offset)
                missing.append(ref)
        if self._admission is not None and missing:
            self._admission.check(missing, caller)  # now, so that nothing is sent in vain
        return reply

    # ---- uploads ----

    async def _write(self, _: Any, context: Context) -> pb.FileRef:
        writer, first = _name_caller(context), None
        try:
            check_permission(self._permission, current_caller())
            with self._limits.begin("Write", writer) as transfer:
                first = await self._next_piece(transfer, context)
                if first is None:
                    raise Refused("Write: no piece arrived, expected at least one; send the file")
                confirm_caller(context)
                await self._end_former(key := (first.file.sha256, writer))
                self._writers[key] = transfer
                try:
                    with ExitStack() as stack:
                        await self._receive(first, writer, transfer, context, stack)
                finally:
                    del self._writers[key]
                return first.file
        except TiermeshError as error:
            if isinstance(error, NoRoom):  # the peer tries again every few seconds
                self._limits.log("no room", str(error))
            if first is None:  # a grpcio client that is refused while it writes tells no reason
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(context.read(), REFUSED_MESSAGE_SECONDS)
            await _abort(context, error)

    async def _end_former(self, key: tuple[str, str]) -> None:
        """End the former upload of a file by the same caller, which has lost it, and goes on with what is here."""
        while (former := self._writers.get(key)) is not None:
            former.end(
                UploadUnderWay(f"file {key[0][:12]}: a newer upload by the same caller goes on with it")
            )
            await former.closed.wait()  # it takes no longer than the work on a piece

    async def _receive(
        self, first: pb.FilePiece, writer: str, transfer: Transfer, context: Context, stack: ExitStack
    ) -> None:
        """Store a file, of which the first piece has arrived."""
        work, ref = self._limits.work, first.file
        record: Callable[[], None] | None = None
        if self._admission is not None and await work(self._store.offset, ref, writer) is not None:
            reservation = self._admission.reserve(ref, current_caller())
            record = await work(stack.enter_context, reservation)
        upload = await work(self._begin, first, writer, stack)
        if upload is None:
            return
        piece: pb.FilePiece | None = first
        while piece is not None:
            if piece.offset != upload.size:
                raise FileDamaged(  # repeated or lost on the way
                    f"Write: a piece at byte {piece.offset}, expected {upload.size}; continue the upload there"
                )
            if not await work(upload.write, piece.data):
                return
            transfer.moved(len(piece.data))
            piece = await self._next_piece(transfer, context)
        while await work(upload.hash_on):
            pass
        await work(upload.finish, record)

    def _begin(self, first: pb.FilePiece, writer: str, stack: ExitStack) -> Upload | None:
        """Begin to store a file; the stack ends it, also if the call is cancelled meanwhile."""
        upload = self._store.begin(first.file, first.offset, writer)
        return upload and stack.enter_context(upload)

    async def _next_piece(self, transfer: Transfer, context: Context) -> pb.FilePiece | None:
        """Return the next piece, checked; None at the end (TiermeshError)."""
        content: Any = await transfer.wait(context.read())
        return parse_piece(content) if isinstance(content, bytes) else None

    # ---- reading ----

    async def _read(self, content: bytes, context: Context) -> AsyncIterator[pb.FilePiece]:
        try:
            check_permission(self._permission, current_caller())
            request = _parse(pb.ReadFileRequest, content)
            check_permission(READ_CHECKPOINTS if request.job else READ_FILES, current_caller())
            with (
                self._limits.begin("Read", _name_caller(context)) as transfer,
                self._open_reader(request) as read_piece,
            ):
                await self._send(request, read_piece, transfer, context)
        except TiermeshError as error:
            await _abort(context, error)
        nothing: tuple[pb.FilePiece, ...] = ()
        for piece in nothing:  # all pieces are written above, each with a time limit
            yield piece

    def _open_reader(self, request: pb.ReadFileRequest) -> AbstractContextManager[ReadPiece]:
        if not request.job:
            return nullcontext(self._read_stored)
        if self._checkpoints is None:
            raise FileMissing("Read: there are no checkpoints here; ask the aggregator")
        return self._checkpoints()

    async def _read_stored(self, request: pb.ReadFileRequest) -> pb.FilePiece:
        try:
            return await self._limits.work(self._store.read_piece, request)
        except FileMissing:
            if self._restore is None:
                raise
            await self._restore(request.sha256)
        return await self._limits.work(self._store.read_piece, request)

    async def _send(
        self, request: pb.ReadFileRequest, read_piece: ReadPiece, transfer: Transfer, context: Context
    ) -> None:
        """Send a range of a file, with one piece at a time in memory."""
        end = request.offset + (request.length or MAX_FILE_BYTES)
        while True:
            request.length = min(end - request.offset, MAX_PIECE_BYTES)
            piece = await read_piece(request)
            await transfer.wait(context.write(piece))
            transfer.moved(len(piece.data))
            request.offset += len(piece.data)
            if request.offset >= min(end, piece.file.size) or not piece.data:
                return  # a file that got shorter has no more data, which its receiver tells


def _name_caller(context: Context) -> str:
    """Return the name of a caller, by which its transfers are counted; its address where callers have no names."""
    caller = current_caller()
    if caller.kind is None:
        return caller_address(context).rpartition(":")[0]
    return f"{caller.kind.value} {caller.name}"


def _parse(kind: type[Request], content: bytes) -> Request:
    """Return a request, checked.

    Raises:
        FileDamaged: it was damaged on the way.
        Refused: a field is larger than its bound.
    """
    try:
        request, _ = decode_with_checksum(kind, content)
    except ChecksumMismatch as damaged:
        raise FileDamaged(
            f"{kind.DESCRIPTOR.name}: {len(content)} bytes were damaged: {damaged}; send it again"
        ) from None
    make_printable(request)
    try:
        check_received(request)
    except MessageTooLarge as error:
        raise Refused(f"{error.fault}; shorten it") from None
    return request


async def _abort(context: Context, error: TiermeshError) -> NoReturn:
    if isinstance(error, Denied):
        await context.abort(error.code, str(error))
    code = next(code for kind, code in _STATUS if isinstance(error, kind))
    await context.abort(code, str(error))
    raise AssertionError("abort raises")

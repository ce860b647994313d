"""The client's end: one bidirectional gRPC stream on a connection of its own, to any gRPC server."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import NoReturn

import grpc

from services.transport.http2.connection import STANDARD_TIMES, Connection, ConnectionTimes, headers_frames
from services.transport.http2.frames import (
    PREFACE,
    ErrorCode,
    Flags,
    FrameType,
    Setting,
    error_name,
    frame,
    reset_frame,
)
from services.transport.http2.headers import (
    Headers,
    Metadata,
    Value,
    http_refusal,
    metadata_of,
    request_headers,
    status_of,
    status_of_reset,
)
from services.transport.http2.messages import MessageRefused
from services.transport.http2.stream import Stream
from services.transport.security import Security, join_address, split_address

OPEN_SECONDS = 5.0
"""Time for a server to accept the connection, finish the TLS handshake and send its settings."""

_NUMBER = 1  # id of a client's first stream (RFC 9113, section 5.1.1)


class ClientStream(Stream):
    """A call in progress. Methods that `grpc.aio.StreamStreamCall` has, too, have the same names.

    Every wait ends with the connection, whose keepalive notices a dead peer.
    """

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__(connection, _NUMBER, connection.peer_window)
        self._owner = connection
        self._initial: tuple[tuple[str, Value], ...] | None = None
        self._trailing: tuple[tuple[str, Value], ...] = ()
        self._code = grpc.StatusCode.UNKNOWN
        self._changed = asyncio.Event()  # set by headers and by the end

    # ---- for its user ----

    async def read(self) -> memoryview | None:
        """Return the next message, or None at the end of a stream with status OK.

        Raises:
            grpc.aio.AioRpcError: the stream ended with another status.
        """
        return await super().read()

    async def done_writing(self) -> None:
        """Send END_STREAM: no more messages will be written."""
        if not self.closed_to_writes and not self.over:
            self.closed_to_writes = "done_writing was called"
            self._owner.write_all([frame(FrameType.DATA, Flags.END_STREAM, self.number)])

    async def initial_metadata(self) -> tuple[tuple[str, Value], ...]:
        """Return what the server sent before its first message; empty if it ended the stream without."""
        while self._initial is None and not self.over:
            await self._change()
        return self._initial or ()

    async def trailing_metadata(self) -> tuple[tuple[str, Value], ...]:
        """Wait for the end of the stream and return its trailing metadata."""
        await self._until_over()
        return self._trailing

    async def code(self) -> grpc.StatusCode:
        """Wait for the end of the stream and return its status."""
        await self._until_over()
        return self._code

    async def details(self) -> str:
        """Wait for the end of the stream and return the text of its status."""
        await self._until_over()
        return "" if self._code is grpc.StatusCode.OK else self.over or ""

    def cancel(self) -> None:
        """End the stream, if it is open, and close the connection."""
        if not self.over:
            self._owner.write_all([reset_frame(self.number, ErrorCode.CANCEL)])
            self.ended(grpc.StatusCode.CANCELLED, "cancelled by this end")
            self.drop()
        self._owner.leave()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _until_over(self) -> None:
        while not self.over:
            await self._change()

    async def _at_end(self) -> None:
        await self._until_over()
        self._raise_unless_ok()

    def _raise_over(self) -> NoReturn:
        self._raise_unless_ok()
        raise asyncio.InvalidStateError(f"{self._owner.peer}: the stream has ended")

    def _raise_unless_ok(self) -> None:
        if self._code is not grpc.StatusCode.OK:
            raise self.error()

    def error(self) -> grpc.aio.AioRpcError:
        """Return the stream's end as an error."""
        initial = grpc.aio.Metadata(*(self._initial or ()))
        return grpc.aio.AioRpcError(self._code, initial, grpc.aio.Metadata(*self._trailing), self.over)

    # ---- for its connection ----

    def answered(self, metadata: tuple[tuple[str, Value], ...]) -> None:
        """Take the initial metadata."""
        self._initial = metadata
        self._changed.set()

    @property
    def is_answered(self) -> bool:
        """Whether initial metadata has come."""
        return self._initial is not None

    def ended(
        self, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, Value], ...] = ()
    ) -> None:
        """End the stream with a status; only the first one counts."""
        if not self.over:
            self._code, self._trailing = code, trailing
            self.end(details or code.name)
            self._changed.set()

    def refuse(self, refused: MessageRefused) -> None:
        """End the stream, as the server's message is not accepted."""
        self._owner.write_all([reset_frame(self.number, ErrorCode.CANCEL)])
        self.ended(refused.code, f"{self._owner.peer}: {refused}")
        self._owner.close()


class ClientConnection(Connection):
    """The client's end of a connection."""

    stream: ClientStream

    def __init__(self, peer: str, times: ConnectionTimes = STANDARD_TIMES) -> None:
        super().__init__(peer, {Setting.ENABLE_PUSH: 0}, expect_preface=False, times=times)
        self.stream = ClientStream(self)

    def _announce(self) -> None:
        self.write_all([PREFACE])
        super()._announce()

    def call(self, headers: Headers) -> None:
        """Open the stream with the headers of a call."""
        block = self.codec.encode(headers)
        self.write_all(headers_frames(_NUMBER, block, self.peer_frame_bytes, end_stream=False))

    def headers(self, number: int, headers: Headers, end_stream: bool) -> None:
        """Handle the headers of the answer, or its trailers."""
        stream = self.stream
        if self._known(number, "HEADERS") is None or stream.over:
            return
        if not stream.is_answered:
            if not end_stream and dict(headers).get(":status", "").startswith("1"):
                return  # an informational response (1xx)
            refusal = http_refusal(headers)
            if refusal is not None:
                stream.ended(refusal[0], f"{self.peer}: {refusal[1]}")
                self.close()
                return
            if not end_stream:
                stream.answered(metadata_of(headers))
                return
        if end_stream:
            code, details = status_of(headers)
            if code is grpc.StatusCode.OK:
                stream.peer_ended()
        else:
            code, details = grpc.StatusCode.INTERNAL, "the peer sent headers in the middle of the stream"
        stream.ended(code, details, metadata_of(headers))
        self.leave()

    def data_ends(self, stream: int, end_stream: bool) -> None:
        """Note the end of a DATA frame. A server must end a stream by trailers, so END_STREAM here is an error."""
        super().data_ends(stream, end_stream)
        if end_stream and not self.stream.over:
            self.stream.ended(*status_of([]))
            self.leave()

    def reset(self, code: int) -> None:
        """End the stream, as the server has reset it."""
        if not self.stream.over:
            text = f"{self.peer}: the peer reset the stream ({error_name(code)})"
            self.stream.ended(status_of_reset(code), text)
            self.leave()

    def peer_leaves(self, last_number: int) -> None:
        """End the stream if the server has not processed it; otherwise it may go on to its end."""
        if last_number < _NUMBER and not self.stream.over:
            self.stream.ended(grpc.StatusCode.UNAVAILABLE, f"{self.peer}: {self._goaway}")
            self.leave()

    def gone(self, reason: str) -> None:
        """End the stream, as the connection can't be used any longer."""
        self.stream.ended(grpc.StatusCode.UNAVAILABLE, reason)

    def leave(self) -> None:
        """Close the connection after the stream has ended; unsent bytes of the stream are dropped."""
        if self.paused:
            self.cut()
        else:
            self.close()


async def open_stream(
    address: str,
    security: Security,
    path: str,
    metadata: Metadata = (),
    *,
    limit_seconds: float = OPEN_SECONDS,
    times: ConnectionTimes = STANDARD_TIMES,
) -> ClientStream:
    """Connect to a gRPC server and call a bidirectional streaming method.

    Args:
        address: `HOST:PORT` of the server.
        security: own certificates and trusted authorities; plain text without any.
        path: `/package.Service/Method`.
        metadata: metadata of the call.
        limit_seconds: time in which the server must show that it speaks HTTP/2.
        times: time limits of the connection.

    Raises:
        grpc.aio.AioRpcError: UNAVAILABLE: the server can't be reached, its certificate is not trusted, or it is silent.
        Refused: the address is no `HOST:PORT`.
        ValueError: metadata that can't be sent.
    """
    host, port = split_address("address", address)
    context = security.client_context()
    peer = join_address(host, port)
    headers = request_headers("http" if context is None else "https", peer, path, metadata)

    async def connect() -> ClientConnection:
        transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection(peer, times),
            host,
            port,
            ssl=context,
            server_hostname=host if context else None,
        )
        try:
            tls = transport.get_extra_info("ssl_object")
            if tls is not None and tls.selected_alpn_protocol() != "h2":
                raise ssl.SSLError("the peer does not offer HTTP/2 by ALPN")
            connection.call(headers)
            await connection.settled.wait()
            if not connection.spoke:
                raise connection.stream.error()
        except BaseException:
            connection.cut()
            raise
        return connection

    try:
        return (await asyncio.wait_for(connect(), limit_seconds)).stream
    except asyncio.TimeoutError:
        reason = f"no HTTP/2 from it within {limit_seconds:g} s"
    except OSError as error:
        reason = f"can't be reached ({_reason(error)})"
    empty = grpc.aio.Metadata()
    raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, empty, empty, f"{peer}: {reason}")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return (
        os.strerror(error.errno).lower() if error.errno and error.errno > 0 else error.strerror or str(error)
    )

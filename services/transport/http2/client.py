"""The client's end: one bidirectional gRPC stream on a connection of its own, to any gRPC server."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import grpc

from services.errors import Refused
from services.transport.access import rechecks
from services.transport.addresses import join_address, split_address
from services.transport.http2.connection import STANDARD_TIMES, Connection, ConnectionTimes, headers_frames
from services.transport.http2.frame_budget import KNOWN_PEER
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
    metadata_of,
    request_headers,
    status_of,
    status_of_http_error,
    status_of_reset,
)
from services.transport.http2.messages import MessageRefused
from services.transport.http2.stream import WINDOW_BYTES, Stream
from services.transport.security import Security

OPEN_SECONDS = 5.0
"""Time for a server to accept the connection, finish the TLS handshake and send its settings."""

_STREAM_ID = 1  # id of a client's first stream (RFC 9113, section 5.1.1)


class ClientStream(Stream):
    """A call in progress. Methods that `grpc.aio.StreamStreamCall` has, too, have the same names.

    Every wait ends with the connection, whose keepalive notices a dead peer.
    """

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__(connection, _STREAM_ID, connection.initial_send_window, WINDOW_BYTES)
        self._http2_connection = connection
        self._initial_metadata: tuple[tuple[str, Value], ...] | None = None
        self._trailing_metadata: tuple[tuple[str, Value], ...] = ()
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
        if not self.write_block_reason and not self.end_reason:
            self.write_block_reason = "done_writing was called"
            self._http2_connection.write_all([frame(FrameType.DATA, Flags.END_STREAM, self.stream_id)])

    async def initial_metadata(self) -> tuple[tuple[str, Value], ...]:
        """Return what the server sent before its first message; empty if it ended the stream without."""
        while self._initial_metadata is None and not self.end_reason:
            await self._wait_changed()
        return self._initial_metadata or ()

    async def trailing_metadata(self) -> tuple[tuple[str, Value], ...]:
        """Wait for the end of the stream and return its trailing metadata."""
        await self._wait_ended()
        return self._trailing_metadata

    async def code(self) -> grpc.StatusCode:
        """Wait for the end of the stream and return its status."""
        await self._wait_ended()
        return self._code

    async def details(self) -> str:
        """Wait for the end of the stream and return the text of its status."""
        await self._wait_ended()
        return "" if self._code is grpc.StatusCode.OK else self.end_reason or ""

    def cancel(self) -> None:
        """End the stream, if it is open, and close the connection."""
        if not self.end_reason:
            self._http2_connection.write_all([reset_frame(self.stream_id, ErrorCode.CANCEL)])
            self.end_with_status(grpc.StatusCode.CANCELLED, "cancelled by this end")
            self.drop_unread()
        self._http2_connection.close_after_stream()

    async def _wait_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _wait_ended(self) -> None:
        while not self.end_reason:
            await self._wait_changed()

    async def _check_status(self) -> None:
        await self._wait_ended()
        self._raise_error_status()

    def _raise_ended(self) -> NoReturn:
        self._raise_error_status()
        raise asyncio.InvalidStateError(f"{self._http2_connection.peer}: the stream has ended")

    def _raise_error_status(self) -> None:
        if self._code is not grpc.StatusCode.OK:
            raise self.error()

    def error(self) -> grpc.aio.AioRpcError:
        """Return the stream's end as an error."""
        initial = grpc.aio.Metadata(*(self._initial_metadata or ()))
        return grpc.aio.AioRpcError(
            self._code, initial, grpc.aio.Metadata(*self._trailing_metadata), self.end_reason
        )

    # ---- for its connection ----

    def set_initial_metadata(self, metadata: tuple[tuple[str, Value], ...]) -> None:
        """Set the initial metadata, which has arrived."""
        self._initial_metadata = metadata
        self._changed.set()

    @property
    def has_initial_metadata(self) -> bool:
        """Whether initial metadata has come."""
        return self._initial_metadata is not None

    def end_with_status(
        self, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, Value], ...] = ()
    ) -> None:
        """End the stream with a status; only the first one counts."""
        if not self.end_reason:
            self._code, self._trailing_metadata = code, trailing
            self.end(details or code.name)
            self._changed.set()

    def refuse(self, refused: MessageRefused) -> None:
        """End the stream, as the server's message is not accepted."""
        self._http2_connection.write_all([reset_frame(self.stream_id, ErrorCode.CANCEL)])
        self.end_with_status(refused.code, f"{self._http2_connection.peer}: {refused}")
        self._http2_connection.close()


class ClientConnection(Connection):
    """The client's end of a connection."""

    stream: ClientStream

    def __init__(self, peer: str, times: ConnectionTimes = STANDARD_TIMES) -> None:
        super().__init__(
            peer,
            {Setting.ENABLE_PUSH: 0, Setting.INITIAL_WINDOW_SIZE: WINDOW_BYTES},
            expect_preface=False,
            allowance=KNOWN_PEER,
            times=times,
        )
        self.stream = ClientStream(self)
        self._recheck: asyncio.TimerHandle | None = None

    def _announce(self) -> None:
        self.write_all([PREFACE])
        super()._announce()

    def keep_checking(self, check: Callable[[], None]) -> None:
        """End the stream and the connection once the server's certificate is refused, at the latest.

        Args:
            check: raises Refused for a certificate that was revoked meanwhile.

        Raises:
            Refused: the certificate is refused now.
        """
        check()
        self._recheck = self._loop.call_later(rechecks.CHECK_AGAIN_SECONDS, self._check_again, check)

    def _check_again(self, check: Callable[[], None]) -> None:
        try:
            self.keep_checking(check)
        except Refused as refused:
            self.stream.end_with_status(grpc.StatusCode.UNAVAILABLE, f"{self.peer}: {refused}")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream, and check the server no longer."""
        if self._recheck is not None:
            self._recheck.cancel()
        super().connection_lost(exc)

    def call(self, headers: Headers) -> None:
        """Open the stream with the headers of a call."""
        block = self.codec.encode(headers)
        self.write_all(headers_frames(_STREAM_ID, block, self.max_send_frame_bytes, end_stream=False))

    def headers_received(self, stream_id: int, headers: Headers, end_stream: bool) -> None:
        """Handle the headers of the answer, or its trailers."""
        stream = self.stream
        if self._find_stream(stream_id, "HEADERS") is None or stream.end_reason:
            return
        if not stream.has_initial_metadata:
            if not end_stream and dict(headers).get(":status", "").startswith("1"):
                return  # an informational response (1xx)
            refusal = status_of_http_error(headers)
            if refusal is not None:
                stream.end_with_status(refusal[0], f"{self.peer}: {refusal[1]}")
                self.close()
                return
            if not end_stream:
                stream.set_initial_metadata(metadata_of(headers))
                return
        if end_stream:
            code, details = status_of(headers)
            if code is grpc.StatusCode.OK:
                stream.end_stream_received()
        else:
            code, details = grpc.StatusCode.INTERNAL, "the peer sent headers in the middle of the stream"
        stream.end_with_status(code, details, metadata_of(headers))
        self.close_after_stream()

    def data_ended(self, stream: int, end_stream: bool) -> None:
        """Note the end of a DATA frame. A server must end a stream by trailers, so END_STREAM here is an error."""
        super().data_ended(stream, end_stream)
        if end_stream and not self.stream.end_reason:
            self.stream.end_with_status(*status_of([]))
            self.close_after_stream()

    def stream_reset(self, code: int) -> None:
        """End the stream, as the server has reset it."""
        if not self.stream.end_reason:
            text = f"{self.peer}: the peer reset the stream ({error_name(code)})"
            self.stream.end_with_status(status_of_reset(code), text)
            self.close_after_stream()

    def goaway_received(self, last_stream_id: int) -> None:
        """End the stream if the server has not processed it; otherwise it may go on to its end."""
        if last_stream_id < _STREAM_ID and not self.stream.end_reason:
            self.stream.end_with_status(grpc.StatusCode.UNAVAILABLE, f"{self.peer}: {self._loss_reason}")
            self.close_after_stream()

    def connection_terminated(self, reason: str) -> None:
        """End the stream, as the connection can't be used any longer."""
        self.stream.end_with_status(grpc.StatusCode.UNAVAILABLE, reason)

    def close_after_stream(self) -> None:
        """Close the connection after the stream has ended; unsent bytes of the stream are dropped."""
        if self.paused:
            self.abort()
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
        grpc.aio.AioRpcError: UNAVAILABLE: the server can't be reached, is silent, or shows a certificate that is not
            trusted or was revoked.
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
            if tls is not None:
                connection.keep_checking(partial(security.check_server, shown_certificate(tls)))
            connection.call(headers)
            await connection.settings_received_or_closed.wait()
            if not connection.settings_received:
                raise connection.stream.error()
        except BaseException:
            connection.abort()
            raise
        return connection

    try:
        return (await asyncio.wait_for(connect(), limit_seconds)).stream
    except asyncio.TimeoutError:
        reason = f"no HTTP/2 from the peer within {limit_seconds:g} s"
    except OSError as error:
        reason = f"can't be reached ({_reason(error)})"
    except Refused as refused:
        reason = str(refused)
    raise _unavailable(f"{peer}: {reason}")


async def check_server(address: str, security: Security, limit_seconds: float = OPEN_SECONDS) -> bytes:
    """Return the certificate that a server shows on a connection which is closed at once.

    Args:
        address: `HOST:PORT` of the server.
        security: own certificates, trusted authorities, and revoked certificates.
        limit_seconds: longest time for it.

    Raises:
        grpc.aio.AioRpcError: UNAVAILABLE: the server can't be reached, or shows a certificate that is not trusted
            or was revoked.
        Refused: the address is no `HOST:PORT`.
    """
    host, port = split_address("address", address)
    context = security.client_context()
    assert context is not None

    async def connect() -> bytes:
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, host, port, ssl=context, server_hostname=host
        )
        try:
            certificate = shown_certificate(transport.get_extra_info("ssl_object"))
            security.check_server(certificate)
            return certificate
        finally:
            transport.abort()

    try:
        return await asyncio.wait_for(connect(), limit_seconds)
    except asyncio.TimeoutError:
        reason = f"no TLS handshake within {limit_seconds:g} s"
    except OSError as error:
        reason = f"can't be reached ({_reason(error)})"
    except Refused as refused:
        reason = str(refused)
    raise _unavailable(f"{join_address(host, port)}: {reason}")


def shown_certificate(tls: ssl.SSLObject) -> bytes:
    """Return the certificate of a server, which the handshake has verified, as DER."""
    certificate = tls.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def _unavailable(text: str) -> grpc.aio.AioRpcError:
    empty = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, empty, empty, text)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return (
        os.strerror(error.errno).lower() if error.errno and error.errno > 0 else error.strerror or str(error)
    )

"""The server's end: a port that serves gRPC calls of known methods, one per connection, to any gRPC client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

import grpc

from services.errors import describe_internal_error
from services.tasks import start_task
from services.transport.access.enforcement import AccessControl, guard_stream_handlers
from services.transport.addresses import split_address
from services.transport.http2.connection import (
    STANDARD_TIMES,
    Connection,
    ConnectionTimes,
    headers_frames,
    peer_address,
)
from services.transport.http2.frame_budget import KNOWN_PEER, UNKNOWN_PEER
from services.transport.http2.frames import (
    DEFAULT_WINDOW_BYTES,
    ErrorCode,
    ProtocolError,
    Setting,
    reset_frame,
)
from services.transport.http2.headers import (
    CONTENT_TYPE,
    Headers,
    Metadata,
    Value,
    metadata_of,
    response_headers,
    status_headers,
)
from services.transport.http2.messages import MessageRefused
from services.transport.http2.stream import WINDOW_BYTES, BytesLike, Stream
from services.transport.links import LinkClosed
from services.transport.ports.admission import ConnectionLimits, Refusal, Ticket
from services.transport.ports.listener import Listener, open_listening_socket
from services.transport.ports.log_limit import LogLimit
from services.transport.security import Security

log = logging.getLogger("tiermesh")

STANDARD_LIMITS = ConnectionLimits()
"""Limits of a tensor port whose process has descriptors enough."""


class Aborted(Exception):
    """End of a handler that has ended its stream by `abort`."""


class ServerStream(Stream):
    """A call as its handler sees it. Methods that `grpc.aio.ServicerContext` has, too, have the same names."""

    def __init__(
        self, connection: ServerConnection, stream_id: int, path: str, metadata: tuple[tuple[str, Value], ...]
    ) -> None:
        super().__init__(
            connection, stream_id, connection.initial_send_window, connection.stream_receive_window
        )
        self.path = path
        self._http2_connection = connection
        self._metadata = metadata
        self._answered = False

    # ---- for its handler ----

    def peer(self) -> str:
        """Return the caller's `HOST:PORT`."""
        return self._http2_connection.peer

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return what TLS says about the caller, by gRPC's keys; empty without TLS."""
        return self._http2_connection.auth_context

    def invocation_metadata(self) -> tuple[tuple[str, Value], ...]:
        """Return the metadata of the call."""
        return self._metadata

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Send the answer's headers; the first message sends them otherwise.

        A handler sends them once it knows the caller. So they also end the limits of unknown callers, who may send
        64 KiB in all.

        Raises:
            ValueError: metadata that can't be sent, or that was sent before.
        """
        if self._answered:
            raise ValueError("initial metadata was sent already")
        self._send_headers(response_headers(metadata), end_stream=False)
        self._answered = True
        self._http2_connection.confirm()

    async def write(self, *parts: BytesLike) -> None:
        """Send one message; see `Stream.write`.

        Raises:
            LinkClosed: the stream is over.
        """
        if not self._answered:
            await self.send_initial_metadata(())
        await super().write(*parts)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the stream with a status, and the handler by an exception.

        Raises:
            Aborted: always.
        """
        self.send_status(code, details)
        raise Aborted(details)

    # ---- for its connection ----

    def send_status(self, code: grpc.StatusCode, details: str) -> None:
        """Send the status that ends the stream, if it is open."""
        if self.end_reason:
            return
        headers = status_headers(code, details)
        if not self._answered:
            headers = response_headers(()) + headers
        self._send_headers(headers, end_stream=True)
        if not self._end_stream_seen:
            self._http2_connection.write_all([reset_frame(self.stream_id, ErrorCode.NO_ERROR)])
        self.end(details or code.name)
        self.drop_unread()
        self._http2_connection.close_with_goaway()

    def refuse(self, refused: MessageRefused) -> None:
        """End the stream, as the caller's message is not accepted."""
        self.send_status(refused.code, str(refused))
        self._http2_connection.cancel_handler()

    def _send_headers(self, headers: Headers, *, end_stream: bool) -> None:
        if not self.end_reason:
            block = self._http2_connection.codec.encode(headers)
            longest = self._http2_connection.max_send_frame_bytes
            self._http2_connection.write_all(
                headers_frames(self.stream_id, block, longest, end_stream=end_stream)
            )

    async def _check_status(self) -> None:
        """Do nothing: a caller ends its messages without a status."""

    def _raise_ended(self) -> NoReturn:
        raise LinkClosed(self.end_reason or "the stream is over")


Handler = Callable[[ServerStream], Awaitable[None]]
"""Handler of one call. The status is OK if it returns; it is cancelled if the caller disconnects."""


class ServerConnection(Connection):
    """The server's end of a connection.

    Args:
        handlers: handlers by `/package.Service/Method`.
        connections: set that has this connection while it is open.
        ticket: the connection in the limits of its port.
        log_limit: limit of the log lines that the port's unknown callers cause.
        times: time limits.

    Attributes:
        auth_context: what TLS says about the caller, by gRPC's keys; the certificate may be DER.
        stream_receive_window: unread bytes that the caller may send.
    """

    stream: ServerStream | None

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        connections: set[ServerConnection],
        ticket: Ticket,
        log_limit: LogLimit,
        times: ConnectionTimes = STANDARD_TIMES,
    ) -> None:
        super().__init__(
            "unknown",
            {Setting.MAX_CONCURRENT_STREAMS: 1},
            expect_preface=True,
            allowance=UNKNOWN_PEER,
            times=times,
        )
        self.handler: asyncio.Task[None] | None = None
        self.auth_context: dict[str, list[bytes]] = {}
        self.stream_receive_window = DEFAULT_WINDOW_BYTES
        self._handlers = handlers
        self._connections = connections
        self._ticket = ticket
        self._log_limit = log_limit
        self._call_timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a call, unless TLS was negotiated without HTTP/2."""
        self.peer = peer_address(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            certificate = tls.getpeercert(binary_form=True)
            shown = {"x509_pem_cert": [certificate]} if certificate else {}
            self.auth_context = {"transport_security_type": [b"ssl"], **shown}
        super().connection_made(transport)
        self._call_timer = self._loop.call_later(self._times.call_seconds, self._call_timed_out)
        self._connections.add(self)
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream and its handler."""
        self._call_timer.cancel()
        self._connections.discard(self)
        self._ticket.close()
        super().connection_lost(exc)

    def confirm(self) -> None:
        """End the limits of unknown callers, as the handler has accepted this one."""
        if not self._ticket.pending:
            return
        self._ticket.confirm()
        self._budget.enlarge(KNOWN_PEER)
        self.stream_receive_window = WINDOW_BYTES
        if self.stream is not None:
            self.stream.widen(WINDOW_BYTES)

    def log_violation(self, text: str) -> None:
        """Charge the address of an unknown caller that broke a rule, and log it at a bounded rate."""
        self._ticket.violated()
        suffix = self._log_limit.suffix(self._ticket.pending)
        if suffix is not None:
            super().log_violation(f"{text}{suffix}")

    def headers_received(self, stream_id: int, headers: Headers, end_stream: bool) -> None:
        """Start the handler of a call, or note the end of the caller's messages."""
        stream = self.stream
        if stream is not None and stream_id == stream.stream_id:
            if not end_stream:
                raise ProtocolError(f"headers in the middle of stream {stream_id}")
            stream.end_stream_received()
            return
        if stream_id % 2 == 0 or stream_id <= self.highest_peer_stream_id:
            raise ProtocolError(f"HEADERS of stream {stream_id} after {self.highest_peer_stream_id}")
        self.highest_peer_stream_id = stream_id
        if stream is not None:
            self._reply(reset_frame(stream_id, ErrorCode.REFUSED_STREAM))
            return
        self._call_timer.cancel()
        found = dict(headers)
        stream = ServerStream(self, stream_id, found.get(":path", ""), metadata_of(headers))
        self.stream = stream
        if end_stream:
            stream.end_stream_received()
        if found.get(":method") != "POST" or not found.get("content-type", "").startswith(CONTENT_TYPE):
            text = f"expected POST and content-type {CONTENT_TYPE}, as this port serves gRPC"
            stream.send_status(grpc.StatusCode.INTERNAL, text)
            return
        handler = self._handlers.get(stream.path)
        if handler is None:
            text = f"method {stream.path[:80]!r} is not served on this port: {', '.join(self._handlers)}"
            stream.send_status(grpc.StatusCode.UNIMPLEMENTED, text)
            return
        self.handler = start_task(self._serve(handler, stream), f"data stream of {self.peer}")

    async def _serve(self, handler: Handler, stream: ServerStream) -> None:
        try:
            await handler(stream)
            stream.send_status(grpc.StatusCode.OK, "")
        except Aborted:
            pass
        except asyncio.CancelledError:
            stream.send_status(grpc.StatusCode.UNAVAILABLE, "the server stops")
        except Exception as error:  # the caller needs a status after any error
            if not stream.end_reason:
                log.error("data stream of %s: %s", self.peer, describe_internal_error(error))
                stream.send_status(grpc.StatusCode.UNKNOWN, f"unexpected {type(error).__name__}")

    def stream_reset(self, code: int) -> None:
        """End the stream, as the caller has cancelled it."""
        self.connection_terminated("the caller cancelled it")
        self.close_with_goaway()

    def connection_terminated(self, reason: str) -> None:
        """End the stream and its handler, as the connection can't be used any longer."""
        if self.stream is not None:
            self.stream.end(reason)
            self.stream.drop_unread()
        self.cancel_handler()

    def cancel_handler(self) -> None:
        """Cancel the handler, if there is one."""
        if self.handler is not None:
            self.handler.cancel()

    def _call_timed_out(self) -> None:
        self.close_with_goaway(ErrorCode.NO_ERROR, f"no call within {self._times.call_seconds:g} s")


class StreamServer:
    """A listening port.

    Attributes:
        port: listening port; the chosen one if port 0 was asked for.
    """

    def __init__(self, handlers: Mapping[str, Handler], port: int, times: ConnectionTimes) -> None:
        self.port = port
        self._handlers = handlers
        self._times = times
        self._connections: set[ServerConnection] = set()
        self._listener: Listener

    @classmethod
    async def start(
        cls,
        address: str,
        security: Security,
        handlers: Mapping[str, Handler],
        *,
        times: ConnectionTimes = STANDARD_TIMES,
        limits: ConnectionLimits = STANDARD_LIMITS,
        count_refusal: Callable[[Refusal], None] = lambda refusal: None,
    ) -> StreamServer:
        """Serve `handlers` on `HOST:PORT`.

        Args:
            address: `HOST:PORT` that `Security.check_listen` has accepted.
            security: certificates, or plain text; and who is let in.
            handlers: handlers by `/package.Service/Method`.
            times: time limits of the connections.
            limits: how many connections are accepted.
            count_refusal: callback for each connection that is not.

        Raises:
            Refused: the address is wrong.
            NotYet: it is in use, is none of this host, or its name does not resolve.
        """
        host, port = split_address("tensor address", address)
        hint = "choose another by --tensor-port, or 0 for any free one"
        listening = open_listening_socket("tensor port", host, port, hint)
        guarded = guard_stream_handlers(handlers, AccessControl(security))
        server = cls(guarded, listening.getsockname()[1], times)
        log_limit = LogLimit()
        server._listener = Listener(
            f"tensor port {server.port}",
            listening,
            lambda ticket: ServerConnection(guarded, server._connections, ticket, log_limit, times),
            context=security.server_context(),
            handshake_seconds=times.call_seconds,
            limits=limits,
            count_refusal=count_refusal,
        )
        return server

    async def stop(self, grace_seconds: float) -> None:
        """Accept no new connections, give open calls `grace_seconds` to end, then end them."""
        self._listener.close()
        handlers = [each.handler for each in self._connections if each.handler is not None]
        if handlers:
            _, late = await asyncio.wait(handlers, timeout=grace_seconds)
            for handler in late:
                handler.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self._connections):
            connection.close_with_goaway()

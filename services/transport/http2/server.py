"""The serving end: a port that takes gRPC calls of known methods, one on each connection, from any gRPC client."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

import grpc

from services.errors import Refused, describe_internal_error
from services.timeouts import STANDARD_TIMEOUTS
from services.transport.http2.connection import Connection, address_of, headers_frames
from services.transport.http2.frames import ErrorCode, ProtocolError, Setting, reset_frame
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
from services.transport.http2.stream import Part, Stream
from services.transport.links import LinkClosed
from services.transport.security import Security, join_address, split_address

log = logging.getLogger("tiermesh")

CALL_SECONDS = STANDARD_TIMEOUTS.hello
"""Whoever connects must have called a method within this time."""

_BACKLOG = 100


class Aborted(Exception):
    """Ends a handler that has ended its stream by `abort`."""


class ServerStream(Stream):
    """A call as its handler sees it; what `grpc.aio.ServicerContext` offers of it has the same names here."""

    def __init__(
        self, connection: ServerConnection, number: int, path: str, metadata: tuple[tuple[str, Value], ...]
    ) -> None:
        super().__init__(connection, number, connection.peer_window)
        self.path = path
        self._owner = connection
        self._metadata = metadata
        self._answered = False

    # ---- for its handler ----

    def peer(self) -> str:
        """The caller's `HOST:PORT`."""
        return self._owner.peer

    def invocation_metadata(self) -> tuple[tuple[str, Value], ...]:
        """What the caller sent with the call."""
        return self._metadata

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Answer the call; the first message does it too.

        Raises:
            ValueError: metadata that can't be sent, or a second time.
        """
        if self._answered:
            raise ValueError("initial metadata was sent already")
        self._send_headers(response_headers(metadata), end_stream=False)
        self._answered = True

    async def write(self, *parts: Part) -> None:
        """Send one message; see `Stream.write`.

        Raises:
            LinkClosed: the stream is over.
        """
        if not self._answered:
            await self.send_initial_metadata(())
        await super().write(*parts)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the stream by this status, and the handler by the exception that this raises."""
        self.finish(code, details)
        raise Aborted(details)

    # ---- for its connection ----

    def finish(self, code: grpc.StatusCode, details: str) -> None:
        """End the stream by this status, unless it is over."""
        if self.over:
            return
        headers = status_headers(code, details)
        if not self._answered:
            headers = response_headers(()) + headers
        self._send_headers(headers, end_stream=True)
        if not self._peer_done:
            self._owner.write_all([reset_frame(self.number, ErrorCode.NO_ERROR)])
        self.end(details or code.name)
        self.drop()
        self._owner.finish()

    def refuse(self, refused: MessageRefused) -> None:
        """The caller's message isn't taken."""
        self.finish(refused.code, str(refused))
        self._owner.cancel_handler()

    def _send_headers(self, headers: Headers, *, end_stream: bool) -> None:
        if not self.over:
            block = self._owner.codec.encode(headers)
            longest = self._owner.peer_frame_bytes
            self._owner.write_all(headers_frames(self.number, block, longest, end_stream=end_stream))

    async def _at_end(self) -> None:
        """A caller has no status to end with."""

    def _raise_over(self) -> NoReturn:
        raise LinkClosed(self.over)


Handler = Callable[[ServerStream], Awaitable[None]]
"""Serves one call; returning ends it well. It is cancelled when the caller is gone."""


class ServerConnection(Connection):
    """The serving end's half of the rules."""

    stream: ServerStream | None

    def __init__(self, handlers: Mapping[str, Handler], opened: Callable[[ServerConnection], None]) -> None:
        super().__init__("unknown", {Setting.MAX_CONCURRENT_STREAMS: 1}, expect_preface=True)
        self.handler: asyncio.Task[None] | None = None
        self._handlers = handlers
        self._opened = opened
        self._called: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.peer = address_of(transport)
        tls = transport.get_extra_info("ssl_object")
        super().connection_made(transport)
        self._called = self._loop.call_later(CALL_SECONDS, self._nobody_called)
        self._opened(self)
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._called.cancel()
        super().connection_lost(exc)

    def headers(self, number: int, headers: Headers, end_stream: bool) -> None:
        """A call, or the end of what the caller sends."""
        stream = self.stream
        if stream is not None and number == stream.number:
            if not end_stream:
                raise ProtocolError(f"headers in the middle of stream {number}")
            stream.peer_ended()
            return
        if number % 2 == 0 or number <= self.last_number:
            raise ProtocolError(f"HEADERS of stream {number} after {self.last_number}")
        self.last_number = number
        if stream is not None:
            self.write_all([reset_frame(number, ErrorCode.REFUSED_STREAM)])
            return
        self._called.cancel()
        found = dict(headers)
        stream = ServerStream(self, number, found.get(":path", ""), metadata_of(headers))
        self.stream = stream
        if end_stream:
            stream.peer_ended()
        if found.get(":method") != "POST" or not found.get("content-type", "").startswith(CONTENT_TYPE):
            text = f"expected POST and content-type {CONTENT_TYPE}: this port serves gRPC"
            stream.finish(grpc.StatusCode.INTERNAL, text)
            return
        handler = self._handlers.get(stream.path)
        if handler is None:
            text = f"method {stream.path[:80]!r} is not served on this port: {', '.join(self._handlers)}"
            stream.finish(grpc.StatusCode.UNIMPLEMENTED, text)
            return
        self.handler = self._loop.create_task(self._serve(handler, stream))

    async def _serve(self, handler: Handler, stream: ServerStream) -> None:
        try:
            await handler(stream)
            stream.finish(grpc.StatusCode.OK, "")
        except Aborted:
            pass
        except asyncio.CancelledError:
            stream.finish(grpc.StatusCode.UNAVAILABLE, "the server stops")
        except Exception as error:  # whatever it is, the caller must hear of the end
            if not stream.over:
                log.error("data stream of %s: %s", self.peer, describe_internal_error(error))
                stream.finish(grpc.StatusCode.UNKNOWN, f"unexpected {type(error).__name__}")

    def reset(self, code: int) -> None:
        """The caller gave the stream up."""
        self.gone("the caller cancelled it")
        self.finish()

    def gone(self, why: str) -> None:
        """The connection is of no use any more."""
        if self.stream is not None:
            self.stream.end(why)
            self.stream.drop()
        self.cancel_handler()

    def cancel_handler(self) -> None:
        """The stream is over: so is its handler."""
        if self.handler is not None:
            self.handler.cancel()

    def _nobody_called(self) -> None:
        self.finish(ErrorCode.NO_ERROR, f"no call within {CALL_SECONDS:g} s")


class StreamServer:
    """A listening port.

    Attributes:
        port: that it listens on; the one chosen where port 0 was asked for.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self.port = 0
        self._handlers = handlers
        self._connections: set[ServerConnection] = set()
        self._server: asyncio.Server

    @classmethod
    async def start(cls, address: str, security: Security, handlers: Mapping[str, Handler]) -> StreamServer:
        """Serve `handlers`, by `/package.Service/Method`, on `HOST:PORT`, which `Security.check_listen` has passed.

        Raises:
            Refused: the address is wrong or in use.
        """
        host, port = split_address("tensor address", address)
        server = cls(handlers)
        listening = _listen(host, port)
        server.port = listening.getsockname()[1]
        context = security.server_context()
        server._server = await asyncio.get_running_loop().create_server(
            server._connection,
            sock=listening,
            backlog=_BACKLOG,
            ssl=context,
            ssl_handshake_timeout=CALL_SECONDS if context else None,
        )
        return server

    def _connection(self) -> ServerConnection:
        return ServerConnection(self._handlers, self._connected)

    def _connected(self, connection: ServerConnection) -> None:
        self._connections = {each for each in self._connections if not each.closed.is_set()}
        self._connections.add(connection)

    async def stop(self, grace_seconds: float) -> None:
        """Take no new connections, let the calls that are open end for at most `grace_seconds`, then end them."""
        self._server.close()
        handlers = [each.handler for each in self._connections if each.handler is not None]
        if handlers:
            _, late = await asyncio.wait(handlers, timeout=grace_seconds)
            for handler in late:
                handler.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in self._connections:
            if not connection.closed.is_set():
                connection.finish()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        code = error.errno or 0
        text = os.strerror(code).lower() if code > 0 else error.strerror or str(error)
        raise Refused(
            f"tensor port {join_address(host, port)}: {text}; choose another by --tensor-port, or 0 for any free one"
        ) from None

"""The port of `/metrics`: Prometheus's ASGI app on uvicorn's HTTP/1.1, in a thread with an event loop of its own.

A connection carries one request and has a short life, so no peer can block the others.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from typing import cast

import h11
from prometheus_client import CollectorRegistry, make_asgi_app
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from services.tasks import start_thread
from services.transport.access.enforcement import AccessControl, Credentials, Denied
from services.transport.access.permissions import READ_METRICS
from services.transport.addresses import split_address
from services.transport.limits import HELLO_SECONDS
from services.transport.ports.admission import ConnectionLimits, Refusal, Ticket
from services.transport.ports.listener import Listener, open_listening_socket
from services.transport.ports.listening import ANOTHER_ADDRESS
from services.transport.security import Security

METRICS_LIMITS = ConnectionLimits(
    connections=128,
    pending=128,
    pending_by_address=8,
    opened_by_address=100,
    opened_per_second=10.0,
    proof="",
)
"""Limits of a metrics port. No connection of it is ever confirmed, so all limits hold for all."""

CONNECTION_SECONDS = HELLO_SECONDS
"""Longest life of a connection after its TLS handshake. Prometheus waits as long for an answer by default."""

_LARGEST_REQUEST_BYTES = 16 * 1024
_START_SECONDS = 10.0


class MetricsServer:
    """A registry, served as `/metrics` until `stop`.

    Args:
        listening: listening socket.
        registry: registry of the metrics.
        context: TLS context; None for plain text.
        access: decides who may read.
        limits: how many connections are accepted.
        count_refusal: callback for each connection that is not, called in the server's thread.
        connection_seconds: longest life of a connection.

    Attributes:
        port: listening port.
    """

    def __init__(
        self,
        listening: socket.socket,
        registry: CollectorRegistry,
        context: ssl.SSLContext | None,
        access: AccessControl,
        limits: ConnectionLimits,
        count_refusal: Callable[[Refusal], None],
        connection_seconds: float,
    ) -> None:
        self.port: int = listening.getsockname()[1]
        self._listening = listening
        self._context = context
        self._access = access
        self._limits = limits
        self._count_refusal = count_refusal
        self._connection_seconds = connection_seconds
        self._config = http_config(registry)
        self._state = ServerState()
        self._state.default_headers = [(b"connection", b"close")]
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._started = threading.Event()
        self._thread = start_thread(self._run, "metrics")
        self._started.wait(_START_SECONDS)

    def stop(self) -> None:
        """Close the port and its connections."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(_START_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        listener = Listener(
            f"metrics port {self.port}",
            self._listening,
            self._make_protocol,
            context=self._context,
            handshake_seconds=self._connection_seconds,
            limits=self._limits,
            count_refusal=self._count_refusal,
        )
        self._started.set()
        await self._stopped.wait()
        listener.close()
        for connection in list(self._state.connections):
            cast(MetricsConnection, connection).transport.abort()
        await asyncio.sleep(0)

    def _make_protocol(self, ticket: Ticket) -> asyncio.BaseProtocol:
        return MetricsConnection(self._config, self._state, self._access, ticket, self._connection_seconds)


def http_config(registry: CollectorRegistry) -> Config:
    """Return uvicorn's configuration for an app that serves a registry."""
    config = Config(
        make_asgi_app(registry),
        interface="asgi3",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        h11_max_incomplete_event_size=_LARGEST_REQUEST_BYTES,
    )
    config.load()
    return config


class MetricsConnection(H11Protocol):
    """uvicorn's connection, which a limit ends, and which answers only those that may read metrics."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        access: AccessControl,
        ticket: Ticket,
        connection_seconds: float,
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._access = access
        self._ticket = ticket
        self._connection_seconds = connection_seconds
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Limit the life of the connection, and decide what it is answered."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._end = self.loop.call_later(self._connection_seconds, self.transport.abort)
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        try:
            self._access.admit(READ_METRICS, Credentials(tls=tls is not None, certificate=certificate))
        except Denied as denied:
            self.app = _refusing_app(denied)

    def data_received(self, data: bytes) -> None:
        """Handle a request, and end the connection where uvicorn fails to answer a broken one."""
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # its answer to a broken HEAD request has a body
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection."""
        if self._end is not None:
            self._end.cancel()
        self._ticket.close()
        super().connection_lost(exc)


def _refusing_app(denied: Denied) -> ASGI3Application:
    """Return an app that answers every request with the reason, as 403 Forbidden."""

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        del scope, receive
        body, plain = f"{denied}\n".encode(), (b"content-type", b"text/plain; charset=utf-8")
        await send({"type": "http.response.start", "status": 403, "headers": [plain], "trailers": False})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return app


def start_metrics(
    listen: str,
    registry: CollectorRegistry,
    security: Security,
    *,
    limits: ConnectionLimits = METRICS_LIMITS,
    count_refusal: Callable[[Refusal], None] = lambda refusal: None,
    connection_seconds: float = CONNECTION_SECONDS,
) -> MetricsServer:
    """Serve a registry as `/metrics`, with TLS if the role has it.

    Args:
        listen: `HOST:PORT`; port 0 means any free one.
        registry: registry of the metrics.
        security: certificates, or the choice of plain text.
        limits: how many connections are accepted.
        count_refusal: callback for each connection that is not, called in another thread.
        connection_seconds: longest life of a connection.

    Raises:
        Refused: the address is malformed, or not allowed without TLS.
        NotYet: the address is in use, is none of this host, or its name does not resolve.
    """
    host, port = split_address("metrics address", listen)
    security.check_listen(listen)
    context = security.server_context(protocol="http/1.1") if security.cert is not None else None
    listening = open_listening_socket("metrics address", host, port, ANOTHER_ADDRESS)
    access = AccessControl(security)
    return MetricsServer(listening, registry, context, access, limits, count_refusal, connection_seconds)

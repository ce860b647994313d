"""The port of the HTTP API: uvicorn's HTTP/1.1 on connections that the port's limits let in.

Each connection has a deadline for what its peer owes: a whole request, and to take what was sent to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from typing import cast

import h11
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from services.transport.addresses import split_address
from services.transport.ports.admission import ConnectionLimits, Refusal, Ticket
from services.transport.ports.listener import Listener, open_listening_socket
from services.transport.ports.listening import ANOTHER_ADDRESS
from services.transport.security import Security
from services.version import tiermesh_version

MOST_CONNECTIONS = 1024
PENDING_OF_ADDRESS = 128
"""Connections of one address before their first accepted token. A program may open some dozens at once."""
REQUEST_SECONDS = 15.0
"""Longest wait for the whole head of a request, from a connection's start or the head's first byte."""
KEEP_ALIVE_SECONDS = 75
"""Time without a request after which a connection ends."""
TAKING_SECONDS = 60.0
"""Longest wait for a peer to take some 64 KiB that were sent to it."""

_LARGEST_HEAD_BYTES = 16 * 1024
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a page may load and do: nothing but files and calls of this server, and no script of its own text."""
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "tiermesh-version": tiermesh_version(),
    "x-content-type-options": "nosniff",
}
"""Headers of every answer."""


class HttpPort:
    """A listening port that serves an app until `stop`.

    Args:
        listen: `HOST:PORT`; port 0 means any free one.
        security: certificate of the server, or the choice of plain text. Callers show no certificates.
        app: ASGI app. `scope["state"]["ticket"]` is the request's connection.
        limits: how many connections are accepted.
        count_refusal: callback for each connection that is not.

    Raises:
        Refused: the address is malformed, or not allowed without TLS.
        NotYet: the address is in use, is none of this host, or its name does not resolve.

    Attributes:
        port: listening port.
        people_port: 0; all callers are people.
    """

    people_port = 0

    def __init__(
        self,
        listen: str,
        security: Security,
        app: ASGI3Application,
        *,
        limits: ConnectionLimits,
        count_refusal: Callable[[Refusal], None],
    ) -> None:
        host, port = split_address("listen address", listen)
        security.check_listen(listen)
        context = (
            security.server_context(protocol="http/1.1", certificates=False)
            if security.cert is not None
            else None
        )
        self._config = Config(
            app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=_LARGEST_HEAD_BYTES,
        )
        self._config.load()
        logging.getLogger("uvicorn.error").setLevel(
            logging.CRITICAL
        )  # peers could fill the log with its lines
        self._state = ServerState()
        self._state.default_headers = [(name.encode(), text.encode()) for name, text in _HEADERS.items()]
        listening = open_listening_socket("listen address", host, port, ANOTHER_ADDRESS)
        self.port: int = listening.getsockname()[1]
        self._listener = Listener(
            f"HTTP port {self.port}",
            listening,
            lambda ticket: Connection(self._config, self._state, ticket),
            context=context,
            handshake_seconds=REQUEST_SECONDS,
            limits=limits,
            count_refusal=count_refusal,
        )

    def set_serving(self, serving: bool) -> None:
        """Do nothing: whether the aggregator is there is what health tells."""

    async def stop(self, grace_seconds: float) -> None:
        """Accept no new connections, give requests `grace_seconds` to end, then end them all."""
        self._listener.close()
        for connection in list(self._state.connections):
            cast(Connection, connection).shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=grace_seconds)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            cast(Connection, connection).transport.abort()
        await asyncio.sleep(0)


class Connection(H11Protocol):
    """uvicorn's connection, which ends when its peer does not do what it owes."""

    def __init__(self, config: Config, state: ServerState, ticket: Ticket) -> None:
        super().__init__(config=config, server_state=state, app_state={"ticket": ticket})
        self._ticket = ticket
        self._request_deadline: asyncio.TimerHandle | None = None
        self._taking_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Handle what has come of a request, and end the connection where uvicorn fails to answer a broken one."""
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # its answer to a broken HEAD request has a body
            self.transport.abort()
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel(self._request_deadline)
            self._request_deadline = None
        elif self._request_deadline is None:
            self._await_request()

    def _await_request(self) -> None:
        self._request_deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """Begin to wait for the peer to take what was sent."""
        super().pause_writing()
        self._taking_deadline = self.loop.call_later(TAKING_SECONDS, self._reset)

    def _reset(self) -> None:
        """End the connection, and have the kernel drop what the peer has not taken; else it keeps that for long."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def resume_writing(self) -> None:
        """Note that the peer has taken it."""
        super().resume_writing()
        self._cancel(self._taking_deadline)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection."""
        self._cancel(self._request_deadline)
        self._cancel(self._taking_deadline)
        self._ticket.close()
        with contextlib.suppress(h11.LocalProtocolError):
            super().connection_lost(exc)

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()

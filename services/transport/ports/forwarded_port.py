"""A port whose connections pass limits by address and are then forwarded, byte by byte, to grpcio in this process.

grpcio accepts every connection, spends a tenth of a millisecond on it, and can't be told to refuse an address. So it
listens where only this host reaches it, and this port is what others dial. TLS is between the caller and grpcio.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import cast

from services.tasks import start_task
from services.transport.addresses import join_address, split_address
from services.transport.limits import HELLO_SECONDS, OPENING_SECONDS
from services.transport.ports.admission import ConnectionLimits, Refusal, Ticket
from services.transport.ports.listener import Listener, open_listening_socket
from services.transport.ports.listening import ANOTHER_ADDRESS

PENDING_SECONDS = OPENING_SECONDS + HELLO_SECONDS
"""Longest life of a connection whose caller has not shown that it belongs here."""
_FLUSH_SECONDS = 5.0
"""Longest time for a caller to read what was sent to it before its connection ended."""


class CallerConnections:
    """The open connections of a server's ports, by what grpcio calls their callers (`context.peer()`)."""

    def __init__(self) -> None:
        self._open: dict[str, _CallerEnd] = {}

    def __len__(self) -> int:
        return len(self._open)

    def confirm(self, peer: str) -> None:
        """Note that a caller belongs here, which ends the limits of its address for this connection."""
        found = self._open.get(peer)
        if found is not None:
            found.confirm()

    def address(self, peer: str) -> str:
        """Return the `HOST:PORT` of a caller, or `peer` itself if it came by no port."""
        found = self._open.get(peer)
        return found.address if found is not None else peer

    def opened(self, peer: str, end: _CallerEnd) -> None:
        """Add a connection."""
        self._open[peer] = end

    def closed(self, peer: str) -> None:
        """Remove a connection."""
        self._open.pop(peer, None)

    async def drain(self, limit_seconds: float) -> None:
        """Wait until callers have read what was sent to them, and end the connections of those that don't."""
        deadline = asyncio.get_running_loop().time() + limit_seconds
        for end in list(self._open.values()):
            end.close()
        for end in list(self._open.values()):
            await end.wait_closed(deadline)


class ForwardedPort:
    """A listening port, open until `close`.

    Args:
        name: name of the address, for errors.
        address: `HOST:PORT`; port 0 for any free one.
        log_name: name of the port, for the log.
        connections: the server's connections, which this port adds to.
        limits: limits of the port.
        count_refusal: callback for each refused connection.

    Raises:
        NotYet: the address is in use, is none of this host, or its name does not resolve.
        Refused: it is no `HOST:PORT`, or is not permitted.

    Attributes:
        port: listening port.
        inner_address: where grpcio has to listen, as it calls it.
    """

    def __init__(
        self,
        name: str,
        address: str,
        log_name: str,
        connections: CallerConnections,
        *,
        limits: ConnectionLimits,
        count_refusal: Callable[[Refusal], None],
    ) -> None:
        host, port = split_address(name, address)
        listening = open_listening_socket(name, host, port, ANOTHER_ADDRESS)
        self.port: int = listening.getsockname()[1]
        inner = f"tiermesh-{secrets.token_hex(16)}"
        self.inner_address = f"unix-abstract:{inner}"
        self._connections = connections
        self._make = lambda ticket: _CallerEnd(ticket, connections, f"\0{inner}")
        self._listening = listening
        self._log_name = log_name
        self._limits = limits
        self._count_refusal = count_refusal
        self._listener: Listener | None = None

    def accept(self) -> None:
        """Accept connections from now on, as grpcio listens."""
        self._listener = Listener(
            f"{self._log_name} {self.port}",
            self._listening,
            self._make,
            context=None,
            handshake_seconds=OPENING_SECONDS,
            limits=self._limits,
            count_refusal=self._count_refusal,
        )

    def close(self) -> None:
        """Accept no more connections. Open ones go on."""
        if self._listener is not None:
            self._listener.close()
        else:
            self._listening.close()


class _End(asyncio.Protocol):
    """One end of a forwarded connection: what it receives, the other end sends.

    Attributes:
        other: the other end.
        transport: the end's socket, while it is open.
    """

    other: _End

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._is_closed = False
        self._end: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the socket."""
        self.transport = cast(asyncio.Transport, transport)
        if self._is_closed:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Forward what was received."""
        if self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        """Read no more from the other end, as this one's peer reads too slowly."""
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the other end again."""
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other end, too."""
        self.transport = None
        self._is_closed = True
        self._lost.set()
        if self._end is not None:
            self._end.cancel()
        self.other.close()

    def close(self) -> None:
        """Close this end once its peer has read what was sent, within a limit."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.transport is not None:
            self._end = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.transport.abort)
            self.transport.close()


class _ServerEnd(_End):
    """The end at grpcio."""

    def __init__(self, other: _End) -> None:
        super().__init__()
        self.other = other


class _CallerEnd(_End):
    """The end at the caller.

    Args:
        ticket: the connection in the limits of its port.
        connections: the server's connections.
        inner: address of grpcio's socket.
    """

    def __init__(self, ticket: Ticket, connections: CallerConnections, inner: str) -> None:
        super().__init__()
        self.address = ticket.address
        self.other = _ServerEnd(self)
        self._ticket = ticket
        self._connections = connections
        self._inner = inner
        self._peer = ""
        self._opening: asyncio.Task[None] | None = None
        self._pending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the other end before anything is read."""
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = join_address(str(peer[0]), int(peer[1]))
        loop = asyncio.get_running_loop()
        self._pending = loop.call_later(PENDING_SECONDS, self.transport.abort)
        self._opening = start_task(self._open(), f"connection of {self.address}", self._abort)

    async def _open(self) -> None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            connection.bind("")  # Linux makes up a name, by which grpcio knows the caller
            self._peer = f"unix-abstract:{connection.getsockname()[1:].decode()}"
            self._connections.opened(self._peer, self)
            connection.connect(self._inner)
            await asyncio.get_running_loop().create_connection(lambda: self.other, sock=connection)
        except OSError as error:
            connection.close()
            self._abort(error)
        else:
            if self.transport is not None:
                self.transport.resume_reading()

    def _abort(self, error: Exception) -> None:
        if self.transport is not None:
            self.transport.abort()

    def confirm(self) -> None:
        """Note that the caller belongs here."""
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        self._ticket.confirm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection."""
        if self._pending is not None:
            self._pending.cancel()
        self._ticket.close()
        self._connections.closed(self._peer)
        super().connection_lost(exc)

    async def wait_closed(self, deadline: float) -> None:
        """Wait for the end of the connection until a time of the event loop's clock, then end it."""
        try:
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait_for(self._lost.wait(), max(left, 0))
        except asyncio.TimeoutError:
            if self.transport is not None:
                self.transport.abort()

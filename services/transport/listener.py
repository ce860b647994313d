"""A listening port on asyncio, whose connections are accepted under limits (`admission.py`)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable

from services.errors import Refused
from services.transport.admission import Admission, ConnectionLimits, Refusal, Ticket
from services.transport.security import join_address

log = logging.getLogger("tiermesh")

_BACKLOG = 256
_ACCEPTS_PER_WAKE = 64
_PAUSE_SECONDS = 0.5
"""Pause of accepting while no file descriptor is free. Otherwise the event loop would spin."""
_LOG_SECONDS = 10.0
"""Shortest time between two log lines about the same kind of refusal."""


class RefusalLog:
    """Counts refused connections, and logs them in few lines.

    Args:
        port_name: name of the port, for the log.
        limits: limits of the port.
        count: callback for each refusal, for a metric.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        port_name: str,
        limits: ConnectionLimits,
        count: Callable[[Refusal], None],
        clock: Callable[[], float],
    ) -> None:
        self._port_name = port_name
        self._limits = limits
        self._count = count
        self._clock = clock
        self._unlogged = dict.fromkeys(Refusal, 0)
        self._next_seconds = dict.fromkeys(Refusal, 0.0)

    def note(self, refusal: Refusal, address: str) -> None:
        """Count a refusal, and log it unless such a line was logged lately."""
        self._count(refusal)
        now = self._clock()
        if now < self._next_seconds[refusal]:
            self._unlogged[refusal] += 1
            return
        others = (
            f" ({self._unlogged[refusal]} more since the last such line)" if self._unlogged[refusal] else ""
        )
        self._unlogged[refusal] = 0
        self._next_seconds[refusal] = now + _LOG_SECONDS
        log.warning(
            "%s: refused a connection of %s%s: %s",
            self._port_name,
            address,
            others,
            self._limits.describe(refusal),
        )


class Listener:
    """A listening socket.

    Args:
        name: name of the port, for the log.
        listening: bound and listening socket, which belongs to the listener from now on.
        make_protocol: makes the protocol of a connection. It must close the ticket when the connection is lost.
        context: TLS context; None for plain text.
        handshake_seconds: longest TLS handshake.
        limits: limits of the port.
        count_refusal: callback for each refused connection.
    """

    def __init__(
        self,
        name: str,
        listening: socket.socket,
        make_protocol: Callable[[Ticket], asyncio.BaseProtocol],
        *,
        context: ssl.SSLContext | None,
        handshake_seconds: float,
        limits: ConnectionLimits,
        count_refusal: Callable[[Refusal], None],
    ) -> None:
        self._socket = listening
        self._make_protocol = make_protocol
        self._context = context
        self._handshake_seconds = handshake_seconds
        self._loop = asyncio.get_running_loop()
        self._admission = Admission(limits, self._loop.time)
        self._refusals = RefusalLog(name, limits, count_refusal, self._loop.time)
        self._opening: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._admission.open

    def close(self) -> None:
        """Accept no more connections. Open ones go on."""
        if self._socket.fileno() < 0:
            return
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for task in self._opening:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_WAKE):
            try:
                connection, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._refusals.note(Refusal.DESCRIPTORS, f"unknown peer ({error.strerror})")
                self._loop.remove_reader(self._socket.fileno())
                self._resume = self._loop.call_later(_PAUSE_SECONDS, self._accept_again)
                return
            address = str(peer[0]) if isinstance(peer, tuple) else "unknown"
            ticket = self._admission.admit(address)
            if isinstance(ticket, Refusal):
                connection.close()
                self._refusals.note(ticket, address)
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection, ticket))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _accept_again(self) -> None:
        self._resume = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    async def _open(self, connection: socket.socket, ticket: Ticket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(ticket),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_seconds if self._context else None,
            )
        except (OSError, asyncio.CancelledError) as error:
            connection.close()
            ticket.close()
            log.debug("connection of %s: not opened (%s)", ticket.address, error)


def open_listening_socket(name: str, host: str, port: int, hint: str) -> socket.socket:
    """Return a socket that listens on `host`:`port`.

    Args:
        name: name of the port, for the error.
        host: host name or IP address; `::` accepts IPv4, too.
        port: port; 0 for any free one.
        hint: how to fix it, for the error.

    Raises:
        Refused: the address is wrong or in use.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        code = error.errno or 0
        text = os.strerror(code).lower() if code > 0 else error.strerror or str(error)
        raise Refused(f"{name} {join_address(host, port)}: {text}; {hint}") from None

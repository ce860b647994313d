"""A listening port on asyncio, whose connections are accepted under limits (`admission.py`)."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from services.tasks import start_task
from services.transport.addresses import join_address
from services.transport.ports.admission import Admission, ConnectionLimits, Refusal, Ticket
from services.transport.ports.listening import listen_error
from services.transport.ports.log_limit import LogLimit

log = logging.getLogger("tiermesh")

_BACKLOG = 256
_ACCEPTS_PER_WAKE = 64
_PAUSE_SECONDS = 0.5
"""Pause of accepting while no file descriptor is free. Otherwise the event loop would spin."""


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
        self._name = name
        self._limits = limits
        self._count_refusal = count_refusal
        self._log_limit = LogLimit()
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
                self._note(Refusal.DESCRIPTORS, f"a peer ({error.strerror})")
                self._loop.remove_reader(self._socket.fileno())
                self._resume = self._loop.call_later(_PAUSE_SECONDS, self._accept_again)
                return
            address = str(peer[0]) if isinstance(peer, tuple) else "unknown"
            ticket = self._admission.admit(address)
            if isinstance(ticket, Refusal):
                connection.close()
                self._note(ticket, address)
                continue
            connection.setblocking(False)
            task = start_task(self._open(connection, ticket), f"{self._name}: connection of {address}")
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _note(self, refusal: Refusal, address: str) -> None:
        self._count_refusal(refusal)
        suffix = self._log_limit.suffix(refusal)
        if suffix is not None:
            reason = self._limits.describe(refusal)
            log.warning("%s: refused a connection of %s%s: %s", self._name, address, suffix, reason)

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
        except BaseException as error:
            connection.close()
            ticket.close()
            if not isinstance(error, OSError | asyncio.CancelledError):
                raise
            log.debug("connection of %s: not opened (%s)", ticket.address, error)


def open_listening_socket(name: str, host: str, port: int, hint: str) -> socket.socket:
    """Return a socket that listens on `host`:`port`.

    Args:
        name: name of the port, for the error.
        host: host name or IP address; `::` accepts IPv4, too.
        port: port; 0 for any free one.
        hint: how to fix it, for the error.

    Raises:
        NotYet: the address is in use, is none of this host, or its name does not resolve.
        Refused: it is not permitted, or no host can have this name.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except (OSError, ValueError) as error:
        raise listen_error(error, f"{name} {join_address(host, port)}", hint) from None
    # Connections inherit it. asyncio sets it only on sockets that were made with the number of TCP, and without it a
    # short message waits up to 40 ms for the acknowledgement of the one before.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening

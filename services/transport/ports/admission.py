"""Decide which new connections of a port are accepted, without I/O.

A connection is pending until its peer has shown that it belongs here, for example by a valid Hello. Limits by address
cover pending connections only, so many workers may share an address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

_MOST_ADDRESSES = 4096
_IPV6_HOST_BITS = 64


class Refusal(Enum):
    """Reasons why a connection is refused. The value is the label `reason` of the metric."""

    ALL = "all"
    PENDING = "pending"
    ADDRESS = "address"
    RATE = "rate"
    DESCRIPTORS = "descriptors"


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one port.

    Attributes:
        connections: largest number of connections.
        pending: largest number of pending connections, of all addresses.
        pending_by_address: largest number of pending connections of one address.
        opened_by_address: connections that one address may open at once. One that becomes confirmed doesn't count.
        opened_per_second: rate at which an address gets them back.
        violation_cost: connections of that budget that a violation of the protocol costs.
        proof: what makes a connection no longer pending, for the log; empty where nothing does.
    """

    connections: int = 4096
    pending: int = 256
    pending_by_address: int = 32
    opened_by_address: int = 200
    opened_per_second: float = 20.0
    violation_cost: int = 10
    proof: str = "a valid Hello"

    def describe(self, refusal: Refusal) -> str:
        """Return the exceeded limit, and what to do about it."""
        before = f" before {self.proof}" if self.proof else ""
        without = f" without {self.proof}" if self.proof else ""
        match refusal:
            case Refusal.ALL:
                return f"{self.connections} connections are open; raise the limit of open files (ulimit -n)"
            case Refusal.PENDING:
                return f"{self.pending} connections are open{before}; find who opens them"
            case Refusal.ADDRESS:
                return (
                    f"{self.pending_by_address} connections of this address are open{before}; find what opens "
                    "them, or block the address"
                )
            case Refusal.RATE:
                return (
                    f"this address opens more than {self.opened_per_second:g} connections a second{without}; find "
                    "what opens them, or block the address"
                )
            case Refusal.DESCRIPTORS:
                return "no file descriptor or memory is free; raise the limit of open files (ulimit -n)"


class Ticket:
    """An accepted connection, as the limits count it.

    Attributes:
        address: IP address of the peer.
    """

    def __init__(self, admission: Admission, address: str, source: str) -> None:
        self.address = address
        self._admission = admission
        self._source = source
        self._pending = True
        self._open = True

    @property
    def pending(self) -> bool:
        """Whether the connection is pending."""
        return self._pending

    def confirm(self) -> None:
        """Count the connection as confirmed, not as pending."""
        if self._open and self._pending:
            self._pending = False
            self._admission.confirmed(self._source)

    def violated(self) -> None:
        """Charge the address for a violation of the protocol, unless the connection is confirmed."""
        if self._pending:
            self._admission.charge(self._source)

    def close(self) -> None:
        """Stop counting the connection."""
        if self._open:
            self._open = False
            self._admission.closed(self._source, pending=self._pending)


@dataclass
class _Source:
    """An address: its pending connections, and the number that it may open now."""

    allowance: float
    updated_seconds: float
    pending: int = 0


class Admission:
    """Counts the connections of one port against its limits.

    Args:
        limits: limits of the port.
        clock: monotonic time in seconds.
    """

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._sources: dict[str, _Source] = {}  # least recently seen first
        self._open = 0
        self._pending = 0

    @property
    def open(self) -> int:
        """Number of connections."""
        return self._open

    def admit(self, address: str) -> Ticket | Refusal:
        """Count a new connection, or return why it is refused.

        Args:
            address: IP address of the peer. IPv6 addresses of one /64 network count as one.
        """
        name = _source_name(address)
        source = self._source(name)
        if self._open >= self._limits.connections:
            return Refusal.ALL
        if source.pending >= self._limits.pending_by_address:
            return Refusal.ADDRESS
        if source.allowance < 1:
            return Refusal.RATE
        if self._pending >= self._limits.pending:
            return Refusal.PENDING
        source.allowance -= 1
        source.pending += 1
        self._open += 1
        self._pending += 1
        return Ticket(self, address, name)

    def confirmed(self, name: str) -> None:
        """Note that a pending connection's peer belongs here."""
        source = self._source(name)
        source.allowance = min(source.allowance + 1, self._limits.opened_by_address)
        self._not_pending(source)

    def charge(self, name: str) -> None:
        """Charge an address for a violation of the protocol."""
        source = self._source(name)
        source.allowance = max(source.allowance - self._limits.violation_cost, -self._limits.violation_cost)

    def closed(self, name: str, *, pending: bool) -> None:
        """Note the end of a connection."""
        self._open -= 1
        if pending:
            self._not_pending(self._source(name))

    def _not_pending(self, source: _Source) -> None:
        source.pending = max(source.pending - 1, 0)
        self._pending -= 1

    def _source(self, name: str) -> _Source:
        now = self._clock()
        source = self._sources.pop(name, None)
        if source is None:
            self._forget_oldest()
            source = _Source(self._limits.opened_by_address, now)
        refill = (now - source.updated_seconds) * self._limits.opened_per_second
        source.allowance = min(source.allowance + refill, self._limits.opened_by_address)
        source.updated_seconds = now
        self._sources[name] = source
        return source

    def _forget_oldest(self) -> None:
        """Make room for an address; those with pending connections are kept, which `pending` bounds."""
        while len(self._sources) >= _MOST_ADDRESSES:
            idle = next((name for name, source in self._sources.items() if not source.pending), None)
            if idle is None:
                return
            del self._sources[idle]


def _source_name(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(parsed) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS, 64)))
    return address

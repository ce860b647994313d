"""Addresses `HOST:PORT`, and lists of them of which one answers: an aggregator and its standbys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.errors import Refused


def split_address(name: str, address: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `[IPV6]:PORT`.

    Args:
        name: name of the address, for the error.
        address: text of the address.

    Raises:
        Refused: the text is neither.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise Refused(
            f"{name} {address[:300]!r}: not HOST:PORT with a port from 0 to 65535; for example 127.0.0.1:7070"
        )
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return `HOST:PORT`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address can only be reached from this host."""
    import ipaddress  # late: commands start sooner

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_addresses(option: str, text: str) -> tuple[str, ...]:
    """Return the addresses of `HOST:PORT` or `HOST:PORT,HOST:PORT,...`.

    Args:
        option: name of the setting, for the error.
        text: its value.

    Raises:
        Refused: a part is empty, no address, or given twice.
    """
    parts = [part.strip() for part in text.split(",")]
    for number, part in enumerate(parts, 1):
        if not part and len(parts) > 1:
            raise Refused(
                f"{option} {text[:300]!r}: part {number} is empty; expected HOST:PORT, or several with commas between"
            )
        split_address(option, part)
        if part in parts[: number - 1]:
            raise Refused(f"{option} {text[:300]!r}: {part} is given twice; remove one of the two")
    return tuple(parts)


class AddressRotation:
    """The address to connect to: the one that answered last, and after each failure the next.

    Args:
        addresses: at least one `HOST:PORT`.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        self._position = 0
        self._round_start = 0  # position of the first attempt of this round

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def start_with(self, address: str) -> None:
        """Begin a round with one of the addresses."""
        self._position = self._round_start = self._addresses.index(address)

    @property
    def current(self) -> str:
        """Address of the next attempt."""
        return self._addresses[self._position]

    def answered(self) -> None:
        """Note that the current address is the right one; the next round starts with it."""
        self._round_start = self._position

    def failed(self) -> bool:
        """Go on to the next address; return whether all of them have failed in this round."""
        self._position = (self._position + 1) % len(self)
        return self._position == self._round_start

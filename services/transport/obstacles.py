"""What keeps a client from a peer: the likeliest cause and what to do about it, found by a connection of its own.

gRPC's own text is the same for most causes, and hides TLS behind "Socket closed".
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass

from services.errors import Refused
from services.transport.addresses import join_address, split_address
from services.transport.http2.frames import PREFACE
from services.transport.security import Security

PROBE_SECONDS = 2.0
"""Longest wait for each answer of the peer."""

NEVER_CONNECTED = (
    "failed to connect",
    "resolving",
    "resolution failed",
    "Misformatted domain",
    "can't be reached",
)
"""Parts of the texts of calls for which there was no connection."""

_MOST_ADDRESSES = 4
"""Addresses of one host that are tried at most."""

_SETTINGS_FRAME = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""An empty one, which a client sends after the preface."""


@dataclass(frozen=True)
class Peer:
    """A role that others connect to.

    Attributes:
        noun: the role with its article.
        command: command that starts it.
        option: option by which a client names its address.
    """

    noun: str
    command: str
    option: str


AGGREGATOR = Peer("an aggregator", "tiermesh aggregator", "--aggregator")
OPTIMIZER = Peer("an optimizer", "tiermesh optimizer", "--optimizer")
SHARD = Peer("a shard", "tiermesh aggregator --shard", "--shards")


@dataclass(frozen=True)
class Obstacle:
    """What keeps a client from a peer.

    Attributes:
        cause: one phrase that names the address.
        fix: what to do about it.
    """

    cause: str
    fix: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.fix}"


async def find_obstacle(address: str, security: Security, peer: Peer) -> Obstacle | None:
    """Return what keeps a client from speaking gRPC to a peer; None if nothing is found, or nothing any more.

    Args:
        address: `HOST:PORT` of the peer.
        security: own certificates and trusted authorities; plain text without any.
        peer: the role that is expected there.

    Raises:
        Refused: the address is no `HOST:PORT`.
    """
    host, port = split_address("address", address)
    address = join_address(host, port)
    try:
        plain = await _ask(host, port, None)
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, socket.gaierror) else "no name of a host"
        return Obstacle(f"host {host!r} has no address ({why})", f"correct {peer.option}")
    except ConnectionRefusedError:
        return Obstacle(
            f"nothing listens at {address}", f"start `{peer.command}`, or name another with {peer.option}"
        )
    except (OSError, asyncio.TimeoutError) as error:
        why = getattr(error, "strerror", None) or f"no answer within {PROBE_SECONDS:g} s"
        return Obstacle(
            f"no connection to {address} ({why})",
            f"see that the host is up and no firewall is between, or correct {peer.option}",
        )
    if security.tls:
        return await _find_tls_obstacle(host, port, security, serves_plain=_is_grpc(plain))
    if _is_grpc(plain):
        return None
    if await _speaks_tls(host, port):
        return Obstacle(f"{address} speaks TLS", "give --tls-ca, and --tls-cert with --tls-key or a token")
    if plain.startswith(b"HTTP/"):
        return Obstacle(
            f"{address} is a web server, such as the one of /metrics",
            f"give the port of {peer.noun} with {peer.option}",
        )
    found = "speaks no gRPC" if plain else "accepts connections but does not answer"
    return Obstacle(f"{address} {found}", f"see that {peer.noun} runs there, or correct {peer.option}")


async def _find_tls_obstacle(
    host: str, port: int, security: Security, *, serves_plain: bool
) -> Obstacle | None:
    address = join_address(host, port)
    if serves_plain:
        return Obstacle(
            f"{address} speaks no TLS", "leave out --tls-ca, --tls-cert and --tls-key, or give them to it too"
        )
    try:
        answer = await _ask(host, port, security.client_context())
    except ssl.SSLCertVerificationError as error:
        return Obstacle(
            f"the certificate of {address} is not trusted ({error.verify_message})",
            "give its authority with --tls-ca, and the name in the certificate as its host",
        )
    except (OSError, asyncio.TimeoutError, Refused) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or "no answer"
        return Obstacle(
            f"no TLS connection to {address} ({why})", "see that TLS is served there, and its log"
        )
    if _is_grpc(answer):
        return None
    which = "another" if security.cert else "one"
    return Obstacle(
        f"{address} refuses a connection {'with this' if security.cert else 'without a'} certificate",
        f"give {which} of its authority with --tls-cert and --tls-key",
    )


async def _speaks_tls(host: str, port: int) -> bool:
    """Return whether a server answers a TLS handshake, whatever certificate it shows or wants."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        await _ask(host, port, context)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except (OSError, asyncio.TimeoutError):
        return False
    return True


async def _ask(host: str, port: int, context: ssl.SSLContext | None) -> bytes:
    """Return the first bytes that a server answers to the start of HTTP/2; none if it closes or stays silent."""
    name = host if context else None
    lookup = asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found = (await asyncio.wait_for(lookup, PROBE_SECONDS))[:_MOST_ADDRESSES]
    for number, (*_, place) in enumerate(found, 1):
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(str(place[0]), port, ssl=context, server_hostname=name), PROBE_SECONDS
            )
            break
        except (OSError, asyncio.TimeoutError):
            if number == len(found):
                raise
    try:
        writer.write(PREFACE + _SETTINGS_FRAME)
        return await asyncio.wait_for(reader.read(9), PROBE_SECONDS)
    except (ConnectionError, ssl.SSLError, asyncio.TimeoutError):
        return b""
    finally:
        writer.transport.abort()


def _is_grpc(answer: bytes) -> bool:
    """Return whether an answer starts with a frame of HTTP/2's SETTINGS."""
    return len(answer) >= 4 and answer[3] == 4 and not answer.startswith(b"HTTP")

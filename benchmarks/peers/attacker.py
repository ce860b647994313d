"""An attacker without a certificate, or a process that burns as much CPU time and does nothing else.

python benchmarks/peers/attacker.py burn SHARE
python benchmarks/peers/attacker.py attack SHARE IDLE SOURCE HOST MAIN TENSORS METRICS

It holds IDLE idle connections, spread over the three ports, opens lost ones again, sends byte by byte on others, and in
turn sends each kind of HTTP/2 flood and garbage to each port. It takes SHARE of a core, and runs until it is killed.
"""

from __future__ import annotations

import random
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from benchmarks.harness.floods import floods, opening

FLOOD_FRAMES = 2000
SLOW = 20
"""Slow connections to each port."""
_BURST_SECONDS = 0.2
"""Time after which a flood's connection is given up."""
_JOB_PATH = "/tiermesh.Jobs/List"
_GARBAGE_BYTES = 16 * 1024

Address = tuple[str, int]


class Throttle:
    """Keeps this process at a share of a core."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._started = time.monotonic()
        self._used = time.process_time()

    def rest(self) -> None:
        """Sleep until the CPU time that was used is within the share."""
        used = time.process_time() - self._used
        ahead = used / self._share - (time.monotonic() - self._started)
        if ahead > 0:
            time.sleep(ahead)


def burn(share: float) -> None:
    """Burn CPU time."""
    throttle = Throttle(share)
    while True:
        sum(range(10_000))
        throttle.rest()


def connect(address: Address, source: str) -> socket.socket | None:
    """Begin a connection; None if that is not possible now."""
    connection = socket.socket()
    try:
        connection.setblocking(False)
        connection.bind((source, 0))
        with suppress(BlockingIOError):
            connection.connect(address)
    except OSError:
        connection.close()
        return None
    return connection


def is_over(connection: socket.socket) -> bool:
    """Return whether the peer has closed a connection."""
    try:
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class Crowd:
    """Connections that are opened again when they are lost, with a byte now and then if they are slow ones."""

    def __init__(self, addresses: list[Address], count: int, source: str, slow: bytes = b"") -> None:
        self._addresses = addresses
        self._source = source
        self._slow = slow
        self._places: list[tuple[socket.socket, int] | None] = [None] * count
        self._next = 0

    def tend(self, count: int) -> None:
        """Look after the next `count` connections."""
        for _ in range(min(count, len(self._places))):
            place = self._next
            self._next = (place + 1) % len(self._places)
            held = self._places[place]
            if held is None:
                opened = connect(self._addresses[place % len(self._addresses)], self._source)
                self._places[place] = (opened, 0) if opened is not None else None
                continue
            connection, sent = held
            if is_over(connection):
                connection.close()
                self._places[place] = None
            elif self._slow:
                with suppress(OSError):
                    sent += connection.send(self._slow[sent : sent + 1])
                    self._places[place] = (connection, sent % len(self._slow))


def assaults() -> Iterator[tuple[str, bytes]]:
    """Yield kinds of attack in turn, without end: each kind of flood, and garbage."""
    draw = random.Random(14)
    kinds = {}
    for path in ("/tiermesh.Cluster/Exchange", "/tiermesh.Cluster/Attend", _JOB_PATH):
        for name, frames in floods(FLOOD_FRAMES, path).items():
            kinds[f"{name} {path}"] = opening(path) + frames
    kinds["http"] = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 100
    kinds["long header"] = b"GET /metrics HTTP/1.1\r\nA: " + b"a" * _GARBAGE_BYTES
    kinds["tls"] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600)
    while True:
        for name in draw.sample(sorted(kinds), len(kinds)):
            yield name, kinds[name]
        yield "garbage", draw.randbytes(_GARBAGE_BYTES)


def attack(share: float, idle: int, source: str, addresses: list[Address]) -> None:
    """Attack the ports until killed."""
    throttle = Throttle(share)
    crowds = [
        Crowd(addresses, idle, source),
        Crowd(addresses[:2], 2 * SLOW, source, opening()),
        Crowd(addresses[2:], SLOW, source, b"GET /metrics HTTP/1.1\r\nA: " + b"a" * 1000),
    ]
    for _, sent in assaults():
        for address in addresses:
            connection = connect(address, source)
            if connection is None:
                continue
            left = memoryview(sent)
            deadline = time.monotonic() + _BURST_SECONDS
            while left and time.monotonic() < deadline:
                try:
                    left = left[connection.send(left) :]  # answers are not read
                except BlockingIOError:
                    select.select([], [connection], [], max(0.0, deadline - time.monotonic()))
                except OSError:
                    break
            connection.close()
            throttle.rest()
        for crowd in crowds:
            crowd.tend(100)
        throttle.rest()


def main(words: list[str]) -> None:
    """Run what the command line says."""
    if words[0] == "burn":
        burn(float(words[1]))
    share, idle, source, host, *ports = words[1:]
    attack(float(share), int(idle), source, [(host, int(port)) for port in ports])


if __name__ == "__main__":
    main(sys.argv[1:])

"""Ports for servers that have to know theirs before they start."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator

PORTS = range(20_000, 30_000)
"""Ports below the range from which Linux assigns free ones, so no connection of another test takes one meanwhile."""


def draw_ports(worker: str, workers: int) -> Iterator[int]:
    """Yield the ports of one process of a test run again and again, from one of them on that is drawn.

    Args:
        worker: name that pytest-xdist gave the process, such as `gw0`.
        workers: number of processes, which share no port.
    """
    own = PORTS[int(worker.removeprefix("gw")) % workers :: workers]
    first = random.randrange(len(own))
    return itertools.cycle((*own[first:], *own[:first]))


_ports = draw_ports(
    os.environ.get("PYTEST_XDIST_WORKER", "gw0"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
)


def free_port() -> int:
    """Return a port of 127.0.0.1 that no process uses, and that this test run has not been given before."""
    while True:
        port = next(_ports)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port

"""Ports for servers that have to know theirs before they start."""

from __future__ import annotations

import random
import socket

PORTS = range(20_000, 30_000)
"""Ports below the range from which Linux assigns free ones, so no connection of another test takes one meanwhile."""


def free_port() -> int:
    """Return a port of 127.0.0.1 that no process uses."""
    while True:
        port = random.choice(PORTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port

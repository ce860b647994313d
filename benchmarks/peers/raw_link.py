"""Measure the throughput of plain sockets through a link.

`raw_link.py receive SENDERS BYTES` prints the port it listens on. After the transfer it prints, as JSON, the seconds
from the first byte to the last. `raw_link.py send HOST PORT BYTES` is one of its senders.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time

LIMIT_SECONDS = 60.0
BUFFER_BYTES = 1024 * 1024


def receive(senders: int, size_bytes: int) -> float:
    """Receive from all senders, and return the seconds from the first byte to the last."""
    selector = selectors.DefaultSelector()
    with socket.create_server(("0.0.0.0", 0)) as listener:
        listener.settimeout(LIMIT_SECONDS)
        print(listener.getsockname()[1], flush=True)
        for _ in range(senders):
            selector.register(listener.accept()[0], selectors.EVENT_READ)
    buffer, missing, started = bytearray(BUFFER_BYTES), senders * size_bytes, 0.0
    while missing:
        ready = selector.select(LIMIT_SECONDS)
        if not ready:
            raise SystemExit(f"raw_link: {missing} bytes did not come within {LIMIT_SECONDS:g} s")
        started = started or time.perf_counter()
        for key, _ in ready:
            assert isinstance(key.fileobj, socket.socket)
            count = key.fileobj.recv_into(buffer)
            if not count:
                selector.unregister(key.fileobj)
            missing -= count
    return time.perf_counter() - started


def send(host: str, port: int, size_bytes: int) -> None:
    """Send this many bytes."""
    block = memoryview(bytes(BUFFER_BYTES))
    with socket.create_connection((host, port), LIMIT_SECONDS) as connection:
        while size_bytes:
            size_bytes -= connection.send(block[:size_bytes])


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        print(json.dumps(receive(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

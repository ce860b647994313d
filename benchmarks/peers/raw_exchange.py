"""The floor of an exchange: the same bytes between the same processes over plain TCP sockets, all up, then all down.

`raw_exchange.py WORKERS BYTES ROUNDS` prints the seconds of each round as a JSON list. One more round warms up.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Callable

PIECE_BYTES = 1 << 20


def receive(connection: socket.socket, into: memoryview) -> None:
    """Receive until `into` is full."""
    position = 0
    while position < len(into):
        position += connection.recv_into(into[position : position + PIECE_BYTES])


def send(connection: socket.socket, payload: memoryview) -> None:
    """Send the whole payload, in pieces."""
    for start in range(0, len(payload), PIECE_BYTES):
        connection.sendall(payload[start : start + PIECE_BYTES])


def worker(port: int, size_bytes: int, rounds: int) -> None:
    """In each round, wait for a byte, send the gradient, receive the weights, and confirm."""
    gradient, weights = memoryview(bytearray(b"g" * size_bytes)), memoryview(bytearray(b"w" * size_bytes))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(rounds):
            connection.recv(1)
            send(connection, gradient)
            receive(connection, weights)
            connection.sendall(b"d")


def together(call: Callable[..., None], arguments: list[tuple[object, ...]]) -> None:
    """Run a call in one thread for each tuple of arguments."""
    threads = [threading.Thread(target=call, args=each) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(workers: int, size_bytes: int, rounds: int) -> list[float]:
    """Run the aggregator's side, and return the seconds of each round."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = multiprocessing.get_context("spawn")
    port = listener.getsockname()[1]
    processes = [context.Process(target=worker, args=(port, size_bytes, rounds + 1)) for _ in range(workers)]
    for process in processes:
        process.start()
    connections = [listener.accept()[0] for _ in processes]
    gradients = [memoryview(bytearray(b"g" * size_bytes)) for _ in processes]
    weights = memoryview(bytearray(b"w" * size_bytes))
    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        for connection in connections:
            connection.sendall(b"s")
        together(receive, list(zip(connections, gradients, strict=True)))
        together(send, [(connection, weights) for connection in connections])
        for connection in connections:
            connection.recv(1)
        seconds.append(time.perf_counter() - started)
    for process in processes:
        process.join()
    return seconds[1:]


if __name__ == "__main__":
    print(json.dumps(main(*(int(each) for each in sys.argv[1:4]))))

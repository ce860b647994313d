"""The floor of an exchange: the same bytes between the same processes over plain TCP sockets, all up, then all down.

`raw_exchange.py WORKERS BYTES ROUNDS` prints a JSON list with the seconds of each round and the CPU seconds of all
processes in it. One more round warms up.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

PIECE_BYTES = 1 << 20
USED = struct.Struct("d")
"""CPU seconds of a worker in a round, by which it confirms the weights."""


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
    """In each round, wait for a byte, send the gradient, receive the weights, and confirm them."""
    gradient, weights = memoryview(bytearray(b"g" * size_bytes)), memoryview(bytearray(b"w" * size_bytes))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(rounds):
            connection.recv(1)
            started = time.process_time()
            send(connection, gradient)
            receive(connection, weights)
            connection.sendall(USED.pack(time.process_time() - started))


def together(call: Callable[..., None], arguments: list[tuple[object, ...]]) -> None:
    """Run a call in one thread for each tuple of arguments."""
    threads = [threading.Thread(target=call, args=each) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(workers: int, size_bytes: int, rounds: int) -> list[tuple[float, float]]:
    """Run the aggregator's side, and return the seconds and CPU seconds of each round."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = multiprocessing.get_context("spawn")
    port = listener.getsockname()[1]
    processes = [context.Process(target=worker, args=(port, size_bytes, rounds + 1)) for _ in range(workers)]
    for process in processes:
        process.start()
    connections = [listener.accept()[0] for _ in processes]
    gradients = [memoryview(bytearray(b"g" * size_bytes)) for _ in processes]
    weights = memoryview(bytearray(b"w" * size_bytes))
    found = []
    for _ in range(rounds + 1):
        started, cpu_started = time.perf_counter(), time.process_time()
        for connection in connections:
            connection.sendall(b"s")
        together(receive, list(zip(connections, gradients, strict=True)))
        together(send, [(connection, weights) for connection in connections])
        confirmed = [bytearray(USED.size) for _ in connections]
        for connection, place in zip(connections, confirmed, strict=True):
            receive(connection, memoryview(place))
        seconds, used = time.perf_counter() - started, time.process_time() - cpu_started
        found.append((seconds, used + sum(USED.unpack(place)[0] for place in confirmed)))
    for process in processes:
        process.join()
    return found[1:]


if __name__ == "__main__":
    print(json.dumps(main(*(int(each) for each in sys.argv[1:4]))))

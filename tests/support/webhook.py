"""A webhook on this machine that answers as a test says, and keeps what it was sent."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


def status(code: int, **headers: str) -> Answer:
    """Return an answer of this status."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


class Webhook:
    """A server of one URL.

    Attributes:
        url: its URL, with a secret in its path.
        received: bodies that arrived, as JSON, in their order.
        answers: how the next requests are answered; when there are no more, with 200.
        released: ends answers that wait, see `silence`.
    """

    SECRET = "s3cr3t-of-a-webhook"

    def __init__(self, address: str) -> None:
        self.url = f"http://{address}/services/{self.SECRET}"
        self.received: queue.Queue[Any] = queue.Queue()
        self.answers: list[Answer] = []
        self.released = threading.Event()

    def silence(self, request: BaseHTTPRequestHandler) -> None:
        """Answer nothing until the test is over."""
        self.released.wait(60)
        request.close_connection = True

    def drip(self, request: BaseHTTPRequestHandler) -> None:
        """Answer with a head that never ends, a byte at a time, until its reader has gone."""
        try:
            request.wfile.write(b"HTTP/1.1 200 OK\r\nA: ")
            while not self.released.wait(0.01):
                request.wfile.write(b"a")
        except OSError:
            request.close_connection = True

    def flood(self, request: BaseHTTPRequestHandler) -> None:
        """Answer 200 with a body that never ends, until its reader has gone."""
        request.send_response(200)
        request.end_headers()
        try:
            while not self.released.is_set():
                request.wfile.write(bytes(1 << 20))
        except OSError:
            request.close_connection = True

    def take(self, count: int) -> list[Any]:
        """Return the next bodies, once so many have arrived."""
        return [self.received.get(timeout=60) for _ in range(count)]


@contextmanager
def webhook() -> Iterator[Webhook]:
    """Serve a webhook from a thread of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            content = json.loads(body)
            if content.get("event") != "disk_low":  # the disk of this machine may be
                found.received.put(content)
            (found.answers.pop(0) if found.answers else status(200))(self)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Webhook(f"127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.released.set()
        server.shutdown()
        server.server_close()
        thread.join(20)

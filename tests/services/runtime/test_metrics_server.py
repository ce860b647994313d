"""The port of `/metrics` goes on to answer whatever its other peers do."""

from __future__ import annotations

import dataclasses
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.runtime.metrics import ConnectionMetrics, WorkerMetrics
from services.runtime.metrics_server import METRICS_LIMITS, MetricsServer, start_metrics
from services.transport.access.permissions import CallerKind
from services.transport.security import Security
from tests.support.certificates import make_authority, make_certificate

LIMIT_SECONDS = 30
MANY = dataclasses.replace(
    METRICS_LIMITS, connections=3000, pending=3000, pending_by_address=3000, opened_by_address=5000
)


@contextmanager
def serving(security: Security = Security(), seconds: float = 10.0) -> Iterator[MetricsServer]:  # noqa: B008
    server = start_metrics(
        "127.0.0.1:0", WorkerMetrics().registry, security, limits=MANY, connection_seconds=seconds
    )
    try:
        yield server
    finally:
        server.stop()


def scrape(port: int, context: ssl.SSLContext | None = None) -> str:
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=context)] if context else [])
    )
    scheme = "https" if context else "http"
    with opener.open(f"{scheme}://127.0.0.1:{port}/metrics", timeout=20) as reply:
        text = reply.read().decode()
    assert "tiermesh_aggregator_connected" in text
    return str(text)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Security, ssl.SSLContext]:
    folder = tmp_path_factory.mktemp("tls")
    authority = make_authority(folder, "authority")
    cert, key = make_certificate(folder, "server", authority, CallerKind.METRICS)
    client = ssl.create_default_context(cafile=str(authority))
    client.verify_flags &= ~ssl.VERIFY_X509_STRICT
    client.load_cert_chain(cert, key)
    return Security(cert=cert, key=key, ca=authority), client


def wait_closed(connection: socket.socket) -> None:
    """Wait until the server has closed a connection; fail if it does not."""
    connection.settimeout(LIMIT_SECONDS)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass


@pytest.mark.parametrize("count", [1, 400])
def test_idle_connections_block_nobody(count: int, tls: tuple[Security, ssl.SSLContext]) -> None:
    for security, context in ((Security(), None), tls):
        with serving(security) as server:
            idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
            for _ in range(3):
                scrape(server.port, context)
            for each in idle:
                each.close()


def test_idle_and_slow_connections_are_cut(tls: tuple[Security, ssl.SSLContext]) -> None:
    for security in (Security(), tls[0]):
        with serving(security, seconds=1.0) as server:
            idle = socket.create_connection(("127.0.0.1", server.port))
            slow = socket.create_connection(("127.0.0.1", server.port))
            stop = threading.Event()

            def drip(connection: socket.socket = slow, stop: threading.Event = stop) -> None:
                try:
                    for byte in b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 10_000:
                        connection.send(bytes([byte]))
                        if stop.wait(0.1):
                            return
                except OSError:
                    pass

            dripping = threading.Thread(target=drip)
            dripping.start()
            try:
                wait_closed(idle)
                wait_closed(slow)
            finally:
                stop.set()
                dripping.join()


def test_a_connection_carries_one_request_and_garbage_none() -> None:
    with serving() as server:
        peer = socket.create_connection(("127.0.0.1", server.port))
        peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        peer.settimeout(20)
        got = b""
        while piece := peer.recv(65536):
            got += piece
        assert got.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in got
        for bad in (
            b"\x16\x03\x01\x00",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: " + b"a" * 70_000,
        ):
            garbage = socket.create_connection(("127.0.0.1", server.port))
            try:
                garbage.sendall(bad)
                garbage.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            wait_closed(garbage)
        scrape(server.port)


def test_refused_connections_are_counted() -> None:
    registry = WorkerMetrics().registry
    counted = ConnectionMetrics(registry, "worker").counter_of("metrics")
    limits = dataclasses.replace(METRICS_LIMITS, pending_by_address=2)
    server = start_metrics("127.0.0.1:0", registry, Security(), limits=limits, count_refusal=counted)
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
    wait_closed(idle[3])
    idle[0].close()
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            text = scrape(server.port)
            break
        except OSError:
            assert time.monotonic() < deadline
    wanted = 'tiermesh_connections_refused_total{port="metrics",reason="address",role="worker"} '
    (line,) = (each for each in text.splitlines() if each.startswith(wanted))
    assert float(line.removeprefix(wanted)) >= 2
    for each in idle:
        each.close()
    server.stop()


def test_the_certificate_of_a_stranger_is_refused(
    tls: tuple[Security, ssl.SSLContext], tmp_path: Path
) -> None:
    authority = make_authority(tmp_path, "other")
    cert, key = make_certificate(tmp_path, "stranger", authority)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(cert, key)
    with serving(tls[0]) as server, pytest.raises(OSError):
        scrape(server.port, context)

"""TLS handshakes of gRPC servers: when gRPC is given a certificate again, and many handshakes at once."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.transport.access.permissions import CallerKind
from services.transport.security import Security
from tests.support.certificates import make_authority, make_certificate

SERVE = """
import asyncio, sys
from pathlib import Path
import grpc
from services.transport.security import Security

async def serve():
    server = grpc.aio.server()
    security = Security(cert=Path(sys.argv[1]), key=Path(sys.argv[2]))
    print(server.add_secure_port("127.0.0.1:0", security.server_credentials()), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(serve())
"""
HANDSHAKES = 8000
SIMULTANEOUS = 16


@pytest.fixture
def server(tmp_path: Path) -> Security:
    make_certificate(tmp_path, "server", make_authority(tmp_path, "authority"), CallerKind.AGGREGATOR)
    return Security(cert=tmp_path / "server.pem", key=tmp_path / "server.key")


def test_grpc_is_given_a_certificate_once(server: Security, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, Callable[[], object]]] = []

    def keep(initial: object, fetch: Callable[[], object], **_: Any) -> None:
        given.append((initial, fetch))

    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", keep)
    server.server_credentials()
    [(initial, fetch)] = given
    assert fetch() is None
    assert fetch() is None
    assert server.cert is not None
    os.utime(server.cert, ns=(0, 0))  # as changed
    renewed = fetch()
    assert isinstance(renewed, grpc.ServerCertificateConfiguration)
    assert renewed is not initial
    assert fetch() is None
    server.cert.write_text("junk")
    assert fetch() is None


@pytest.mark.long
def test_a_server_survives_many_handshakes_at_once(server: Security) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    command = [sys.executable, "-c", SERVE, str(server.cert), str(server.key)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())

        def shake_hands(_: int) -> None:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
                context.wrap_socket(plain).close()

        with ThreadPoolExecutor(SIMULTANEOUS) as threads:
            for _ in threads.map(shake_hands, range(HANDSHAKES)):
                pass
    assert process.returncode == 0

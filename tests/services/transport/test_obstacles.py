"""What is told of a peer that can't be reached: each cause is that of a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.errors import Refused
from services.transport import obstacles
from services.transport.access.permissions import CallerKind
from services.transport.obstacles import AGGREGATOR, OPTIMIZER, Peer, find_obstacle
from services.transport.security import Security
from tests.support.certificates import make_authority, make_certificate
from tests.support.fake_aggregator import FakeAggregator, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with certificates of two authorities."""
    folder = tmp_path_factory.mktemp("certificates")
    for name, owner in (("ours", "alice"), ("theirs", "bob")):
        make_certificate(folder, owner, make_authority(folder, name), CallerKind.PERSON)
    return folder


def security(folder: Path, owner: str | None = "alice", authority: str = "ours") -> Security:
    cert, key = (folder / f"{owner}.pem", folder / f"{owner}.key") if owner else (None, None)
    return Security(cert, key, folder / f"{authority}.pem")


def told(address: str, using: Security, peer: Peer = AGGREGATOR) -> str | None:
    found = asyncio.run(find_obstacle(address, using, peer))
    return None if found is None else str(found)


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Serve the same bytes to each connection; none for a server that stays silent."""
    server = socket.create_server(("127.0.0.1", 0))

    async def serve() -> None:
        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(reply, sock=server):
            await asyncio.Event().wait()

    address = f"127.0.0.1:{server.getsockname()[1]}"
    if not answer:
        with server:
            yield address
        return
    loop = asyncio.new_event_loop()
    task = loop.create_task(serve())

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run)
    thread.start()
    with server:
        try:
            yield address
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join()
    loop.close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1"])
def test_nothing_listens(address: str, folder: Path) -> None:
    expected = f"nothing listens at {address}: start `tiermesh optimizer`, or name another with --optimizer"
    for using in (Security(), security(folder)):
        assert told(address, using, OPTIMIZER) == expected


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a b", "a" * 70])
def test_a_host_without_an_address(host: str) -> None:
    text = told(f"{host}:7070", Security())
    assert text is not None
    assert text.startswith(f"host {host!r} has no address (") and text.endswith("): correct --aggregator")


def test_no_host_and_port() -> None:
    with pytest.raises(Refused, match="not HOST:PORT"):
        told("nowhere", Security())


def test_a_server_that_speaks_grpc_is_no_obstacle(folder: Path) -> None:
    with serving(FakeAggregator()) as plain, serving(FakeAggregator(), security(folder)) as tls:
        assert told(plain.address, Security()) is None
        assert told(tls.address, security(folder)) is None


def test_tls_at_one_end_only(folder: Path) -> None:
    with serving(FakeAggregator()) as plain, serving(FakeAggregator(), security(folder)) as tls:
        text = told(tls.address, Security())
        assert text == f"{tls.address} speaks TLS: give --tls-ca, and --tls-cert with --tls-key or a token"
        text = told(plain.address, security(folder))
        assert text is not None and text.startswith(f"{plain.address} speaks no TLS: leave out --tls-ca, ")


def test_certificates_that_are_not_accepted(folder: Path) -> None:
    with serving(FakeAggregator(), security(folder)) as tls:
        for using, expected in (
            (security(folder, None), "refuses a connection without a certificate: give one of"),
            (
                security(folder, "bob"),
                "refuses a connection with this certificate: give another",
            ),
            (security(folder, None, "theirs"), "is not trusted (unable to get local issuer"),
        ):
            text = told(tls.address, using)
            assert text is not None and expected in text, text


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "is a web server, such as the one of /metrics: give the port of an",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "speaks no gRPC: see that an aggregator runs there"),
        (b"", "accepts connections but does not answer: see that an aggregator runs there"),
    ],
)
def test_another_server(answer: bytes, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstacles, "PROBE_SECONDS", 1.0 if answer else 0.1)
    with answering(answer) as address:
        text = told(address, Security())
        assert text is not None and text.startswith(f"{address} {expected}"), text
        text = told(address, security(folder))
        assert text is not None and text.startswith(f"no TLS connection to {address} ("), text

"""What a person is told to do about a neighbour that can't be reached: the causes are those of real connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.printable import LINE_CHARACTERS
from services.transport.access.permissions import CallerKind
from services.transport.http2.client import open_stream
from services.transport.http2.server import StreamServer
from services.transport.links import raise_call_status
from services.transport.security import Security
from tests.support.certificates import make_authority, make_certificate
from tests.support.ports import free_port
from worker.pipeline.remedies import add_remedy
from worker.pipeline.streams import PASS_METHOD

OLD_TLS_ALERT = bytes([0x15, 3, 1, 0, 2, 2, 70])  # fatal, protocol_version (RFC 8446, section 6)


async def serve(context: Any) -> None:
    await context.read()


class Ends:
    """The certificates of both ends of a connection, one of which a test replaces."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = make_authority(folder, "authority")
        self._stranger = make_authority(folder, "stranger")
        self.server = self.make("server")
        self.client = self.make("client")

    def make(
        self, name: str, *, stranger: bool = False, kind: CallerKind = CallerKind.WORKER, **words: Any
    ) -> Security:
        """Return certificates of one end."""
        signer = self._stranger if stranger else self._authority
        return Security(*make_certificate(self._folder, name, signer, kind, **words), self._authority)


async def find_cause(address: str, client: Security, limit_seconds: float = 20.0) -> str:
    try:
        stream = await open_stream(address, client, PASS_METHOD, limit_seconds=limit_seconds)
        await asyncio.wait_for(raise_call_status(stream), 20.0)
    except grpc.aio.AioRpcError as error:
        return error.details() or error.code().name
    return ""


async def find_cause_between(
    ends: Ends, method: str = PASS_METHOD, insecure: tuple[bool, bool] = (False, False)
) -> str:
    """Return why the client can't open a stream to the server."""
    server, client = (
        Security() if plain else own for plain, own in zip(insecure, (ends.server, ends.client), strict=True)
    )
    port = await StreamServer.start("127.0.0.1:0", server, {method: serve})
    try:
        return await find_cause(f"127.0.0.1:{port.port}", client)
    finally:
        await port.stop(0.1)


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    return Ends(tmp_path)


def set_server(**words: Any) -> Callable[[Ends], None]:
    def change(ends: Ends) -> None:
        ends.server = ends.make("changed", **words)

    return change


def set_client(**words: Any) -> Callable[[Ends], None]:
    def change(ends: Ends) -> None:
        ends.client = ends.make("changed", **words)

    return change


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (
            set_server(hosts=["box-1.example"]),
            "start worker w1 with --advertise and a host that its certificate",
        ),
        (
            set_server(stranger=True),
            "give worker w1 a certificate of the authority in this worker's --tls-ca",
        ),
        (set_server(days=-1), "renew the certificate of worker w1"),
        (set_client(stranger=True), "give both workers valid certificates of one authority"),
        (set_client(days=-1), "give both workers valid certificates of one authority"),
        (set_client(kind=CallerKind.AGGREGATOR), "give this worker a certificate of role worker"),
    ],
)
def test_a_certificate_that_does_not_fit(ends: Ends, change: Callable[[Ends], None], remedy: str) -> None:
    change(ends)
    cause = asyncio.run(find_cause_between(ends))
    assert remedy in add_remedy(cause, "w1"), cause


@pytest.mark.parametrize("insecure", [(True, False), (False, True)])
def test_plain_text_at_one_end(ends: Ends, insecure: tuple[bool, bool]) -> None:
    cause = asyncio.run(find_cause_between(ends, insecure=insecure))
    assert "or both --insecure" in add_remedy(cause, "w1"), cause


def test_another_daemon_at_that_port(ends: Ends) -> None:
    cause = asyncio.run(find_cause_between(ends, method="/tiermesh.Cluster/Exchange"))
    assert "look at --tensor-port of worker w1" in add_remedy(cause, "w1"), cause


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("127.0.0.1:{port}", "let worker w1 --listen on an address that others reach"),
        ("box.invalid:7080", "give worker w1 an --advertise that this host can resolve"),
    ],
)
def test_nothing_is_at_that_address(address: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = partial(socket.getaddrinfo, flags=socket.AI_NUMERICHOST)  # names are asked of no server
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *hints: look_up(host, port))
    cause = asyncio.run(find_cause(address.format(port=free_port()), Security()))
    assert remedy in add_remedy(cause, "w1"), cause


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (b"", "open that port in firewalls, or start worker w1 with"),
        (OLD_TLS_ALERT, "lacks TLS 1.2"),
    ],
)
def test_what_is_at_that_address_is_silent_or_old(ends: Ends, answer: bytes, remedy: str) -> None:
    async def connect() -> str:
        def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            writers.append(writer)

        writers: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(meet, "127.0.0.1", 0)
        try:
            port = server.sockets[0].getsockname()[1]
            return await find_cause(f"127.0.0.1:{port}", ends.client, 20.0 if answer else 0.2)
        finally:
            server.close()
            for writer in writers:
                writer.close()

    cause = asyncio.run(connect())
    assert remedy in add_remedy(cause, "w1"), cause


def test_a_remedy_is_not_cut_off() -> None:
    line = add_remedy(f"{'a' * 60}.example:7080: {'certificate is not valid for ' * 20}", "w" * 60)
    assert len(line) <= LINE_CHARACTERS
    assert line.endswith("its certificate names")
    assert add_remedy("not heard for 30.0 s", "w1").endswith("certificate of worker w1, and at firewalls")

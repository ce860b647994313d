"""Servers that this process dials and whose certificates were revoked, on real ports with TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from plane.streams.data_streams import DataStreamConnector
from protos import cluster_pb2 as pb
from services.protocol.envelope import unwrap, wrap
from services.transport.access import rechecks
from services.transport.access.identity import identify
from services.transport.access.permissions import CallerKind
from services.transport.backoff import Backoff
from services.transport.checked_channel import open_checked_channel
from services.transport.control.attend_client import AttendMethod, LinkEnd, keep_attending
from services.transport.http2.client import open_stream
from services.transport.http2.server import StreamServer
from services.transport.links import LinkClosed
from services.transport.obstacles import AGGREGATOR
from services.transport.security import Security
from services.transport.server import start_server
from tests.support.certificates import make_certificate, make_certificates

ATTEND, EXCHANGE = "/tiermesh.Cluster/Attend", "/tiermesh.Cluster/Exchange"
SOON_SECONDS = 0.05
LIMIT_SECONDS = 20
REVOKED = r"localhost:\d+: the server's certificate [0-9a-f]+ was revoked \(--revoked .*revoked.txt\)"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return make_certificates(tmp_path)


@pytest.fixture(autouse=True)
def checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rechecks, "CHECK_AGAIN_SECONDS", SOON_SECONDS)


def security(files: Path, name: str, **settings: Any) -> Security:
    return Security(files / f"{name}.pem", files / f"{name}.key", files / "authority.pem", **settings)


def revoke(files: Path, name: str) -> Path:
    path = files / "revoked.txt"
    path.write_text(f"{identify((files / f'{name}.pem').read_bytes()).serial:x} {name}\n")
    return path


class Served:
    """Calls that have reached the servers."""

    def __init__(self) -> None:
        self.calls = 0

    async def stay(self, _: Any, context: Any) -> None:
        self.calls += 1
        await context.write(b"here")
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(files: Path) -> AsyncIterator[tuple[str, str, Served]]:
    """Run both kinds of servers with the aggregator's certificate; yield their addresses, and what they served."""
    served, server = Served(), security(files, "aggregator")
    stay = grpc.stream_stream_rpc_method_handler(served.stay)
    handlers = [grpc.method_handlers_generic_handler("tiermesh.Cluster", {"Attend": stay, "Exchange": stay})]
    role = await start_server("127.0.0.1:0", server, handlers, [])
    tensors = await StreamServer.start(
        "127.0.0.1:0", server, {EXCHANGE: lambda stream: served.stay(None, stream)}
    )
    try:
        yield f"localhost:{role.port}", f"localhost:{tensors.port}", served
    finally:
        await tensors.stop(0)
        await role.stop(0)


def test_a_revoked_server_is_not_called(files: Path) -> None:
    client = security(files, "worker", revoked=revoke(files, "aggregator"))

    async def test() -> None:
        async with serving(files) as (main, tensors, served):
            with pytest.raises(grpc.aio.AioRpcError, match=REVOKED) as refused:
                await open_stream(tensors, client, EXCHANGE)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.aio.AioRpcError, match=REVOKED):
                async with open_checked_channel(main, client):
                    pytest.fail("the channel was opened")
            with pytest.raises(grpc.aio.AioRpcError, match=REVOKED):
                async with DataStreamConnector(EXCHANGE, client).open(main, 0, ()):
                    pytest.fail("the stream was opened")
            assert served.calls == 0

    asyncio.run(asyncio.wait_for(test(), LIMIT_SECONDS))


def test_open_links_to_a_server_end_soon_after_it_was_revoked(files: Path) -> None:
    client = security(files, "worker", revoked=revoke(files, "person"))

    async def test() -> None:
        async with serving(files) as (main, tensors, _):
            stream = await open_stream(tensors, client, EXCHANGE)
            assert bytes(await stream.read() or b"") == b"here"
            with pytest.raises(LinkClosed, match="was revoked"):
                async with open_checked_channel(main, client) as channel:
                    call = channel.stream_stream(ATTEND)()
                    assert await call.read() == b"here"
                    await asyncio.sleep(3 * SOON_SECONDS)  # several checks pass
                    assert not call.done()
                    assert not stream.end_reason
                    revoke(files, "aggregator")
                    await call.read()
                    pytest.fail("the call went on")
            assert await stream.code() is grpc.StatusCode.UNAVAILABLE
            assert "was revoked" in await stream.details()

    asyncio.run(asyncio.wait_for(test(), LIMIT_SECONDS))


def test_a_server_that_cannot_be_checked_is_not_called(files: Path) -> None:
    client = security(files, "worker", revoked=revoke(files, "person"))
    kind, authority = CallerKind.AGGREGATOR, files / "authority.pem"
    make_certificate(files, "aggregator", authority, kind, hosts=["elsewhere.example"])

    async def test() -> None:
        async with serving(files) as (main, _, served):
            with pytest.raises(grpc.aio.AioRpcError, match="its certificate is not trusted"):
                async with open_checked_channel(main, client):
                    pytest.fail("the channel was opened")
            assert served.calls == 0

    asyncio.run(asyncio.wait_for(test(), LIMIT_SECONDS))


class Attending:
    """Attendant that notes the ends of its links."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.ends: asyncio.Queue[LinkEnd] = asyncio.Queue()

    def begin(self) -> pb.WorkerMessage:
        return wrap(pb.WorkerMessage, 0, pb.Hello())

    def check_answer(self, _: Any) -> None:
        pytest.fail("a revoked server was heard")

    async def attend(self, _: Any) -> None:
        pytest.fail("a revoked server was attended")

    def ended(self, end: LinkEnd) -> bool:
        self.ends.put_nowait(end)
        return True


def test_no_daemon_attends_a_revoked_server(files: Path) -> None:
    client = security(files, "worker", revoked=revoke(files, "aggregator"))
    method = AttendMethod(ATTEND, pb.WorkerCommand, unwrap, pb.Welcome, AGGREGATOR)

    async def test() -> None:
        async with serving(files) as (main, _, served):
            attending = Attending(main)
            task = asyncio.create_task(keep_attending(attending, method, client, Backoff()))
            end = await attending.ends.get()
            task.cancel()
            assert "was revoked" in end.reason and served.calls == 0

    asyncio.run(asyncio.wait_for(test(), LIMIT_SECONDS))

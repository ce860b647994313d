"""Tests of the link to an optimizer on another host: back-pressure, damaged messages, reconnecting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from aggregator.optimizer_links.link import OptimizerLinkCallbacks
from aggregator.optimizer_links.remote import RemoteOptimizerLink
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import FLOAT32, GRADIENT, ChunkHeader
from services.files.store import FileStore
from services.protocol.envelope import wrap
from services.protocol.plan import WINDOW_CHUNKS
from services.protocol.versions import PROTOCOL_VERSION
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.shared_memory import SharedArray
from services.timeouts import Timeouts
from services.transport.backoff import Backoff
from services.transport.security import Security
from services.transport.server import start_server
from tests.support.damaging import DamagingPeer

SENT = 3 * WINDOW_CHUNKS
LIMIT_SECONDS = 30.0


class SlowOptimizer:
    """An optimizer that says Hello and reads chunks only while `reads` is set."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.read = 0

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        methods = {
            "Attend": grpc.stream_stream_rpc_method_handler(
                self._attend, pb.OptimizerCommand.FromString, pb.OptimizerMessage.SerializeToString
            ),
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
        }
        return [grpc.method_handlers_generic_handler("tiermesh.Optimizer", methods)]

    async def _attend(self, _: Any, context: Any) -> None:
        await context.read()
        hello = pb.Hello(protocol=PROTOCOL_VERSION, role="optimizer", name="slow", shard_count=1)
        await context.write(wrap(pb.OptimizerMessage, 1, hello))
        await context.read()

    async def _exchange(self, _: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        await self.reads.wait()
        while isinstance(await context.read(), bytes):
            self.read += 1


def test_reconnecting_waits_at_most_the_retry_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.transport.backoff.random.uniform", lambda least, most: most)
    waits: list[float] = []

    async def scenario() -> None:
        enough = asyncio.Event()

        class Hasty(Backoff):
            async def wait(self) -> None:
                waits.append(self.next_seconds())
                if len(waits) == 12:
                    enough.set()
                    await asyncio.Event().wait()

        server = await start_server("127.0.0.1:0", Security(), [], ())
        link = RemoteOptimizerLink(
            f"127.0.0.1:{server.port}",
            Security(),
            name="a",
            incarnation="i",
            epoch=1,
            cluster="c0ffee00c0ffee00",
            callbacks=OptimizerLinkCallbacks(
                connected=lambda name, hello: None,
                lost=lambda reason: None,
                message=lambda body: None,
                weights=lambda header, chunk, message: None,
            ),
            heartbeat_seconds=0.5,
            files=FileStore(Path("/nonexistent")),
            shared_memory=False,
            count=lambda used: None,
            make_backoff=Hasty,
        )
        running = asyncio.ensure_future(link.run())
        await enough.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
    assert max(waits) == Timeouts.from_heartbeat(0.5).retry


def chunk(index: int) -> ChunkHeader:
    return ChunkHeader(job="j", epoch=1, generation=1, kind=GRADIENT, index=index, dtype=FLOAT32)


def link_to(address: str, connected: Callable[[], None], lost: Callable[[str], None]) -> RemoteOptimizerLink:
    return RemoteOptimizerLink(
        address,
        Security(),
        name="a",
        incarnation="i",
        epoch=1,
        cluster="c0ffee00c0ffee00",
        callbacks=OptimizerLinkCallbacks(
            connected=lambda name, hello: connected(),
            lost=lost,
            message=lambda body: None,
            weights=lambda header, chunk, message: None,
        ),
        heartbeat_seconds=5.0,
        files=FileStore(Path("/nonexistent")),
        shared_memory=False,
        count=lambda used: None,
    )


def test_a_slow_optimizer_makes_workers_wait_after_one_window() -> None:
    async def scenario() -> None:
        optimizer = SlowOptimizer()
        server = await start_server("127.0.0.1:0", Security(), optimizer.handlers(), ())
        connected, lost = asyncio.Event(), asyncio.Event()
        link = link_to(f"127.0.0.1:{server.port}", connected.set, lambda reason: lost.set())
        running = asyncio.ensure_future(link.run())
        try:
            await link.wait_for_room()  # returns at once: nothing waits yet
            await connected.wait()
            values = np.zeros(CHUNK_ELEMENTS, np.float32)
            for index in range(SENT):
                link.send(link.prepare(chunk(index), values, SENT * CHUNK_ELEMENTS))
            waiting = asyncio.ensure_future(link.wait_for_room())
            done, _ = await asyncio.wait((waiting,), timeout=0.5)
            assert not done, "a window of sums waits, and no more may come"
            optimizer.reads.set()
            await waiting
            assert optimizer.read >= SENT - 2 * WINDOW_CHUNKS, "there is room once less than a window waits"

            optimizer.reads.clear()
            for index in range(SENT):
                link.send(link.prepare(chunk(index), values, SENT * CHUNK_ELEMENTS))
            await server.stop(0)
            await lost.wait()
            await link.wait_for_room()  # returns at once: sums are dropped while the link is down
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await server.stop(0)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_each_open_job_has_an_array_of_sums_of_its_own() -> None:
    async def scenario() -> None:
        link = link_to("127.0.0.1:1", lambda: None, lambda reason: None)
        vars(link)["_link"] = SimpleNamespace(shares=True)
        values = np.zeros(CHUNK_ELEMENTS, np.float32)

        def prepare(job: str) -> SharedArray:
            header = ChunkHeader(job=job, epoch=1, generation=1, kind=GRADIENT, dtype=FLOAT32)
            array = link.prepare(header, values, CHUNK_ELEMENTS)[1]
            assert array is not None
            return array

        for job in "jk":
            link.send_order(pb.Open(job=job))
        first = prepare("j")
        assert prepare("k") is not first
        assert prepare("j") is first, "jobs that take turns reuse their arrays"
        link.send_order(pb.Close(job="k"))
        assert list(link._arrays) == ["j"]
        prepare("k")  # a late sum of the closed job
        link.send_order(pb.Close(job="j"))
        assert not link._arrays

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_a_damaged_control_message_ends_the_link_at_once() -> None:
    async def scenario() -> None:
        hello = pb.Hello(protocol=PROTOCOL_VERSION, role="optimizer", name="o", shard_count=1)
        peer = DamagingPeer(
            "tiermesh.Optimizer",
            wrap(pb.OptimizerMessage, 1, hello),
            wrap(pb.OptimizerMessage, 1, pb.Heartbeat()),
        )
        async with peer.serving():
            lost: list[str] = []
            running = asyncio.ensure_future(link_to(peer.address, lambda: None, lost.append).run())
            await peer.again.wait()
            assert peer.heard[0] == 1, "only Hello was sent, no heartbeat"
            (reason,) = lost
            assert reason.startswith(f"{peer.address}: Attend: message 2")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_an_address_where_nothing_listens_is_named_once() -> None:
    async def scenario() -> None:
        server = await start_server("127.0.0.1:0", Security(), [], ())
        await server.stop(0)
        lost: asyncio.Queue[str] = asyncio.Queue()
        address = f"127.0.0.1:{server.port}"
        running = asyncio.ensure_future(link_to(address, lambda: None, lost.put_nowait).run())
        reason = await lost.get()
        assert reason.count(address) == 1 and "nothing listens" in reason
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))

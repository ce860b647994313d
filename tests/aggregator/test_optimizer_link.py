"""The link to an optimizer on another host: a slow one slows the workers, and fills no queue; damage ends the link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from aggregator.optimizer_link import LocalOptimizerLink, OptimizerLinkEvents, RemoteOptimizerLink
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import FLOAT32, GRADIENT, ChunkHeader
from services.protocol.envelope import wrap
from services.protocol.plan import WINDOW_CHUNKS
from services.protocol.versions import PROTOCOL_VERSION
from services.tensors.layout import CHUNK_ELEMENTS
from services.timeouts import Timeouts
from services.transport.backoff import Backoff
from services.transport.security import Security
from services.transport.server import start_server
from tests.support.damaging import DamagingPeer

SENT = 3 * WINDOW_CHUNKS
LIMIT_SECONDS = 30.0


class SlowOptimizer:
    """Says hello, and reads chunks only once `reads` is set."""

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


def test_an_optimizer_that_is_away_is_looked_for_at_the_clusters_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    async def scenario() -> None:
        enough = asyncio.Event()

        class Hasty(Backoff):
            async def wait(self) -> None:
                waits.append(self.next_seconds())
                if len(waits) == 12:
                    enough.set()
                    await asyncio.Event().wait()

        monkeypatch.setattr("aggregator.optimizer_link.Backoff", Hasty)
        server = await start_server("127.0.0.1:0", Security(), [], ())
        link = RemoteOptimizerLink(
            f"127.0.0.1:{server.port}",
            Security(),
            name="a",
            incarnation="i",
            epoch=1,
            events=OptimizerLinkEvents(
                connected=lambda name: None,
                lost=lambda reason: None,
                message=lambda body: None,
                weights=lambda header, chunk, message: None,
            ),
            heartbeat_seconds=0.5,
            shared_memory=False,
            count=lambda used: None,
        )
        running = asyncio.ensure_future(link.run())
        await enough.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
    assert Timeouts.from_heartbeat(0.5).beat < max(waits) <= Timeouts.from_heartbeat(0.5).retry


def chunk(index: int) -> ChunkHeader:
    return ChunkHeader(job="j", epoch=1, generation=1, kind=GRADIENT, index=index, dtype=FLOAT32)


def link_to(address: str, connected: Callable[[], None], lost: Callable[[str], None]) -> RemoteOptimizerLink:
    return RemoteOptimizerLink(
        address,
        Security(),
        name="a",
        incarnation="i",
        epoch=1,
        events=OptimizerLinkEvents(
            connected=lambda name: connected(),
            lost=lost,
            message=lambda body: None,
            weights=lambda header, chunk, message: None,
        ),
        heartbeat_seconds=5.0,
        shared_memory=False,
        count=lambda used: None,
    )


def test_workers_wait_while_a_window_of_sums_waits_for_the_optimizer() -> None:
    async def scenario() -> None:
        optimizer = SlowOptimizer()
        server = await start_server("127.0.0.1:0", Security(), optimizer.handlers(), ())
        connected, lost = asyncio.Event(), asyncio.Event()
        link = link_to(f"127.0.0.1:{server.port}", connected.set, lambda reason: lost.set())
        running = asyncio.ensure_future(link.run())
        try:
            await link.room()  # nothing waits yet
            await connected.wait()
            values = np.zeros(CHUNK_ELEMENTS, np.float32)
            for index in range(SENT):
                link.send(link.prepare(chunk(index), values, SENT * CHUNK_ELEMENTS))
            waiting = asyncio.ensure_future(link.room())
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
            await link.room()  # what is sent while the link is down is dropped: nobody waits for it
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await server.stop(0)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_an_optimizer_whose_words_are_damaged_is_connected_to_anew_before_a_beat() -> None:
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
            assert peer.heard[0] == 1, "Hello alone: no beat was waited for"
            (told,) = lost
            assert told.startswith(f"{peer.address}: Attend: message 2, of ")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_an_optimizer_in_this_process_has_room_when_its_engine_has() -> None:
    class Engine:
        roomy = asyncio.Event()

        async def wait_for_room(self) -> None:
            await self.roomy.wait()

    async def scenario() -> None:
        engine: Any = Engine()
        nothing: Any = None
        room = asyncio.ensure_future(LocalOptimizerLink(engine, name="agg", epoch=1, events=nothing).room())
        await asyncio.sleep(0)
        assert not room.done()
        engine.roomy.set()
        await room

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))

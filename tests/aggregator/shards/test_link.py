"""A link to a shard: every wait for the shard's tensors is bounded."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from aggregator.shards.link import ShardLink
from aggregator.shards.service import ShardService
from plane.array_pieces import make_piece
from plane.errors import PlaneLost
from plane.link import PlaneLink
from plane.plane import Plane
from plane.plane_tensors import PlaneTensors
from protos import plane_pb2 as pb
from services.config.load import load_job
from services.errors import Failed
from services.protocol.file_refs import make_ref
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.stripes import Stripe
from services.timeouts import Timeouts
from services.transport.security import Security
from services.transport.server import start_server
from tests.support.cluster.bits import sized_config, write_config

LIMIT_SECONDS = 60
LAYOUT = Layout.build([("w", (CHUNK_ELEMENTS + 4,), True, "w", False)])
PATIENT, HASTY = Timeouts.from_heartbeat(5.0), Timeouts.from_heartbeat(0.005)


class Linked:
    """A link to a shard service in this process, with queues of what it calls its group with."""

    def __init__(self, address: str, timeouts: Timeouts) -> None:
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self.reports: asyncio.Queue[Message] = asyncio.Queue()
        self.link = ShardLink(
            address,
            Stripe(),
            security=Security(),
            name="agg",
            incarnation="i",
            epoch=1,
            cluster="c0ffee00c0ffee00",
            timeouts=timeouts,
        )
        self.link.join(self)

    def link_up(self, link: PlaneLink) -> None:
        self.events.put_nowait("up")

    def link_down(self, link: PlaneLink, reason: str) -> None:
        self.events.put_nowait(reason)

    def report_waiting(self) -> None:
        pass

    def take_report(self, link: PlaneLink, body: Message) -> None:
        self.reports.put_nowait(body)

    async def open(self, tmp_path: Path) -> None:
        """Open a job in the shard."""
        spec = load_job(write_config(tmp_path, sized_config(CHUNK_ELEMENTS // 4 + 1, 4)), [])[0].to_json()
        layout = LAYOUT.dumps().encode()
        await self.link.send_layout(LAYOUT, layout)
        self.link.send_order(pb.OpenPart(opening=1, job="j", spec_json=spec, layout=make_ref(layout)))
        assert await self.reports.get() == pb.PartOpened(opening=1)

    async def pieces(self, copy: int) -> int:
        """Order a copy and read it; return the number of its pieces."""
        self.link.send_order(pb.CopyPart(copy=copy))
        return len([piece async for piece in self.link.read_copy(copy)])


def with_link(timeouts: Timeouts, scenario: Callable[[Linked], Awaitable[None]]) -> None:
    async def run() -> None:
        service = ShardService(name="s", state_dir=Path(folder), metrics=AggregatorMetrics())
        await service.start()
        server = await start_server("127.0.0.1:0", Security(), service.handlers(), service.service_names)
        linked = Linked(f"127.0.0.1:{server.port}", timeouts)
        running = asyncio.ensure_future(linked.link.run())
        try:
            assert await linked.events.get() == "up"
            await scenario(linked)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await service.stop()
            await server.stop(0)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def test_a_copy_that_is_never_made_ends_the_link() -> None:
    async def scenario(linked: Linked) -> None:
        with pytest.raises(PlaneLost) as lost:
            [piece async for piece in linked.link.read_copy(3)]
        facts = ("shard 0 of 1", linked.link.address, "copy 3", f"within {HASTY.stall:g} s")
        assert all(fact in str(lost.value) for fact in facts)
        assert "copy 3" in await linked.events.get()
        assert await linked.events.get() == "up", "the link is opened again"

    with_link(HASTY, scenario)


def test_a_piece_that_is_never_acknowledged_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(linked: Linked) -> None:
        piece = make_piece("weights", np.zeros(3, np.float32), 0, offset=0, elements=3)
        with pytest.raises(PlaneLost, match=r"acknowledgement .* did not come within"):
            await linked.link.write_pieces([piece])
        assert "did not come within" in await linked.events.get()

    async def write(_: Plane, __: pb.ArrayPiece) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Plane, "write_piece", write)
    with_link(HASTY, scenario)


def test_a_write_after_the_shard_has_ended_the_call_ends_the_link() -> None:
    class EndedCall:
        """A call that its server has ended: grpcio raises for each write."""

        async def write(self, _: pb.ArrayPiece) -> None:
            raise asyncio.InvalidStateError("RPC already finished.")

        def done(self) -> bool:
            return True

        def cancelled(self) -> bool:
            return False

        async def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.CANCELLED

    class Channel:
        def stream_unary(self, *_: object, **__: object) -> Callable[..., EndedCall]:
            return lambda **_: EndedCall()

    async def scenario(linked: Linked) -> None:
        linked.link._checkpoint_channel = Channel()  # what a stream of pieces needs
        piece = make_piece("weights", np.zeros(3, np.float32), 0, offset=0, elements=3)
        with pytest.raises(PlaneLost, match="ended the call"):
            await linked.link.write_pieces([piece])
        assert "ended the call" in await linked.events.get()

    with_link(PATIENT, scenario)


def test_without_memory_for_a_copy_only_the_copy_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Large:
        def copy(self) -> Any:
            raise MemoryError("Unable to allocate 9 GiB")

    async def scenario(linked: Linked) -> None:
        await linked.open(tmp_path)
        assert await linked.pieces(1) > 1
        with monkeypatch.context() as short:
            short.setattr(PlaneTensors, "arrays", lambda _: {"weights": Large()})
            with pytest.raises(Failed) as failed:
                await linked.pieces(2)
        facts = ("shard 0 of 1", linked.link.address, "Unable to allocate 9 GiB")
        assert all(fact in str(failed.value) for fact in facts)
        assert await linked.pieces(3) > 1, "the shard's tensors are unchanged"
        assert linked.events.empty()

    with_link(PATIENT, scenario)

"""The link to a plane in this process: orders reach it once in a turn of the event loop, reports reach the group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import Message

from plane.checkpoint_files import STATE_PREFIX, WEIGHTS, GatheredTensors
from plane.group import PlaneGroup
from plane.link import LocalPlane, PlaneLink
from plane.plane import Plane, PlaneOwner
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.tensors_pb2 import FLOAT32, ChunkHeader
from protos.tensors_pb2 import WEIGHTS as CHUNK_OF_WEIGHTS
from services.config.load import load_job
from services.errors import Failed, Refused
from services.tensors.chunk_messages import pack_chunk, serialize_chunk
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.stripes import Stripe
from tests.support.cluster.bits import sized_config, write_config
from tests.support.plane_threads import block, wait_for_threads

LIMIT_SECONDS = 30
LAYOUT = Layout.build([("w", (3,), True, "w", False)])
ORDERS: list[Message] = [pb.DropSums(job="a"), pb.DropPieces(job="a", lease=1), pb.DropSums(job="b")]


class RecordingPlane(Plane):
    """A plane that keeps the orders of each call, and carries them out."""

    def __init__(self, owner: PlaneOwner) -> None:
        super().__init__(
            owner,
            epoch=1,
            stripe=Stripe(0, 1),
            incarnation="i",
            metrics=None,
            update_metrics=None,
            shared_memory=False,
        )
        self.owner = owner
        self.batches: list[Sequence[Message]] = []

    def carry_out(self, orders: Sequence[Message]) -> None:
        self.batches.append(orders)
        super().carry_out(orders)


class Linked:
    """A link to a plane that keeps its orders, in a group."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.link = LocalPlane(self._make, self.failures.append)
        self.group = PlaneGroup([self.link])

    def _make(self, owner: PlaneOwner) -> Plane:
        self.plane = RecordingPlane(owner)
        return self.plane


def test_orders_reach_the_plane_once_in_a_turn_and_in_order() -> None:
    async def scenario() -> None:
        linked = Linked()
        for order in ORDERS:
            linked.group.send_order(order)
        assert linked.plane.batches == [], "more may follow in this turn"
        await asyncio.sleep(0)
        assert linked.plane.batches == [ORDERS]
        linked.link.send_order(ORDERS[0])
        await asyncio.sleep(0)
        assert linked.plane.batches == [ORDERS, ORDERS[:1]]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(linked.plane.batches) == 2
        linked.plane.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_weights_from_another_process_come_behind_the_orders_of_the_same_turn() -> None:
    async def scenario() -> None:
        linked = Linked()
        version = ChunkHeader(job="j", epoch=1, generation=1, step=3, kind=CHUNK_OF_WEIGHTS, dtype=FLOAT32)
        chunk = pack_chunk(version, 0, np.ones(CHUNK_ELEMENTS, np.float32))
        linked.link.send_order(
            pb.PassJob(job="j", elements=CHUNK_ELEMENTS, gradients=FLOAT32, weights=FLOAT32)
        )
        linked.link.put_weights(chunk, serialize_chunk(chunk), CHUNK_ELEMENTS)
        await asyncio.sleep(0)
        assert linked.plane.newest.has_version(chunk.header)
        linked.plane.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_reports_reach_the_group() -> None:
    async def scenario() -> None:
        linked = Linked()
        assert (linked.group.ready, linked.group.check_ready()) == (True, None)
        assert linked.group.local is linked.plane
        reports: list[tuple[PlaneLink, Message]] = []
        linked.group.report_handlers[cluster.Heartbeat] = lambda *report: reports.append(report)
        linked.link.send_order(cluster.Heartbeat())
        for _ in range(2):  # the order, and the reports of its turn
            await asyncio.sleep(0)
        assert reports == [(linked.link, cluster.Heartbeat())]
        linked.plane.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_an_order_that_the_plane_can_not_carry_out_is_a_failure_of_the_process() -> None:
    async def scenario() -> None:
        linked = Linked()
        linked.link.send_order(pb.KeepPieces(arrivals=[7]))
        await asyncio.sleep(0)
        (failure,) = linked.failures
        assert "arrived chunk 7" in str(failure)
        linked.plane.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_the_group_with_a_plane_in_this_process_is_ready_as_it_runs() -> None:
    async def scenario() -> None:
        linked = Linked()
        ready = asyncio.Event()
        linked.group.on_ready.append(ready.set)
        running = asyncio.ensure_future(linked.group.run())
        await ready.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        linked.plane.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_a_copy_is_given_as_it_is_until_it_is_dropped() -> None:
    async def scenario() -> None:
        linked = Linked()
        reports: list[Message] = []
        linked.group.report_handlers[pb.CopiedPart] = lambda link, body: reports.append(body)
        weights = np.arange(3, dtype=np.float32)
        linked.plane.owner.copied(
            pb.CopyPart(job="j", copy=1), {WEIGHTS: weights, f"{STATE_PREFIX}t": np.array([7])}
        )
        assert reports == [pb.CopiedPart(job="j", copy=1)]
        gathered = GatheredTensors(LAYOUT.elements, {"t": np.dtype(np.int64)})
        await linked.link.gather(pb.CopiedPart(job="j", copy=1), gathered)
        gathered.finish()
        assert gathered.weights is weights
        assert gathered.state["t"].tolist() == [7]
        linked.plane.owner.drop_copy(pb.DropCopy(job="k", copy=1))
        await linked.link.gather(pb.CopiedPart(job="j", copy=1), gathered)
        linked.plane.owner.drop_copy(pb.DropCopy(job="j", copy=1))
        with pytest.raises(Refused, match="copy 1"):
            await linked.link.gather(pb.CopiedPart(job="j", copy=1), gathered)
        linked.plane.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_a_copy_of_nothing_is_reported_with_its_reason() -> None:
    async def scenario() -> None:
        linked = Linked()
        reports: asyncio.Queue[Message] = asyncio.Queue()
        linked.group.report_handlers[pb.CopiedPart] = lambda link, body: reports.put_nowait(body)
        linked.link.send_order(pb.CopyPart(copy=2))
        copied = await reports.get()
        assert isinstance(copied, pb.CopiedPart)
        assert copied.copy == 2
        assert "no tensors" in copied.reason
        linked.plane.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_a_plane_in_this_process_can_not_be_closed_for_what_it_says() -> None:
    async def scenario() -> None:
        linked = Linked()
        with pytest.raises(Failed, match="7 block sums"):
            linked.link.close("7 block sums")
        assert linked.link.is_up
        linked.plane.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_a_job_is_opened_again_while_its_drop_still_waits(tmp_path: Path) -> None:
    config, _ = load_job(write_config(tmp_path, sized_config(8, 4)), [])

    async def scenario() -> None:
        linked, reports = Linked(), list[Message]()
        for kind in (pb.PartOpened, pb.PartBroke):
            linked.group.report_handlers[kind] = lambda _, body: reports.append(body)
        kernel_may_run = block(linked.plane._kernel)
        linked.link.send_order(pb.DropPart(job="a"))
        await linked.link.prepare("a", LAYOUT, b"", None)
        linked.link.send_order(pb.OpenPart(job="a", opening=1, spec_json=config.to_json()))
        await asyncio.sleep(0)
        kernel_may_run.set()
        await wait_for_threads(linked.plane)
        linked.plane.close("over")
        assert reports == [pb.PartOpened(job="a", opening=1)]

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))

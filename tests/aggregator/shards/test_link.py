"""A link to a shard: every wait for the shard's tensors is bounded."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from aggregator.shards.link import ShardLink
from aggregator.shards.service import ShardService
from plane.checkpoint_files import GatheredTensors
from plane.errors import PlaneLost
from plane.link import PlaneLink
from plane.plane_tensors import PlaneTensors
from protos import plane_pb2 as pb
from services.checkpoints.format import Checkpoint
from services.config.job import JobConfig
from services.config.load import load_job
from services.errors import Refused
from services.files.errors import FileMissing
from services.files.memory import FilesInMemory
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
WEIGHTS = np.random.default_rng(3).standard_normal(LAYOUT.elements, np.float32)
PATIENT, HASTY = Timeouts.from_heartbeat(5.0), Timeouts.from_heartbeat(0.005)


class Linked:
    """A link to a shard service in this process, with queues of what it calls its group with."""

    def __init__(self, shard: ShardService, address: str, timeouts: Timeouts) -> None:
        self.shard = shard
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

    async def open(self, tmp_path: Path, *, restores: bool = True) -> None:
        """Open a job in the shard, and send it the tensors of a checkpoint."""
        config = load_job(write_config(tmp_path, sized_config(CHUNK_ELEMENTS // 4 + 1, 4)), [])[0]
        layout = LAYOUT.dumps().encode()
        part = await self.link.prepare("j", LAYOUT, layout, checkpoint(config))
        order = pb.OpenPart(
            opening=1, job="j", spec_json=config.to_json(), layout=make_ref(layout), tensors=part and part.ref
        )
        self.link.send_order(order)
        assert await self.reports.get() == pb.PartOpened(job="j", opening=1)
        if restores:
            await self.link.restore("j", part)

    async def copy(self, number: int) -> pb.CopiedPart:
        """Order a copy."""
        self.link.send_order(pb.CopyPart(job="j", copy=number))
        copied = await self.reports.get()
        assert isinstance(copied, pb.CopiedPart)
        assert copied.copy == number
        return copied

    async def gather(self, copied: pb.CopiedPart) -> GatheredTensors:
        """Read a copy."""
        gathered = GatheredTensors(LAYOUT.elements, {"applied": np.dtype(np.int64)})
        await self.link.gather(copied, gathered)
        gathered.finish()
        return gathered


def checkpoint(config: JobConfig) -> Checkpoint:
    return Checkpoint(
        path=Path("step-00000003"),
        job="j",
        generation=1,
        step=3,
        config_json=config.to_json(),
        layout=LAYOUT,
        weights=WEIGHTS,
        optimizer_state={"applied": np.array([3])},
        files={},
        model_sha256="",
    )


def with_link(timeouts: Timeouts, scenario: Callable[[Linked], Awaitable[None]]) -> None:
    async def run() -> None:
        service = ShardService(name="s", state_dir=Path(folder), metrics=AggregatorMetrics())
        await service.start()
        server = await start_server("127.0.0.1:0", Security(), service.handlers(), service.service_names)
        linked = Linked(service, f"127.0.0.1:{server.port}", timeouts)
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


def test_a_checkpoint_reaches_the_shard_and_comes_back(tmp_path: Path) -> None:
    async def scenario(linked: Linked) -> None:
        await linked.open(tmp_path)
        gathered = await linked.gather(await linked.copy(1))
        assert gathered.weights.tobytes() == WEIGHTS.tobytes()
        assert gathered.state["applied"].tolist() == [3]
        assert linked.events.empty()

    with_link(PATIENT, scenario)


@pytest.mark.parametrize("ending", [pb.DropCopy(job="j", copy=1), pb.DropPart(job="j")], ids=["copy", "job"])
def test_a_copy_is_kept_until_it_is_dropped(tmp_path: Path, ending: Message) -> None:
    async def scenario(linked: Linked) -> None:
        await linked.open(tmp_path)
        copied = await linked.copy(1)
        linked.link.send_order(ending)
        linked.link.send_order(pb.DropPart(job="j"))
        linked.link.send_order(pb.CopyPart(job="j", copy=2))
        assert "no tensors" in str(await linked.reports.get()), "the orders before it are carried out"
        if isinstance(ending, pb.DropPart):
            await linked.gather(copied)
        else:
            with pytest.raises(FileMissing):
                await linked.gather(copied)

    with_link(PATIENT, scenario)


def test_a_shard_keeps_no_file_for_a_dropped_job_or_a_lost_aggregator(tmp_path: Path) -> None:
    async def scenario(linked: Linked) -> None:
        files = linked.shard._files
        await linked.open(tmp_path, restores=False)
        assert len(files._entries) == 2, "the layout, and the part of the checkpoint that is to come"
        linked.link.send_order(pb.DropPart(job="j"))
        assert "no tensors" in (await linked.copy(1)).reason, "the order before it is carried out"
        assert len(files._entries) == 1, "the layout, which other jobs may have, too"
        await linked.open(tmp_path)
        await linked.copy(2)
        assert len(files._entries) > 0
        linked.link.close("it is gone")
        while await linked.events.get() != "up":
            pass
        assert not files._entries

    with_link(PATIENT, scenario)


def test_a_transfer_that_does_not_move_ends_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(*_: object) -> None:
        assert released.wait(LIMIT_SECONDS)
        raise FileMissing("too late")

    async def scenario(linked: Linked) -> None:
        await linked.open(tmp_path)
        copied = await linked.copy(1)
        monkeypatch.setattr(FilesInMemory, "read_piece", hang)
        try:
            with pytest.raises(PlaneLost) as lost:
                await linked.gather(copied)
        finally:
            released.set()
        facts = ("shard 0 of 1", linked.link.address, "copy 1", f"within {HASTY.stall:g} s")
        assert all(fact in str(lost.value) for fact in facts)
        assert "copy 1" in await linked.events.get()
        assert await linked.events.get() == "up", "the link is opened again"

    with_link(HASTY, scenario)


def test_a_link_that_ends_within_a_transfer_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(linked: Linked) -> None:
        await linked.open(tmp_path)
        copied = await linked.copy(1)
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(
            FilesInMemory, "read_piece", lambda *_: loop.call_soon_threadsafe(linked.link.close, "it is gone")
        )
        with pytest.raises(PlaneLost, match=r"shard 0 of 1 .*: it is gone"):
            await linked.gather(copied)

    with_link(PATIENT, scenario)


def test_a_part_of_a_checkpoint_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(linked: Linked) -> None:
        await linked.open(tmp_path)
        copied = await linked.copy(1)
        copied.file.size -= 1
        with pytest.raises(Refused, match="expected"):
            await linked.gather(copied)
        assert linked.events.empty()

    with_link(PATIENT, scenario)


def test_without_memory_for_a_copy_only_the_copy_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Large:
        def __array__(self, *_: object, **__: object) -> Any:
            raise MemoryError("Unable to allocate 9 GiB")

    async def scenario(linked: Linked) -> None:
        await linked.open(tmp_path)
        with monkeypatch.context() as short:
            short.setattr(PlaneTensors, "arrays", lambda _: {"weights": Large()})
            failed = await linked.copy(1)
        assert "not enough memory" in failed.reason and "Unable to allocate 9 GiB" in failed.reason
        gathered = await linked.gather(await linked.copy(2))
        assert gathered.weights.tobytes() == WEIGHTS.tobytes(), "the shard's tensors are unchanged"
        assert linked.events.empty()

    with_link(PATIENT, scenario)

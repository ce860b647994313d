"""Jobs are opened and copied in all planes, or fail with the plane that could not; waits are bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from optimizer.core import events as ev
from optimizer.job_tensors import JobTensors
from plane.errors import PlaneLost
from plane.group import PlaneGroup
from plane.plane import Plane
from plane.waiting_payloads import MAX_WAITING_CHUNKS
from protos import plane_pb2 as pb
from services.config.job import JobConfig
from services.config.load import load_job
from services.errors import Failed
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.cluster.bits import regression_config, write_config
from tests.support.local_planes import make_local_planes
from tests.support.recording_links import recording_links, set_stall

CHUNKS = 5
LAYOUT = Layout.build([("w", (4 * CHUNK_ELEMENTS + 77,), True, "w", False)])
LIMIT_SECONDS = 30


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    path = write_config(tmp_path_factory.mktemp("job"), regression_config())
    return load_job(path, [])[0]


async def _no_files(*_: object) -> None:
    """Stand in for sending the shard a layout, or a part of a checkpoint."""


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class TensorsDialogue:
    """A job's tensors over two links that record orders, without shards behind them."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[ev.SaveFailed | ev.OperationFailed] = asyncio.Queue()
        self.orders: list[tuple[int, Message]] = []
        self.links = recording_links(self.orders)
        self.planes = PlaneGroup(self.links)
        self.tensors = JobTensors(self.reports.put_nowait, self.planes)

    async def open(self, config: JobConfig, job: str = "j") -> None:
        for link in self.links:
            vars(link)["_channel"] = object()  # the link counts as up
            vars(link)["prepare"] = vars(link)["restore"] = _no_files
        opening = asyncio.ensure_future(self.tensors.open(job, config, LAYOUT, None))
        await _settle()
        for index in (1, 0):
            self.report(index, pb.PartOpened(opening=self.tensors._last_opening))
        await opening

    def report(self, shard: int, body: Any) -> None:
        """Give a report of a shard to its handler."""
        self.planes.report_handlers[type(body)](self.links[shard], body)


def with_tensors(
    config: JobConfig,
    scenario: Callable[[TensorsDialogue], Any],
    stall_seconds: float = STANDARD_TIMEOUTS.stall,
) -> None:
    async def run() -> None:
        dialogue = TensorsDialogue()
        await dialogue.open(config)
        for link in dialogue.links:
            set_stall(link, stall_seconds)
        result = scenario(dialogue)
        if result is not None:
            await result

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


def test_a_shard_that_fails_an_order_fails_the_job_and_is_named(config: JobConfig) -> None:
    def scenario(dialogue: TensorsDialogue) -> None:
        dialogue.report(1, pb.PartBroke(opening=0, reason="an order for the former job"))
        assert dialogue.reports.empty()
        dialogue.report(1, pb.PartBroke(opening=1, reason="no memory"))
        assert dialogue.reports.get_nowait() == ev.OperationFailed("j", "shard 1 of 2 (b:1): no memory")

    with_tensors(config, scenario)


def test_a_shard_without_memory_for_a_job_fails_it_at_once(config: JobConfig) -> None:
    async def scenario(dialogue: TensorsDialogue) -> None:
        opening = asyncio.ensure_future(dialogue.tensors.open("j", config, LAYOUT, None))
        await _settle()
        dialogue.orders.clear()
        dialogue.report(1, pb.PartBroke(opening=2, reason="no memory"))
        with pytest.raises(Failed, match=r"^shard 1 of 2 \(b:1\): no memory$"):
            await opening
        assert dialogue.reports.empty(), "`open` has raised it already"
        assert dialogue.orders == [(each, pb.DropPart(job="j")) for each in (0, 1)]
        dialogue.report(0, pb.PartOpened(opening=2))  # a late answer
        await dialogue.open(config)

    with_tensors(config, scenario)


def test_a_shard_that_never_allocates_its_tensors_is_lost(config: JobConfig) -> None:
    async def scenario(dialogue: TensorsDialogue) -> None:
        set_stall(dialogue.links[1], 0.12)
        opening = asyncio.ensure_future(dialogue.tensors.open("j", config, LAYOUT, None))
        await _settle()
        dialogue.report(0, pb.PartOpened(opening=2))
        with pytest.raises(PlaneLost, match=r"^shard 1 of 2 \(b:1\): .* job j .* 0\.12 s"):
            await opening
        assert [link.is_up for link in dialogue.links] == [True, False]

    with_tensors(config, scenario)


def test_a_snapshot_that_is_lost_with_a_shard_is_reported_as_failed(config: JobConfig) -> None:
    async def scenario(dialogue: TensorsDialogue) -> None:
        saved: list[object] = []
        gathering = asyncio.Event()

        async def gather(*_: object) -> None:
            gathering.set()
            await asyncio.Event().wait()

        vars(dialogue.links[0])["gather"] = gather
        dialogue.tensors.snapshot(ev.Snapshot("j", 1, 3), lambda *copies: saved.append(copies))
        dialogue.report(0, pb.CopiedPart(copy=1))
        await gathering.wait()
        for callback in dialogue.planes.on_lost:
            callback("shard 1 of 2 (b:1): it is gone")
        assert await dialogue.reports.get() == ev.SaveFailed("j", 1, 3, "shard 1 of 2 (b:1): it is gone")
        assert not saved
        copied, dropped = pb.CopyPart(job="j", copy=1), pb.DropCopy(job="j", copy=1)
        assert dialogue.orders[-4:] == [(each, order) for order in (copied, dropped) for each in (0, 1)]

    with_tensors(config, scenario)


def test_a_shard_that_can_not_copy_its_tensors_fails_the_checkpoint_alone(config: JobConfig) -> None:
    async def scenario(dialogue: TensorsDialogue) -> None:
        dialogue.tensors.snapshot(ev.Snapshot("j", 1, 3), lambda *copies: None)
        dialogue.report(1, pb.CopiedPart(copy=1, reason="not enough memory"))
        assert await dialogue.reports.get() == ev.SaveFailed(
            "j", 1, 3, "shard 1 of 2 (b:1): not enough memory"
        )
        assert all(link.is_up for link in dialogue.links)

    with_tensors(config, scenario)


def test_a_shard_that_never_copies_its_tensors_is_lost(config: JobConfig) -> None:
    async def scenario(dialogue: TensorsDialogue) -> None:
        dialogue.tensors.snapshot(ev.Snapshot("j", 1, 3), lambda *copies: None)
        failed = await dialogue.reports.get()
        assert isinstance(failed, ev.SaveFailed)
        assert "copy 1 of its tensors did not come within 0.12 s" in failed.reason
        assert not all(link.is_up for link in dialogue.links)

    with_tensors(config, scenario, stall_seconds=0.12)


def test_a_shard_that_is_lost_ends_the_opening_of_a_job(config: JobConfig) -> None:
    async def scenario(dialogue: TensorsDialogue) -> None:
        opening = asyncio.ensure_future(dialogue.tensors.open("j", config, LAYOUT, None))
        await _settle()
        for callback in dialogue.planes.on_lost:
            callback("shard 0 of 2 (a:1): it is gone")
        with pytest.raises(PlaneLost, match="it is gone"):
            await opening
        dialogue.links[0].down_reason = "it is gone"
        dialogue.links[0]._channel = None
        with pytest.raises(PlaneLost, match=r"shard 0 of 2 \(a:1\): it is gone"):
            await dialogue.tensors.open("j", config, LAYOUT, None)

    with_tensors(config, scenario)


# ---- several jobs ----


def test_an_order_that_fails_fails_its_job_alone(config: JobConfig) -> None:
    async def scenario(dialogue: TensorsDialogue) -> None:
        await dialogue.open(config, "k")
        dialogue.report(0, pb.PartBroke(opening=1, reason="no memory"))
        failed = dialogue.reports.get_nowait()
        assert isinstance(failed, ev.OperationFailed) and failed.job == "j"
        dialogue.tensors.drop("j")
        dialogue.report(0, pb.PartBroke(opening=1, reason="no memory"))
        assert dialogue.reports.empty(), "nothing of the job is here any longer"
        dialogue.report(0, pb.PartBroke(opening=2, reason="no memory"))
        failed = dialogue.reports.get_nowait()
        assert isinstance(failed, ev.OperationFailed) and failed.job == "k"

    with_tensors(config, scenario)


def test_jobs_are_opened_at_once_and_none_waits_for_another(config: JobConfig) -> None:
    async def scenario(dialogue: TensorsDialogue) -> None:
        opening = {
            job: asyncio.ensure_future(dialogue.tensors.open(job, config, LAYOUT, None)) for job in "kl"
        }
        await _settle()
        opened = [order for _, order in dialogue.orders if isinstance(order, pb.OpenPart)]
        assert [(each.job, each.opening) for each in opened[2:]] == [("k", 2), ("k", 2), ("l", 3), ("l", 3)]
        for shard in (0, 1):
            dialogue.report(shard, pb.PartOpened(opening=3))
        await opening["l"]
        dialogue.report(1, pb.PartBroke(opening=2, reason="no memory"))
        with pytest.raises(Failed, match="no memory"):
            await opening["k"]
        assert dialogue.orders[-2:] == [(each, pb.DropPart(job="k")) for each in (0, 1)]
        assert dialogue.reports.empty()

    with_tensors(config, scenario)


def test_a_copy_is_collected_although_its_job_is_dropped(config: JobConfig) -> None:
    async def scenario(dialogue: TensorsDialogue) -> None:
        await dialogue.open(config, "k")
        dialogue.tensors.snapshot(ev.Snapshot("j", 1, 3), lambda *copies: None)
        dialogue.tensors.drop("j")
        dialogue.report(1, pb.CopiedPart(copy=1, reason="not enough memory"))
        failed = await dialogue.reports.get()
        assert isinstance(failed, ev.SaveFailed) and failed.job == "j"

    with_tensors(config, scenario)


# ---- tensors in this process ----


def test_the_number_of_chunks_that_wait_for_a_checkpoint_copy_is_bounded(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = 2 * MAX_WAITING_CHUNKS
    layout = Layout.build([("w", (chunks * CHUNK_ELEMENTS,), True, "w", False)])
    copy_may_end = threading.Event()

    def wait_for_end(failpoint: str) -> None:
        assert copy_may_end.wait(LIMIT_SECONDS)

    async def scenario() -> None:
        planes = make_local_planes()
        assert planes.local is not None
        reports: list[int] = []
        planes.report_handlers[pb.StagedChunks] = lambda link, body: reports.extend(
            each.chunk for each in body.chunks
        )
        saved = asyncio.Event()
        tensors = JobTensors(lambda event: None, planes)
        await tensors.open("j", config, layout, None)
        monkeypatch.setattr("plane.tensor_orders.hit_failpoint", wait_for_end)
        tensors.snapshot(ev.Snapshot("j", 1, 1), lambda *copies: saved.set())
        staged = 0

        async def stage_all(plane: Plane) -> None:
            nonlocal staged
            values = np.ones(CHUNK_ELEMENTS, np.float32)
            for chunk in range(chunks):
                await plane.wait_for_room("j")
                plane.put_finished_sum("j", chunk, values)
                planes.send_order(pb.StageChunks(job="j", chunks=[chunk]))
                staged = chunk + 1

        try:
            staging = asyncio.ensure_future(stage_all(planes.local))
            for _ in range(chunks):
                await asyncio.sleep(0)
            assert staged == MAX_WAITING_CHUNKS
            assert not saved.is_set()
        finally:
            copy_may_end.set()
        await staging
        await saved.wait()
        while len(reports) < chunks:
            await asyncio.sleep(0)
        assert reports == list(range(chunks)), "no chunk was lost"
        tensors.close()
        planes.local.close("over")

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))

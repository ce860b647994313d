"""A plane with several jobs: the work, the payloads and the faults of one hold up no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import Message

from plane.plane import Plane
from plane.waiting_payloads import MAX_WAITING_CHUNKS
from protos import plane_pb2 as pb
from protos.tensors_pb2 import FLOAT32
from services.config.load import load_job
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from tests.plane.test_plane import JOB, LIMIT_SECONDS, SESSION, PlaneDialogue, with_plane
from tests.plane.test_sums import ELEMENTS, received
from tests.support.cluster.bits import sized_config, write_config
from tests.support.plane_threads import block


@pytest.fixture(autouse=True)
def _chunks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the payloads of these tests count as whole chunks."""
    monkeypatch.setattr("plane.waiting_payloads.CHUNK_ELEMENTS", ELEMENTS)


def test_pieces_of_one_worker_hold_up_that_worker_alone() -> None:
    async def scenario(dialogue: PlaneDialogue) -> None:
        dialogue.plane.carry_out([pb.WorkerAttends(session=2, incarnation="i2", name="w2")])
        sums_may_run = dialogue.block_sums()
        for seed in range(MAX_WAITING_CHUNKS):
            dialogue.arrive(received(FLOAT32, seed))
        held_up = await dialogue.room()
        for seed in range(MAX_WAITING_CHUNKS):
            assert not held_up.done()
            assert (await dialogue.room(session=2)).done()
            dialogue.arrive(received(FLOAT32, seed), session=2)
        assert not (await dialogue.room(session=2)).done(), "it has a bound of its own"
        assert (await dialogue.room(session=3)).done(), "a worker that is not here"
        dialogue.plane.carry_out([pb.DiscardPieces(arrivals=range(1, MAX_WAITING_CHUNKS + 1))])
        await held_up
        sums_may_run.set()

    with_plane(scenario)


def test_what_waits_of_a_job_and_a_worker_that_are_gone_still_counts_but_is_forgotten() -> None:
    async def scenario(dialogue: PlaneDialogue) -> None:
        arrivals = [dialogue.arrive(received(FLOAT32, seed)) for seed in range(MAX_WAITING_CHUNKS)]
        room = await dialogue.room()
        dialogue.plane.carry_out([pb.PassJob(job=JOB), pb.WorkerLeft(session=SESSION, reason="gone")])
        assert not room.done(), "its pieces still take memory"
        dialogue.plane.carry_out([pb.DiscardPieces(job=JOB, arrivals=arrivals)])
        await room
        assert dialogue.plane.jobs == []
        assert not dialogue.plane._waiting._sums and not dialogue.plane._waiting._pieces

    with_plane(scenario)


@dataclass
class TwoJobs:
    """A plane that has the tensors of the jobs `j`, of 3 chunks, and `k`, of 1.

    Attributes:
        dialogue: the plane.
        spec_json: the jobs' settings.
    """

    dialogue: PlaneDialogue
    spec_json: str

    async def give(self, *orders: Message) -> list[Message]:
        """Hand over orders while the kernel thread is busy; return what is reported then."""
        self.dialogue.reports.clear()
        kernel_may_run = block(self.dialogue.plane._kernel)
        self.dialogue.plane.carry_out(orders)
        kernel_may_run.set()
        await self.dialogue.wait_for_threads()
        return self.dialogue.reports

    def stage(self, job: str) -> pb.StageChunks:
        """Put a finished sum of a job, and return the order to stage it."""
        values = np.ones(min(LAYOUTS[job].elements, CHUNK_ELEMENTS), np.float32)
        self.dialogue.plane.put_finished_sum(job, 0, values)
        return pb.StageChunks(chunks=[0], job=job)


LAYOUTS = {
    "j": Layout.build([("w", (2 * CHUNK_ELEMENTS + 5,), True, "w", False)]),
    "k": Layout.build([("w", (7,), True, "w", False)]),
}


def with_two_jobs(folder: Path, scenario: Callable[[TwoJobs], Awaitable[None]]) -> None:
    config, _ = load_job(write_config(folder, sized_config(8, 4)), [])

    async def run(dialogue: PlaneDialogue) -> None:
        dialogue.layout_of = LAYOUTS.__getitem__
        jobs = TwoJobs(dialogue, config.to_json())
        dialogue.plane.carry_out([pb.PassJob(job=JOB)])
        opened = await jobs.give(
            *(
                pb.OpenPart(job=job, opening=number, spec_json=jobs.spec_json)
                for number, job in enumerate(LAYOUTS, 1)
            )
        )
        assert [(each.job, each.opening) for each in opened if isinstance(each, pb.PartOpened)] == [
            ("j", 1),
            ("k", 2),
        ]
        await scenario(jobs)

    with_plane(run)


@pytest.mark.parametrize("work", ["update", "weights", "copy"])
def test_a_stage_waits_for_one_chunk_of_another_jobs_work(work: str, tmp_path: Path) -> None:
    long: dict[str, Message] = {
        "update": pb.UpdatePart(job="j", generation=1, learning_rate=0.1, clip=1.0, applied=True),
        "weights": pb.MakeWeights(job="j", generation=1),
        "copy": pb.CopyPart(job="j", copy=1),
    }

    async def scenario(jobs: TwoJobs) -> None:
        steps = count_steps(jobs.dialogue.plane)
        reports = await jobs.give(long[work], jobs.stage("k"), pb.CopyPart(job="j", copy=2))
        copied = next(index for index, each in enumerate(reports) if each == pb.CopiedPart(job="j", copy=2))
        (staged,) = (index for index, each in enumerate(reports) if isinstance(each, pb.StagedChunks))
        assert staged < copied, "the job's own next order waits for all of its work"
        assert steps.index("k") == 1
        assert steps.count("j") >= 3

    with_two_jobs(tmp_path, scenario)


def count_steps(plane: Plane) -> list[str]:
    """Return a list to which each turn on the kernel thread appends its job."""
    steps: list[str] = []
    do_turn = plane._kernel._do_turn

    def note(job: str) -> None:
        if job in ("j", "k"):
            steps.append(job)
        do_turn(job)

    vars(plane._kernel)["_do_turn"] = note
    return steps


def test_tensors_that_are_allocated_hold_up_no_other_job(tmp_path: Path) -> None:
    may_open = threading.Event()

    async def scenario(jobs: TwoJobs) -> None:
        jobs.dialogue.on_open = lambda: may_open.wait(LIMIT_SECONDS)
        jobs.dialogue.plane.carry_out(
            [pb.OpenPart(job="j", opening=3, spec_json=jobs.spec_json), jobs.stage("k")]
        )
        while not any(isinstance(each, pb.StagedChunks) for each in jobs.dialogue.reports):
            await asyncio.sleep(0)
        assert jobs.dialogue.plane.jobs == ["k"]
        may_open.set()
        await jobs.dialogue.wait_for_threads()
        assert jobs.dialogue.reports[-1] == pb.PartOpened(job="j", opening=3)

    with_two_jobs(tmp_path, scenario)


def test_an_order_that_fails_fails_its_own_job(tmp_path: Path) -> None:
    async def scenario(jobs: TwoJobs) -> None:
        reports = await jobs.give(pb.StageChunks(chunks=[0], job="j"), jobs.stage("k"))
        (broke,) = (each for each in reports if isinstance(each, pb.PartBroke))
        assert (broke.job, broke.opening) == ("j", 1)
        assert "no finished sum" in broke.reason
        assert [each.job for each in reports if isinstance(each, pb.StagedChunks)] == ["k"]

    with_two_jobs(tmp_path, scenario)


def test_a_job_that_is_dropped_leaves_the_others_tensors(tmp_path: Path) -> None:
    async def scenario(jobs: TwoJobs) -> None:
        await jobs.give(*(pb.MakeWeights(job=each, generation=1) for each in LAYOUTS))
        reports = await jobs.give(
            pb.DropPart(job="j"), jobs.stage("j"), jobs.stage("k"), pb.CopyPart(job="j", copy=1)
        )
        assert [each.job for each in reports if isinstance(each, pb.StagedChunks)] == ["k"]
        (copied,) = (each for each in reports if isinstance(each, pb.CopiedPart))
        assert (copied.job, "no tensors" in copied.reason) == ("j", True)
        assert list(jobs.dialogue.plane.newest._jobs) == jobs.dialogue.plane.jobs == ["k"]

    with_two_jobs(tmp_path, scenario)

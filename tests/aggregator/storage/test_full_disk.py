"""Tests of the queue on a full disk: new jobs are refused, records of jobs that it has are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregator.storage.job_queue import JobQueue
from aggregator.storage.queue_file import DiskFull
from protos.jobs_pb2 import CANCELLED, QUEUED, RUNNING, SUCCEEDED, Job
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.small_disk import SmallDisk, small_disk

SPEC = '{"steps": 10, "padding": "' + "x" * 3000 + '"}'


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "3m") as mounted:
        yield mounted


def queued(name: str) -> Job:
    return Job(name=name, state=QUEUED, steps=10, submitted_seconds=1.8e9)


def fill(queue: JobQueue, disk: SmallDisk) -> list[Job]:
    """Fill the disk, and the queue's file, until no job can be added; return the jobs that were acknowledged."""
    disk.fill()
    jobs: list[Job] = []
    with pytest.raises(DiskFull, match="the disk is full; free space, then try again"):
        while True:
            jobs.append(queue.add(queued(f"late {len(jobs)}"), SPEC))
    return jobs


def test_records_are_written_while_new_jobs_are_refused(disk: SmallDisk) -> None:
    """Check that a whole life of every queued job fits on a full disk, and no acknowledged record is lost."""
    path = disk.path / "queue.sqlite"
    with JobQueue(path) as queue:
        queue.raise_epoch("a")
        jobs = [queue.add(queued(f"job {number}"), SPEC) for number in range(50)]
        jobs += fill(queue, disk)
        for job in jobs[:40]:
            job.state, job.phase, job.started_seconds, job.generation = RUNNING, "initialise", 1.8e9, 3
            job.detail = "no checkpoint of step 8: " + "y" * 250
            job.claims.add(fingerprint={f"library {number}": "1.2.3" for number in range(20)})
            queue.save(job)
        for job in jobs[:30]:
            job.state, job.loss, job.checkpoint, job.model_sha256 = (
                SUCCEEDED,
                1.0,
                "/checkpoints" * 9,
                "e" * 64,
            )
            queue.save(job)
        for job in jobs[40:]:
            job.state, job.detail, job.ended_seconds = CANCELLED, "cancelled by request while queued", 1.8e9
            queue.save(job)
        with pytest.raises(DiskFull):
            queue.add(queued("one more"), SPEC)
        assert queue.page(None, 1000).jobs == jobs
    with JobQueue(path) as queue:
        assert queue.raise_epoch("b", STANDARD_TIMEOUTS.takeover) == 2, "it starts on the full disk"
        assert queue.page(None, 1000).jobs == jobs
        assert [each.job for each in queue.live_jobs()] == jobs[30:40]
        disk.empty()
        assert queue.add(queued("now"), SPEC).id


def test_a_record_that_outgrows_its_row_takes_from_the_reserve_which_is_filled_again(disk: SmallDisk) -> None:
    with JobQueue(disk.path / "queue.sqlite") as queue:
        queue.raise_epoch("a")
        job = queue.add(queued("a"), SPEC)
        fill(queue, disk)
        job.state = RUNNING
        for number in range(30):
            job.excluded.add(worker=f"worker {number}", reason="z" * 300)
            job.trusted_steps[f"worker {number}"] = number
            queue.save(job)
            assert queue.find(job.id) == job
        with pytest.raises(DiskFull):
            queue.add(queued("b"), SPEC)  # not from the reserve
        disk.empty()
        queue.add(queued("b"), SPEC)
        fill(queue, disk)
        for number in range(30, 60):
            job.excluded.add(worker=f"worker {number}", reason="z" * 300)
            queue.save(job)


ACTIONS = st.lists(
    st.sampled_from(["add", "start", "grow", "end", "remove", "fill", "empty", "restart", "look"]),
    min_size=5,
    max_size=60,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_whatever_happens_the_queue_is_what_was_acknowledged(disk: SmallDisk, actions: list[str]) -> None:
    disk.empty()
    for file in disk.path.iterdir():
        file.unlink()
    path = disk.path / "queue.sqlite"
    queue = JobQueue(path)
    queue.raise_epoch("a")
    model: dict[str, Job] = {}
    removed: list[str] = []
    try:
        for number, action in enumerate(actions):
            live = [job for job in model.values() if job.state in (QUEUED, RUNNING)]
            if action == "add":
                try:
                    added = queue.add(queued(f"job {number}"), SPEC * 20)
                except DiskFull:
                    continue
                model[added.id] = added
            elif action in ("start", "grow", "end") and live:
                job = live[0]
                job.state = SUCCEEDED if action == "end" else RUNNING
                job.step += 1
                job.detail = "d" * (300 if action == "grow" else 0)
                queue.save(job)
            elif action == "remove" and len(live) < len(model):
                ended = next(job for job in model.values() if job not in live)
                assert queue.begin_removal(ended.id), "a full disk does not stop what makes space"
                removed.append(model.pop(ended.id).id)
            elif action == "fill":
                disk.fill()
            elif action == "empty":
                disk.empty()
            elif action == "restart":
                queue.close()
                queue = JobQueue(path)
                queue.raise_epoch("a")
            elif action == "look":
                queue.look("standby")
            assert queue.page(None, 1000).jobs == list(model.values())
            assert queue.begun_removals(1000) == removed[::-1]
    finally:
        queue.close()

"""The register of jobs: it finds a job by a part of its id, and advises on workers that a step is too small for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from aggregator.core.events import PauseRequested, PriorityRequested, ResumeRequested
from aggregator.core.job_report import Record
from aggregator.core.requests import Request
from aggregator.core.scheduling.views import Wait
from aggregator.job_register import JobRegister
from aggregator.storage.job_queue import JobQueue
from protos.jobs_pb2 import CANCELLED, PAUSED, QUEUED, RUNNING, Job, JobState
from services.caps import Caps
from services.config.job import JobConfig
from services.errors import Failed, Refused
from services.files.store import FileStore
from services.protocol.plan import JobPlan
from services.sizing.idle import advise_on_idle_workers
from tests.services.sizing.test_idle import job as make_config


def make_register(
    folder: Path,
    queue: JobQueue,
    live: dict[str, Record],
    feed: Callable[[Request], None] = lambda event: None,
    places: Mapping[str, Wait] = MappingProxyType({}),
) -> JobRegister:
    return JobRegister(
        queue, live, feed, Caps(), FileStore(folder / "files"), lambda: places, lambda config: {}
    )


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    with JobQueue(tmp_path / "queue.sqlite") as opened:
        opened.raise_epoch()
        yield opened


def stored(queue: JobQueue, state: JobState = QUEUED, **plan: Any) -> Record:
    """Put a job into the queue, and return its live record."""
    job = queue.add(Job(name="a", state=state, submitted_seconds=1.8e9), "{}")
    return Record(job, "{}", JobPlan(steps=9, micro_batches=4, **plan))


def running(config: JobConfig, workers: int) -> Record:
    job = Job(id="job-1", state=RUNNING, workers=workers)
    return Record(job, config.to_json(), config.plan())


def test_a_running_job_with_too_few_micro_batches_is_advised_how_to_use_all_workers(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        config = make_config(batch_size=60)
        for workers in (0, 1, 5):
            record = running(config, workers)
            register = make_register(tmp_path, queue, {"job-1": record})
            expected = advise_on_idle_workers(config, workers) or ""
            assert register.describe(record.job).advice == expected
        assert expected.startswith("a step has 1 micro-batch, so 1 of 5 workers computes; ")
        assert not make_register(tmp_path, queue, {}).describe(record.job).advice, "it has ended"


def test_a_live_job_is_looked_up_by_a_part_of_its_id_too(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        stored = queue.add(Job(name="a", state=RUNNING, submitted_seconds=1.8e9), "{}")
        config = make_config()
        live = Record(Job(id=stored.id, step=7), config.to_json(), config.plan())
        register = make_register(tmp_path, queue, {stored.id: live})
        for part in (stored.id, stored.id[-6:], "latest"):
            found = register.look_up(part)
            assert found is live.job, "the live record, which is newer than the one on disk"
        assert register.look_up("zzz") is None


def test_what_people_decide_is_on_disk_before_the_core_hears_of_it(tmp_path: Path, queue: JobQueue) -> None:
    record = stored(queue)
    job = record.job.id
    heard = []

    def feed(event: Request) -> None:
        on_disk = queue.find(job)
        assert on_disk is not None
        heard.append((event, on_disk.state, on_disk.priority))
        record.job.CopyFrom(on_disk)  # as the core does

    register = make_register(tmp_path, queue, {job: record}, feed)
    assert register.pause(job).state == PAUSED
    assert register.set_priority(job, -3).priority == -3
    assert register.set_priority(job, -3).priority == -3, "it is that already"
    assert register.resume(job).state == QUEUED
    assert heard == [
        (PauseRequested(job), PAUSED, 0),
        (PriorityRequested(job, -3), PAUSED, -3),
        (ResumeRequested(job), QUEUED, -3),
    ]
    (live,) = queue.live_jobs()
    assert (live.job.state, live.job.priority) == (QUEUED, -3), "after a restart"


def test_a_running_job_that_is_paused_says_so_on_disk_while_it_runs(tmp_path: Path, queue: JobQueue) -> None:
    record = stored(queue, RUNNING)
    job = record.job.id
    register = make_register(tmp_path, queue, {job: record})
    assert register.pause(job).state == RUNNING
    (live,) = queue.live_jobs()
    assert (live.job.state, live.job.pausing) == (RUNNING, True)


def test_what_can_t_be_done_to_a_job_is_refused_in_one_line(tmp_path: Path, queue: JobQueue) -> None:
    records = {state: stored(queue, state) for state in (QUEUED, RUNNING, PAUSED, CANCELLED)}
    ended = records[CANCELLED].job.id
    live = {each.job.id: each for each in records.values() if each.job.id != ended}
    register = make_register(tmp_path, queue, live, feed=lambda event: pytest.fail("the core heard of it"))

    def refused(call: Callable[[str], object], job: str) -> str:
        with pytest.raises(Refused) as caught:
            call(job)
        return str(caught.value)

    def prefer(job: str) -> object:
        return register.set_priority(job, 1)

    for done, call in (("paused", register.pause), ("resumed", register.resume)):
        expected = f"job {ended} is cancelled already; only jobs that have not ended can be {done}"
        assert refused(call, ended) == expected
    assert "only jobs that have not ended can be given another priority" in refused(prefer, ended)
    paused = records[PAUSED].job.id
    assert refused(register.pause, paused).startswith(f"job {paused} is paused already; expected a queued")
    for state, name in ((QUEUED, "queued"), (RUNNING, "running")):
        job = records[state].job.id
        assert refused(register.resume, job) == f"job {job} is {name}; expected a paused one"
    for call in (register.pause, register.resume, prefer):
        assert refused(call, "nobody").startswith("no job 'nobody'; the newest are: ")


def test_a_decision_that_can_t_be_written_changes_nothing(tmp_path: Path, queue: JobQueue) -> None:
    record = stored(queue)
    register = make_register(
        tmp_path, queue, {record.job.id: record}, feed=lambda event: pytest.fail("the core heard of it")
    )
    queue.close()
    for call in (register.pause, lambda job: register.set_priority(job, 1)):
        with pytest.raises(Failed):
            call(record.job.id)
    assert record.job.state == QUEUED and not record.job.priority


def test_queued_jobs_are_listed_with_their_place_and_the_workers_they_want(
    tmp_path: Path, queue: JobQueue
) -> None:
    first, second = stored(queue, min_workers=2, max_workers=3), stored(queue)
    places = {
        first.job.id: Wait(1, "waits for job x to end", 5.0),
        second.job.id: Wait(2, "waits for 1 job before it", None),
    }
    live = {each.job.id: each for each in (first, second)}
    register = make_register(tmp_path, queue, live, places=places)
    for job in (register.page(None, 0, newest_first=False).jobs[0], register.describe(first.job)):
        assert (job.position, job.waiting, job.estimated_start_seconds) == (1, "waits for job x to end", 5.0)
        assert (job.min_workers, job.max_workers) == (2, 3)
    job = register.describe(second.job)
    assert job.position == 2 and not job.HasField("estimated_start_seconds")
    assert not first.job.position, "what is stored has no place"

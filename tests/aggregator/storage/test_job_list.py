"""Tests of new jobs in the queue: ids, repeated requests, pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.storage import job_queue
from aggregator.storage.job_ids import draw_job_id
from aggregator.storage.job_queue import LARGEST_PAGE_BYTES, JobQueue
from protos.jobs_pb2 import QUEUED, Job
from services.errors import Failed, Refused


def queued(name: str, **fields: str) -> Job:
    return Job(name=name, state=QUEUED, submitted_seconds=1.8e9, **fields)


def test_an_id_that_the_queue_has_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter(["a", "a", "a", "b"])
    monkeypatch.setattr(job_queue, "draw_job_id", lambda _: next(draws))
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        first, second = queue.add(queued("first"), "1"), queue.add(queued("second"), "2")
        assert (first.id, second.id) == ("a", "b")
        assert [(each.job.name, each.spec_json) for each in queue.live_jobs()] == [
            ("first", "1"),
            ("second", "2"),
        ]
        monkeypatch.setattr(job_queue, "draw_job_id", lambda _: "a")
        with pytest.raises(Failed, match="no new id after 100 draws, the last was a; submit again"):
            queue.add(queued("third"), "3")


def test_ids_of_one_second_differ_and_are_short() -> None:
    ids = [draw_job_id(1.8e9) for _ in range(1000)]
    assert len(set(ids)) >= 999
    assert {len(each) for each in ids} == {20}


def test_an_update_must_hit_a_job(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        with pytest.raises(Failed, match="no job nobody, whose record was to be updated"):
            queue.save(Job(id="nobody", state=QUEUED))
        assert queue.page(None, 10).jobs == []


def test_a_repeated_request_yields_the_same_job_after_a_restart_too(tmp_path: Path) -> None:
    for start in range(2):
        with JobQueue(tmp_path / "queue.sqlite") as queue:
            queue.raise_epoch()
            job = queue.add(queued("a"), "{}", "request-1")
            assert job == queue.add(queued("a"), "{}", "request-1")
            other = queue.add(queued("a", owner="ann"), "{}", "request-1")
            assert other.id != job.id, "request ids belong to a person"
            for name, spec in (("a", "[]"), ("b", "{}")):
                with pytest.raises(
                    Refused, match=f"request_id 'request-1': job {job.id} was submitted with it"
                ):
                    queue.add(queued(name), spec, "request-1")
            assert len(queue.page(None, 10).jobs) == 2
            assert queue.add(queued("a"), "{}").id != job.id, "without a request id every job is new"
            queue.save(Job(id=queue.page(None, 1, newest_first=True).jobs[0].id, state=QUEUED))
            if start == 0:
                queue._connection.execute("DELETE FROM jobs WHERE request_id = ''")


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> JobQueue:
    queue = JobQueue(tmp_path_factory.mktemp("pages") / "queue.sqlite")
    queue.raise_epoch()
    for number in range(23):
        queue.add(queued(f"job {number}"), "{}")
    return queue


@settings(max_examples=30, deadline=None)
@given(limit=st.integers(1, 30), newest_first=st.booleans())
def test_pages_together_are_all_jobs_once(queue: JobQueue, limit: int, newest_first: bool) -> None:
    names: list[str] = []
    after = None
    while True:
        page = queue.page(after, limit, newest_first=newest_first)
        assert 0 < len(page.jobs) <= limit
        names += [job.name for job in page.jobs]
        after = page.next_place
        if after is None:
            break
    expected = [f"job {number}" for number in range(23)]
    assert names == (expected[::-1] if newest_first else expected)


def test_a_page_is_bounded_in_bytes(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        for _ in range(3):
            job = queue.add(queued("a"), "{}")
            job.detail = "x" * (LARGEST_PAGE_BYTES // 2)
            queue.save(job)
        page = queue.page(None, 1000)
        assert len(page.jobs) == 1 and page.next_place is not None

"""Tests of new jobs in the queue: ids, repeated requests, pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.storage import job_queue
from aggregator.storage.job_ids import draw_job_id
from aggregator.storage.job_queue import LARGEST_PAGE_BYTES, LATEST, JobFilter, JobQueue
from protos.jobs_pb2 import CANCELLED, FAILED, QUEUED, RUNNING, Job
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


def add_jobs(queue: JobQueue, count: int) -> list[str]:
    """Queue jobs, every tenth of them ann's and named rare; return their ids."""
    queue.raise_epoch()
    return [
        queue.add(
            queued("rare" if place % 10 == 3 else "often", owner="" if place % 10 != 3 else "ann"), "{}"
        ).id
        for place in range(count)
    ]


def test_a_job_is_found_by_any_part_of_its_id_that_no_other_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = iter(["1122-183045-3fa9c1d2", "1122-183045-3fa9ffff", "1123-000000-00000001"])
    monkeypatch.setattr(job_queue, "draw_job_id", lambda _: next(draws))
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        assert queue.resolve_id(LATEST) is None
        first, second, third = add_jobs(queue, 3)
        assert {queue.resolve_id(each) for each in (first, "c1d2", "9c1")} == {first}
        assert queue.resolve_id("ffff") == second
        assert {queue.resolve_id(each) for each in ("1123", LATEST)} == {third}
        assert queue.resolve_id("zzz") is None
        assert queue.resolve_id("%") is None, "no wildcards"
        with pytest.raises(
            Refused, match=f"'1122': the ids of several jobs contain this: {first}, {second}; give"
        ):
            queue.resolve_id("1122")
        with pytest.raises(Refused, match="no job is named"):
            queue.resolve_id("")


def test_only_some_candidates_are_named(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        add_jobs(queue, 20)
        with pytest.raises(Refused, match=r", \.\.\.; give more") as refused:
            queue.resolve_id("-")
        assert str(refused.value).count("-") == 2 * 5 + 1


def test_a_part_is_looked_up_without_reading_records(tmp_path: Path) -> None:
    """With 10,000 jobs the records have 18 MB, the index on ids 0.3 MB."""
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        statements: list[str] = []
        queue._connection.set_trace_callback(statements.append)
        queue.resolve_id("part")
        assert len(statements) == 2
        for statement in statements:
            (plan,) = queue._connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
            assert "COVERING INDEX" in plan[3], plan


def test_filters_select_jobs_and_pages_go_on_after_what_they_pass_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "LARGEST_PAGE_JOBS", 7)
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        ids = add_jobs(queue, 60)
        ended = queue.find(ids[13])
        assert ended is not None
        ended.state = FAILED
        queue.save(ended)
        wanted = [each for place, each in enumerate(ids) if place % 10 == 3]

        def collect(only: JobFilter, limit: int = 100) -> tuple[list[str], int]:
            found, after, pages = [], None, 0
            while True:
                page = queue.page(after, limit, newest_first=True, only=only)
                found += [each.id for each in page.jobs]
                after, pages = page.next_place, pages + 1
                if after is None:
                    return found[::-1], pages

        for only in (JobFilter(owner="ann"), JobFilter(name="are")):
            assert collect(only) == (wanted, 9), "at most 7 of the 60 are looked at for a page"
            assert collect(only, limit=1)[0] == wanted
        assert collect(JobFilter(frozenset({FAILED})))[0] == [ids[13]]
        assert collect(JobFilter(frozenset({QUEUED}), "ann", "rare"))[0] == [
            each for each in wanted if each != ids[13]
        ]
        assert collect(JobFilter(owner="bob"))[0] == []


@pytest.mark.parametrize("newest_first", [False, True])
def test_live_jobs_are_found_at_once_however_many_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    monkeypatch.setattr(job_queue, "LARGEST_PAGE_JOBS", 7)
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        ids = add_jobs(queue, 60)
        live = {ids[3], ids[30], ids[57]}
        for each in ids:
            if each not in live:
                queue.save(Job(id=each, state=CANCELLED))
        page = queue.page(None, 7, newest_first=newest_first, only=JobFilter(frozenset({QUEUED, RUNNING})))
        assert ({each.id for each in page.jobs}, page.next_place) == (live, None)
        page = queue.page(None, 7, newest_first=newest_first, only=JobFilter(frozenset({CANCELLED, FAILED})))
        assert len(page.jobs) == 7 and not live & {each.id for each in page.jobs}
        page = queue.page(None, 7, newest_first=newest_first, only=JobFilter(frozenset({QUEUED, FAILED})))
        assert {each.id for each in page.jobs} <= live and page.next_place is not None


def test_the_newest_jobs_are_one_small_query(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        add_jobs(queue, 200)
        statements: list[str] = []
        queue._connection.set_trace_callback(statements.append)
        page = queue.page(None, 51, newest_first=True)
        assert (len(statements), len(page.jobs)) == (1, 51)
        assert statements[0].endswith("LIMIT 52")
        (plan,) = queue._connection.execute(f"EXPLAIN QUERY PLAN {statements[0]}").fetchall()
        assert "SEARCH jobs USING INTEGER PRIMARY KEY" in plan[3], plan

"""Tests of the caps on the number of jobs: they hold for any order of submissions, also at the same time."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.storage.job_queue import JobQueue
from protos.jobs_pb2 import CANCELLED, QUEUED, RUNNING, Job
from services.caps import Cap, CapReached, Caps
from services.printable import LINE_CHARACTERS

CAPS = Caps(queued_jobs=4, jobs_per_person=2)


def submit(queue: JobQueue, owner: str, request_id: str = "", caps: Caps = CAPS) -> Job | CapReached:
    """Return the new job, or the refusal."""
    try:
        return queue.add(Job(name="a", owner=owner, state=QUEUED), "{}", request_id, caps)
    except CapReached as reached:
        return reached


def test_refusals_say_whose_the_cap_is_and_what_to_do(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        owners = ("ann", "ann", "bob", "cy")
        first, *_, last = (submit(queue, owner, f"request-{number}") for number, owner in enumerate(owners))
        assert isinstance(first, Job) and isinstance(last, Job)
        full = submit(queue, "dan")
        assert isinstance(full, CapReached) and full.cap is Cap.QUEUED_JOBS
        assert str(full) == (
            "queue: 4 jobs queued, running or paused, expected at most 4 (--max-queued-jobs of the aggregator); submit "
            "again when some have ended, or cancel some with `tiermesh cancel`"
        )
        assert submit(queue, "ann", "request-0") == first, "a repeated request still yields its job"
        last.state = CANCELLED
        queue.save(last)
        own = submit(queue, "ann")
        assert isinstance(own, CapReached) and own.cap is Cap.JOBS_PER_PERSON
        assert str(own) == (
            "person ann: has 2 jobs queued, running or paused, expected at most 2 (--max-jobs-per-person of the "
            "aggregator); submit again when some have ended, or cancel some with `tiermesh cancel`"
        )
        assert isinstance(submit(queue, "ann", "request-1"), Job)
        assert isinstance(submit(queue, "dan"), Job)


def test_long_names_leave_the_refusal_whole(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        caps = Caps(queued_jobs=1_000_000, jobs_per_person=1)
        owner = "a\n" * 500
        assert isinstance(submit(queue, owner, caps=caps), Job)
        text = str(submit(queue, owner, caps=caps))
        assert len(text) <= LINE_CHARACTERS and text.isprintable() and text.endswith("`tiermesh cancel`")


def test_submissions_at_the_same_time_do_not_pass_the_caps(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue, ThreadPoolExecutor(8) as threads:
        queue.raise_epoch()
        found = [*threads.map(lambda number: submit(queue, f"person-{number % 3}"), range(60))]
        assert sum(isinstance(each, Job) for each in found) == CAPS.queued_jobs
        assert len(queue.live_jobs()) == CAPS.queued_jobs


@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.just("submit"), st.sampled_from(["", "ann", "bob", "cy"]))
        | st.tuples(st.sampled_from(["run", "end"]), st.integers(0, 5)),
        max_size=30,
    )
)
def test_a_job_is_refused_exactly_when_a_cap_is_reached(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]]
) -> None:
    with JobQueue(tmp_path_factory.mktemp("caps") / "queue.sqlite") as queue:
        queue.raise_epoch()
        live: list[Job] = []
        for what, argument in steps:
            if isinstance(argument, str):
                found = submit(queue, argument)
                own = Counter(job.owner for job in live)[argument]
                if len(live) >= CAPS.queued_jobs:
                    assert isinstance(found, CapReached) and found.cap is Cap.QUEUED_JOBS
                elif argument and own >= CAPS.jobs_per_person:
                    assert isinstance(found, CapReached) and found.cap is Cap.JOBS_PER_PERSON
                else:
                    assert isinstance(found, Job)
                    live.append(found)
            elif live and isinstance(argument, int):
                job = live[argument % len(live)]
                job.state = RUNNING if what == "run" else CANCELLED
                queue.save(job)
                if what == "end":
                    live.remove(job)
        assert [each.job for each in queue.live_jobs()] == live

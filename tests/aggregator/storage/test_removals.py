"""Jobs leave the queue in two steps: taken out and noted, then forgotten once their files are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.core.succession import Deposed
from aggregator.storage import job_queue
from aggregator.storage.job_queue import JobQueue
from protos import jobs_pb2


def add(queue: JobQueue, name: str, state: jobs_pb2.JobState = jobs_pb2.SUCCEEDED) -> str:
    job = queue.add(jobs_pb2.Job(name=name, state=jobs_pb2.QUEUED, steps=10), '{"a": "spec"}', name)
    job.state = state
    queue.save(job)
    return job.id


def begun(queue: JobQueue) -> list[str]:
    return queue.begun_removals(100)


def test_a_removed_job_is_noted_until_its_files_are_gone(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        first, second, third = (add(queue, name) for name in "abc")
        assert queue.begin_removal(first) and queue.begin_removal(third)
        assert queue.find(first) is None
        assert [each.id for each in queue.page(None, 10).jobs] == [second]
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        assert begun(queue) == [third, first], "a restart goes on with them"
        assert queue.begun_removals(1) == [third]
        queue.finish_removal(first)
        queue.finish_removal(first)
        assert begun(queue) == [third]


@pytest.mark.parametrize("state", [jobs_pb2.QUEUED, jobs_pb2.RUNNING])
def test_a_live_job_is_never_removed(tmp_path: Path, state: jobs_pb2.JobState) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        job = add(queue, "a", state)
        assert not queue.begin_removal(job)
        assert not queue.begin_removal("no such job")
        assert queue.find(job) is not None and begun(queue) == []


def test_an_aggregator_that_was_taken_over_from_removes_nothing(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as old, JobQueue(tmp_path / "queue.sqlite") as new:
        old.raise_epoch()
        job = add(old, "a")
        new.raise_epoch()
        with pytest.raises(Deposed):
            old.begin_removal(job)
        assert new.find(job) is not None


def test_a_new_job_never_gets_the_id_of_one_whose_files_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(["1", "1", "1", "2"])
    monkeypatch.setattr(job_queue, "draw_job_id", lambda _: next(ids))
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        assert queue.begin_removal(add(queue, "a"))
        assert add(queue, "b") == "2"

"""The jobs_list figure: a short run with a real aggregator."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.storage.job_queue import JobFilter, open_queue
from benchmarks.figures import jobs_list
from services.timeouts import Timeouts


def test_the_queue_is_filled_with_jobs_that_can_be_read(tmp_path: Path) -> None:
    jobs_list.fill_queue(tmp_path / "state", 2001)
    with open_queue(tmp_path / "state", Timeouts.from_heartbeat(5.0)) as queue:
        page = queue.page(None, 2001, only=JobFilter(name="rare"))
        assert [each.id[-8:] for each in page.jobs] == ["00000000"]
        assert page.next_place is not None, "a thousand were looked at"
        assert queue.resolve_id("000007d0") == queue.page(None, 1, newest_first=True).jobs[0].id


@pytest.mark.slow
def test_commands_answer_with_three_hundred_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_list, "BOUND_SECONDS", 60.0)
    assert jobs_list.run(300)

"""The watch over a detached run's job: how it ends, and what is kept of it."""

from __future__ import annotations

import asyncio

import pytest

from cli.launch.agent import job_watch
from cli.launch.agent.job_watch import JobWatch, read_ended_job
from cli.launch.agent.protocol import RunOver, WatchJob, decode, encode
from protos import jobs_pb2
from services.errors import Refused
from tests.support.fake_aggregator import Context, FakeAggregator, serving
from tests.support.ports import free_port

ENDED = jobs_pb2.Job(
    id="job-1", state=jobs_pb2.SUCCEEDED, loss=0.1, steps=10, checkpoint="/runs/ü", owner="launcher"
)


class EndingJob(FakeAggregator):
    """Aggregator whose job runs at the first question and has ended at the second."""

    async def Get(self, request: jobs_pb2.JobRequest, context: Context) -> jobs_pb2.Job:
        running = not self.jobs
        self.jobs["job-1"] = ENDED
        return jobs_pb2.Job(id="job-1", state=jobs_pb2.RUNNING) if running else ENDED


def wait(address: str) -> RunOver:
    watch = JobWatch(WatchJob("job-1", address, "optimizer-host", ()))
    return asyncio.run(asyncio.wait_for(watch.wait(), 30))


def test_it_ends_with_the_job_whose_last_state_survives_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "POLL_SECONDS", 0.01)
    with serving(EndingJob()) as aggregator:
        message = decode(encode(wait(aggregator.address)))
    assert isinstance(message, RunOver)
    assert read_ended_job(message.job) == ENDED


def test_a_job_that_is_gone_ends_it_with_the_reason() -> None:
    with serving(FakeAggregator()) as aggregator:
        assert wait(aggregator.address) == RunOver("", "no job 'job-1'")


def test_an_aggregator_that_stays_away_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.jobs.OUTAGE_SECONDS", 0.0)
    over = wait(address := f"127.0.0.1:{free_port()}")
    assert over == RunOver("", f"aggregator {address} has not answered for 180 s")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {"optimizer": "box:7071: no Hello within 10 s"},
            "no optimizer (box:7071: no Hello within 10 s) for 0 s",
        ),
        ({"optimizer": "optimizer-host"}, "no workers for 0 s"),
    ],
)
def test_a_job_that_cannot_go_on_ends_it(
    status: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(job_watch, "OUTAGE_SECONDS", 0.0)
    with serving(FakeAggregator()) as aggregator:
        aggregator.jobs["job-1"] = jobs_pb2.Job(id="job-1", state=jobs_pb2.RUNNING)
        aggregator.status = jobs_pb2.ClusterStatus(**status)
        assert wait(aggregator.address) == RunOver("", said)


def test_a_damaged_result_is_refused() -> None:
    with pytest.raises(Refused, match="install the same Tiermesh there"):
        read_ended_job('{"id": 1')

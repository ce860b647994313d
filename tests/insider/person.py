"""The insider as a person: calls of `Jobs` with odd values, out of turn and repeated.

The port lets a person cancel only its own jobs, and decide only about these, as `JobsService` does. What an own job may
do is left as it is: it uses the time of workers like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from aggregator.core.cluster_status import make_status
from protos import jobs_pb2 as jobs
from protos.jobs_pb2 import QUEUED, RUNNING, Job
from tests.insider.ports import Refused, passed_on
from tests.simulation.job_model import require
from tests.simulation.process import Process
from tests.simulation.scenario import make_job
from tests.simulation.simulated_aggregator import SimulatedAggregator

if TYPE_CHECKING:
    from tests.insider.simulated import InsiderCluster

MOST_CALLS = 60
MOST_JOBS = 4
"""Largest number of jobs that it submits, as the queue has a limit for each person."""


class LyingPerson(Process):
    """A person that lies. When the jobs of the honest have ended, it cancels its own."""

    cluster: InsiderCluster

    def __init__(self, cluster: InsiderCluster) -> None:
        super().__init__(cluster, "person")
        self._own: list[str] = []
        self._calls = 0
        self.later(20 * cluster.liar.draw.random(), self._go_on)

    def _go_on(self) -> None:
        aggregator, liar = self.cluster.aggregator, self.cluster.liar
        calls: list[Callable[[SimulatedAggregator], Any]] = [
            self._submit, self._submit, self._cancel, self._trust, self._ask, self._check_links,
        ]  # fmt: skip
        if aggregator is not None and aggregator.running:
            if self._honest_ended():
                for job in self._own:
                    self._end(aggregator, job)
            elif self._calls < MOST_CALLS:
                call = liar.draw.choice(calls)
                for _ in range(liar.draw.choice((1, 1, 3))):
                    self._calls += 1
                    self.cluster.injected[f"person: {call.__name__.strip('_')}"] += 1
                    call(aggregator)
        self.later(liar.draw.choice((0.01, 1.0, 10.0)), self._go_on)

    def _honest_ended(self) -> bool:
        saved = self.cluster.disk.jobs
        honest = (each.id for each in self.cluster.scenario.jobs)
        return all(job in saved and saved[job].job.state not in (QUEUED, RUNNING) for job in honest)

    def _submit(self, aggregator: SimulatedAggregator) -> None:
        draw = self.cluster.liar.draw
        if len(self._own) == MOST_JOBS:
            return
        job = make_job(draw, 1 + len(self._own), draw.choice((1, 2, 500)), draw.choice((1, 3)), 5, 2)
        job.plan = replace(job.plan, min_workers=draw.choice((1, 2, 1 << 16)))
        self._own.append(job.id)
        self.cluster.add_job(job)
        self.cluster.liar.told.append(f"submits {job.id}: {job.plan}")
        record = Job(id=job.id, name=draw.choice(("", "x" * 200)), state=QUEUED, steps=job.plan.steps)
        aggregator.submit(record, job.plan)

    def _cancel(self, aggregator: SimulatedAggregator) -> None:
        request = self._request(jobs.JobRequest)
        if request is not None and request.job in self._own:
            self._end(aggregator, request.job)

    def _trust(self, aggregator: SimulatedAggregator) -> None:
        request = self._request(jobs.TrustRequest)
        if request is not None and request.job in self._own:
            aggregator.trust(request.job, request.worker)

    def _ask(self, aggregator: SimulatedAggregator) -> None:
        status = make_status(aggregator.core, aggregator.now)
        require(status.ByteSize() < 1 << 20, f"status has {status.ByteSize()} bytes")

    def _check_links(self, aggregator: SimulatedAggregator) -> None:
        aggregator.begin_check(self.cluster.liar.draw.choice((0.0, 0.5, 5.0)))

    def _request(self, kind: Callable[[], Message]) -> Any:
        """Return a request that is made up, as it comes out of the port; None if the port refuses it."""
        liar = self.cluster.liar
        if self._own:
            liar.learn(jobs.JobRequest(job=liar.draw.choice([*self._own, *self.cluster.jobs])))
        liar.learn(jobs.TrustRequest(worker=liar.draw.choice([*self.cluster.workers, ""])))
        request = liar.make_up(kind().DESCRIPTOR)
        liar.told.append(str(request))
        try:
            return passed_on(request)
        except Refused:
            return None

    def _end(self, aggregator: SimulatedAggregator, job: str) -> None:
        """Cancel an own job, as the service does: one that has ended is refused."""
        if self.cluster.disk.jobs[job].job.state in (QUEUED, RUNNING):
            self.cluster.checks.cancelled(job)
            aggregator.cancel(job)

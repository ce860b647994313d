"""Reports to users and tools: events of jobs, the state of the core, and waits that take long."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from aggregator.core.aggregator import AggregatorCore, Clock
from aggregator.core.events import Note
from aggregator.history.writer import MetricsHistory
from aggregator.storage.journal import Journal
from aggregator.tracking import JobTracking
from protos.jobs_pb2 import QUEUED, JobEvent, Wait
from services.protocol.activities import efficiency
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.timeouts import Timeouts

log = logging.getLogger("tiermesh.aggregator")


class EventPublisher:
    """Publishes events of jobs to the journal, the log, the metrics, the histories and the trackers.

    Args:
        journal: the jobs' logs and their watchers.
        metrics: the aggregator's metrics.
        history: the histories of the jobs' figures.
        tracking: the trackers of the running jobs.
    """

    def __init__(
        self, journal: Journal, metrics: AggregatorMetrics, history: MetricsHistory, tracking: JobTracking
    ) -> None:
        self._journal = journal
        self._metrics = metrics
        self._history = history
        self._tracking = tracking

    def publish(self, note: Note, clock: Clock) -> None:
        """Publish one event."""
        event = JobEvent(
            job=note.job,
            seconds=clock.unix_seconds,
            kind=note.kind,
            text=note.text,
            grad_norm=note.grad_norm,
            learning_rate=note.learning_rate,
            step_seconds=note.step_seconds,
            split=note.split,
            waited_for=note.waited_for,
        )
        self._journal.publish(event)
        self._history.record(event)
        self._tracking.record(event)
        level = logging.DEBUG if note.kind == "printed" else logging.INFO  # the worker's log has it
        log.log(level, "%s", note.text, extra={"job": note.job.id, "step": note.job.step})
        if note.kind == "step" and note.job.HasField("loss"):
            self._metrics.record_step(
                note.job.id, step=note.job.step, loss=note.job.loss, seconds=note.step_seconds
            )
            self._metrics.set_compute(
                note.job.id,
                parameters=note.job.parameters,
                flops_per_token=note.job.flops_per_token,
                mfu=note.job.mfu if note.job.HasField("mfu") else None,
            )
        if note.kind == "evaluation":
            self._metrics.set_validation_loss(note.job.id, note.job.validation_loss)


def report_state(core: AggregatorCore, metrics: AggregatorMetrics) -> None:
    """Show the workers and jobs of a core in the metrics."""
    metrics.set_workers(len(core.members))
    metrics.set_idle_workers(core.activities.times.count_idle())
    queued = sum(record.job.state == QUEUED for record in core.jobs.records.values())
    metrics.set_jobs(queued=queued, running=list(core.runs))
    for job, run in core.runs.items():
        metrics.set_efficiency(job, efficiency(run.job.worker_seconds))


class WaitReporter:
    """Shows current waits in the metrics, and logs each one when it passes a timeout.

    Args:
        metrics: the aggregator's metrics.
        timeouts: the cluster's timeouts.
    """

    def __init__(self, metrics: AggregatorMetrics, timeouts: Timeouts) -> None:
        self._metrics = metrics
        self._timeouts = timeouts
        # The longest timeout that each wait has passed, by peer, job, step and what is owed.
        self._passed: dict[tuple[str, str, int, str], str | None] = {}

    def report(self, waits: Sequence[Wait]) -> None:
        """Report the current waits, the longest first."""
        self._metrics.set_waits({each.peer: each.seconds for each in reversed(waits)})
        passed_before, self._passed = self._passed, {}
        for each in waits:
            key, timeout = (
                (each.peer, each.job, each.step, each.what),
                self._timeouts.longest_exceeded(each.seconds),
            )
            self._passed[key] = timeout
            if timeout and passed_before.get(key) != timeout:
                chunk = f", chunk {each.bucket}" if each.HasField("bucket") else ""
                log.warning(
                    "waiting for %s %s: %s%s, for %.1f s (longer than timeout %s)",
                    each.role, each.peer, each.what, chunk, each.seconds, timeout,
                    extra={"job": each.job, "step": each.step},
                )  # fmt: skip

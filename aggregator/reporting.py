"""Reports to users and tools: events of jobs, the state of the core, and waits that take long."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from aggregator.core.aggregator import AggregatorCore, Clock
from aggregator.core.events import Note, NoticeKind
from aggregator.core.job_report import Record, copy_job
from aggregator.history.writer import MetricsHistory
from aggregator.notifications.notifier import Notifier
from aggregator.notifications.targets import TargetFile
from aggregator.storage.job_queue import JobQueue
from aggregator.storage.journal import Journal
from aggregator.tracking import JobTracking
from protos.jobs_pb2 import QUEUED, JobEvent, Wait
from services.errors import Failed
from services.printable import format_bytes, printable_path
from services.protocol.activities import efficiency
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.timeouts import Timeouts

log = logging.getLogger("tiermesh.aggregator")


class EventPublisher:
    """Publishes events of jobs to the journal, the log, the metrics, the histories, the trackers and the targets.

    It is constructed on the event loop, and used there.

    Args:
        state_dir: the folder of histories, trackers and messages that wait.
        queue: the jobs on disk.
        find_record: returns the record of a job that has not ended; None for another one.
        journal: the jobs' logs and their watchers.
        metrics: the aggregator's metrics.
        targets: the targets of jobs' `notify`.

    Attributes:
        history: the histories of the jobs' figures.
        tracking: the trackers of the running jobs.
        notifier: tells the targets.
    """

    def __init__(
        self,
        state_dir: Path,
        queue: JobQueue,
        find_record: Callable[[str], Record | None],
        journal: Journal,
        metrics: AggregatorMetrics,
        targets: TargetFile,
    ) -> None:
        self._queue = queue
        self._find_record = find_record
        self._journal = journal
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self.history = MetricsHistory(state_dir / "metrics")
        self.tracking = JobTracking(
            state_dir / "tracking", self._find_spec, metrics.count_lost_points, self._tell
        )
        self.notifier = Notifier(
            state_dir / "notifications",
            targets,
            self._read_spec,
            metrics.count_notifications,
            self._tell_later,
        )

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
        self.history.record(event)
        self.tracking.record(event)
        self.notifier.record(event, note.tells)
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

    def close(self) -> None:
        """Close trackers and targets, or leave those that take too long. It blocks, so another thread calls it."""
        self.tracking.close()
        self.notifier.close()

    def _find_spec(self, job: str) -> str | None:
        record = self._find_record(job)
        return None if record is None else record.spec_json

    def _read_spec(self, job: str) -> str | None:
        """Return the spec of a job, which may have ended."""
        try:
            return self._find_spec(job) or self._queue.read_spec(job)
        except Failed as error:
            log.warning("job %s: its target can't be told: %s", job, error, extra={"job": job})
            return None

    def _tell(self, job: str, text: str) -> None:
        """Write a line about a tracker or a target into a job's log."""
        record = self._find_record(job)
        if record is None:
            log.warning("job %s: %s", job, text, extra={"job": job})
        else:
            self.publish(Note("tracking", text, copy_job(record.job)), Clock(time.monotonic(), time.time()))

    def _tell_later(self, job: str, text: str) -> None:
        """Do the same from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._tell, job, text)


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


class DiskWatch:
    """Tells running jobs, once each time, that a disk is almost full: checkpoints and logs may soon be missing.

    Args:
        folder: a folder on the disk.
        clock: monotonic time in seconds.
    """

    CHECK_SECONDS = 60.0
    LOW_SHARE = 0.05
    LOW_BYTES = 20 * 10**9
    """A disk is low with less than both free, so a large one with 4 % free is not."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._due_seconds = float("-inf")
        self._is_low = False

    def check(self) -> str | None:
        """Look at the disk if it is time to; return a line if it has become low."""
        if self._clock() < self._due_seconds:
            return None
        self._due_seconds = self._clock() + self.CHECK_SECONDS
        try:
            status = os.statvfs(self._folder)
        except OSError:  # what needs the disk says so
            return None
        free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        was_low, self._is_low = self._is_low, free < min(self.LOW_SHARE * total, self.LOW_BYTES)
        if was_low or not self._is_low:
            return None
        what = f"{format_bytes(free)} of {format_bytes(total)} free"
        return f"the aggregator's disk is almost full: {what} at {printable_path(self._folder)}; free space"


def report_low_disk(watch: DiskWatch, core: AggregatorCore, events: EventPublisher) -> None:
    """Tell all running jobs if the disk has become low."""
    text = watch.check()
    if text is not None:
        log.warning("%s", text)
        for run in core.runs.values():
            note = Note("state", text, copy_job(run.job), tells=NoticeKind.DISK_LOW)
            events.publish(note, Clock(time.monotonic(), time.time()))

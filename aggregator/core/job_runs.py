"""The runs of jobs: how they start and end, and how an error in one is kept from the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from aggregator.core.assignments import Assignments
from aggregator.core.events import JobBroke, Note, Outbox, SaveJob, ToWorker
from aggregator.core.job_report import Record, copy_job
from aggregator.core.live_jobs import LiveJobs
from aggregator.core.running_job import RunningJob
from aggregator.core.setting_aside import count_start, note_crash, take_back_start
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, PAUSED, QUEUED
from services.errors import Refusal, name_internal_error
from services.protocol.features import find_lack
from services.protocol.plan import JobPlan


class JobRuns:
    """The running jobs.

    Args:
        by_id: the running jobs by id, in order of their starts; empty yet.
        jobs: the jobs that have not ended.
        assignments: which worker serves which job.
        make_run: makes a run of a record, with its plan and `now`.
        out: takes the effects.

    Attributes:
        by_id: as above.
        jobs: as above.
        assignments: as above.
        peer_features: names of the features of the optimizer or the shards, by peer, of those in other processes.
    """

    def __init__(
        self,
        by_id: dict[str, RunningJob],
        jobs: LiveJobs,
        assignments: Assignments,
        make_run: Callable[..., RunningJob],
        out: Outbox,
    ) -> None:
        self.by_id = by_id
        self.jobs = jobs
        self.assignments = assignments
        self.peer_features: Mapping[str, Collection[str]] = {}
        self._make_run = make_run
        self._out = out

    # ---- starts and moves ----

    def assign(self, now: float, *, lived_seconds: float, unix_seconds: float, optimizer: bool) -> None:
        """Start the jobs that can start, and move workers between jobs.

        Args:
            now: the time, on the monotonic clock.
            lived_seconds: how long the aggregator lives.
            unix_seconds: the time, for people.
            optimizer: whether the optimizer is connected.
        """
        for record, plan in self.assignments.decide(now, lived_seconds):
            run = self._start(record, plan, now, unix_seconds)
            if run is not None and optimizer:
                with self.guard(run):
                    self.open(run)
        for run, members in self.assignments.departures():
            with self.guard(run):
                leaving = [each for each in members if run.lets_go(each, now)]
                if leaving:
                    run.give_back(leaving, self.assignments.describe_departure(run, leaving), now)
        for run in list(self.by_id.values()):
            with self.guard(run):
                run.end_if_left(now)
        self.drop_ended(optimizer=optimizer)
        for run, members in self.assignments.arrivals():
            with self.guard(run):
                run.take(members, now)
        self.drop_ended(optimizer=optimizer)  # one that no worker can run may have ended

    def _start(self, record: Record, plan: JobPlan, now: float, unix_seconds: float) -> RunningJob | None:
        """Start a job; return its run, None if that fails by an unexpected error, which ends the job."""
        count_start(record.job)
        if not record.job.started_seconds:
            record.job.started_seconds = unix_seconds
        try:
            run = self._make_run(record, plan, now=now)
        except Exception as error:  # it would fail again
            text = f"the aggregator can't start this job: {name_internal_error(error)}"
            self._out.put(JobBroke(record.job.id, text, error))
            self.jobs.set_aside(record, Refusal(text))
            self.assignments.note_change()
            return None
        self.by_id[record.job.id] = run
        self.jobs.suspended.discard(record.job.id)
        run.report.begin()
        return run

    def take_back_starts(self) -> None:
        """Note that this process stops because it was asked to, and not because of a job that it runs."""
        for run in self.by_id.values():
            if not run.ended:
                take_back_start(run.job)
                run.report.save()

    def open(self, run: RunningJob) -> None:
        """Have the optimizer open a job, unless it or a shard lacks a feature that the job needs: then the job ends."""
        for peer, features in self.peer_features.items():
            lack = find_lack(run.job.id, run.plan.features, features)
            if lack is not None:
                run.end(FAILED, f"{peer} {lack}")
                return
        run.open()

    # ---- errors and ends ----

    @contextmanager
    def guard(self, run: RunningJob) -> Iterator[None]:
        """Begin a job again after an unexpected error in its own part: its memory can't be trusted, others' can."""
        kept = len(self._out.effects)
        try:
            yield
        except Exception as error:
            self._out.withdraw(kept)
            self._restart(run, error)

    def _restart(self, run: RunningJob, error: Exception) -> None:
        """Have a job start over from its record, or end if it fails at the same step again and again."""
        if self.by_id.get(run.job.id) is not run:
            return  # it has failed within this input already
        step, job = run.job.step, copy_job(run.report.saved)
        reason = name_internal_error(error)
        note_crash(job, reason, step)
        run.job.CopyFrom(job)
        text = f"the aggregator failed while it ran this job, and starts the job again: {reason}"
        self._out.put(JobBroke(run.job.id, text, error))
        self._out.put(SaveJob(copy_job(job)))
        self._out.put(Note("state", text, copy_job(job)))
        self._remove(run)
        for session in run.members:
            self._out.put(ToWorker(session, pb.Leave(job=run.job.id, reason=text)))
        run.close(checkpoint=True)

    def _remove(self, run: RunningJob) -> None:
        """Forget a run, so that its workers can serve another job."""
        del self.by_id[run.job.id]
        for member in run.members.values():
            member.leave_job()
        self.assignments.note_change()

    def drop_ended(self, *, optimizer: bool) -> None:
        """Forget the runs that have ended or stopped.

        Args:
            optimizer: whether the optimizer is connected, which has those open that have stopped.
        """
        for run in [each for each in self.by_id.values() if each.ended]:
            if run.job.state not in (QUEUED, PAUSED):
                del self.jobs.records[run.job.id]
            elif optimizer:
                self.jobs.suspended.add(run.job.id)
            self._remove(run)
